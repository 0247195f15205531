"""The site's own pages: the reference of the package's names, of all modules, and what agents' pages are given."""

import dataclasses
import importlib
import importlib.util
import re
from pathlib import Path

import pytest

import agentkit
from agentkit.agents import registry

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "hooks" / "pages.py")
pages = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(pages)

NAMES = [name for name in agentkit.__all__ if name != "__version__"]


def test_the_reference_of_the_package_has_each_of_its_functions_and_classes():
    found = pages.public_names()
    modules = {"presets", *agentkit._SUBPACKAGES}
    assert found.keys() == set(NAMES) - modules
    for name, home in found.items():
        module, _, attribute = home.rpartition(".")
        assert getattr(importlib.import_module(module), attribute) is getattr(agentkit, name)
        assert getattr(agentkit, name).__module__ == module  # Where mkdocstrings finds its docstring.
        assert f"\n## {name}\n\n::: {home}\n" in pages.reference_page("agentkit")


def test_help_begins_with_what_one_calls():
    """pydoc prints a package's modules first, and all docstrings behind them: what is before is its own docstring."""
    assert [name for name in NAMES if not re.search(rf"\b{name}\b", agentkit.__doc__)] == []


@pytest.mark.full
def test_the_page_of_all_modules_names_each_once():
    links = re.findall(r"\]\((agentkit[\w.]*)\.md\)", pages.reference_index())
    assert sorted(links) == sorted(pages.modules())


def test_each_module_is_reached_by_the_navigation_and_the_page_of_its_package():
    shown = [page for entry in pages.reference_nav()[1:] for page in entry.values()]
    assert len(shown) < 50  # Each page of the reference holds them all.
    reached = {
        link
        for page in shown
        for link in re.findall(r"\]\((agentkit[\w.]*)\.md\)", pages.reference_page(Path(page).stem))
    }
    assert reached | {Path(page).stem for page in shown} == set(pages.modules())


@pytest.mark.parametrize("name", registry.names())
def test_an_agents_page_has_all_its_settings_and_the_pictures_that_show_it(name):
    page = pages.with_settings_and_curves((ROOT / "docs" / "agents" / f"{name}.md").read_text(), name)
    table = page.partition("### All settings")[2].partition("\n## Metrics")[0]
    fields = dataclasses.fields(registry.config_class(name))
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, re.M)) == sorted(field.name for field in fields)
    assert len(table.strip().splitlines()) == len(fields) + 2
    for picture in pages.curves_of(name):
        assert f"]({picture})" in page and (ROOT / "docs" / "agents" / picture).is_file()
