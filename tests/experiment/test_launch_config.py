"""What a launch is told, before anything is started."""

import contextlib
import tempfile
import types
import warnings

import pytest

from agentkit.agents import dqn
from agentkit.callbacks import Callback, keep_best, stop_at
from agentkit.cli.training.new_run import new_experiment
from agentkit.cli.words.parser import parse
from agentkit.errors import ConfigError, UnknownNameError
from agentkit.experiment import ExperimentConfig, LaunchConfig, make_program
from agentkit.experiment.launching.sharing.common import listen_at

pytestmark = pytest.mark.both_stacks


@pytest.mark.parametrize("number", [-1, 1.5, float("nan"), float("inf")])
def test_impossible_numbers_of_gpus_are_refused(number):
    with pytest.raises(ConfigError, match=rf"learner_gpus .* found {number}"):
        LaunchConfig(learner_gpus=number)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_actors": 1.5}, "num_actors must be a whole number"),
        ({"num_evaluators": True}, "num_evaluators must be a whole number"),
        ({"max_restarts": None}, "max_restarts must be a whole number"),
        ({"max_parameter_age_seconds": 0.0}, "> 0 and finite, found 0.0"),
        ({"max_parameter_age_seconds": float("nan")}, "> 0 and finite, found nan"),
        ({"max_parameter_age_seconds": 0.01}, "longer than 0.1 s.*found 0.01"),
        ({"listen": "nodev0"}, "Network device 'nodev0' has no IPv4 address here.*Devices: .*lo"),
    ],
)
def test_nonsense_is_refused_before_anything_is_started(settings, message):
    with pytest.raises((ConfigError, UnknownNameError), match=message):
        LaunchConfig(**settings)


@pytest.mark.parametrize("number", [0, 0.5, 1, 2])
def test_gpus_are_reserved_for_the_learner_alone(number):
    experiment = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 100)
    roles = make_program(experiment, LaunchConfig(learner_gpus=number)).roles
    assert {name: role.num_gpus for name, role in roles.items() if role.num_gpus or name == "learner"} == {
        "learner": number
    }
    # Whatever is reserved, nobody else may see an accelerator.
    sees = {name for name, role in roles.items() if role.environment.get("JAX_PLATFORMS") != "cpu"}
    assert sees == {"learner"}


@pytest.mark.reverb
@pytest.mark.ray
@pytest.mark.full
def test_a_gpu_that_no_machine_has_is_refused_at_once(tmp_path):
    from tests.experiment.launched import Launched

    with Launched(tmp_path, 1_000, "--engine", "ray", "--learner-gpus", "64") as program:
        assert program.end(400.0) == 1, program.output()
        assert "'learner', which asks for GPU 64" in program.log.read_text()


def test_a_temporary_folder_too_deep_for_a_socket_is_told(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 60)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    context = types.SimpleNamespace(role="replay", name="replay-0", store=types.SimpleNamespace(run_id="run"))
    with contextlib.ExitStack() as stack, pytest.raises(ConfigError, match="Set TMPDIR to a shorter folder"):
        listen_at(context, stack, "lo")


class Shows(Callback):
    """Looks at evaluations among others."""

    def on_evaluation(self, run, record): ...

    def on_episode(self, run, episode): ...


class Reports(Callback):
    """Looks at evaluations, and tells somebody of the end."""

    def on_evaluation(self, run, record): ...

    def on_end(self, run): ...


class Looks(Callback):
    """Looks at evaluations alone."""

    def on_evaluation(self, run, record): ...


@pytest.mark.parametrize(
    ("callbacks", "config", "period", "told"),
    [
        (
            [keep_best(), stop_at(1.0), Shows()], {"num_evaluators": 0}, 10,
            ["KeepBest, StopAt: looks at evaluations, and num_evaluators=0 "],
        ),
        ([Shows(), Reports()], {"num_evaluators": 0}, 10, []),
        ([keep_best()], {"num_evaluators": 1}, 10, []),
        ([Looks()], {"num_evaluators": 1}, 0, ["Looks: looks at evaluations, and evaluation_period=0 "]),
    ],
)  # fmt: skip
def test_callbacks_that_will_see_no_evaluation_are_warned_of(callbacks, config, period, told):
    plan = ExperimentConfig(
        dqn.make_agent(), "agentkit:catch", 100, replay="served", callbacks=callbacks, evaluation_period=period
    )
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        program = make_program(plan, LaunchConfig(**config))
    assert [str(each.message)[: len(text)] for each, text in zip(found, told, strict=True)] == told
    assert sum(node.role == "evaluator" for node in program.nodes.values()) == config["num_evaluators"] * bool(period)


def test_a_launch_without_evaluators_keeps_no_best_policy():
    words = ["launch", "dqn", "--env", "agentkit:catch", "--steps", "100", "--preset", "none", "--evaluators"]
    for number, kept in (("0", 0), ("1", 1)):
        assert len(new_experiment(parse([*words, number]), "launch").callbacks) == kept
