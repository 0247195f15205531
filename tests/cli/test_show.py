import dataclasses
import re

import pytest

from agentkit.agents import registry
from agentkit.cli import main
from agentkit.cli.looking.show import describe_agent, parse_attributes
from agentkit.envs.prefixes import OF_SEVERAL_AGENTS, SIMULATORS


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
    for name in (*SIMULATORS, *OF_SEVERAL_AGENTS, "agentkit"):
        line = next(line for line in text.splitlines() if line.startswith(f"  {name}:"))
        assert "your own code" not in line and not line.endswith("et al.")
    assert "agentkit:tic_tac_toe" in text and re.search(r"jax:connect_four +Connect Four in JAX: two agents", text)


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


@pytest.mark.one_case
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
            assert "recurrent " not in fitted and "\n  sac             continuous " in fitted


def test_an_unknown_agent_is_one_line(capsys):
    assert main(["show", "sca"]) == 2
    error = capsys.readouterr().err
    assert "Did you mean 'sac'" in error and error.count("\n") == 1


@pytest.mark.parametrize("columns", [None, 80, 120])
def test_the_network_in_an_environment_fits_the_terminal_and_adds_up(columns, capsys, monkeypatch):
    if columns is not None:
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    torso = ["--torso", "flatten", "--set", "hidden_sizes=8"]
    assert main(["show", "sac", "--env", "agentkit:point_mass", *torso]) == 0
    lines = capsys.readouterr().out.partition("Network in agentkit:point_mass:")[2].splitlines()
    assert columns is None or max(map(len, lines)) <= columns
    rows = [line.split() for line in lines]
    assert ["observation", "float32", "2", "2", "numbers", "as", "they", "are"] in rows
    table = rows[rows.index(["module", "input", "output", "parameters"]) + 1 : -2]
    policy, critic = table[1:3], table[4:6]
    assert policy == [["linear", "2", "8", "24"], ["linear_1", "8", "4", "36"]]
    assert critic == [["linear", "4", "8", "40"], ["linear_1", "8", "1", "9"]]
    assert table[-1] == ["total", f"{24 + 36 + 40 + 9}"]


def test_the_encoder_of_images_is_shown_once_before_what_shares_it(capsys):
    words = ["--wrapper", "pixels(size=16)", "--set", "hidden_sizes=8"]
    assert main(["show", "td3", "--env", "agentkit:point_mass", *words]) == 0
    lines = capsys.readouterr().out.partition("Network in agentkit:point_mass:")[2].splitlines()
    rows = [line.split() for line in lines]
    names = [row[0] for row in rows if row and row[0].startswith("[")]
    assert names == ["[encoder]", "[agent/policy]", "[agent/critic]"]
    assert sum(row[:2] == ["drq_torso/conv2_d", "16x16x3"] for row in rows) == 1
    assert sum(row[:3] == ["trunk", "2048", "50"] for row in rows) == 2  # Of the policy, and of the first critic.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sac", "--env", "agentkit:catch"], "SAC needs one continuous action"),
        (["dqn", "--env", "agentkit:catch", "--torso", "impala"], "torso 'impala' is for images"),
        (["dqn", "--env", "agentkit:catch", "--torso", "resnet"], "Unknown torso 'resnet'"),
        (["dqn", "--env", "agentkit:catch", "--torso", "os:nothing"], "Unknown torso of os 'nothing'"),
        (["dqn", "--env", "agentkit:catch", "--torso", "not_there:torso"], "not_there cannot be imported"),
        (["dqn", "--env", "agentkit:catch", "--set", "n_step=0"], "n_step"),
    ],
)
def test_show_refuses_what_training_refuses_in_the_same_words(words, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["show", *words]) == 2
    shown = capsys.readouterr().err
    assert main(["train", *words, "--steps", "10"]) == 2
    assert message in shown and shown.count("\n") == 1
    assert capsys.readouterr().err == shown
    assert not list(tmp_path.iterdir())


def test_show_wants_an_environment_for_what_changes_the_network(capsys):
    assert main(["show", "dqn", "--torso", "flatten"]) == 2
    assert "--torso changes the network in an environment; say which one, with --env." in capsys.readouterr().err
