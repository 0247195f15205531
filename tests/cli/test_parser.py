import pytest

from agentkit.cli.parser import parse
from agentkit.errors import ConfigError, UnknownNameError


def test_the_whole_train_line():
    words = "train sac --env gymnasium:Pendulum-v1 --steps 100_000 --seed 0 --set a=1 --set b=2 --num-envs 4"
    arguments = parse(words.split())
    assert (arguments.command, arguments.agent, arguments.steps, arguments.seed) == (
        "train",
        "sac",
        100_000,
        0,
    )
    assert arguments.set == ["a=1", "b=2"] and arguments.num_envs == 4 and arguments.replay is None


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("trian", UnknownNameError, "Did you mean 'train'"),
        ("train sac --sed 3", UnknownNameError, "Did you mean '--seed'"),
        ("train sac --step=3", UnknownNameError, "Unknown option of 'agentkit train' '--step'"),
        ("train sac --steps many", ConfigError, "--steps: expected a whole number, found 'many'"),
        ("train sac --steps 0", ConfigError, "--steps: expected at least 1, found '0'"),
        ("train sac --seed -1", ConfigError, "--seed: expected at least 0"),
        ("train sac --replay redis", ConfigError, "--replay: invalid choice"),
        ("train sac dqn", ConfigError, "unexpected argument 'dqn'"),
        ("evaluate", ConfigError, "RUN"),
        ("plot", ConfigError, "RUN"),
        ("", ConfigError, "COMMAND"),
    ],
)
def test_mistakes(words, error, message):
    with pytest.raises(error) as caught:
        parse(words.split())
    assert message in str(caught.value)


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["train", "--help"], ["plot", "-h"]])
def test_help_ends_well(words, capsys):
    with pytest.raises(SystemExit) as end:
        parse(words)
    assert end.value.code == 0
    assert "agentkit" in capsys.readouterr().out
