"""Every number that an experiment, an offline job or a launch is told has a range, and nonsense is refused."""

import dataclasses
import re
import typing

import numpy as np
import pytest

import agentkit
from agentkit.agents import dqn, registry
from agentkit.agents.common.ranges import ranges_of
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, LaunchConfig, MultiAgentConfig, OfflineConfig

CONFIGS = {
    ExperimentConfig: lambda **given: ExperimentConfig(
        **{"agent": dqn.make_agent(), "environment": "agentkit:catch", "num_steps": 9, **given}
    ),
    OfflineConfig: lambda **given: OfflineConfig(
        **{"agent": dqn.make_agent(), "dataset": "a.npz", "num_updates": 9, **given}
    ),
    LaunchConfig: LaunchConfig,
}
AND_AGENTS = {
    **CONFIGS,
    MultiAgentConfig: lambda **given: MultiAgentConfig(
        **{"policies": dqn.make_agent(), "environment": "agentkit:hunt", "num_steps": 9, "policy_of": "each", **given}
    ),
    **{cls: cls for cls in map(registry.config_class, registry.names())},
}


def _is_number(hint):
    return any(part in (int, float) for part in (hint, *typing.get_args(hint)))


NUMBERS = [
    (cls, field.name)
    for cls in CONFIGS
    for field in dataclasses.fields(cls)
    if _is_number(typing.get_type_hints(cls)[field.name])
]


@pytest.mark.parametrize(("cls", "name"), NUMBERS, ids=lambda value: getattr(value, "__name__", value))
def test_each_number_has_a_range_and_nonsense_is_refused(cls, name):
    assert ranges_of(cls)[name], f"{name} has no range"
    for value in (-1, float("nan"), "3", True):
        with pytest.raises(ConfigError, match=rf"{name} must be .*, found (the string ')?{value}"):
            CONFIGS[cls](**{name: value})


BOOLS = {
    cls: [name for name, hint in typing.get_type_hints(cls).items() if bool in (hint, *typing.get_args(hint))]
    for cls in AND_AGENTS
}


@pytest.mark.parametrize("cls", BOOLS, ids=lambda cls: f"{cls.__module__.rpartition('.')[2]}.{cls.__qualname__}")
def test_what_python_counts_as_true_is_no_bool(cls):
    for name in BOOLS[cls]:
        for value in ("False", "no", 1, 0, ()):
            expected = rf"^{name} must be True or False, found (the string )?{re.escape(repr(value))}"
            with pytest.raises(ConfigError, match=expected):
                AND_AGENTS[cls](**{name: value})


def test_true_and_false_are_bools_of_numpy_too():
    assert {"progress", "on_device", "evaluation_samples"} <= set(BOOLS[ExperimentConfig])
    assert {"prioritized", "double"} <= set(BOOLS[dqn.Config])
    made = dqn.Config(prioritized=np.True_, double=False)
    assert made == dqn.Config(prioritized=True, double=False)


@pytest.mark.parametrize("name", ["explore", "resume"])
def test_arguments_that_are_true_or_false_are_checked(name):
    calls = {
        "explore": lambda: agentkit.load("nowhere", explore="no"),
        "resume": lambda: agentkit.run(CONFIGS[ExperimentConfig](run_directory="nowhere"), resume="False"),
    }
    with pytest.raises(ConfigError, match=f"^{name} must be True or False, found the string"):
        calls[name]()


@pytest.mark.parametrize("cls", [ExperimentConfig, MultiAgentConfig, OfflineConfig])
@pytest.mark.parametrize(("path", "found"), [("", "an empty string"), (3, "a int"), (b"x", "a bytes")])
def test_a_run_directory_is_a_path(cls, path, found):
    with pytest.raises(ConfigError, match=f"^run_directory: expected a path, found {found}"):
        AND_AGENTS[cls](run_directory=path)


def test_paths_of_runs_and_data_are_no_empty_words_and_no_experiments():
    experiment = CONFIGS[ExperimentConfig]
    for name in ("init_from", "data"):
        with pytest.raises(ConfigError, match=f"^{name}: expected a path, found an empty string"):
            experiment(**{name: ""})
    for resume in (agentkit.resume, agentkit.resume_launch, agentkit.resume_offline):
        with pytest.raises(ConfigError, match=r"found a ExperimentConfig.*run\(experiment, resume=True\)"):
            resume(experiment())
    with pytest.raises(ConfigError, match=r"^init_checkpoint='best' is of the run in init_from, found none"):
        experiment(init_checkpoint="best")


def test_there_are_numbers():
    assert len(NUMBERS) > 15 and (ExperimentConfig, "num_envs") in NUMBERS


@pytest.mark.parametrize("name", ["seed", "num_steps", "checkpoint_period"])
def test_none_is_no_number(name):
    with pytest.raises(ConfigError, match=f"{name} must be a whole number"):
        CONFIGS[ExperimentConfig](**{name: None})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_actors": 1, "num_inference": 2}, "0 to num_actors=1"),
        ({"learner_gpus": 1.5}, "learner_gpus must be a part of one or a whole number, found 1.5"),
        ({"ray_address": "a:1"}, "belongs to engine='ray'"),
    ],
)
def test_settings_that_contradict_each_other(settings, message):
    with pytest.raises(ConfigError, match=message):
        LaunchConfig(**settings)


@pytest.mark.parametrize("agent", registry.names())
def test_a_whole_number_of_more_than_64_bits_is_refused(agent):
    config = registry.config_class(agent)
    counts = [name for name, hint in typing.get_type_hints(config).items() if int in (hint, *typing.get_args(hint))]
    assert "batch_size" in counts
    for name in counts:
        with pytest.raises(ConfigError, match=rf"^{name} must be a whole number of 64 bits, .* found 1{'0' * 20}"):
            config(**{name: 10**20})
