from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import ddpg
from agentkit.learning import objective
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings


@pytest.mark.full
class TestDdpg(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "tau": 0.0,
        "exploration_noise": -0.1,
        "noise_correlation": 1.0,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "policy_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "tau": 0.5,
        "exploration_noise": 0.5,
        "noise_correlation": 0.8,
        "num_random_steps": 5,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20}
        return ddpg.make_agent(ddpg.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
def test_the_critic_finds_the_values_of_a_chain(terminates: bool) -> None:
    config = ddpg.Config(hidden_sizes=(32,), discount=0.8, tau=0.1, batch_size=64, critic_learning_rate=3e-3)
    networks, state = learned(ddpg.make_agent(config), Chain(terminates), num_updates=1_500)
    q = networks.critic.apply(state.critic, np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32))
    np.testing.assert_allclose(q, values(0.8, terminates), atol=0.05)


@pytest.mark.full
def test_the_policys_loss_has_the_deterministic_policy_gradient() -> None:
    """Paper, eq. 6: the mean over states of grad_a q(s, policy(s)) times grad_theta policy(s)."""
    agent = ddpg.make_agent(ddpg.Config(hidden_sizes=(8,)))
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0)))
    state = jax.jit(agent.make_update(networks).init)(jax.random.PRNGKey(0))
    policy, critic = state.policy, state.critic
    losses = ddpg.make_losses(networks, agent.config)
    observation = np.random.default_rng(0).uniform(-1, 1, (5, 2)).astype(np.float32)
    batch = ReplaySample((), Transition(observation, (), (), (), ()))
    found, _ = jax.grad(objective(losses.policy), has_aux=True)(policy, state, batch, state.key)
    action = networks.policy.apply(policy, observation)
    by_action = jax.jacobian(lambda a: networks.critic.apply(critic, observation, a))(action)  # [B, B, A]
    by_params = jax.jacobian(lambda p: networks.policy.apply(p, observation))(policy)  # [B, A, ...]
    own = np.einsum("bba->ba", by_action)
    expected = jax.tree.map(lambda leaf: -np.einsum("ba,ba...->...", own, leaf) / 5, by_params)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), found, expected)


@pytest.mark.full
def test_priorities_are_absolute_errors_and_the_loss_weighs_them() -> None:
    agent = ddpg.make_agent(ddpg.Config(hidden_sizes=(8,), prioritized=True, importance_exponent=0.5))
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    update = agent.make_update(networks)
    state = jax.jit(update.init)(jax.random.PRNGKey(0))
    states, actions = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)
    reward, discount = np.array([0.0, 1.0, 0.5, -1.0], np.float32), np.array([0.8, 0.0, 0.0, 0.5], np.float32)
    info = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
    _, output = jax.jit(update.update)(
        state, ReplaySample(info, Transition(states, actions, reward, discount, states[::-1]))
    )

    next_action = networks.policy.apply(state.target_policy, states[::-1])
    target = reward + discount * networks.critic.apply(state.target_critic, states[::-1], next_action)
    errors = target - networks.critic.apply(state.critic, states, actions)
    np.testing.assert_allclose(output.priorities, np.abs(errors), rtol=1e-5)
    weights = np.sqrt([0.25, 1.0, 0.5, 1 / 3])
    np.testing.assert_allclose(output.metrics["critic_loss"], np.mean(weights * np.square(errors)), rtol=1e-5)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = ddpg.Config(
        hidden_sizes=(32, 32),
        policy_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=200,
    )
    learns(ddpg.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
