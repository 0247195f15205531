"""The page that composes an agent: its code is the example's, and all of it runs."""

import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import agentkit

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "compose_an_agent.md").read_text(), re.M | re.S)


def run(blocks, folder, monkeypatch):
    """Runs blocks one after the other in a module that can be imported, with a tenth of the steps."""
    module = types.ModuleType("composed_page")
    module.__file__ = str(folder / "composed_page.py")
    Path(module.__file__).write_text("\n".join(blocks[:2]))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "composed_page", module)
    for block in blocks:
        exec(compile(block.replace("4_000", "800"), "composed_page.py", "exec"), vars(module))
    return module


def test_the_page_shows_the_examples_as_they_are():
    by_hand = (ROOT / "examples" / "dqn_by_hand.py").read_text()
    table = (ROOT / "examples" / "own_boxes" / "tabular_q_learning.py").read_text()
    for function in re.split(r"\n\n\n", BLOCKS[0] + "\n\n\n" + BLOCKS[1]):
        assert function.strip().removeprefix("import argparse\n") in by_hand
    for definition in re.split(r"\n\n\n", BLOCKS[-1])[1:]:
        assert definition.strip() in table


@pytest.mark.full
def test_its_blocks_run_one_after_the_other(tmp_path, monkeypatch):
    launched = next(i for i, block in enumerate(BLOCKS) if "agentkit.launch" in block)
    module = run([*BLOCKS[:launched], *BLOCKS[launched + 1 :]], tmp_path, monkeypatch)
    assert module.result.steps == 800 and module.result.updates > 0
    assert module.loop.num_steps == 800
    assert agentkit.resume("runs/composed", num_steps=850).steps == 850
    monkeypatch.undo()


@pytest.mark.full
@pytest.mark.reverb
def test_it_is_launched(tmp_path, monkeypatch):
    launched = next(i for i, block in enumerate(BLOCKS) if "agentkit.launch" in block)
    run([*BLOCKS[:2], BLOCKS[launched - 1], BLOCKS[launched]], tmp_path, monkeypatch)
    assert np.isfinite(agentkit.evaluate("runs/launched", num_episodes=2)["episode_return"]).all()
