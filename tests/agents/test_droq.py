from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import droq
from agentkit.networks import Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)


@pytest.mark.full
class TestDroq(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**settings.SOFT_REFUSED, "dropout_rate": 1.0, "policy_delay": 0}
    changes: ClassVar = {**settings.SOFT_CONTINUOUS_CHANGES, "dropout_rate": 0.4, "policy_delay": 3}

    def make_agent(self, **changes: Any) -> Any:
        own = {"policy_delay": 2, "updates_per_step": 1.0, "updates_per_call": 1}
        small = {**settings.SMALL, "num_random_steps": 20, **own}
        return droq.make_agent(droq.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def _on_chain(**changes: Any) -> Any:
    usual = {"hidden_sizes": (32,), "discount": 0.8, "tau": 0.2, "batch_size": 64, "learning_rate": 3e-3}
    no_entropy = {"initial_temperature": 1e-6, "learn_temperature": False}
    return droq.make_agent(droq.Config(**{**usual, **no_entropy, **changes}))


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    networks, state = learned(_on_chain(dropout_rate=0.0), Chain(terminates), num_updates=1_500)
    q = jax.vmap(networks.critic.apply, in_axes=(0, None, None, None))(state.critics, KEY, STATES, ACTIONS)
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates), (2, 1)), atol=0.05)


def _setup(**changes: Any) -> tuple[Any, Any, Any]:
    agent = _on_chain(**changes)
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    state = jax.jit(agent.make_update(networks).init)(KEY)
    return networks, state, droq.make_losses(networks, agent.config)


@pytest.mark.full
def test_values_are_drawn_where_units_drop_and_certain_where_none_does() -> None:
    for rate, spread in ((0.0, False), (0.3, True)):
        networks, state, _ = _setup(dropout_rate=rate)
        critic = jax.tree.map(lambda leaf: leaf[0], state.critics)
        draws = np.stack([networks.critic.apply(critic, key, STATES, ACTIONS) for key in jax.random.split(KEY, 5)])
        assert bool(np.all(np.std(draws, axis=0) > 1e-3)) == spread
        assert spread or np.all(draws == draws[0])


@pytest.mark.full
def test_each_critic_and_each_item_drops_units_of_its_own() -> None:
    """Equal parameters and equal items: any difference is dropout's. The policy sees the mean of both critics."""
    networks, state, losses = _setup(dropout_rate=0.3)
    twins = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), state.critics)
    same = np.tile(STATES[:1], (4, 1))
    data = Transition(same, ACTIONS, np.zeros(4, np.float32), np.zeros(4, np.float32), same)
    state = state._replace(target_critics=twins, log_alpha=jnp.float32(-np.inf))
    output = jax.jit(losses.critic)(twins, state, ReplaySample((), data), KEY)
    assert output.metrics["critics_gap"] > 1e-3
    critic = jax.tree.map(lambda leaf: leaf[0], twins)
    assert np.ptp(networks.critic.apply(critic, KEY, same, ACTIONS)) > 1e-3


@pytest.mark.full
def test_targets_are_the_smaller_of_two_draws_that_drop_units_of_their_own() -> None:
    """Of equal target critics: below the mean of one draw by some of its deviation."""
    networks, state, losses = _setup(dropout_rate=0.3, prioritized=True)
    twins = jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[0]]), state.critics)
    zeros = jax.tree.map(jnp.zeros_like, twins)  # Of which every value is 0, and a priority the target's size.
    same, actions, ones = np.tile(STATES[:1], (256, 1)), np.zeros((256, 1), np.float32), np.ones(256, np.float32)
    info = SampleInfo(ones / 256, 256 * ones, (), ())
    batch = ReplaySample(info, Transition(same, actions, 100 * ones, ones, same))
    state = state._replace(target_critics=twins, log_alpha=jnp.float32(-np.inf))
    output = jax.jit(losses.critic)(zeros, state, batch, KEY)
    draws = networks.critic.apply(jax.tree.map(lambda leaf: leaf[0], twins), KEY, same, actions)
    assert np.mean(output.priorities) - 100.0 < np.mean(draws) - 0.3 * np.std(draws)


@pytest.mark.full
def test_a_hidden_layer_is_normalised_whatever_the_scale_of_its_inputs() -> None:
    """Layer normalisation after a linear layer without bias: its scale makes no difference."""
    networks, state, _ = _setup(dropout_rate=0.0)
    critic = jax.tree.map(lambda leaf: leaf[0], state.critics)
    q = networks.critic.apply(critic, KEY, STATES, ACTIONS)
    np.testing.assert_allclose(networks.critic.apply(critic, KEY, 100 * STATES, ACTIONS), q, rtol=1e-2, atol=1e-3)
    assert np.ptp(q) > 1e-2


def _constant_networks() -> Any:
    """A critic's value is its one parameter, whatever it sees; the policy is a standard normal before tanh."""

    def policy(params: Any, observation: Any) -> nets.TanhNormal:
        del params
        return nets.TanhNormal(np.zeros_like(observation), np.zeros_like(observation))

    def critic(params: Any, key: Any, observation: Any, action: Any) -> Any:
        del key, action
        return params * np.ones(len(observation), np.float32)

    return droq.Networks(Network(None, policy), Network(None, critic), (1,))


def test_the_loss_by_hand_and_priorities_are_mean_absolute_errors() -> None:
    reward, discount = np.array([0.0, 1.0, 0.5, -1.0], np.float32), np.array([0.8, 0.0, 0.9, 0.5], np.float32)
    info = SampleInfo(np.array([0.4, 0.1, 0.2, 0.3]), np.full(4, 10), (), ())
    batch = ReplaySample(info, Transition(ACTIONS, ACTIONS, reward, discount, ACTIONS))
    critics, targets = np.array([1.0, 4.0], np.float32), np.array([3.0, 2.0], np.float32)
    state = droq.State((), critics, targets, np.log(np.float32(0.5)), ((), (), ()), {}, KEY, np.int32(0))
    losses = droq.make_losses(_constant_networks(), droq.Config(prioritized=True, importance_exponent=0.5))
    output = losses.critic(critics, state, batch, KEY)

    policy = _constant_networks().policy.apply((), ACTIONS)
    _, log_prob = nets.sample_and_log_prob(policy, jax.random.split(KEY, 5)[0])
    errors = critics[:, None] - (reward + discount * (2.0 - 0.5 * np.asarray(log_prob)))
    np.testing.assert_allclose(output.priorities, np.mean(np.abs(errors), axis=0), rtol=1e-6)
    weights = np.sqrt([0.25, 1.0, 0.5, 1 / 3])
    np.testing.assert_allclose(output.loss, np.mean(weights * 0.5 * np.sum(errors**2, axis=0)), rtol=1e-6)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    """In half of the steps that SAC's test takes."""
    config = droq.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=100,
        updates_per_step=5,
        updates_per_call=5,
        policy_delay=5,
    )
    learns(droq.make_agent(config), "agentkit:point_mass", num_steps=800, threshold=-2.0)
