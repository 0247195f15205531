"""A further run of an equal agent compiles nothing again, and goes by what has changed since."""

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from agentkit import checkpoint, envs, specs
from agentkit.agents import dqn, ppo, sac
from agentkit.agents.addons.rnd import with_rnd
from agentkit.agents.common.agent import Agent
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.policies.agent_parts import find_policy, make_parts
from agentkit.experiment.policies.restore_policy import restore_policy
from agentkit.learning import Loss
from agentkit.types import LossOutput

SMALL = {"hidden_sizes": (5,), "min_replay_size": 20, "batch_size": 8}
CATCH = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))

scale = 1.0


def scaled_loss(network: Any, config: Any) -> Loss:
    """DQN's loss times a global variable, which a notebook may change between two runs."""
    loss = dqn.make_loss(network, config)

    def scaled(*arguments: Any) -> LossOutput:
        output = loss(*arguments)
        return output._replace(loss=scale * output.loss)

    return scaled


def make_dqn(**settings: Any) -> Agent:
    return dqn.make_agent(dqn.Config(**{**SMALL, **settings}))


@contextlib.contextmanager
def compilations() -> Iterator[collections.Counter]:
    """Counts what XLA compiles, or JAX takes from its cache of earlier compilations."""
    counted: collections.Counter = collections.Counter()

    def count(event: str, seconds: float, **kwargs: Any) -> None:
        del seconds, kwargs
        counted[event] += 1

    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        yield counted
    finally:
        jax.monitoring.unregister_event_duration_listener(count)


def trained(agent: Agent, directory: Any, **fields: Any) -> dict[str, np.ndarray]:
    run(ExperimentConfig(agent, "agentkit:catch", 80, run_directory=directory, evaluation_period=40, **fields))
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return found.state["learner"]["state"]


@pytest.mark.one_case
@pytest.mark.parametrize("num_envs", [None, 2])
def test_a_second_run_compiles_nothing_and_is_the_same(tmp_path: Any, num_envs: int | None) -> None:
    first = trained(make_dqn(discount=0.9), tmp_path / "first", num_envs=num_envs)
    with compilations() as counted:
        second = trained(make_dqn(discount=0.9), tmp_path / "second", num_envs=num_envs)
    assert counted["/jax/core/compile/backend_compile_duration"] == 0, counted
    with compilations() as counted:
        other = trained(make_dqn(discount=0.8), tmp_path / "other", num_envs=num_envs)
    assert counted["/jax/core/compile/backend_compile_duration"] > 0, "nothing is counted"
    assert [name for name in first if np.any(first[name] != second[name])] == []
    assert [name for name in first if np.any(first[name] != other[name])] != []


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(make_dqn(discount=0.5), id="another setting"),
        pytest.param(dqn.make_agent(dqn.Config(**SMALL), torso="flatten"), id="another torso"),
        pytest.param(ppo.make_agent(ppo.Config(hidden_sizes=(5,))), id="another agent"),
        pytest.param(with_rnd(make_dqn()), id="with an add-on"),
    ],
)
def test_only_equal_agents_share(agent: Agent) -> None:
    parts = make_parts(make_dqn(), CATCH)
    assert make_parts(agent, CATCH).networks is not parts.networks
    assert make_parts(make_dqn(), CATCH) is parts
    assert find_policy(make_dqn(), parts.networks, True) is parts.policy(True)


def test_a_whole_number_is_another_setting_than_a_fraction() -> None:
    """Of 1 and 1.0, which are equal, JAX makes two programs."""
    whole, fraction = make_dqn(max_grad_norm=1), make_dqn(max_grad_norm=1.0)
    assert whole == fraction
    assert make_parts(whole, CATCH) is not make_parts(fraction, CATCH)


def test_only_equal_specs_share() -> None:
    agent = sac.make_agent(sac.Config(**SMALL))
    spec = specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0))
    larger = spec._replace(observations=specs.Array((9,), np.float32))
    assert make_parts(agent, spec) is make_parts(agent, spec)
    assert make_parts(agent, spec) is not make_parts(agent, larger)


@pytest.mark.full
def test_a_function_of_the_users_is_compiled_anew(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may read a global variable, as this one does."""
    agent = dqn.make_agent(dqn.Config(**SMALL, max_grad_norm=None), make_loss=scaled_loss)
    first = trained(agent, tmp_path / "first")
    monkeypatch.setitem(globals(), "scale", 0.0)
    second = trained(agent, tmp_path / "second")
    weights = [name for name in first if name.startswith(".params") and first[name].ndim == 2]
    assert weights
    for name in weights:
        assert np.any(first[name] != second[name]), f"{name} was learned with the scale of the first run"


def test_a_policy_is_restored_without_an_initial_state(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which took seconds to compile, to be overwritten."""
    learned = trained(make_dqn(discount=0.7), tmp_path / "run")
    fresh = make_dqn(discount=0.7, learning_rate=1e-4)  # Nothing of it is compiled; the parameters are alike.
    monkeypatch.setattr("agentkit.learning.compiled.compile_quickly", _fail)
    restored = restore_policy(ExperimentConfig(fresh, "agentkit:catch", 80, run_directory=tmp_path / "run"))
    found = restored.store.get(["policy"])
    assert found is not None
    params = jax.tree.leaves(found.variables)
    assert params and all(any(np.array_equal(leaf, other) for other in learned.values()) for leaf in params)


def _fail(*arguments: Any) -> None:
    raise AssertionError(f"an initial state is computed by {arguments}")
