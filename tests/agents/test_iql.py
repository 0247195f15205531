from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs
from agentkit.agents import iql
from agentkit.learning import PolicyCritic
from agentkit.networks import DiagonalNormal, Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import ReplaySample, Transition
from tests.agents import offline_data, settings

pytestmark = pytest.mark.one_stack

KEY = jax.random.PRNGKey(0)
REFUSED = {**settings.OFF_POLICY_REFUSED, "tau": 1.5, "temperature": 0.0, "max_weight": 0.0}
CHANGES = {**settings.OFF_POLICY_CHANGES, "learning_rate": 1e-2, "tau": 0.5, "temperature": 0.01, "max_weight": 0.5}


class TestIql(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**REFUSED, "expectile": 1.0}
    changes: ClassVar = {**CHANGES, "expectile": 0.5}

    def make_agent(self, **changes: Any) -> Any:
        return iql.make_agent(iql.Config(**{**settings.SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.parametrize("terminates", [True, False])
def test_critics_and_value_find_the_values_of_a_chain(terminates: bool) -> None:
    config = iql.Config(hidden_sizes=(32,), discount=0.8, tau=0.2, batch_size=64, learning_rate=1e-3, expectile=0.5)
    networks, state = learned(iql.make_agent(config), Chain(terminates), num_updates=4_000)
    judges, observation = state.params.critic, np.eye(4, dtype=np.float32)
    q = networks.critics.apply(judges["critics"], observation, np.zeros((4, 1), np.float32))
    found = np.stack([*q, networks.value.apply(judges["value"], observation)])
    np.testing.assert_allclose(found, np.tile(values(0.8, terminates), (3, 1)), atol=0.3)


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
JUDGES = {"critics": jnp.float32([1.0, 2.0]), "value": jnp.float32(0.5)}


def test_the_loss_of_critics_and_value_by_hand() -> None:
    targets = PolicyCritic(None, {"critics": jnp.float32([0.5, -1.0]), "value": jnp.float32(100.0)})
    found = _losses(expectile=0.8).critic(JUDGES, targets, BATCH, KEY)
    o, a = OBSERVATION[:, 0], ACTION[:, 0]
    u = np.minimum(0.5 * o + a, -1.0 * o - a) - 0.5 * o
    value_loss = np.where(u < 0, 0.2, 0.8) * u**2
    target = REWARD + DISCOUNT * 0.5 * (o + 1.0)
    per_item = (o + a - target) ** 2 + (2.0 * o - a - target) ** 2 + value_loss
    np.testing.assert_allclose(found.loss, np.mean(per_item), rtol=1e-5)


def test_the_value_does_not_follow_the_td_errors() -> None:
    """Its gradient is the expectile's alone: here the target critics say what it says already."""
    targets = PolicyCritic(None, {"critics": jnp.float32([0.5, 0.5]), "value": jnp.float32(0.0)})
    data = BATCH.data._replace(action=np.zeros((3, 1), np.float32))
    loss = _losses().critic
    gradient = jax.grad(lambda judges: loss(judges, targets, ReplaySample((), data), KEY).loss)(JUDGES)
    assert gradient["value"] == 0.0 and np.all(gradient["critics"] != 0.0)


def test_the_policys_loss_by_hand() -> None:
    found = jax.value_and_grad(_losses(temperature=0.5, max_weight=2.0).policy)(jnp.float32(0.1), JUDGES, BATCH)
    o, a = OBSERVATION[:, 0], ACTION[:, 0]
    weights = np.minimum(np.exp((np.minimum(o + a, 2.0 * o - a) - 0.5 * o) / 0.5), 2.0)
    std = np.exp(-0.5)
    log_prob = -0.5 * ((a - 0.1) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found[0], -np.mean(weights * log_prob), rtol=1e-5)
    np.testing.assert_allclose(found[1], -np.mean(weights * (a - 0.1) / std**2), rtol=1e-5)


@pytest.mark.slow
def test_it_learns_more_than_the_data_show() -> None:
    config = iql.Config(hidden_sizes=(32, 32), learning_rate=3e-3, tau=0.02, batch_size=64, updates_per_call=10)
    data = offline_data.make_episodes(offline_data.POINT_MASS, 100, [0.0, 0.3])
    assert offline_data.mean_return(data) < -7.0
    returns = offline_data.learned_returns(iql.make_agent(config), offline_data.POINT_MASS, data, 1_000)
    assert min(returns) >= -2.5, returns
