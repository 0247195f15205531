"""Documents for who changes agentkit: the index of decisions, CONTRIBUTING's commands and links are true."""

import contextlib
import importlib
import re
import tomllib
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "decisions"
FILES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")


def test_the_index_names_each_decision_as_the_decision_names_itself():
    """A number that is missing is of a decision that went, and none is given twice."""
    rows = re.findall(r"^\| \[(\d{4})\]\((.*?)\) \| (.*) \|$", (FOLDER / "README.md").read_text(), re.M)
    titles = [re.match(r"# (\d+)\. (.*)", path.read_text()) for path in FILES]
    assert rows == [(f"{int(found[1]):04}", path.name, found[2]) for path, found in zip(FILES, titles, strict=True)]
    assert all(path.name.startswith(number) for (number, *_), path in zip(rows, FILES, strict=True))
    assert len({number for number, *_ in rows}) == len(rows)


def test_decisions_that_are_named_exist():
    """In code, documents and tests, by "decision 77"."""
    files = [path for folder in ("agentkit", "docs", "tests") for path in (ROOT / folder).rglob("*")]
    texts = [path.read_text() for path in files if path.suffix in (".py", ".md") and path != Path(__file__)]
    named = {int(number) for text in texts for number in re.findall(r"\bdecision\s+(\d+)\b", text)}
    assert named and named <= {int(path.name[:4]) for path in FILES}


def dead_links(path: Path) -> list[str]:
    """Targets of a page's links that do not exist."""
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text())
    return [target for target in targets if "://" not in target and not (path.parent / target).exists()]


PAGES = [
    "CONTRIBUTING.md",
    "BUILD_NOTES.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in FOLDER.parent.glob("*.md")),
]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_files(name):
    assert dead_links(ROOT / name) == []


def test_links_of_decisions_lead_to_files():
    assert [link for path in [*FILES, FOLDER / "README.md"] for link in dead_links(path)] == []


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("[a](page.md) [b](gone.md) [c](https://a.b/c) [d](#here)")
    assert dead_links(page) == ["gone.md"]


def unknown_names(text: str) -> list[str]:
    """The dotted names of agentkit's in a page that lead to nothing."""
    unknown = []
    for name in sorted(set(re.findall(r"(?<![\w/.])agentkit(?:\.\w+)+", text))):
        found = importlib.import_module("agentkit")
        for part in name.split(".")[1:]:
            with contextlib.suppress(ImportError):
                importlib.import_module(f"{found.__name__}.{part}")
            found = getattr(found, part, None)
            if not isinstance(found, types.ModuleType):
                break
        unknown += [name] if found is None else []
    return unknown


def test_pages_use_names_that_exist():
    pages = [*FOLDER.parent.glob("*.md"), ROOT / "README.md"]
    assert [(page.name, name) for page in pages for name in unknown_names(page.read_text())] == []


def test_an_unknown_name_is_found():
    text = "`agentkit.replay.RateLimiter` `agentkit.replay.Nowhere` agentkit.run(x) agentkit.agents.dqm agentkit/a"
    assert unknown_names(text) == ["agentkit.agents.dqm", "agentkit.replay.Nowhere"]


def commands(name: str) -> str:
    """The commands of a page, with an agent's name in the place of NAME."""
    return "".join(re.findall(r"^```bash\n(.*?)^```", (ROOT / name).read_text(), re.M | re.S)).replace("NAME", "sac")


def test_contributing_names_only_tests_that_exist():
    tests = re.findall(r"tests/\S+", commands("CONTRIBUTING.md"))
    assert tests and [test for test in tests if not (ROOT / test).exists()] == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "README.md", "docs/installing.md", "docs/gpu.md", ".ci/run"])
def test_only_extras_that_exist_are_asked_for(name):
    text = (ROOT / name).read_text()
    asked = {extra for extras in re.findall(r"'\.\[(.*?)\]'", text) for extra in extras.split(",")}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert asked and asked <= set(extras)


def test_ci_runs_commands_that_readme_has():
    """.ci/run looks for README's commands by their text: one that README words otherwise would be an empty command."""
    wanted = re.findall(r'readme_command "([^"]+)"', (ROOT / ".ci" / "run").read_text())
    lines = commands("README.md").splitlines()
    assert len(wanted) == 3 and all(any(text in line for line in lines) for text in wanted)
