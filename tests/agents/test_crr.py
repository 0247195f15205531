from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import crr
from agentkit.errors import UnknownNameError
from agentkit.learning import objective
from agentkit.networks import ActorCriticNetworks, DiagonalNormal, Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import LossOutput, ReplaySample, Transition
from tests.agents import offline_data, settings

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
class TestCrr(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "tau": 1.5,
        "temperature": 0.0,
        "max_weight": 0.0,
        "num_sampled_actions": 0,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "learning_rate": 1e-2,
        "tau": 0.5,
        "temperature": 0.01,
        "max_weight": 0.5,
        "weights": "binary",
        "num_sampled_actions": 2,
    }

    def make_agent(self, **changes: Any) -> Any:
        return crr.make_agent(crr.Config(**{**settings.SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def test_other_weights_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="binary, exp"):
        crr.Config(weights="exponential")  # type: ignore[arg-type]


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    config = crr.Config(hidden_sizes=(32,), discount=0.8, tau=0.2, batch_size=64, learning_rate=3e-3)
    networks, state = learned(crr.make_agent(config), Chain(terminates), num_updates=3_000)
    q = np.stack(networks.critic.apply(state.critics, np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)))
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates), (2, 1)), atol=0.1 if terminates else 0.2)


def _losses(log_std: float, **settings: Any) -> Any:
    """A Gaussian policy whose mean is its parameter; critics that are parameters times observations and actions."""
    networks = ActorCriticNetworks(
        Network(None, lambda params, o: DiagonalNormal(jnp.full(o.shape, params), jnp.full(o.shape, log_std))),
        Network(None, lambda params, o, a: (params[0] * o[:, 0] + a[:, 0], params[1] * o[:, 0] + a[:, 0])),
        (1,),
    )
    return crr.make_losses(networks, crr.Config(**settings))


OBSERVATION, ACTION = np.float32([[1.0], [2.0], [-3.0]]), np.float32([[0.5], [-1.0], [0.25]])
REWARD, DISCOUNT = np.float32([1.0, -1.0, 0.5]), np.float32([0.0, 0.9, 0.9])
BATCH = ReplaySample((), Transition(OBSERVATION, ACTION, REWARD, DISCOUNT, OBSERVATION + 1.0))
CRITICS = jnp.float32([1.0, 2.0])


def _state(target_policy: Any = None, target_critics: Any = CRITICS) -> crr.State:
    return crr.State((), CRITICS, target_policy, target_critics, ((), ()), KEY, np.int32(0))


def _least(critics: Any, observation: np.ndarray, action: Any) -> np.ndarray:
    return np.minimum(critics[0] * observation, critics[1] * observation) + action


def test_the_critics_loss_by_hand() -> None:
    """A policy that is nearly a point: each of its samples is its mean, clipped to the bounds."""
    state = _state(jnp.float32(3.0), jnp.float32([0.5, -1.0]))
    found = _losses(-20.0).critic(CRITICS, state, BATCH, KEY)
    o, a = OBSERVATION[:, 0], ACTION[:, 0]
    target = REWARD + DISCOUNT * _least((0.5, -1.0), o + 1.0, 1.0)
    np.testing.assert_allclose(found.loss, np.mean((o + a - target) ** 2 + (2 * o + a - target) ** 2), rtol=1e-5)


@pytest.mark.parametrize("weights", ["exp", "binary"])
def test_the_policys_loss_by_hand(weights: Any) -> None:
    """What an action is better than is the mean of the policy's: here 0.1, whatever the observation."""
    losses = _losses(-3.0, weights=weights, temperature=0.5, max_weight=2.0, num_sampled_actions=2_000)
    gradient, output = jax.grad(objective(losses.policy), has_aux=True)(jnp.float32(0.1), _state(), BATCH, KEY)
    found = output.loss, gradient
    a, std = ACTION[:, 0], np.exp(-3.0)
    advantage = a - 0.1
    weight = np.minimum(np.exp(advantage / 0.5), 2.0) if weights == "exp" else advantage > 0
    log_prob = -0.5 * ((a - 0.1) / std) ** 2 - np.log(std) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found[0], -np.mean(weight * log_prob), rtol=0.02)
    np.testing.assert_allclose(found[1], -np.mean(weight * (a - 0.1) / std**2), rtol=0.02)


@pytest.mark.full
def test_critics_and_policy_draw_with_keys_of_their_own_at_each_update() -> None:
    """Losses that are what they draw, in place of CRR's own."""
    drawn = crr.Losses(
        critic=lambda critics, state, batch, key: LossOutput(jax.random.normal(key), {}),
        policy=lambda policy, state, batch, key: LossOutput(jax.random.normal(key), {}),
    )
    agent = crr.make_agent(crr.Config(hidden_sizes=(8,)), make_losses=lambda networks, config: drawn)
    update = agent.make_update(agent.make_networks(specs.make_environment_spec(Chain(terminates=True))))
    found = []
    for seed in (0, 1):
        state = jax.jit(update.init)(jax.random.PRNGKey(seed))
        for _ in range(3):
            state, output = jax.jit(update.update)(state, ReplaySample((), ()))
            found += [float(output.metrics[name]) for name in ("critic_loss", "policy_loss")]
    assert len(set(found)) == 12


@pytest.mark.full
@pytest.mark.parametrize("weights", ["exp", "binary"])
def test_it_learns_more_than_the_data_show(weights: Any) -> None:
    config = crr.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        updates_per_call=10,
        weights=weights,
        temperature=0.2,
    )
    data = offline_data.make_episodes(offline_data.POINT_MASS, 100, [0.0, 0.3])
    assert offline_data.mean_return(data) < -7.0
    offline_data.learns(crr.make_agent(config), offline_data.POINT_MASS, data, 1_000, -3.0)
