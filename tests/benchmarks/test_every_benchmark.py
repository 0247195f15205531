"""Every benchmark can be imported, and what has a short mode ends well in it.

Between two reports nothing else calls their code, and what they use of agentkit may have gone.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BENCHMARKS = ROOT / "benchmarks"
FOLDERS = sorted({path.parent.name for path in BENCHMARKS.glob("*/*.py")})

# What a side of a comparison needs, each in an environment of its own, and what one of our two stacks lacks.
PEERS = {"envpool", "h5py", "ray", "reverb", "sbx", "stable_baselines3", "tensorflow", "tianshou", "torch"}

IMPORT_ALL = """
import importlib, json, pathlib, sys
from agentkit.errors import MissingExtraError
sys.path.insert(0, sys.argv[1])  # Each folder is imported by itself, as its scripts are run.
failures, missing = {}, {}
for path in sorted(pathlib.Path(sys.argv[1]).glob("*.py")):
    try:
        importlib.import_module(path.stem)
    except MissingExtraError:
        pass  # It says by itself what to install.
    except ModuleNotFoundError as error:
        missing[path.name] = error.name
    except Exception as error:
        failures[path.name] = repr(error)
print(json.dumps([failures, missing]))
"""

SHORT = (
    "parts/growth.py --quick --only replay_size --folder growth",
    "parts/parts.py --quick --only loop adders sampling",
    "parts/parts.py --quick --only learner",
    "parts/parts.py --quick --only busy",
    "parts/parts.py --quick --only parameters checkpoints memory",
    "parts/variables.py",
    "workers.py --rounds 1 --seconds 1 --only asleep",
    pytest.param("parts/launched.py sleeping --actors 1 --seconds 1", marks=pytest.mark.reverb),
    pytest.param("parts/reverb_rates.py --rounds 1 --seconds 0.1", marks=pytest.mark.reverb),
    pytest.param(
        "parts/served_rates.py --kinds small --selectors prioritised --rounds 1 --seconds 0.1", marks=pytest.mark.reverb
    ),
)


def run(*command: str, folder: pathlib.Path) -> str:
    """What it prints; fails with its errors if it does not end well."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.mark.full
@pytest.mark.parametrize("name", [".", *FOLDERS])
def test_each_can_be_imported_where_its_peers_are(name: str, tmp_path: pathlib.Path) -> None:
    failures, missing = json.loads(run("-c", IMPORT_ALL, str(BENCHMARKS / name), folder=tmp_path).splitlines()[-1])
    assert not failures
    assert {name: module for name, module in missing.items() if module.partition(".")[0] not in PEERS} == {}


@pytest.mark.full
@pytest.mark.parametrize("words", SHORT)
def test_each_with_a_short_mode_ends_well_in_it(words: str, tmp_path: pathlib.Path) -> None:
    name, *options = words.split()
    assert run(str(BENCHMARKS / name), *options, folder=tmp_path)


def test_benchmarks_that_are_named_exist() -> None:
    """In documents, code and the benchmarks' own texts, as ``benchmarks/parts/parts.py``; pages name tests alike."""
    files = [path for folder in ("agentkit", "benchmarks", "docs") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text() for path in [*files, *ROOT.glob("*.md")] if path.suffix in (".py", ".md")]
    named = {name for text in texts for name in re.findall(r"\bbenchmarks/[\w/]+\.py\b", text)}
    known = {name for name in named if (ROOT / name).exists() or (ROOT / "tests" / name).exists()}
    assert len(named) > 10 and sorted(named - known) == []
