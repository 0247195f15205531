"""README's Python example, the pages' snippets and the research edits, as a type checker sees them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/agents/sac.md", "docs/agents/dqn.md", "docs/offline.md"]
EDITS = sorted((ROOT / "examples" / "edits").glob("*.py"))

WRONG = """
import agentkit
from agentkit import networks, specs
from agentkit.agents import dqn, sac
from agentkit.types import ReplaySample, Transition

def make_number(environment_spec: specs.EnvironmentSpec, config: dqn.Config) -> int:
    return 1

def make_no_policy(network: networks.Network, config: dqn.Config, evaluation: bool = False) -> int:
    return 1

def read(batch: ReplaySample[Transition]) -> None:
    batch.data.next_observation
    batch.data.start_of_episode  # Wrong.

agentkit.ExperimentConfig(1, "agentkit:catch", 1)  # Wrong.
dqn.make_agent(sac.Config())  # Wrong.
dqn.make_agent(make_networks=make_number)  # Wrong.
dqn.make_agent(make_policy=make_no_policy)  # Wrong.
"""


def snippets(text: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


def errors(folder: Path, sources: dict[str, str]) -> list[str]:
    """What mypy finds in files of these texts, as a user's mypy reads them; not what it finds in agentkit."""
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    files = [str(folder / f"{name}.py") for name in sources]
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", str(folder / "cache")]
    done = subprocess.run([*command, *files], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith(str(folder)) and "error:" in line]


def test_snippets_pass_mypy_and_a_wrong_one_does_not(tmp_path):
    sources = {
        f"{Path(page).stem.lower()}_{i}": source
        for page in PAGES
        for i, source in enumerate(snippets((ROOT / page).read_text()))
    }
    sources |= {path.stem: path.read_text() for path in EDITS if path.stem != "__init__"}
    assert len(sources) >= len(PAGES) + 8
    # Snippets have no annotations: their functions are not asked for any.
    header = "# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False\n"
    found = errors(tmp_path, {**{name: header + source for name, source in sources.items()}, "wrong": WRONG})
    assert [line for line in found if "/wrong.py" not in line] == []
    wrong_lines = [number for number, line in enumerate(WRONG.splitlines(), 1) if line.endswith("# Wrong.")]
    assert [int(re.search(r"wrong\.py:(\d+):", line)[1]) for line in found] == wrong_lines
