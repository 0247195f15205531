import pytest

from agentkit.cli.words.parser import options, parse
from agentkit.errors import ConfigError, UnknownNameError


@pytest.mark.both_stacks
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


@pytest.mark.both_stacks
def test_train_launch_and_node_replay_share_the_options_of_an_experiment():
    """An option that one of them lacks would be a second copy of the block."""
    train, launch, host = (vars(parse(words.split())) for words in ("train", "launch", "node replay"))
    shared = train.keys() & launch.keys() & host.keys()
    assert train.keys() - shared == {
        "resume", "profile", "jax_trace", "seeds", "jobs", "video_every", "on_device",
        "policies", "count_steps_by", "opponents",
    }  # fmt: skip
    assert launch.keys() - shared == {
        "resume", "actors", "evaluators", "engine", "ray_address", "listen", "max_parameter_age",
        "max_restarts", "learner_gpus", "inference", "policies", "count_steps_by", "opponents",
    }  # fmt: skip
    assert host.keys() - shared == {"role", "run", "board_port", "port", "listen", "run_id", "run_id_file"}
    assert all(values[name] is None for values in (train, launch, host) for name in shared - {"command"})


@pytest.mark.both_stacks
def test_the_words_of_a_node():
    arguments = parse(["node", "actor", "--connect", "host:7700", "--run-id-file", "secret", "--index", "3"])
    assert (arguments.command, arguments.role, arguments.connect, arguments.index) == ("node", "actor", "host:7700", 3)


@pytest.mark.both_stacks
@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ("trian", UnknownNameError, "Did you mean 'train'"),
        ("train sac --sed 3", UnknownNameError, "Did you mean '--seed'"),
        ("train sac --step=3", UnknownNameError, "'agentkit train' has no option '--step'"),
        ("train sac --steps many", ConfigError, "--steps: expected a whole number, found 'many'"),
        ("train sac --steps 0", ConfigError, "--steps: expected at least 1, found '0'"),
        ("train sac --seed -1", ConfigError, "--seed: expected at least 0"),
        ("train sac --replay redis", ConfigError, "--replay: invalid choice"),
        ("train sac dqn", ConfigError, "unexpected argument 'dqn'"),
        ("td3 gymnasium:Hopper-v5", UnknownNameError, "Unknown command 'td3'"),
        ("train td3 gymnasium:Hopper-v5", ConfigError, "named with --env: --env gymnasium:Hopper-v5."),
        ("train sac --total-timesteps 9", UnknownNameError, "'--total-timesteps'. Give: --steps N. See: "),
        ("launch sac --on-device", UnknownNameError, "'--on-device'. The compiled loop is of one process"),
        ("train --algo sac", UnknownNameError, "'--algo'. The agent's name comes first: agentkit train sac. See: "),
        (
            "train sac --num-env 3",
            UnknownNameError,
            "'--num-env'. Did you mean '--num-envs'? See: agentkit train --help",
        ),
        ("launch sac --actors 0", ConfigError, "--actors: expected at least 1, found '0'"),
        ("launch sac --engine rya", ConfigError, "--engine: invalid choice"),
        ("launch sac --replay in_process", ConfigError, "--replay: invalid choice"),
        ("launch sac --learner-gpus all", ConfigError, "--learner-gpus: expected a number, found 'all'"),
        ("launch sac --max-parameter-age 0", ConfigError, "expected seconds above 0, found '0'"),
        ("node", ConfigError, "ROLE"),
        ("node actr", UnknownNameError, "Did you mean 'actor'"),
        ("node actor --conect a:1", UnknownNameError, "'agentkit node actor' has no option '--conect'"),
        ("node learner --index 0", UnknownNameError, "'agentkit node learner' has no option '--index'"),
        ("node actor dqn", ConfigError, "unexpected argument 'dqn'. See: agentkit node actor --help"),
        ("node replay dqn --board-port 65536", ConfigError, "expected a port up to 65535"),
        ("node actor --run-id a --run-id-file b", ConfigError, "not allowed with"),
        ("status", ConfigError, "RUN"),
        ("scale runs/a", ConfigError, "--actors"),
        ("evaluate", ConfigError, "RUN"),
        ("plot", ConfigError, "RUN"),
        ("", ConfigError, "COMMAND"),
    ],
)
def test_mistakes(words, error, message):
    with pytest.raises(error) as caught:
        parse(words.split())
    assert message in str(caught.value)


@pytest.mark.both_stacks
@pytest.mark.parametrize(
    "words", [["--help"], ["--version"], ["train", "--help"], ["plot", "-h"], ["node", "-h"], ["node", "actor", "-h"]]
)
def test_help_ends_well(words, capsys):
    with pytest.raises(SystemExit) as end:
        parse(words)
    assert end.value.code == 0
    assert "agentkit" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["train", "launch", "offline"])
def test_the_help_of_a_long_command_has_each_option_once_and_in_a_section(command, capsys):
    with pytest.raises(SystemExit):
        parse([command, "--help"])
    lines = capsys.readouterr().out.splitlines()
    listed = [word for line in lines if (word := line[2:].split(" ")[0].rstrip(",")).startswith("--")]
    known = {name for name, action in options(command).items() if name == action.option_strings[0]}
    assert sorted(listed) == sorted(known - {"--help"})
    others = lines[lines.index("others:") :]
    assert (
        not {"  --env", "  --set", "  --steps"} & {line[:9].rstrip() for line in others} and "what to train:" in lines
    )
