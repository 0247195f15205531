"""Documents for who changes agentkit: decisions have their form, CONTRIBUTING's commands and links lead somewhere."""

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
HEADINGS = ["Context", "Choice", "Cost"]


def faults(name: str, text: str) -> list[str]:
    """What is wrong with the form of a decision."""
    number = int(name[:4])
    found = [] if text.startswith(f"# {number}. ") else [f"{name}: the title does not begin with its number"]
    if not re.search(r"^Status: (accepted|superseded by \[)", text, re.M):
        found.append(f"{name}: no status")
    if re.findall(r"^## (.*)$", text, re.M) != HEADINGS:
        found.append(f"{name}: expected the headings {HEADINGS}")
    if any(len(part.split()) < 5 for part in re.split(r"^## .*$", text, flags=re.M)[1:]):
        found.append(f"{name}: an empty section")
    return found


def test_decisions_are_numbered_without_a_gap():
    assert [int(path.name[:4]) for path in FILES] == list(range(1, len(FILES) + 1))


def test_each_decision_has_its_form():
    assert [fault for path in FILES for fault in faults(path.name, path.read_text())] == []


def test_the_index_names_each_decision_as_the_decision_names_itself():
    rows = re.findall(
        r"^\| \[(\d{4})\]\((.*?)\) \| (.*) \| (accepted|superseded) \|$", (FOLDER / "README.md").read_text(), re.M
    )
    titles = [path.read_text().splitlines()[0].partition(". ")[2] for path in FILES]
    states = [re.search(r"^Status: (\w+)", path.read_text(), re.M)[1] for path in FILES]
    assert rows == [(p.name[:4], p.name, title, state) for p, title, state in zip(FILES, titles, states, strict=True)]


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


def test_a_decision_without_its_form_is_found():
    good = "# 1. Title\n\nStatus: accepted\n\n" + "".join(f"## {h}\n\nOne two three four five.\n\n" for h in HEADINGS)
    assert faults("0001-title.md", good) == []
    assert len(faults("0002-title.md", good)) == 1
    assert len(faults("0001-title.md", good.replace("Status", "State"))) == 1
    assert len(faults("0001-title.md", good.replace("## Cost", "## Price"))) == 1
    assert len(faults("0001-title.md", good.replace("One two three four five.", "", 1))) == 1
