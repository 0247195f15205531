import importlib.util
import pathlib
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import dqn, munchausen_dqn
from agentkit.learning import Linear
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.chain import Chain, learned
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, Transition
from tests.agents import settings
from tests.agents.target_state import state_of_targets


@pytest.mark.full
class TestMunchausenDqn(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        **settings.VALUE_REFUSED,
        "temperature": 0.0,
        "munchausen_coefficient": 1.5,
        "log_policy_clip": 0.5,
    }
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "temperature": 0.1,
        "munchausen_coefficient": 0.5,
        "log_policy_clip": Change(-1e-3, {"temperature": 1.0}),
        "huber_delta": 1e-3,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL_VALUES}
        return munchausen_dqn.make_agent(munchausen_dqn.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
def test_it_finds_the_soft_values_of_a_chain(terminates: bool) -> None:
    """Of two actions that are alike each has probability 1/2: the bonus is -alpha tau log 2, the entropy tau log 2.

    With r_i the reward for leaving state i, q_i = r_i - alpha tau log 2 + gamma (q_{i+1} + tau log 2).
    """
    gamma, tau, alpha = 0.8, 0.5, 0.5
    config = munchausen_dqn.Config(
        hidden_sizes=(32,),
        n_step=1,
        discount=gamma,
        temperature=tau,
        munchausen_coefficient=alpha,
        learning_rate=3e-3,
        target_update_period=50,
    )
    networks, state = learned(munchausen_dqn.make_agent(config), Chain(terminates, num_actions=2), num_updates=3_000)
    bonus, entropy = -alpha * tau * np.log(2), tau * np.log(2)
    if terminates:
        q = [1.0 + bonus]
        for _ in range(3):
            q.insert(0, bonus + gamma * (q[0] + entropy))
    else:
        q = [(1.0 + bonus + gamma * entropy) / (1 - gamma)] * 4
    found = networks.apply(state.params, np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(found, np.tile(np.array(q)[:, None], 2), atol=0.05)


@pytest.mark.full
def test_its_loss_is_that_of_the_example() -> None:
    """Which plugs the formula into DQN, and writes it out."""
    path = pathlib.Path(__file__).resolve().parents[2] / "examples" / "munchausen_dqn.py"
    spec = importlib.util.spec_from_file_location("example_of_munchausen_dqn", path)
    assert spec is not None and spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    agent = munchausen_dqn.make_agent()
    networks = agent.make_networks(specs.make_environment_spec(Chain(True, num_actions=3)))
    params, target = (jax.jit(networks.init)(jax.random.PRNGKey(seed)) for seed in (0, 1))
    rng = np.random.default_rng(0)
    observation, next_observation = rng.normal(size=(2, 16, 4)).astype(np.float32)
    reward, discount = rng.normal(size=(2, 16)).astype(np.float32)
    action = rng.integers(0, 3, 16).astype(np.int32)
    batch = ReplaySample((), Transition(observation, action, reward, discount, next_observation))
    loss = munchausen_dqn.make_loss(networks, agent.config)
    plugged = example.munchausen_loss(networks, dqn.Config(n_step=1))
    given = params, state_of_targets(target), batch, jax.random.PRNGKey(0)
    np.testing.assert_allclose(jax.jit(loss)(*given).loss, plugged(*given).loss, rtol=1e-5)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = munchausen_dqn.Config(
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=2e-3,
        min_replay_size=100,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, 1_000),
    )
    learns(munchausen_dqn.make_agent(config), "agentkit:catch", num_steps=2_000, threshold=0.8)
