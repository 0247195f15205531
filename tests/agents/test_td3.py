from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import td3
from agentkit.learning import objective
from agentkit.networks import ActorCriticNetworks, Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)


class TestTd3(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = settings.TD3_REFUSED
    changes: ClassVar = settings.TD3_CHANGES

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20}
        return td3.make_agent(td3.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    config = td3.Config(hidden_sizes=(32,), discount=0.8, tau=0.2, batch_size=64, learning_rate=3e-3)
    networks, state = learned(td3.make_agent(config), Chain(terminates), num_updates=1_500)
    q = np.stack(networks.critic.apply(state.critics, np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)))
    assert q.shape == (2, 4)
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates), (2, 1)), atol=0.05)


def _linear_networks() -> ActorCriticNetworks:
    """The policy is a number; the critics' values are the parameters' two rows times (observation, action)."""

    def policy(params: jax.Array, observation: jax.Array) -> jax.Array:
        return jnp.full(observation.shape, params)

    def critics(params: jax.Array, observation: jax.Array, action: jax.Array) -> jax.Array:
        return params @ jnp.concatenate([observation, action], axis=-1).T  # [2, B]

    return ActorCriticNetworks(Network(None, policy), Network(None, critics), (1,))


def _state(critics: Any, target_critics: Any) -> td3.State:
    zero = np.int32(0)
    return td3.State((), critics, np.float32(0.2), target_critics, ((), ()), jnp.zeros(()), KEY, zero)


def _batch(observation: np.ndarray, discount: np.ndarray, info: Any = ()) -> ReplaySample:
    size = len(discount)
    action, reward = np.full((size, 1), 0.5, np.float32), np.ones(size, np.float32)
    data = Transition(observation, action, reward, discount, observation + 1.0)
    return ReplaySample(info, data)


def test_the_critics_loss_by_hand() -> None:
    """The smaller critic at s', after noise of known size: all of it is clipped, to plus or minus 0.1."""
    config = td3.Config(target_policy_noise=1e6, target_noise_clip=0.1)
    losses = td3.make_losses(_linear_networks(), config)
    observation = np.array([[1.0], [2.0], [-3.0]], np.float32)
    discount = np.array([0.0, 0.9, 0.9], np.float32)
    critics = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
    targets = np.array([[2.0, 1.0], [1.0, 4.0]], np.float32)
    output = jax.jit(losses.critic)(critics, _state(critics, targets), _batch(observation, discount), KEY)

    sign = np.sign(jax.random.normal(KEY, (3, 1)))
    inputs_t = np.concatenate([observation + 1.0, 0.2 + 0.1 * sign], axis=-1)
    target = 1.0 + discount * np.min(targets @ inputs_t.T, axis=0)
    q = critics @ np.concatenate([observation, np.full((3, 1), 0.5)], axis=-1).T
    np.testing.assert_allclose(output.loss, np.mean(np.sum((q - target) ** 2, axis=0)), rtol=1e-5)
    np.testing.assert_allclose(output.metrics["critics_gap"], np.mean(np.abs(q[0] - q[1])), rtol=1e-5)


def test_priorities_are_the_first_critics_absolute_errors_and_the_loss_weighs_both() -> None:
    config = td3.Config(target_policy_noise=0.0, prioritized=True, importance_exponent=0.5)
    losses = td3.make_losses(_linear_networks(), config)
    observation, discount = np.array([[1.0], [2.0], [-3.0]], np.float32), np.zeros(3, np.float32)
    critics = np.array([[1.0, 2.0], [3.0, -1.0]], np.float32)
    info = SampleInfo(np.array([0.4, 0.1, 0.2]), np.full(3, 10), (), ())
    batch = _batch(observation, discount, info)
    output = jax.jit(losses.critic)(critics, _state(critics, critics), batch, KEY)

    errors = 1.0 - critics @ np.concatenate([observation, np.full((3, 1), 0.5)], axis=-1).T  # Rewards are 1.
    np.testing.assert_allclose(output.priorities, np.abs(errors[0]), rtol=1e-5)
    weights = np.sqrt([0.25, 1.0, 0.5])
    np.testing.assert_allclose(output.loss, np.mean(weights * np.sum(errors**2, axis=0)), rtol=1e-5)


def test_the_policy_climbs_the_first_critic() -> None:
    losses = td3.make_losses(_linear_networks(), td3.Config())
    batch = _batch(np.ones((3, 1), np.float32), np.ones(3, np.float32))
    critics = np.array([[1.0, 7.0], [3.0, -5.0]], np.float32)
    gradient, (value, *_) = jax.grad(objective(losses.policy), has_aux=True)(
        jnp.float32(0.5), _state(critics, critics), batch, KEY
    )
    np.testing.assert_allclose([value, gradient], [-(1.0 + 0.5 * 7.0), -7.0], rtol=1e-6)


@pytest.mark.full
def test_the_twins_share_nothing() -> None:
    agent = td3.make_agent(td3.Config(hidden_sizes=(8,)))
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0)))
    inputs = np.ones((3, 2), np.float32), np.ones((3, 2), np.float32)
    gradients = jax.grad(lambda p: jnp.sum(networks.critic.apply(p, *inputs)[0]))(networks.critic.init(KEY))
    touched = [bool(np.any(leaf)) for leaf in jax.tree.leaves(gradients)]
    assert sum(touched) == len(touched) // 2 > 0


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = td3.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=200,
    )
    learns(td3.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
