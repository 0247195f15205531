from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import iql
from agentkit.learning import objective
from agentkit.networks import DiagonalNormal, Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import offline_data, settings

KEY = jax.random.PRNGKey(0)
REFUSED = {**settings.OFF_POLICY_REFUSED, "tau": 1.5, "temperature": 0.0, "max_weight": 0.0}
CHANGES = {**settings.OFF_POLICY_CHANGES, "learning_rate": 1e-2, "tau": 0.5, "temperature": 0.01, "max_weight": 0.5}


@pytest.mark.full
class TestIql(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**REFUSED, "expectile": 1.0}
    changes: ClassVar = {**CHANGES, "expectile": 0.5, "scale_rewards": False}

    def make_agent(self, **changes: Any) -> Any:
        return iql.make_agent(iql.Config(**{**settings.SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Leaves out what data sets are read with: `tests/experiment/test_offline.py` has that."""
        with pytest.MonkeyPatch.context() as patch:
            patch.delitem(self.changes, "scale_rewards")
            super().test_every_setting_changes_what_the_agent_does()


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_critics_and_value_find_the_values_of_a_chain(terminates: bool) -> None:
    config = iql.Config(hidden_sizes=(32,), discount=0.8, tau=0.2, batch_size=64, learning_rate=1e-3, expectile=0.5)
    networks, state = learned(iql.make_agent(config), Chain(terminates), num_updates=4_000)
    observation = np.eye(4, dtype=np.float32)
    q = networks.critics.apply(state.critics, observation, np.zeros((4, 1), np.float32))
    found = np.stack([*q, networks.value.apply(state.value, observation)])
    np.testing.assert_allclose(found, np.tile(values(0.8, terminates), (3, 1)), atol=0.1 if terminates else 0.3)


def _losses(**settings: Any) -> Any:
    """A Gaussian policy whose mean is its parameter; values that are parameters times observations and actions."""
    networks = iql.Networks(
        Network(None, lambda params, o: DiagonalNormal(jnp.full(o.shape, params), jnp.full(o.shape, -0.5))),
        Network(None, lambda params, o, a: (params[0] * o[:, 0] + a[:, 0], params[1] * o[:, 0] - a[:, 0])),
        Network(None, lambda params, o: params * o[:, 0]),
    )
    return iql.make_losses(networks, iql.Config(**settings))


OBSERVATION, ACTION = np.float32([[1.0], [2.0], [-3.0]]), np.float32([[0.5], [-1.0], [0.25]])
REWARD, DISCOUNT = np.float32([1.0, -1.0, 0.5]), np.float32([0.0, 0.9, 0.9])
BATCH = ReplaySample((), Transition(OBSERVATION, ACTION, REWARD, DISCOUNT, OBSERVATION + 1.0))
CRITICS, VALUE = jnp.float32([1.0, 2.0]), jnp.float32(0.5)


def _state(target_critics: Any = CRITICS) -> iql.State:
    return iql.State((), CRITICS, VALUE, target_critics, ((), (), ()), KEY, np.int32(0))


def test_the_values_loss_by_hand() -> None:
    found = _losses(expectile=0.8).value(VALUE, _state(jnp.float32([0.5, -1.0])), BATCH, KEY)
    o, a = OBSERVATION[:, 0], ACTION[:, 0]
    u = np.minimum(0.5 * o + a, -1.0 * o - a) - 0.5 * o
    np.testing.assert_allclose(found.loss, np.mean(np.where(u < 0, 0.2, 0.8) * u**2), rtol=1e-5)
    np.testing.assert_allclose(found.metrics["value"], np.mean(0.5 * o), atol=1e-6)


def test_the_critics_loss_by_hand_and_priorities_are_the_first_ones_absolute_errors() -> None:
    info = SampleInfo(np.array([0.4, 0.1, 0.2]), np.full(3, 10), (), ())
    losses = _losses(prioritized=True, importance_exponent=0.5)
    found = jax.jit(losses.critic)(CRITICS, _state(jnp.float32([100.0, 100.0])), BATCH._replace(info=info), KEY)
    o, a = OBSERVATION[:, 0], ACTION[:, 0]
    target = REWARD + DISCOUNT * 0.5 * (o + 1.0)
    per_item = (o + a - target) ** 2 + (2.0 * o - a - target) ** 2
    np.testing.assert_allclose(found.loss, np.mean(np.sqrt([0.25, 1.0, 0.5]) * per_item), rtol=1e-5)
    np.testing.assert_allclose(found.priorities, np.abs(o + a - target), rtol=1e-5)


@pytest.mark.full
def test_value_and_critics_step_at_once_and_the_policy_sees_both() -> None:
    """The critics' target has the value from before its step; the policy's loss critics and value from after."""
    agent = iql.make_agent(iql.Config(hidden_sizes=(8,)))
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    update, losses = agent.make_update(networks), iql.make_losses(networks, agent.config)
    states, ones = np.eye(4, dtype=np.float32), np.ones(4, np.float32)
    batch = ReplaySample((), Transition(states, 0.5 * ones[:, None], ones, 0.9 * ones, states[::-1]))
    state = jax.jit(update.init)(KEY)
    for _ in range(3):
        before = state
        state, output = jax.jit(update.update)(before, batch)
    for name, params in (("value", before.value), ("critic", before.critics)):
        expected = getattr(losses, name)(params, before, batch, KEY).loss
        np.testing.assert_allclose(output.metrics[f"{name}_loss"], expected, rtol=1e-5)
    stepped = before._replace(critics=state.critics, value=state.value)
    found, earlier = (jax.jit(losses.policy)(before.policy, s, batch, KEY).loss for s in (stepped, before))
    np.testing.assert_allclose(output.metrics["policy_loss"], found, rtol=1e-5)
    assert abs(found - earlier) > 1e-4


def test_the_policys_loss_by_hand() -> None:
    losses = _losses(temperature=0.5, max_weight=2.0)
    gradient, output = jax.grad(objective(losses.policy), has_aux=True)(jnp.float32(0.1), _state(), BATCH, KEY)
    found = output.loss, gradient
    o, a = OBSERVATION[:, 0], ACTION[:, 0]
    weights = np.minimum(np.exp((np.minimum(o + a, 2.0 * o - a) - 0.5 * o) / 0.5), 2.0)
    std = np.exp(-0.5)
    log_prob = -0.5 * ((a - 0.1) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found[0], -np.mean(weights * log_prob), rtol=1e-5)
    np.testing.assert_allclose(found[1], -np.mean(weights * (a - 0.1) / std**2), rtol=1e-5)


@pytest.mark.full
def test_it_learns_more_than_the_data_show() -> None:
    config = iql.Config(hidden_sizes=(32, 32), learning_rate=3e-3, tau=0.02, batch_size=64, updates_per_call=10)
    data = offline_data.make_episodes(offline_data.POINT_MASS, 100, [0.0, 0.3])
    assert offline_data.mean_return(data) < -7.0
    offline_data.learns(iql.make_agent(config), offline_data.POINT_MASS, data, 1_000, -2.5)
