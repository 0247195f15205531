"""What a wheel says of itself: one version number, types, a licence; and the form of the changelog."""

import contextlib
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest

import agentkit
from agentkit.errors import DISTRIBUTION

pytestmark = pytest.mark.one_stack

ROOT = Path(__file__).resolve().parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SECTIONS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def versions_in(text: str) -> list[str]:
    """The numbers that are assigned to ``__version__`` in a file."""
    return re.findall(r'^__version__ = "(.+)"$', text, re.M)


def test_the_version_is_written_once():
    assert "version" not in PYPROJECT["project"] and PYPROJECT["project"]["dynamic"] == ["version"]
    assert PYPROJECT["tool"]["hatch"]["version"] == {"path": "agentkit/__init__.py"}
    assert versions_in((ROOT / "agentkit" / "__init__.py").read_text()) == [agentkit.__version__]
    others = [path for path in (ROOT / "agentkit").rglob("*.py") if versions_in(path.read_text())]
    assert others == [ROOT / "agentkit" / "__init__.py"]


def test_an_installed_agentkit_says_the_same_version():
    found = {distribution.version for distribution in importlib.metadata.distributions(name=DISTRIBUTION)}
    assert found <= {agentkit.__version__}, "Another version is installed: run pip install again."


def test_nobody_is_told_to_install_another_distribution():
    assert PYPROJECT["project"]["name"] == DISTRIBUTION
    folders = ("agentkit", "docs", "examples", "launch", "benchmarks", ".github", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    files += [*ROOT.glob("*.md"), ROOT / "pyproject.toml"]
    # An extra of the bare name, or the bare name behind pip's command.
    wrong = re.compile(r"agentkit\[|pip install[^\n&]*[ '\"]agentkit(?![\w-])")
    others = []
    for path in files:
        with contextlib.suppress(UnicodeDecodeError):
            others += [f"{path}: {found[0]}" for found in wrong.finditer(path.read_text())]
    assert not others


def test_type_checkers_find_the_types():
    assert (Path(agentkit.__file__).parent / "py.typed").is_file()


def test_the_licence_is_named_and_shipped():
    assert PYPROJECT["project"]["license"] == "Apache-2.0"
    assert [(ROOT / name).is_file() for name in PYPROJECT["project"]["license-files"]] == [True]


def test_the_changelog_has_the_form_of_keepachangelog():
    text = (ROOT / "CHANGELOG.md").read_text()
    assert "https://keepachangelog.com/en/1.1.0/" in text
    versions = re.findall(r"^## (.*)$", text, re.M)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d{2}-\d{2}", version) for version in versions[1:])
    assert set(re.findall(r"^### (.*)$", text, re.M)) <= SECTIONS
