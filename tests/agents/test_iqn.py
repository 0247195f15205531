import dataclasses
from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import iqn
from agentkit.agents.common.agent import Agent
from agentkit.learning import Linear
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, Transition
from tests.agents import settings
from tests.agents.target_state import state_of_targets


@pytest.mark.full
class TestIqn(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        **settings.VALUE_REFUSED,
        "hidden_sizes": (),
        "num_cosines": 0,
        "num_quantiles": 0,
        "num_target_quantiles": 0,
        "num_policy_quantiles": 0,
        "risk_level": 0.0,
        "huber_delta": -1.0,
    }
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "num_cosines": 5,
        "num_quantiles": 5,
        "num_target_quantiles": 5,
        "num_policy_quantiles": Change(5, {"learning_rate": 0.1}),
        "risk_level": Change(0.01, {"learning_rate": 0.1}),
        "huber_delta": 0.0,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {
            **settings.SMALL_VALUES,
            "num_cosines": 8,
            "num_quantiles": 4,
            "num_target_quantiles": 4,
            "num_policy_quantiles": 4,
        }
        return iqn.make_agent(iqn.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_it_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = iqn.Config(
        hidden_sizes=(32,), discount=0.8, n_step=n_step, learning_rate=3e-3, target_update_period=50, num_cosines=16
    )
    networks, state = learned(iqn.make_agent(config), Chain(terminates, num_actions=2), num_updates=2_000)
    taus = np.tile(np.linspace(0.05, 0.95, 10, dtype=np.float32), (4, 1))
    q = jax.jit(networks.apply)(state.params, np.eye(4, dtype=np.float32), taus).mean(axis=1)  # [4, 2]
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates)[:, None], 2), atol=0.15)


def _gambler() -> tuple[nets.Network, Any, Agent[nets.Network]]:
    """Learned: action 0 always pays 1, action 1 pays 0 or 4 (mean 2)."""
    agent = iqn.make_agent(iqn.Config(hidden_sizes=(32,), num_cosines=16, learning_rate=3e-3, huber_delta=0.1))
    networks = agent.make_networks(specs.make_environment_spec(Chain(True, num_actions=2)))
    update = agent.make_update(networks)
    observation = np.tile(np.eye(4, dtype=np.float32)[:1], (8, 1))
    action = np.array([0] * 4 + [1] * 4, np.int32)
    reward = np.float32([1, 1, 1, 1, 0, 4, 0, 4])
    batch = ReplaySample((), Transition(observation, action, reward, np.zeros(8, np.float32), observation))
    run = jax.jit(lambda state: jax.lax.fori_loop(0, 1_000, lambda _, s: update.update(s, batch)[0], state))
    return networks, run(jax.jit(update.init)(jax.random.PRNGKey(0))).params, agent


@pytest.mark.full
def test_the_quantiles_are_learned_and_the_policys_taste_for_risk_is_as_set() -> None:
    networks, params, agent = _gambler()
    observation = np.eye(4, dtype=np.float32)[0]
    quantiles = jax.jit(networks.apply)(params, observation[None], np.float32([[0.15, 0.85]]))[0]  # [2, A]
    np.testing.assert_allclose(quantiles, [[1, 0], [1, 4]], atol=0.5)
    for risk_level, best in ((1.0, 1), (0.3, 0)):  # The mean of the worst 30 % is 1 for action 0, and 0 for action 1.
        config = dataclasses.replace(agent.config, risk_level=risk_level)
        policy = iqn.make_policy(networks, config, evaluation=True)
        keys = jax.random.split(jax.random.PRNGKey(1), 50)
        act = jax.vmap(lambda key, policy=policy: policy.act(params, key, observation, policy.init(key))[0])
        actions = jax.jit(act)(keys)
        assert np.mean(actions == best) > 0.9


@pytest.mark.full
def test_each_batch_draws_its_own_fractions() -> None:
    """The same batch and parameters give another loss under another key, and the same under the same."""
    agent = iqn.make_agent(iqn.Config(hidden_sizes=(8,)))
    networks = agent.make_networks(specs.make_environment_spec(Chain(True, num_actions=2)))
    params = jax.jit(networks.init)(jax.random.PRNGKey(0))
    observation = np.eye(4, dtype=np.float32)
    data = Transition(observation, np.int32([0, 1, 0, 1]), np.ones(4, np.float32), np.ones(4, np.float32), observation)
    loss = jax.jit(iqn.make_loss(networks, agent.config))
    state = state_of_targets(params)
    first, again, other = (
        float(loss(params, state, ReplaySample((), data), jax.random.PRNGKey(seed)).loss) for seed in (0, 0, 1)
    )
    assert first == again != other


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = iqn.Config(
        n_step=3,
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=2e-3,
        min_replay_size=100,
        target_update_period=50,
        epsilon=Linear(1.0, 0.05, 1_000),
    )
    learns(iqn.make_agent(config), "agentkit:catch", num_steps=2_500, threshold=0.8)
