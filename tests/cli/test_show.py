import dataclasses
import re

import pytest

from agentkit.agents import registry
from agentkit.cli import main
from agentkit.cli.show import describe_agent, parse_attributes


@dataclasses.dataclass(frozen=True)
class _Config:
    """Settings.

    Attributes:
        width: how wide, in
            units.
        sizes (tuple): how
            deep: very.
    """

    width: float = 0.5
    sizes: tuple[int, ...] = dataclasses.field(default_factory=lambda: (1, 2))


@dataclasses.dataclass(frozen=True)
class _Unexplained:
    """Settings.

    Attributes:
        width: how wide.
    """

    width: float = 0.5
    depth: int = 1


def test_attributes_of_a_docstring():
    assert parse_attributes(_Config.__doc__) == {"width": "how wide, in units.", "sizes": "how deep: very."}
    assert parse_attributes("None here.") == {}


def test_every_field_is_shown_with_type_default_and_meaning():
    text = describe_agent(_Config)
    assert "width: float = 0.5\n        how wide, in units." in text
    assert "sizes: tuple[int, ...] = (1, 2)\n        how deep: very." in text


def test_a_field_without_meaning_is_an_error():
    with pytest.raises(ValueError, match=r"_Unexplained.depth is not in the docstring"):
        describe_agent(_Unexplained)


@pytest.mark.parametrize("name", registry.names())
def test_each_agent_shows_its_paper_and_all_fields(name, capsys):
    assert main(["show", name]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\(.+ (19|20)\d\d, \"", text.splitlines()[0])
    for field in dataclasses.fields(registry.config_class(name)):
        assert f"    {field.name}: " in text


def test_list_names_agents_and_environments(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    for name in (*registry.names(), "gymnasium:", "dm_control:", "bsuite:", "envpool:", "catch"):
        assert name in text


def test_the_table_of_agents_has_a_row_for_each(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    titles = lines[1]
    rows = {line.split()[0]: line for line in lines[2 : 2 + len(registry.names())]}
    assert set(rows) == set(registry.names())
    for name, row in rows.items():
        cells = {title: row[titles.index(title) :].split("  ")[0].strip() for title in titles.split()}
        expected = ", ".join(registry.about(name).actions)
        assert cells["actions"] == {"discrete, continuous, joint": "all"}.get(expected, expected)
        assert cells["file"] == f"{name}.py" and registry.file(name).exists()
        assert re.fullmatch(r"[^\d]+ (19|20)\d\d", cells["paper"]), cells["paper"]
        assert len(row) <= 120


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_is_wider_than_the_terminal_and_no_word_is_lost(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (["list"], *(["show", name] for name in registry.names())):
        main(words)
        plain = capsys.readouterr().out
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        main(words)
        fitted = capsys.readouterr().out
        monkeypatch.undo()
        monkeypatch.setenv("COLUMNS", str(columns))
        assert max(map(len, fitted.splitlines())) <= columns
        if words != ["list"]:
            assert fitted.split() == plain.split()
        elif columns == 80:
            assert "distributed" not in fitted and "\n  sac             continuous " in fitted


def test_an_unknown_agent_is_one_line(capsys):
    assert main(["show", "sca"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean 'sac'" in error and error.count("\n") == 1
