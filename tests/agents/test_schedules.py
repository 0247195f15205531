"""Settings that change in the course of training."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import dqn, registry
from agentkit.agents.common.experience import ReplayConfig
from agentkit.agents.common.prioritized import importance_weighted_loss, importance_weights
from agentkit.errors import ConfigError
from agentkit.experiment.config.recipes import decode, encode
from agentkit.learning import Cosine, Linear, Piecewise, Schedule, adam, optimizer_step, tell_counts, value_in_update
from agentkit.types import ReplaySample, SampleInfo
from tests.agents.on_policy_settings import SMALL
from tests.agents.on_policy_training import Training
from tests.agents.spaces import environment_of
from tests.agents.test_dqn import TestDqn as _DqnContract

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


@pytest.mark.one_case
@pytest.mark.parametrize("updates_per_call", [1, 2])
def test_schedules_go_on_where_they_were_after_a_resume(tmp_path: Path, updates_per_call: int) -> None:
    contract = _Scheduled(updates_per_call=updates_per_call)
    whole = contract._train(tmp_path / "never stopped")
    contract.test_killed_and_resumed_it_ends_as_if_never_stopped(whole, contract._kill(tmp_path / "run"))


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["learning_rate", "importance_exponent"])
def test_each_schedule_changes_what_is_learned(name: str, tmp_path: Path) -> None:
    states = [
        _Scheduled(**change)._train(tmp_path / f"{i}").state["learner"]["state"]
        for i, change in enumerate(({}, {name: SCHEDULED[name].start}))
    ]
    assert any(np.any(states[0][leaf] != states[1][leaf]) for leaf in states[0])


def test_beta_is_that_of_the_update() -> None:
    probability, ones = np.array([0.5, 0.1, 0.4]), np.ones(3)
    config = ReplayConfig(prioritized=True, importance_exponent=Linear(0.2, 1.0, 40))
    losses = np.array([1.0, 2.0, 3.0])
    for num_steps, beta in ((0, 0.2), (10, 0.4), (40, 1.0), (60, 1.0)):
        batch = ReplaySample(SampleInfo(probability, 10 * ones, ones, ones), (), np.int32(7), np.int32(num_steps))
        found = importance_weighted_loss(losses, {}, batch, config).loss
        np.testing.assert_allclose(found, np.mean(importance_weights(probability, 10 * ones, beta) * losses), rtol=1e-5)


def test_a_schedule_needs_to_know_which_update_it_is() -> None:
    batch = ReplaySample((), ())
    assert value_in_update(0.5, batch) == 0.5
    for unit in ("updates", "steps"):
        with pytest.raises(ConfigError, match=f"num_{unit}, which is empty"):
            value_in_update(Linear(0.0, 1.0, 10, by=unit), batch)
        with pytest.raises(ConfigError, match=f'by="{unit}" needs a count of {unit}, found none'):
            tell_counts(adam(Linear(0.0, 1.0, 10, by=unit)).init(np.ones(2)), steps=(), updates=())


def test_an_optimizer_that_rests_now_and_then_counts_the_learners_updates() -> None:
    """Its rate ends where the schedule does, not `policy_delay` times as late."""
    optimizer, ones = adam(Linear(1.0, 0.0, 10, by="updates")), np.ones(2)
    state = {"policy": optimizer.init(ones), "other": ones}
    told = tell_counts(state, steps=(), updates=np.int32(10))
    np.testing.assert_array_equal(optimizer_step(optimizer, ones, ones, told["policy"])[0], ones)
    assert jax.tree.structure(told) == jax.tree.structure(state)


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


@pytest.mark.parametrize("name", ["a2c", "ppo"])
def test_a_state_that_another_run_has_learned_begins_at_the_learners_count(name: str) -> None:
    """Else a run that begins with another one's state (init_from) would learn by the end of its schedule."""
    falling = {**SMALL, "learning_rate": Linear(1e-3, 0.0, 100, by="updates")}
    training = Training(registry.make(name, falling), "agentkit:catch", None)
    batch = training.next_batch()
    state = training.state._replace(num_updates=np.int32(100))
    rates = [training.compiled(state, batch._replace(num_updates=np.int32(n)))[1].metrics for n in (0, 50)]
    np.testing.assert_allclose([rate["learning_rate"] for rate in rates], [1e-3, 5e-4], rtol=1e-5)


@pytest.mark.parametrize("schedule", [Linear(1.0, 0.5, 10), Piecewise((1.0, 0.5), (10,), by="updates")])
def test_a_run_folder_keeps_schedules(schedule: Schedule) -> None:
    assert decode(json.loads(json.dumps(encode(schedule)))) == schedule
