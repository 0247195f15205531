"""The layer table of the design, enforced; and every check here is shown to fail on a bad tree."""

import ast
import itertools
import json
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from agentkit import experiment
from agentkit.cli.words.parser import COMMANDS

pytestmark = pytest.mark.both_stacks

ROOT = Path(__file__).resolve().parents[1]

# A row imports lower rows only; names within a row do not import each other (but for row 0, in which
# specs build on types and core on both). `testing` is used by tests and by nothing in the package.
ROWS = [
    {"types", "specs", "errors", "core", "nests", "ports", "scratch", "child", "importing", "files", "version", "wire"},
    {"envs", "wrappers", "replay", "losses", "networks", "loggers", "counting", "checkpoint", "distributed"},
    {"environment_loop", "multi_agent_loop", "actors", "adders", "datasets", "variables", "learning", "callbacks"},
    {"agents"},
    {"experiment"},
    {"cli", "testing", "tune"},
]
ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names}

# Pairs (importer, imported) within a row: `envs.make` gives environments that are ready for agents, so it wraps.
SIDEWAYS: set[tuple[str, str]] = {("envs", "wrappers")}

# The rooms of the two largest boxes, likewise: files and folders, from the bottom up.
ROOMS = {
    "experiment": [
        {"config"}, {"runs"}, {"policies"}, {"checks"}, {"evaluation"}, {"training"}, {"profiling"},
        {"on_device"}, {"multi_agent"},
        {"local", "offline", "iteration", "train_by_name"},
        {"launching", "sweeps", "publishing"},
    ],
    "cli": [
        {"screen", "output", "interrupts", "summary"}, {"drawing"}, {"values"}, {"words"}, {"training"}, {"looking"},
    ],
}  # fmt: skip
FILES_OF_A_ROOM = 12

LIGHT = [
    "types", "specs", "errors", "core", "nests", "ports", "scratch", "child", "importing", "files", "version", "wire",
    "envs", "wrappers", "adders", "replay", "loggers", "counting", "checkpoint", "distributed", "callbacks",
]  # fmt: skip
HEAVY = {
    "jax", "haiku", "rlax", "optax", "chex", "tensorflow", "reverb", "matplotlib", "gymnasium", "mujoco",
    "dm_control", "bsuite", "envpool", "h5py", "tensorboardX", "rich", "pandas", "scipy", "ray", "distrax",
    "tensorflow_probability", "optuna", "sqlalchemy", "wandb", "mlflow", "pettingzoo", "mpe2",
}  # fmt: skip

# Packages that not every installation has, and the one file that may import each.
OPTIONAL = {
    "reverb": "replay/reverb/library.py",
    "tensorflow": "replay/reverb/library.py",
    "gymnasium": "envs/gymnasium_loading.py",
    "dm_control": "envs/dm_control.py",
    "bsuite": "envs/bsuite.py",
    "envpool": "envs/envpool.py",
    "ale_py": "envs/gymnasium_loading.py",
    "gymnasium_robotics": "envs/robotics.py",
    "gymnax": "envs/jax/gymnax.py",
    "brax": "envs/jax/brax.py",
    "jaxmarl": "envs/jax/jaxmarl.py",
    "jumanji": "envs/jax/jumanji.py",
    "pgx": "envs/jax/pgx.py",
    "navix": "envs/jax/navix.py",
    "mujoco_playground": "envs/jax/playground.py",
    "metaworld": "envs/metaworld.py",
    "minatar": "envs/minatar.py",
    "minigrid": "envs/minigrid.py",
    "pettingzoo": "envs/multi_agent/pettingzoo_loading.py",
    "mpe2": "envs/multi_agent/pettingzoo_loading.py",
    "h5py": "datasets/episode_files.py",
    "minari": "datasets/minari_sets.py",
    "tensorflow_datasets": "datasets/rlds_sets.py",
    "tensorboardX": "loggers/tensorboard.py",
    "wandb": "loggers/wandb.py",
    "mlflow": "loggers/mlflow.py",
    "pandas": "experiment/runs/open_run.py",
    "mctx": "agents/gumbel_muzero.py",
    "flax": "networks/flax_modules.py",
    "equinox": "networks/equinox_modules.py",
    "ray": "distributed/ray_cluster.py",
    "optuna": "experiment/sweeps/optuna_study.py",
    "PIL": "wrappers/film.py",
    "imageio_ffmpeg": "wrappers/film.py",
    "onnx": "experiment/policies/export/onnx_file.py",
    "huggingface_hub": "experiment/policies/hub.py",
}
# An extra of its own, of a package that is named above.
PARTS = {"ray.tune": "tune.py"}
# Packages that every installation has, and where they are at home.
HOMES = {
    "haiku": ("networks/", "agents/"),
    "matplotlib": ("cli/drawing/pictures.py", "cli/looking/watch.py"),
    "rich": ("loggers/",),
    "zmq": ("wire/",),
}


def imported_modules(source: str) -> set[str]:
    """Full names of all that a file imports, in functions and under TYPE_CHECKING, too."""
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                modules.add("a relative import")
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in (
            "import_module",
            "__import__",
        ):
            first = node.args[0]
            if isinstance(first, ast.Constant):
                modules.add(first.value)
            elif isinstance(first, ast.JoinedStr) and isinstance(first.values[0], ast.Constant):
                modules.add(first.values[0].value)
    return modules


def _is_sideways(box: str, other: str) -> bool:
    return ROW_OF[other] == ROW_OF[box] != 0 and (box, other) not in SIDEWAYS


def layer_violations(package: Path) -> list[str]:
    """What in `package` breaks the table, a line each."""
    found = []
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        box = file.split("/")[0].removesuffix(".py")
        if box in ("__init__", "__main__"):
            continue  # The facade, which loads boxes lazily; its import is checked below. And what starts the command.
        if box not in ROW_OF:
            found.append(f"{file}: {box} is not in the layer table")
            continue
        for module in sorted(imported_modules(path.read_text())):
            if module == "a relative import":
                found.append(f"{file}: {module}; write the full name")
            parts = module.split(".")
            if parts[0] != "agentkit" or len(parts) < 2 or parts[1] in (box, "__version__", ""):
                continue
            other = parts[1]
            if other not in ROW_OF:
                found.append(f"{file}: imports {module}, which is not in the layer table")
            elif ROW_OF[other] > ROW_OF[box] or _is_sideways(box, other):
                found.append(f"{file} (row {ROW_OF[box]}) imports {other} (row {ROW_OF[other]})")
    return found


def room_violations(package: Path, box: str) -> list[str]:
    """What in a box breaks the order of its rooms, and rooms with more files than one can look over, a line each."""
    row_of = {name: row for row, names in enumerate(ROOMS[box]) for name in names}
    found = []
    for path in sorted((package / box).rglob("*.py")):
        file = path.relative_to(package / box).as_posix()
        room = file.split("/")[0].removesuffix(".py")
        if room in ("__init__", "__main__"):
            continue
        if room not in row_of:
            found.append(f"{box}/{file}: {room} is no room of {box}")
            continue
        for module in sorted(imported_modules(path.read_text())):
            other = module.removeprefix(f"agentkit.{box}.").split(".")[0]
            if not module.startswith(f"agentkit.{box}.") or other in (room, ""):
                continue
            beside = row_of.get(other) == row_of[room] and (package / box / room).is_dir()
            if other not in row_of:
                found.append(f"{box}/{file} imports {module}; name the file that has it")
            elif row_of[other] > row_of[room] or beside:
                found.append(f"{box}/{file} imports {other}, which is no lower room")
    for folder in sorted({path.parent for path in (package / box).rglob("*.py")}):
        if (count := len(list(folder.glob("*.py")))) > FILES_OF_A_ROOM:
            found.append(f"{folder.relative_to(package).as_posix()} has {count} files, {FILES_OF_A_ROOM} are allowed")
    return found


def misplaced_packages(package: Path) -> list[str]:
    """Optional packages imported outside their one file, and others away from their home."""
    found, users = [], defaultdict(set)
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        for module in imported_modules(path.read_text()):
            if PARTS.get(module) != file:
                users[module.split(".")[0]].add(file)
    for name, home in OPTIONAL.items():
        found += [f"{file} imports {name}; only {home} may" for file in sorted(users[name] - {home})]
    for name, homes in HOMES.items():
        found += [
            f"{file} imports {name}; only {homes} may" for file in sorted(users[name]) if not file.startswith(homes)
        ]
    return found


def circles_of_files(folder: Path) -> list[list[str]]:
    """Groups of files that import one another, in functions and under TYPE_CHECKING, too; each group sorted."""
    files = {".".join(path.relative_to(folder).with_suffix("").parts): path for path in folder.rglob("*.py")}
    arrows = {}
    for name, path in files.items():
        found = set()
        for module in imported_modules(path.read_text()):
            # ``from a.b import c``: the file a/b/c.py if there is one, else a/b.py or a/b/__init__.py.
            module = module.removeprefix(f"{folder.name}.")
            parent = module.rpartition(".")[0]
            names = (module, f"{module}.__init__", parent, f"{parent}.__init__")
            if not module.endswith("."):  # Else the rest of the name is put together when it is imported.
                found |= set(itertools.islice((each for each in names if each in files), 1))
        arrows[name] = found - {name}
    reached = {name: _reached_from(name, arrows) for name in arrows}
    circles = {frozenset(b for b in reached[a] if a in reached[b]) for a in arrows if a in reached[a]}
    return sorted(sorted(circle) for circle in circles)


def _reached_from(start: str, arrows: dict[str, set[str]]) -> set[str]:
    seen, new = set(), [start]
    while new:
        further = arrows[new.pop()] - seen
        seen |= further
        new += further
    return seen


def heavy_modules_after(statement: str) -> list[str]:
    """Which heavy packages a fresh interpreter has loaded after `statement`."""
    code = f"import json, sys\n{statement}\nprint(json.dumps(sorted({HEAVY!r} & sys.modules.keys())))"
    return json.loads(_last_line_printed_by(code))


def seconds_of(statement: str) -> float:
    """What the quickest of five fresh interpreters took, without their start.

    Of the processor, not of the clock on the wall: test machines are busy. Importing waits for nothing else.
    """
    code = f"import time; start = time.process_time()\n{statement}\nprint(time.process_time() - start)"
    return min(float(_last_line_printed_by(code)) for _ in range(5))


BUSY = 3.0
"""How much longer than alone a processor may take for the same where other tests share its caches and its core."""


def _last_line_printed_by(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=120
    ).stdout.splitlines()[-1]


def test_rows_import_lower_rows_only():
    assert layer_violations(ROOT / "agentkit") == []


@pytest.mark.parametrize("box", ROOMS)
def test_rooms_import_lower_rooms_only(box):
    assert room_violations(ROOT / "agentkit", box) == []


@pytest.mark.parametrize("folder", ["agentkit", "benchmarks", pytest.param("tests", marks=pytest.mark.full)])
def test_no_files_import_one_another_in_a_circle(folder):
    assert circles_of_files(ROOT / folder) == []


@pytest.mark.full
def test_each_optional_package_is_imported_in_one_file():
    assert misplaced_packages(ROOT / "agentkit") == []


def _command(*words):
    """What a fresh interpreter runs for ``agentkit words``; its own output is not the last line."""
    return (
        "import contextlib, io\nfrom agentkit.cli import main\n"
        f"with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n    main({list(words)!r})"
    )


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["agentkit", *(f"agentkit.{box}" for box in LIGHT)])
def test_what_is_light_is_quick_to_import_and_loads_nothing_heavy(name):
    assert heavy_modules_after(f"import {name}") == []
    assert seconds_of(f"import {name}") < BUSY * 0.3


@pytest.mark.parametrize(
    "words",
    [["--help"], *([command, "--help"] for command in COMMANDS), ["node", "actor", "--help"], ["list"]],
    ids=" ".join,
)
def test_commands_that_compute_nothing_are_quick(words):
    assert heavy_modules_after(_command(*words)) == []
    assert seconds_of(_command(*words)) < BUSY * 0.5


@pytest.mark.full
def test_the_status_of_nothing_is_quick(tmp_path):
    assert heavy_modules_after(_command("status", str(tmp_path))) == []
    assert seconds_of(_command("status", str(tmp_path))) < BUSY * 0.5


@pytest.mark.one_case
@pytest.mark.parametrize("agent", ["dqn", "sac", "td3", "ppo"])
def test_nothing_that_only_losses_need_is_loaded_before_the_first_step(agent):
    """rlax brings distrax and TensorFlow Probability, which take longer to import than JAX does."""
    code = f"""
import sys
from agentkit import envs, specs
from agentkit.agents import registry
agent = registry.make({agent!r})
environment = envs.make({"agentkit:catch" if agent == "dqn" else "agentkit:point_mass"!r})
spec = specs.make_environment_spec(environment)
networks = agent.make_networks(spec)
agent.make_update(networks), agent.make_policy(networks), agent.make_tables(spec)
"""
    found = set(heavy_modules_after(code))
    assert found & {"rlax", "distrax", "tensorflow_probability", "matplotlib", "tensorboardX"} == set()


def test_a_run_in_one_process_loads_no_room_of_programs_and_sweeps():
    code = "import sys\nfrom agentkit.experiment import run\nprint(*sorted(sys.modules))"
    loaded = _last_line_printed_by(code).split()
    assert "agentkit.experiment.training.training_loop" in loaded
    others = ("zmq", "agentkit.experiment.launching", "agentkit.experiment.sweeps", "agentkit.experiment.publishing")
    assert [name for name in loaded if name.startswith(others)] == []


def test_each_name_of_experiments_is_loaded_from_where_type_checkers_find_it():
    source = ast.parse((ROOT / "agentkit/experiment/__init__.py").read_text())
    (block,) = [node for node in source.body if isinstance(node, ast.If)]
    seen = {alias.asname: node.module for node in block.body for alias in node.names}
    assert {name: f"agentkit.experiment.{module}" for name, module in experiment._MODULES.items()} == seen
    assert {name for name in experiment.__all__ if getattr(experiment, name).__name__ != name} == set()


# The checks above can fail -------------------------------------------------------------------------


def _tree(tmp_path, files):
    for name, source in files.items():
        path = tmp_path / "agentkit" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(source))
    return tmp_path / "agentkit"


@pytest.mark.parametrize(
    ("file", "source", "expected"),
    [
        ("replay/a.py", "from agentkit.learning import sgd", "imports learning"),
        ("replay/a.py", "from agentkit import envs", "imports envs"),  # the same row
        ("losses/a.py", "def f():\n    import agentkit.agents.dqn", "imports agents"),
        (
            "core.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from agentkit import replay",
            "row 1",
        ),
        ("agents/a.py", "import importlib\nimportlib.import_module('agentkit.cli.main')", "imports cli"),
        ("adders/a.py", "from . import base", "relative import"),
        ("adders/a.py", "from agentkit.utils import x", "not in the layer table"),
        ("utils.py", "x = 1", "utils is not in the layer table"),
    ],
)
def test_a_bad_import_is_found(tmp_path, file, source, expected):
    (violation,) = layer_violations(_tree(tmp_path, {file: source}))
    assert file in violation and expected in violation


def test_good_imports_are_not_reported(tmp_path):
    files = {
        "core.py": "from agentkit.types import Nest",
        "adders/a.py": "from agentkit.adders.base import x\nfrom agentkit import replay, __version__",
        "agents/registry.py": "import importlib\nimportlib.import_module(f'agentkit.agents.{name}')",
    }
    assert layer_violations(_tree(tmp_path, files)) == []


def test_an_arrow_up_between_rooms_is_found(tmp_path):
    files = {
        "experiment/__init__.py": "from agentkit.experiment.launching.run import launch",
        "experiment/config/a.py": "def f():\n    from agentkit.experiment.runs.lock import x",
        "experiment/runs/b.py": "from agentkit.experiment.config.a import x\nfrom agentkit.experiment import run",
        "experiment/launching/c.py": "from agentkit.experiment.sweeps.d import x",
        "experiment/iteration.py": "from agentkit.experiment.local import x",
        "experiment/misc/e.py": "",
    }
    files |= {f"experiment/runs/f{number}.py": "" for number in range(FILES_OF_A_ROOM)}
    assert room_violations(_tree(tmp_path, files), "experiment") == [
        "experiment/config/a.py imports runs, which is no lower room",
        "experiment/launching/c.py imports sweeps, which is no lower room",
        "experiment/misc/e.py: misc is no room of experiment",
        "experiment/runs/b.py imports agentkit.experiment.run; name the file that has it",
        "experiment/runs has 13 files, 12 are allowed",
    ]


def test_a_circle_of_files_is_found(tmp_path):
    files = {
        "replay/__init__.py": "from agentkit.replay.a import x",
        "replay/a.py": "def f():\n    from agentkit.replay import b",
        "replay/b.py": "if TYPE_CHECKING:\n    from agentkit.replay.c import y",
        "replay/c.py": "import agentkit.replay.a",
        "replay/d.py": "from agentkit.replay.a import x",
        "replay/e/__init__.py": "from agentkit.replay.e.f import z",
        "replay/e/f.py": "from agentkit.replay.e import w",
    }
    tree = _tree(tmp_path, files)
    assert circles_of_files(tree) == [
        ["replay.a", "replay.b", "replay.c"],
        ["replay.e.__init__", "replay.e.f"],
    ]


def test_a_misplaced_package_is_found(tmp_path):
    files = {
        "replay/reverb/library.py": "import reverb\nimport tensorflow as tf",
        "replay/server.py": "def f():\n    from reverb import Server",
        "learning/a.py": "import haiku as hk",
        "agents/a.py": "import haiku as hk",
    }
    assert [line.split(";")[0] for line in misplaced_packages(_tree(tmp_path, files))] == [
        "replay/server.py imports reverb",
        "learning/a.py imports haiku",
    ]


@pytest.mark.full
def test_a_heavy_import_is_found():
    assert heavy_modules_after("import matplotlib") == ["matplotlib"]
    assert "jax" in heavy_modules_after(_command("show", "dqn"))


@pytest.mark.full
def test_a_slow_import_is_found():
    assert seconds_of("sum(range(20_000_000))") > 0.1
