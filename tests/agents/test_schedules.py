"""Settings that change in the course of training."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agentkit import envs, learning, specs
from agentkit.agents import dqn, impala, registry
from agentkit.agents.common.experience import ReplayConfig
from agentkit.agents.common.prioritized import importance_weighted_loss, importance_weights
from agentkit.errors import ConfigError
from agentkit.experiment.recipes import decode, encode
from agentkit.learning import Cosine, Linear, Piecewise, Schedule, value_in_update
from agentkit.types import ReplaySample, SampleInfo
from tests.agents.on_policy_training import Training
from tests.agents.spaces import environment_of
from tests.agents.test_dqn import TestDqn as _DqnContract

pytestmark = pytest.mark.one_stack

SCHEDULED: dict[str, Any] = {
    "prioritized": True,
    "learning_rate": Linear(1e-2, 1e-4, 100),
    "epsilon": Linear(1.0, 0.1, 100),
    "importance_exponent": Linear(0.0, 1.0, 100),
}


class _Scheduled(_DqnContract):
    __test__ = False

    def __init__(self, **changes: Any):
        self._changes = {**SCHEDULED, **changes}

    def make_agent(self, **changes: Any) -> Any:
        return super().make_agent(**{**self._changes, **changes})


@pytest.mark.parametrize("updates_per_call", [1, 2])
def test_schedules_go_on_where_they_were_after_a_resume(tmp_path: Path, updates_per_call: int) -> None:
    contract = _Scheduled(updates_per_call=updates_per_call)
    whole = contract._train(tmp_path / "never stopped")
    contract.test_killed_and_resumed_it_ends_as_if_never_stopped(whole, contract._kill(tmp_path / "run"))


@pytest.mark.parametrize("name", ["learning_rate", "importance_exponent"])
def test_each_schedule_changes_what_is_learned(name: str, tmp_path: Path) -> None:
    states = [
        _Scheduled(**change)._train(tmp_path / f"{i}").state["learner"]["state"]
        for i, change in enumerate(({}, {name: SCHEDULED[name].start}))
    ]
    assert any(np.any(states[0][leaf] != states[1][leaf]) for leaf in states[0])


def test_beta_is_that_of_the_update() -> None:
    probability, ones = np.array([0.5, 0.1, 0.4]), np.ones(3)
    config = ReplayConfig(prioritized=True, updates_per_step=0.5, importance_exponent=Linear(0.2, 1.0, 40))
    losses = np.array([1.0, 2.0, 3.0])
    for num_updates, beta in ((0, 0.2), (5, 0.4), (20, 1.0), (30, 1.0)):  # Two steps for each update.
        batch = ReplaySample(SampleInfo(probability, 10 * ones, ones, ones), (), np.int32(num_updates))
        found = importance_weighted_loss(losses, {}, batch, config).loss
        np.testing.assert_allclose(found, np.mean(importance_weights(probability, 10 * ones, beta) * losses), rtol=1e-5)


def test_a_schedule_needs_to_know_which_update_it_is() -> None:
    batch = ReplaySample((), ())
    assert value_in_update(0.5, batch, 2.0) == 0.5
    with pytest.raises(ConfigError, match="num_updates"):
        value_in_update(Linear(0.0, 1.0, 10), batch, 2.0)


def test_epsilon_counts_steps_only() -> None:
    assert dqn.Config(epsilon=Cosine(1.0, 0.0, 10)).epsilon == Cosine(1.0, 0.0, 10)
    with pytest.raises(ConfigError, match=r'epsilon must be a schedule by="steps", found Linear.*counts no updates'):
        dqn.Config(epsilon=Linear(1.0, 0.0, 10, by="updates"))
    with pytest.raises(ConfigError, match=r"epsilon must be in \[0, 1\]"):
        dqn.Config(epsilon=Linear(1.5, 0.0, 10))


@pytest.mark.parametrize("name", registry.names())
def test_every_agent_takes_a_schedule_as_each_of_its_learning_rates(name: str) -> None:
    fields = registry.config_class(name).__dataclass_fields__
    rates = [field for field in fields if field.endswith("learning_rate")]
    assert rates and "max_grad_norm" in fields
    falling = dict.fromkeys(rates, Linear(1e-3, 0.0, 100, by="updates"))
    agent = registry.make(name, falling)
    networks = agent.make_networks(specs.make_environment_spec(envs.make(environment_of(name), seed=0)))
    jax.eval_shape(agent.make_update(networks).init, jax.ShapeDtypeStruct((2,), np.uint32))


@pytest.mark.parametrize(
    "name", [name for name in registry.names() if issubclass(registry.config_class(name), ReplayConfig)]
)
def test_a_learning_rate_by_steps_knows_how_many_an_update_is_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, found = registry.module(name), []

    def adam(*args: Any, steps_per_update: float = 0.0, **kwargs: Any) -> Any:
        found.append(steps_per_update)
        return learning.adam(*args, steps_per_update=steps_per_update, **kwargs)

    monkeypatch.setattr(module, "adam", adam)
    agent = registry.make(name, {"updates_per_step": 0.125})
    agent.make_update(agent.make_networks(specs.make_environment_spec(envs.make(environment_of(name), seed=0))))
    assert found and set(found) == {agent.config.steps_per_update} and found[0] > 1.0


def test_impala_needs_a_batch_size_to_count_steps() -> None:
    small = {"hidden_sizes": (8,), "segment_length": 16}
    for change in ({"batch_size": 3}, {}):
        config = impala.Config(
            **small, **change, learning_rate=Linear(1e-2, 0.0, 2 * 48), entropy_cost=Linear(1, 0, 96)
        )
        networks = impala.make_networks(specs.make_environment_spec(envs.make("agentkit:catch", seed=0)), config)
        loss = impala.make_loss(networks, config)
        if not change:
            with pytest.raises(ConfigError, match="found batch_size=None"):
                impala.make_update(networks, loss, config)
            continue
        assert impala.make_update(networks, loss, config).gradient is None
        training = Training(impala.make_agent(config), "agentkit:catch", 3)
        moved = []
        for num_updates in range(3):
            before = jax.tree.map(np.asarray, training.state.variables.params)
            training.learn(training.next_batch()._replace(num_updates=np.int32(num_updates)))
            after = training.state.variables.params
            moved.append(any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (before, after)), strict=True)))
        assert moved == [True, True, False]


@pytest.mark.parametrize("schedule", [Linear(1.0, 0.5, 10), Piecewise((1.0, 0.5), (10,), by="updates")])
def test_a_run_folder_keeps_schedules(schedule: Schedule) -> None:
    assert decode(json.loads(json.dumps(encode(schedule)))) == schedule
