"""The page that composes an agent: its code is the example's, all of it runs, and it is short."""

import ast
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import agentkit

ROOT = Path(__file__).resolve().parents[2]
BLOCKS = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "compose_an_agent.md").read_text(), re.M | re.S)
LAUNCHED = {
    folder: block for block in BLOCKS if "agentkit.launch" in block for folder in re.findall('"(runs/.*?)"', block)
}
DEFINITIONS = [block for block in BLOCKS if "ExperimentConfig" not in block and "envs.make" not in block]
TABLE = next(block for block in BLOCKS if "class QLearner" in block)
RULE = next(block for block in BLOCKS if "class Rule" in block)


def run(blocks, folder, monkeypatch):
    """Runs blocks one after the other in a module that can be imported, with a fifth of the steps."""
    module = types.ModuleType("composed_page")
    module.__file__ = str(folder / "composed_page.py")
    Path(module.__file__).write_text("\n".join(DEFINITIONS))
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setitem(sys.modules, "composed_page", module)
    for block in blocks:
        exec(compile(block.replace("4_000", "800"), "composed_page.py", "exec"), vars(module))
    return module


def lines_beside(code, *boxes):
    """Lines of code, imports included, but for docstrings, comments, blanks and the classes of these names."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    tree.body = [node for node in tree.body if getattr(node, "name", None) not in boxes]
    return sum(bool(line.strip()) for line in ast.unparse(tree).splitlines())


def test_the_page_shows_the_examples_as_they_are():
    by_hand = (ROOT / "examples" / "dqn_by_hand.py").read_text()
    table = (ROOT / "examples" / "own_boxes" / "tabular_q_learning.py").read_text()
    for function in re.split(r"\n\n\n", BLOCKS[0] + "\n\n\n" + BLOCKS[1]):
        assert function.strip().removeprefix("import argparse\n") in by_hand
    for definition in re.split(r"\n\n\n", TABLE)[1:]:
        assert definition.strip() in table


def test_blocks_pasted_into_one_script_ask_no_folder_for_its_functions():
    """Which are those of `__main__`, so that a run's folder cannot rebuild them."""
    assert re.findall(r'agentkit\.(?:evaluate|load|resume\w*)\("runs/', "".join(BLOCKS)) == []


def test_own_boxes_are_launched_in_few_lines():
    """The blocks that `test_it_is_launched` runs, without the boxes themselves."""
    assert lines_beside("import x\nclass A:\n    a = 1\ndef f():\n    'Says.'\n\n    return 1  # one\n", "A") == 3
    assert lines_beside(RULE + LAUNCHED["runs/taught"], "Rule") <= 15
    assert lines_beside(TABLE + LAUNCHED["runs/table"], "QActor", "QLearner") <= 20


@pytest.mark.full
def test_its_blocks_run_one_after_the_other(tmp_path, monkeypatch):
    module = run([block for block in BLOCKS if "agentkit.launch" not in block], tmp_path, monkeypatch)
    assert module.result.steps == 800 and module.result.updates > 0
    assert module.loop.num_steps == 800
    assert agentkit.resume("runs/composed", num_steps=850).steps == 850
    monkeypatch.undo()


@pytest.mark.full
@pytest.mark.reverb
@pytest.mark.parametrize("folder", LAUNCHED)
def test_it_is_launched(folder, tmp_path, monkeypatch):
    earlier = BLOCKS[: BLOCKS.index(LAUNCHED[folder])]
    of_it = [block for block in earlier if block in DEFINITIONS or folder == "runs/launched"]
    run([*of_it, LAUNCHED[folder]], tmp_path, monkeypatch)
    assert np.isfinite(agentkit.evaluate(folder, num_episodes=2)["episode_return"]).all()
    if folder == "runs/launched":
        assert agentkit.resume_launch(folder, num_steps=1_000).steps >= 1_000
