from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, losses, networks, specs
from agentkit.agents import d4pg
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)


@pytest.mark.full
class TestD4pg(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "num_atoms": 1,
        "vmin": 0.5,
        "vmax": -20.0,
        "target_update_period": 0,
        "exploration_noise": -0.1,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "num_atoms": 21,
        "vmin": -20.0,
        "vmax": 5.0,
        "policy_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "target_update_period": 1,
        "exploration_noise": 0.5,
        "num_random_steps": 5,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {
            **settings.SMALL,
            "num_atoms": 11,
            "vmin": -15.0,
            "vmax": 0.0,
            "n_step": 3,
            "target_update_period": 10,
            "num_random_steps": 20,
        }
        return d4pg.make_agent(d4pg.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def _on_chain(**changes: Any) -> Any:
    usual = {"hidden_sizes": (32,), "discount": 0.8, "batch_size": 64, "vmin": -2.0, "vmax": 8.0, "num_atoms": 41}
    learning = {"target_update_period": 20, "critic_learning_rate": 3e-3}
    return d4pg.make_agent(d4pg.Config(**{**usual, **learning, **changes}))


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("given", [{}, {"n_step": 1}, settings.PRIORITIZED], ids=["5 steps", "1 step", "prioritized"])
def test_the_critics_mean_finds_the_values_of_a_chain(terminates: bool, given: dict[str, Any]) -> None:
    nets, state = learned(_on_chain(**given), Chain(terminates), num_updates=1_500)
    q = networks.categorical_mean(nets.critic.apply(state.critic, STATES, ACTIONS), nets.atoms)
    np.testing.assert_allclose(q, values(0.8, terminates), atol=0.05)


@pytest.mark.full
def test_the_critic_finds_the_distribution_of_a_chains_returns() -> None:
    """Returns of the chain are certain: 0.8^3, 0.8^2, 0.8 and 1 lie on or between two atoms, 0.1 apart."""
    agent = _on_chain(vmin=0.0, vmax=2.0, num_atoms=21)
    nets, state = learned(agent, Chain(terminates=True), num_updates=1_500)
    probabilities = np.asarray(jax.nn.softmax(nets.critic.apply(state.critic, STATES, ACTIONS)))
    expected = np.zeros((4, 21))
    expected[0, 5:7] = 0.88, 0.12
    expected[1, 6:8] = 0.6, 0.4
    expected[2, 8] = 1.0
    expected[3, 10] = 1.0
    np.testing.assert_allclose(probabilities, expected, atol=0.05)


@pytest.mark.full
def test_priorities_are_the_divergences_and_the_loss_weighs_them() -> None:
    agent = _on_chain(prioritized=True, importance_exponent=0.5)
    nets = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    update = agent.make_update(nets)
    state = jax.jit(update.init)(jax.random.PRNGKey(0))
    reward, discount = np.array([0.0, 1.0, 0.5, -1.0], np.float32), np.array([0.8, 0.0, 0.0, 0.5], np.float32)
    info = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
    batch = ReplaySample(info, Transition(STATES, ACTIONS, reward, discount, STATES[::-1]))
    _, output = jax.jit(update.update)(state, batch)

    logits_tm1 = nets.critic.apply(state.critic, STATES, ACTIONS)
    next_action = nets.policy.apply(state.target_policy, STATES[::-1])
    logits_t = nets.critic.apply(state.target_critic, STATES[::-1], next_action)
    divergence = losses.categorical_td_loss(logits_tm1, reward, discount, logits_t, nets.atoms)
    np.testing.assert_allclose(output.priorities, divergence, rtol=1e-5)
    weights = np.sqrt([0.25, 1.0, 0.5, 1 / 3])
    np.testing.assert_allclose(output.metrics["critic_loss"], np.mean(weights * divergence), rtol=1e-5)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = d4pg.Config(
        hidden_sizes=(32, 32),
        vmin=-15.0,
        vmax=0.0,
        policy_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        target_update_period=20,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=200,
    )
    learns(d4pg.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
