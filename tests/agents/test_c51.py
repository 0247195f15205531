from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import c51
from agentkit.learning import Linear
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, Transition
from tests.agents import settings


@pytest.mark.full
class TestC51(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        **settings.VALUE_REFUSED,
        "num_atoms": 1,
        "vmin": 9.0,
    }
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "num_atoms": 7,
        "vmin": -1.0,
        "vmax": 1.0,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL_VALUES, "num_atoms": 11, "vmin": -2.0, "vmax": 2.0}
        return c51.make_agent(c51.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_it_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = c51.Config(
        hidden_sizes=(32,),
        discount=0.8,
        n_step=n_step,
        learning_rate=3e-3,
        target_update_period=20,
        num_atoms=21,
        vmin=0.0,
        vmax=5.0,
    )
    networks, state = learned(c51.make_agent(config), Chain(terminates, num_actions=2), num_updates=1_000)
    q = nets.categorical_mean(networks.logits(state.params, np.eye(4, dtype=np.float32)), networks.atoms)
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates)[:, None], 2), atol=0.1)


@pytest.mark.full
def test_the_returns_of_a_chain_that_gambles_are_learned_as_a_distribution() -> None:
    """Half of the rewards are 0 and half are 1: so is the network's opinion, where a mean would be 0.5."""
    agent = c51.make_agent(c51.Config(hidden_sizes=(16,), num_atoms=3, vmin=0.0, vmax=1.0, learning_rate=1e-2))
    spec = specs.make_environment_spec(Chain(True, num_actions=2))
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    observation = np.tile(np.eye(4, dtype=np.float32)[:1], (8, 1))
    data = Transition(observation, np.zeros(8, np.int32), np.float32([0, 1] * 4), np.zeros(8, np.float32), observation)
    state, step = update.init(jax.random.PRNGKey(0)), jax.jit(update.update)
    for _ in range(300):
        state, _ = step(state, ReplaySample((), data))
    probabilities = jax.nn.softmax(networks.logits(state.params, observation[:1])[0, 0])
    np.testing.assert_allclose(probabilities, [0.5, 0.0, 0.5], atol=0.02)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = c51.Config(
        num_atoms=21,
        vmin=-2.0,
        vmax=2.0,
        n_step=3,
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=1e-3,
        min_replay_size=100,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, 1_000),
    )
    learns(c51.make_agent(config), "agentkit:catch", num_steps=2_500, threshold=0.8)
