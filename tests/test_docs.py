"""Documentation that is checked: docstrings exist, examples run, README's commands run, configs are read."""

import ast
import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agentkit.agents import registry
from agentkit.cli.words.parser import COMMANDS, NODE_ROLES, options

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "agentkit").rglob("*.py"))

# Packages without which a file cannot be imported, and so its examples not run.
NEEDS = {f"envs/{name}.py": name for name in ("gymnasium", "dm_control", "bsuite", "envpool")}
NEEDS["envs/multi_agent/pettingzoo.py"] = "pettingzoo"
MARKS = {ROOT / "agentkit/replay/reverb/replay.py": pytest.mark.reverb}


# Docstrings -----------------------------------------------------------------------------------------


def undocumented(source: str, file: str) -> list[str]:
    """The public names of a file that have no docstring; of methods where the file asks ruff for them (D102)."""
    found = [] if ast.get_docstring(ast.parse(source)) else [f"{file}: the file itself"]

    def visit(node, prefix):
        for child in node.body:
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            decorators = {ast.unparse(decorator).split(".")[-1] for decorator in child.decorator_list}
            if child.name.startswith("_") or decorators & {"setter", "overload"}:
                continue
            is_excused = prefix and "# ruff: noqa: D102" in source.splitlines()
            if not ast.get_docstring(child) and not is_excused:
                found.append(f"{file}: {prefix}{child.name}")
            if isinstance(child, ast.ClassDef):
                visit(child, f"{prefix}{child.name}.")

    visit(ast.parse(source), "")
    return found


@pytest.mark.full
def test_every_public_name_is_documented():
    assert [name for path in FILES for name in undocumented(path.read_text(), path.relative_to(ROOT).as_posix())] == []


def test_a_missing_docstring_is_found():
    source = '"""File."""\nclass A:\n    """A."""\n    def f(self): ...\n    def _g(self): ...\ndef h(): ...\n'
    assert undocumented(source, "a.py") == ["a.py: A.f", "a.py: h"]
    assert undocumented("x = 1", "a.py") == ["a.py: the file itself"]


# Docstring examples ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [pytest.param(p, marks=MARKS.get(p, ())) for p in FILES if ">>> " in p.read_text()],
    ids=lambda p: p.relative_to(ROOT).as_posix(),
)
def test_docstring_examples_run(path):
    file = path.relative_to(ROOT / "agentkit").as_posix()
    if file in NEEDS:
        pytest.importorskip(NEEDS[file])
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


# README ---------------------------------------------------------------------------------------------

INSTALLS_OR_TESTS = ("pip install", "python -m pytest")  # .ci/run runs these, in fresh environments.
SCALE = 0.012  # README's own numbers of steps take minutes; a hundredth still updates every part.


def readme_commands(text: str, language: str = "bash") -> list[str]:
    """The commands in the text's code blocks, continued lines joined and comments left out."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split("  #")[0].strip() for line in lines if line.strip() and not line.startswith("#")]


def parts_to_run(command: str) -> list[str]:
    """The ``&&`` parts of a command that are neither installation nor the tests themselves."""
    return [part for part in command.split(" && ") if not part.startswith(INSTALLS_OR_TESTS)]


def shortened(command: str) -> str:
    """The command with fewer steps and episodes, and nothing else changed."""
    command = re.sub(r"--steps ([\d_]+)", lambda found: f"--steps {int(int(found[1]) * SCALE)}", command)
    if command.startswith("agentkit evaluate"):
        return f"{command} --episodes 1"
    return f"{command} --eval-episodes 1" if re.match("agentkit (train|launch) [a-z]", command) else command


@pytest.mark.both_stacks
@pytest.mark.full
def test_readme_commands_run(tmp_path):
    pytest.importorskip("gymnasium")
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    console = bin_folder / "agentkit"  # The console script, also where the package is not installed.
    start = "import sys; from agentkit.cli import main; sys.exit(main())"
    console.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{start}" "$@"\n')
    console.chmod(0o755)
    python = bin_folder / "python"
    python.symlink_to(sys.executable)
    environment = os.environ | {"PATH": f"{bin_folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    work = tmp_path / "empty"
    work.mkdir()
    (work / "examples").symlink_to(ROOT / "examples")

    lines = readme_commands((ROOT / "README.md").read_text())
    commands = [part for line in lines for part in parts_to_run(line)]
    assert any(command.startswith("agentkit train") for command in commands)
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", shortened(command)],
            cwd=work,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}"


def test_readme_python_blocks_compile():
    for file in ("README.md", "agentkit/README.md"):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / file).read_text(), re.M | re.S)
        for number, block in enumerate(blocks):
            compile(block, f"{file} block {number}", "exec")


@pytest.mark.full
def test_readme_python_runs(tmp_path, monkeypatch):
    """On what README's own installation brings, with fewer steps."""
    pytest.importorskip("gymnasium")
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    for package in ("Box2D", "ale_py", "dm_control"):  # Of other extras.
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.M | re.S)
    for steps in ('"100k"', "50_000"):
        assert steps in block
        block = block.replace(steps, "1_000")
    exec(compile(block, "README.md", "exec"), {})
    assert (tmp_path / "policy.npz").is_file() and len(list((tmp_path / "runs").iterdir())) == 2


def test_readme_names_only_files_that_exist():
    for file in ("README.md", "agentkit/README.md"):
        folder = (ROOT / file).parent
        for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / file).read_text()):
            assert "://" in target or (folder / target).exists(), f"{file} points to {target}"


def test_the_commands_of_a_text():
    text = "a\n```bash\n# note\npip install x && \\\n  run --steps 100_000\n\nplot  # draws\n```\n"
    text += "```python\nx\n```\n"
    first, second = readme_commands(text)
    assert shlex.split(first) == ["pip", "install", "x", "&&", "run", "--steps", "100_000"]
    assert second == "plot"
    assert [shortened(part.strip()) for part in parts_to_run("pip install x && run --steps 100_000")] == [
        "run --steps 1200"
    ]


def named_options(text: str) -> list[tuple[str, str]]:
    """Each ``--option`` that is named behind an agentkit command, with that command; also where ``...`` is between."""
    found = []
    for command, role, rest in re.findall(r"agentkit ([a-z][a-z-]+)( [a-z]+)?\b((?:\\\n|[^\n`|&#])*)", text):
        name = command + role if command == "node" else command
        found += [(name, option) for option in re.findall(r"(?<![\w-])--[a-z][a-z-]*", rest)]
    return found


def test_options_that_pages_name_are_those_of_their_commands():
    known = {name: options(name).keys() for name in COMMANDS if name != "node"}
    known |= {f"node {role}": options(f"node {role}").keys() for role in NODE_ROLES}
    known["node"] = set().union(*(known[f"node {role}"] for role in NODE_ROLES))  # Of a script that is given the role.
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "launch").iterdir()]
    assert ("launch", "--opponents") in named_options((ROOT / "docs/several_agents.md").read_text())
    named = {(page, *each) for page in pages for each in named_options(page.read_text())}
    assert not {(str(page), name, option) for page, name, option in named if option not in known.get(name, ())}
    assert len(named) > 300


# Configs --------------------------------------------------------------------------------------------


def attributes_read(source: str, owner: str) -> set[str]:
    """Every ``<owner>.<name>``, ``<anything>.<owner>.<name>`` and ``getattr(of one of these, "<name>")`` of a file."""

    def is_owner(node: ast.expr) -> bool:
        name = node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""
        return name == owner

    nodes = list(ast.walk(ast.parse(source)))
    read = {n.attr for n in nodes if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Load) and is_owner(n.value)}
    calls = [n for n in nodes if isinstance(n, ast.Call) and isinstance(n.func, ast.Name) and n.func.id == "getattr"]
    return read | {n.args[1].value for n in calls if is_owner(n.args[0]) and isinstance(n.args[1], ast.Constant)}


def fields_of(source: str, class_name: str = "Config") -> set[str]:
    """The annotated fields of a class, read from the source."""
    (config,) = (node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == class_name)
    return {node.target.id for node in config.body if isinstance(node, ast.AnnAssign)}


def unread_fields(source: str, *shared: str) -> set[str]:
    """The fields of a file's Config that nothing in the file reads, nor in the files that it shares code with."""
    return fields_of(source).difference(*(attributes_read(file, "config") for file in (source, *shared)))


AGENTS = ROOT / "agentkit" / "agents"
READING = [AGENTS / "common" / f"{name}.py" for name in ("experience", "prioritized", "advantages")]


@pytest.mark.parametrize("name", registry.names())
def test_every_config_field_of_an_agent_is_read(name):
    assert unread_fields((AGENTS / f"{name}.py").read_text(), *(file.read_text() for file in READING)) == set()


def test_every_config_field_that_agents_share_is_read():
    """By the files that agents share, or by each agent whose Config extends the class."""
    source = READING[0].read_text()
    read = set().union(*(attributes_read(file.read_text(), "config") for file in READING))
    agents = [(AGENTS / f"{agent}.py").read_text() for agent in registry.names()]
    configs = [node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and "Config" in node.name]
    assert configs == ["ReplayConfig", "SequencesConfig", "SegmentsConfig"]
    for name in configs:
        extending = [attributes_read(agent, "config") for agent in agents if f"class Config({name})" in agent]
        assert len(extending) > 1
        assert fields_of(source, name) - read <= set.intersection(*extending)


def test_every_agent_file_is_in_the_registry():
    files = {path.stem for path in AGENTS.glob("*.py")}
    assert files - {"__init__", "registry"} == set(registry.names())


def test_every_experiment_field_is_read():
    folder = ROOT / "agentkit" / "experiment"
    config = (folder / "config" / "experiment_config.py").read_text()
    fields = fields_of(config, "ExperimentConfig")
    others = [path.read_text() for path in folder.rglob("*.py")]
    read = set().union(*(attributes_read(source, "experiment") for source in others))
    read |= attributes_read(config, "self") & {"agent", "environment", "columns"}
    assert fields - read == set()


def test_an_unread_field_is_found():
    source = "class Config:\n    a: int = 1\n    b: int = 2\n    c: int = 3\n"
    source += "def f(config):\n    config.b = config.a\n"
    assert unread_fields(source) == {"b", "c"}
    assert unread_fields(f"{source}    return self.config.b + config.c") == set()
