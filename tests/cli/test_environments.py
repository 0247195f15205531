"""``--env-set``, ``--wrapper`` and ``--import``: how an environment is made, and whose code may be used."""

import functools
import json
import re
import sys
from pathlib import Path

import pytest

from agentkit.cli import main
from agentkit.cli.values.environments import import_packages, parse_environment_settings, parse_plain, parse_wrapper
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.experiment import UntrustedCodeError, read_config
from agentkit.wrappers import registry
from agentkit.wrappers.frame_stack import FrameStack
from agentkit.wrappers.step_limit import StepLimit

pytestmark = pytest.mark.both_stacks

SMALL = ["--set", "hidden_sizes=4", "--set", "min_replay_size=10", "--set", "batch_size=4", "--eval-every", "0"]


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (["rows=8", "columns=1_0"], "agentkit:catch", {"rows": 8, "columns": 10}),
        (["render_mode=rgb_array", "x=1_0", "y=1e-3"], "gymnasium:A", {"render_mode": "rgb_array", "x": 10, "y": 1e-3}),
        (["task_kwargs={'time_limit': 5}"], "dm_control:cheetah/run", {"task_kwargs": {"time_limit": 5}}),
        (["a=b=c"], None, {"a": "b=c"}),
        (None, "agentkit:catch", {}),
    ],
)
def test_arguments_of_an_environment(words, environment, expected):
    assert parse_environment_settings(words, environment) == expected


@pytest.mark.parametrize(
    ("text", "value"), [("TRUE", True), ("none", None), ("1,2", (1, 2)), ("-3", -3), ("a b", "a b"), ("", "")]
)
def test_plain_values(text, value):
    assert parse_plain(text) == value and type(parse_plain(text)) is type(value)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["rwos=8"], UnknownNameError, "Did you mean 'rows'"),
        (["seed=8"], UnknownNameError, "argument of agentkit:catch"),
        (["rows=x"], ConfigError, r"--env-set rows \(int\): expected a whole number"),
        (["rows"], ConfigError, "expected NAME=VALUE"),
        (["rows=1", "rows=2"], ConfigError, "given twice"),
    ],
)
def test_wrong_arguments_of_an_environment(words, error, message):
    with pytest.raises(error, match=message):
        parse_environment_settings(words, "agentkit:catch")


def test_wrappers():
    assert parse_wrapper("concat_observations") is registry.find("concat_observations")
    made = parse_wrapper("frame_stack(num_frames=4, flatten=False)")
    assert isinstance(made, functools.partial)
    assert (made.func, made.keywords) == (FrameStack, {"num_frames": 4, "flatten": False})
    assert parse_wrapper("tests.experiment.own_parts:Doubled", ["tests"]).__name__ == "Doubled"


def test_every_file_of_a_wrapper_has_a_short_name():
    folder = Path(sys.modules[registry.__name__].__file__).parent
    no_wrappers_by_name = {"__init__", "base", "registry", "area", "film"}  # Resizing; a film has options.
    assert {path.stem for path in folder.glob("*.py")} - no_wrappers_by_name == set(registry.names())
    assert all(registry.find(name).__module__ == f"agentkit.wrappers.{name}" for name in registry.names())


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("frame_stak", UnknownNameError, "Did you mean 'frame_stack'"),
        ("frame_stack(num_frame=4)", UnknownNameError, "Did you mean 'num_frames'"),
        ("frame_stack", ConfigError, r"needs num_frames. Example: frame_stack\(num_frames=4\)"),
        ("frame_stack(4)", ConfigError, "expected NAME or NAME"),
        ("frame_stack(num_frames=open('x'))", ConfigError, "expected NAME or NAME"),
        ("frame_stack(num_frames=4", ConfigError, "expected NAME or NAME"),
        ("subprocess:call", UntrustedCodeError, "--import subprocess"),
    ],
)
def test_wrong_wrappers(text, error, message):
    with pytest.raises(error, match=message):
        parse_wrapper(text)


def test_gymnasium_says_which_arguments_there_are():
    pytest.importorskip("gymnasium")
    from agentkit import envs

    with pytest.raises(UnknownNameError, match="Did you mean 'sutton_barto_reward'"):
        envs.make("gymnasium:CartPole-v1", sutton_barto_rewrd=True)


def test_packages_are_found_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "only_here.py").write_text("")
    assert import_packages(None) == ()
    assert str(tmp_path) not in sys.path
    assert import_packages(["only_here"]) == ("only_here",)
    assert sys.path[-1] == str(tmp_path), "last: it hides no installed package"
    with pytest.raises(ConfigError, match=r"'not_here' was named to be imported, and cannot be.*Run from the folder"):
        import_packages(["not_here"])
    sys.modules.pop("only_here")


_OWN = """
from agentkit import envs
from agentkit.envs.catch import Catch

def make(name, seed, **settings):
    return Catch(seed=seed, **settings)

envs.register("cliown", make)
"""


@pytest.mark.full
def test_a_run_in_a_registered_environment_with_wrappers(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr("agentkit.envs.prefixes._registered", {})
    (tmp_path / "cli_own.py").write_text(_OWN)
    words = ["train", "dqn", "--env", "cliown:x", "--steps", "30", *SMALL]
    assert main(words) == 2
    assert "cliown" in capsys.readouterr().err
    named = ["--import", "cli_own"]
    assert main([*words, *named, "--env-set", "rows=7", "--wrapper", "step_limit(max_steps=3)"]) == 0
    run = re.search(r"^Run folder: (.*)$", capsys.readouterr().out, re.MULTILINE)[1]
    config = json.loads((tmp_path / run / "config.json").read_text())
    assert config["environment_factory"]["function"] == "cli_own:make" and config["environment_settings"] == {"rows": 7}

    monkeypatch.setattr("agentkit.envs.prefixes._registered", {})
    sys.modules.pop("cli_own")
    assert main(["evaluate", run]) == 2
    assert f"Run:\n  agentkit evaluate {run} --import cli_own" in capsys.readouterr().err
    assert main(["evaluate", run, "--episodes", "1", *named]) == 0
    (wrapper,) = read_config(run).wrappers
    assert (wrapper.func, wrapper.keywords) == (StepLimit, {"max_steps": 3})
    assert main(["train", "--resume", run, "--wrapper", "step_limit(max_steps=3)"]) == 2
    assert "leave out --wrapper" in capsys.readouterr().err
    sys.modules.pop("cli_own")
