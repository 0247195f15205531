from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import qr_dqn
from agentkit.learning import Linear
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, Transition
from tests.agents import settings


@pytest.mark.full
class TestQrDqn(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        **settings.VALUE_REFUSED,
        "num_quantiles": 0,
        "huber_delta": -1.0,
    }
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "num_quantiles": 5,
        "huber_delta": 0.0,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL_VALUES, "num_quantiles": 4}
        return qr_dqn.make_agent(qr_dqn.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_it_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = qr_dqn.Config(
        hidden_sizes=(32,), discount=0.8, n_step=n_step, learning_rate=3e-3, target_update_period=50, num_quantiles=8
    )
    networks, state = learned(qr_dqn.make_agent(config), Chain(terminates, num_actions=2), num_updates=2_000)
    quantiles = jax.jit(networks.apply)(state.params, np.eye(4, dtype=np.float32))  # [4, 8, 2], all equal
    expected = np.broadcast_to(values(0.8, terminates)[:, None, None], quantiles.shape)
    np.testing.assert_allclose(quantiles, expected, atol=0.15)


@pytest.mark.full
def test_the_quantiles_of_random_rewards_are_learned() -> None:
    """Rewards 1, 3, 5 and 7 without a future, each as often: these are the four quantiles, in order."""
    agent = qr_dqn.make_agent(qr_dqn.Config(hidden_sizes=(16,), num_quantiles=4, huber_delta=0.0, learning_rate=3e-3))
    spec = specs.make_environment_spec(Chain(True, num_actions=2))
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    observation = np.tile(np.eye(4, dtype=np.float32)[:1], (8, 1))
    data = Transition(
        observation, np.zeros(8, np.int32), np.float32([1, 1, 3, 3, 5, 5, 7, 7]), np.zeros(8, np.float32), observation
    )
    batch = ReplaySample((), data)
    run = jax.jit(lambda state: jax.lax.fori_loop(0, 1_500, lambda _, s: update.update(s, batch)[0], state))
    state = run(jax.jit(update.init)(jax.random.PRNGKey(0)))
    quantiles = jax.jit(networks.apply)(state.params, observation[:1])[0, :, 0]
    np.testing.assert_allclose(quantiles, [1.0, 3.0, 5.0, 7.0], atol=0.1)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = qr_dqn.Config(
        n_step=3,
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=2e-3,
        min_replay_size=100,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, 1_000),
    )
    learns(qr_dqn.make_agent(config), "agentkit:catch", num_steps=2_000, threshold=0.8)
