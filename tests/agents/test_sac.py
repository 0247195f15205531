from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import sac
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)


@pytest.mark.both_stacks
class TestSac(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = settings.SOFT_REFUSED
    changes: ClassVar = settings.SOFT_CONTINUOUS_CHANGES

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20, "updates_per_step": 1.0}
        return sac.make_agent(sac.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    """With a temperature so small that entropy is worth nothing."""
    config = sac.Config(
        hidden_sizes=(32,),
        discount=0.8,
        tau=0.2,
        batch_size=64,
        learning_rate=3e-3,
        initial_temperature=1e-6,
        learn_temperature=False,
    )
    networks, state = learned(sac.make_agent(config), Chain(terminates), num_updates=2_000)
    for critic in state.critics:
        q = networks.critic.apply(critic, STATES, ACTIONS)
        np.testing.assert_allclose(q, values(0.8, terminates), atol=0.1)


def test_the_losses_by_hand_and_priorities_are_the_first_critics_absolute_errors() -> None:
    """The soft value of one sampled action, by the smaller critic; importance weights on both squared errors."""
    config = sac.Config(hidden_sizes=(8,), prioritized=True, importance_exponent=0.5)
    agent = sac.make_agent(config)
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    state = jax.jit(agent.make_update(networks).init)(KEY)
    losses, alpha = sac.make_losses(networks, config), jnp.float32(0.3)
    reward, discount = np.array([0.0, 1.0, 0.5, -1.0], np.float32), np.array([0.8, 0.0, 0.0, 0.5], np.float32)
    info = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
    batch = ReplaySample(info, Transition(STATES, ACTIONS, reward, discount, STATES[::-1]))
    targets = state.critics[::-1]
    state = state._replace(target_critics=targets, log_alpha=jnp.log(alpha))
    output = jax.jit(losses.critic)(state.critics, state, batch, KEY)

    def twins(critics: Any, observation: np.ndarray, action: Any) -> np.ndarray:
        return np.stack([networks.critic.apply(critic, observation, action) for critic in critics])

    next_action, log_prob = nets.sample_and_log_prob(networks.policy.apply(state.policy, STATES[::-1]), KEY)
    soft_value = np.min(twins(targets, STATES[::-1], next_action), axis=0) - 0.3 * log_prob
    errors = twins(state.critics, STATES, ACTIONS) - np.asarray(reward + discount * soft_value)
    np.testing.assert_allclose(output.priorities, np.abs(errors[0]), rtol=1e-4)
    weights = np.sqrt([0.25, 1.0, 0.5, 1 / 3])
    np.testing.assert_allclose(output.loss, np.mean(weights * 0.5 * np.sum(errors**2, axis=0)), rtol=1e-4)

    value, metrics, _ = jax.jit(losses.policy)(state.policy, state, batch, KEY)
    action, log_prob = nets.sample_and_log_prob(networks.policy.apply(state.policy, STATES), KEY)
    q = np.min(twins(state.critics, STATES, action), axis=0)
    np.testing.assert_allclose(value, np.mean(0.3 * log_prob - q), rtol=1e-4)
    np.testing.assert_allclose(metrics["entropy"], -np.mean(log_prob), rtol=1e-5)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = sac.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        updates_per_step=1.0,
        min_replay_size=100,
        num_random_steps=200,
    )
    learns(sac.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
