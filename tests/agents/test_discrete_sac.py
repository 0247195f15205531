from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import discrete_sac
from agentkit.networks import Categorical, Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
class TestDiscreteSac(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {**settings.SOFT_REFUSED, "target_entropy_ratio": 1.1}
    changes: ClassVar = {**settings.SOFT_CHANGES, "target_entropy_ratio": 0.1, "initial_temperature": 1.0}

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20}
        return discrete_sac.make_agent(discrete_sac.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("temperature", [1e-6, 0.5])
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_soft_values_of_a_chain(terminates: bool, temperature: float) -> None:
    """Where actions do not matter the soft policy is uniform: each state but the first adds alpha log 2."""
    config = discrete_sac.Config(
        hidden_sizes=(32,),
        discount=0.8,
        tau=0.1,
        learning_rate=2e-3,
        initial_temperature=temperature,
        learn_temperature=False,
    )
    agent = discrete_sac.make_agent(config)
    networks, state = learned(agent, Chain(terminates, num_actions=2), num_updates=3_000)
    bonus = temperature * np.log(2)
    if terminates:
        later = np.array([0.8 + 0.8**2 + 0.8**3, 0.8 + 0.8**2, 0.8, 0.0])
    else:
        later = np.full(4, 0.8 / (1 - 0.8))
    expected = np.tile((values(0.8, terminates) + bonus * later)[:, None], 2)
    for critic in state.critics:
        np.testing.assert_allclose(networks.critic.apply(critic, np.eye(4, dtype=np.float32)), expected, atol=0.1)


def _tabular_networks() -> discrete_sac.Networks:
    """Parameters are logits or values ``[3]``, whatever is observed."""

    def table(params: Any, observation: Any) -> jax.Array:
        return jnp.tile(params, (len(observation), 1))

    return discrete_sac.Networks(Network(None, lambda p, o: Categorical(table(p, o))), Network(None, table), 3)


def _state(critics: Any, targets: Any) -> discrete_sac.State:
    return discrete_sac.State(LOGITS, critics, targets, jnp.log(0.7), ((), (), ()), KEY)


LOGITS = np.log(np.array([0.5, 0.3, 0.2], np.float32))
TWINS = (np.array([1.0, 5.0, 2.0], np.float32), np.array([2.0, 3.0, 1.0], np.float32))
PROBABILITIES, LEAST = np.array([0.5, 0.3, 0.2]), np.array([1.0, 3.0, 1.0])
ENTROPY = -np.sum(PROBABILITIES * np.log(PROBABILITIES))


def test_the_losses_are_exact_expectations_and_priorities_absolute_errors() -> None:
    config = discrete_sac.Config(prioritized=True, importance_exponent=0.5)
    losses = discrete_sac.make_losses(_tabular_networks(), config)
    reward, discount = np.array([1.0, -2.0], np.float32), np.array([0.9, 0.0], np.float32)
    observation, action = np.zeros((2, 1), np.float32), np.array([2, 0], np.int32)
    info = SampleInfo(np.array([0.4, 0.1]), np.full(2, 10), (), ())
    batch = ReplaySample(info, Transition(observation, action, reward, discount, observation))
    critics = (np.array([0.5, 0.0, -1.0], np.float32), np.array([0.0, 1.0, 3.0], np.float32))
    output = jax.jit(losses.critic)(critics, _state(critics, TWINS), batch, KEY)

    soft_value = np.sum(PROBABILITIES * LEAST) + 0.7 * ENTROPY
    target = reward + discount * soft_value
    errors = np.array([[-1.0, 0.5], [3.0, 0.0]]) - target
    np.testing.assert_allclose(output.priorities, np.abs(errors[0]), rtol=1e-5)
    np.testing.assert_allclose(output.loss, np.mean([0.5, 1.0] * (0.5 * np.sum(errors**2, axis=0))), rtol=1e-5)

    value, metrics, _ = jax.jit(losses.policy)(LOGITS, _state(TWINS, critics), batch, KEY)
    entropy = metrics["entropy"]
    np.testing.assert_allclose([value, entropy], [-soft_value, ENTROPY], rtol=1e-5)


@pytest.mark.full
def test_the_policys_gradient_is_zero_where_it_is_the_softmax_of_the_values() -> None:
    losses = discrete_sac.make_losses(_tabular_networks(), discrete_sac.Config())
    observation = np.zeros((2, 1), np.float32)
    batch = ReplaySample((), Transition(observation, (), (), (), observation))

    def gradient(logits: Any) -> jax.Array:
        return jax.grad(lambda p: losses.policy(p, _state(TWINS, TWINS), batch, KEY).loss)(logits)

    np.testing.assert_allclose(gradient(jnp.asarray(LEAST / 0.7, jnp.float32)), np.zeros(3), atol=1e-6)
    assert np.max(np.abs(gradient(jnp.zeros(3)))) > 0.1


@pytest.mark.one_case
@pytest.mark.parametrize(("share", "rises"), [(0.99, True), (0.01, False)])
def test_the_temperature_goes_up_where_entropy_is_short_of_its_share_and_else_down(share: float, rises: bool) -> None:
    """The share is of log A: a policy that is nearly uniform over 2 actions has 0.98 of it, or less."""
    agent = discrete_sac.make_agent(discrete_sac.Config(hidden_sizes=(8,), target_entropy_ratio=share))
    networks = agent.make_networks(specs.make_environment_spec(Chain(True, num_actions=2)))
    update = agent.make_update(networks)
    state = jax.jit(update.init)(KEY)
    sharp = jax.tree.map(lambda leaf: 30.0 * leaf + 1e-3, state.policy)
    states = np.eye(4, dtype=np.float32)
    zeros = np.zeros(4, np.float32)
    batch = ReplaySample((), Transition(states, np.zeros(4, np.int32), zeros, zeros, states))
    new, output = jax.jit(update.update)(state._replace(policy=sharp), batch)
    assert 0.01 * np.log(2) < output.metrics["entropy"] < 0.99 * np.log(2)
    assert (new.log_alpha > state.log_alpha) == rises


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = discrete_sac.Config(
        batch_size=64,
        min_replay_size=100,
        tau=0.02,
    )
    learns(discrete_sac.make_agent(config), "agentkit:catch", num_steps=4_000, threshold=0.8)
