from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import mpo
from agentkit.networks import ActorCriticNetworks, DiagonalNormal, Network
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)


@pytest.mark.full
class TestMpo(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "target_update_period": 0,
        "num_samples": 0,
        "epsilon": 0.0,
        "epsilon_mean": -1.0,
        "epsilon_std": 0.0,
        "epsilon_penalty": 0.0,
        "initial_std": 0.0,
        "min_std": -0.1,
        "initial_temperature": 0.0,
        "initial_alpha_mean": 0.0,
        "initial_alpha_std": -2.0,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "policy_learning_rate": 1e-2,
        "critic_learning_rate": 1e-2,
        "dual_learning_rate": 1e-1,
        "target_update_period": 1,
        "num_samples": 3,
        "epsilon": 2.0,
        "epsilon_mean": 1e-5,
        "epsilon_std": 1e-1,
        "epsilon_penalty": None,
        "initial_std": 0.1,
        "min_std": Change(0.9, {"initial_std": 0.9001}),
        "initial_temperature": 0.01,
        "initial_alpha_mean": 500.0,
        "initial_alpha_std": 0.1,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_samples": 4, "n_step": 3, "target_update_period": 10}
        return mpo.make_agent(mpo.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 5])
def test_the_critic_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = mpo.Config(
        hidden_sizes=(32,),
        discount=0.8,
        n_step=n_step,
        batch_size=64,
        num_samples=4,
        critic_learning_rate=2e-3,
        target_update_period=50,
    )
    networks, state = learned(mpo.make_agent(config), Chain(terminates), num_updates=3_000)
    q = networks.critic.apply(state.params.critic, STATES, ACTIONS)
    np.testing.assert_allclose(q, values(0.8, terminates), atol=0.1)


def _linear_networks() -> ActorCriticNetworks:
    """The policy's mean and log deviation are two numbers; a value is a number times the clipped action."""

    def policy(params: jax.Array, observation: jax.Array) -> DiagonalNormal:
        return DiagonalNormal(jnp.full(observation.shape, params[0]), jnp.full(observation.shape, params[1]))

    def critic(params: jax.Array, observation: jax.Array, action: jax.Array) -> jax.Array:
        return params * action[:, 0]

    return ActorCriticNetworks(Network(None, policy), Network(None, critic), (1,))


@pytest.mark.full
def test_the_critics_target_is_the_mean_over_the_lagged_policys_actions_and_priorities_are_the_errors() -> None:
    """With a lagged policy that is certain the mean is known; the online policy, elsewhere, has no part in it."""
    config = mpo.Config(prioritized=True, importance_exponent=0.5, num_samples=4)
    losses = mpo.make_losses(_linear_networks(), config)
    reward, discount = np.array([1.0, -1.0], np.float32), np.array([0.5, 0.0], np.float32)
    ones = np.ones((2, 1), np.float32)
    info = SampleInfo(np.array([0.4, 0.1]), np.full(2, 10), (), ())
    batch = ReplaySample(info, Transition(ones, 0.5 * ones, reward, discount, ones))
    certain = jnp.array([0.25, -20.0], jnp.float32)
    params = mpo.MPOParams(jnp.array([-0.9, 0.0]), jnp.float32(3.0), mpo.initial_duals(config, (1,)))
    output = jax.jit(losses.critic)(params.critic, _state(params, certain, jnp.float32(8.0)), batch, KEY)
    errors = np.array([1.0 + 0.5 * 8.0 * 0.25, -1.0]) - 3.0 * 0.5
    np.testing.assert_allclose(output.priorities, np.abs(errors), rtol=1e-5)
    np.testing.assert_allclose(output.loss, np.mean([0.5, 1.0] * errors**2), rtol=1e-5)


@pytest.mark.full
def test_the_next_action_is_a_mean_over_samples_and_not_one_sample() -> None:
    """Of 2,000 actions of a wide policy the mean value is near that of its mean action."""
    losses = mpo.make_losses(_linear_networks(), mpo.Config(num_samples=2_000))
    ones, zeros = np.ones((2, 1), np.float32), np.zeros(2, np.float32)
    batch = ReplaySample((), Transition(ones, 0.0 * ones, zeros, zeros + 1.0, ones))
    params = mpo.MPOParams(jnp.zeros(2), jnp.float32(0.0), mpo.initial_duals(mpo.Config(), (1,)))
    output = jax.jit(losses.critic)(params.critic, _state(params, jnp.array([0.3, 0.0]), jnp.float32(1.0)), batch, KEY)
    np.testing.assert_allclose(output.loss, 0.3**2, atol=0.05)


def _state(params: mpo.MPOParams, target_policy: Any, target_critic: Any) -> mpo.State:
    return mpo.State(params, target_policy, target_critic, mpo.MPOParams((), (), ()), KEY, jnp.int32(0))


def _agent(**changes: Any) -> Any:
    return mpo.make_agent(mpo.Config(**{"hidden_sizes": (32,), "batch_size": 64, "num_samples": 8, **changes}))


@pytest.mark.full
def test_the_policys_move_between_two_copies_is_about_its_bound() -> None:
    """Rewards are the actions: nothing but the bound on the mean's KL keeps the policy from running."""
    kls = {}
    for bound in (1e-3, 1e-2):
        agent = _agent(
            epsilon_mean=bound,
            epsilon_penalty=None,
            policy_learning_rate=1e-2,
            target_update_period=25,
            discount=0.0,
            dual_learning_rate=5e-2,
        )
        networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
        update = agent.make_update(networks)
        rng = np.random.default_rng(0)
        states = STATES[rng.integers(4, size=64)]
        action = rng.uniform(-1, 1, (64, 1)).astype(np.float32)
        data = Transition(states, action, action[:, 0], np.zeros(64, np.float32), states)
        state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
        found = []
        for number in range(1, 1001):
            state, output = step(state, ReplaySample((), data))
            if number > 500 and number % 25 == 24:
                found.append(float(output.metrics["mean_kl"]))
        kls[bound] = np.mean(found)
    assert 0.2e-3 < kls[1e-3] < 5e-3 and 0.2e-2 < kls[1e-2] < 5e-2 and kls[1e-2] > 2 * kls[1e-3], kls


@pytest.mark.full
def test_the_policy_begins_at_its_deviation_and_evaluation_takes_the_clipped_mean() -> None:
    agent = _agent(initial_std=0.35)
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0)))
    params = networks.policy.init(KEY)
    distribution = networks.policy.apply(params, np.ones((1, 2), np.float32))
    np.testing.assert_allclose(np.exp(distribution.log_std), np.full((1, 2), 0.35), rtol=0.05)
    act = agent.make_policy(networks, evaluation=True).act
    one, other = (act(params, key, np.ones(2, np.float32), ())[0] for key in jax.random.split(KEY))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one, np.clip(distribution.mean[0], -1, 1))
    explored = np.stack(
        [
            agent.make_policy(networks).act(params, key, np.ones(2, np.float32), ())[0]
            for key in jax.random.split(KEY, 50)
        ]
    )
    assert np.all(np.abs(explored) <= 1.0) and np.all(np.abs(np.std(explored, axis=0) - 0.35) < 0.1)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = mpo.Config(
        hidden_sizes=(32, 32),
        n_step=1,
        policy_learning_rate=3e-3,
        critic_learning_rate=3e-3,
        target_update_period=20,
        batch_size=64,
        min_replay_size=100,
    )
    learns(mpo.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
