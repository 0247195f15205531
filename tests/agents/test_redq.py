from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import redq
from agentkit.networks import Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)


@pytest.mark.full
class TestRedq(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.SOFT_REFUSED,
        "num_critics": 0,
        "subset_size": 4,
        "policy_delay": 0,
    }
    changes: ClassVar = {
        **settings.SOFT_CONTINUOUS_CHANGES,
        "num_critics": 4,
        "subset_size": 1,
        "policy_delay": 3,
    }

    def make_agent(self, **changes: Any) -> Any:
        own = {"num_critics": 3, "policy_delay": 2, "updates_per_step": 1.0, "updates_per_call": 1}
        small = {**settings.SMALL, "num_random_steps": 20, **own}
        return redq.make_agent(redq.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_all_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    """With a temperature so small that entropy is worth nothing."""
    config = redq.Config(
        hidden_sizes=(32,),
        discount=0.8,
        tau=0.2,
        batch_size=64,
        learning_rate=3e-3,
        num_critics=3,
        initial_temperature=1e-6,
        learn_temperature=False,
    )
    networks, state = learned(redq.make_agent(config), Chain(terminates), num_updates=1_500)
    q = jax.vmap(networks.critic.apply, in_axes=(0, None, None))(state.ensemble, STATES, ACTIONS)
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates), (3, 1)), atol=0.05)


def _constant_networks() -> nets.ActorCriticNetworks:
    """A critic's value is its one parameter, whatever it sees; the policy is a standard normal before tanh."""

    def policy(params: Any, observation: Any) -> nets.TanhNormal:
        del params
        return nets.TanhNormal(np.zeros_like(observation), np.zeros_like(observation))

    def critic(params: Any, observation: Any, action: Any) -> Any:
        del action
        return params * np.ones(len(observation), np.float32)

    return nets.ActorCriticNetworks(Network(None, policy), Network(None, critic), (1,))


def _state(ensemble: Any, targets: Any, alpha: float) -> redq.State:
    log_alpha = np.log(np.float32(alpha))
    return redq.State((), ensemble, targets, log_alpha, ((), (), ()), {}, KEY, np.int32(0))


def _batch(size: int, info: Any = ()) -> ReplaySample:
    ones = np.ones(size, np.float32)
    return ReplaySample(info, Transition(ones[:, None], 0.5 * ones[:, None], ones, 0.9 * ones, ones[:, None]))


@pytest.mark.parametrize("subset_size", [1, 2, 3])
def test_a_target_is_the_least_of_a_random_subset_without_replacement(subset_size: int) -> None:
    config = redq.Config(num_critics=3, subset_size=subset_size)
    loss = redq.make_losses(_constant_networks(), config).critic
    targets = np.array([1.0, 2.0, 4.0], np.float32)
    found = set()
    for seed in range(40):
        # Online critics that say 0: with no entropy the loss is 1.5 times the squared target.
        zeros = np.zeros(3, np.float32)
        output = loss(zeros, _state(zeros, targets, 1e-30), _batch(2), jax.random.PRNGKey(seed))
        found.add(round((float(np.sqrt(output.loss / 1.5)) - 1.0) / 0.9, 3))
    assert found == {1: {1.0, 2.0, 4.0}, 2: {1.0, 2.0}, 3: {1.0}}[subset_size]


def test_the_policy_climbs_the_mean_of_all_critics() -> None:
    loss = redq.make_losses(_constant_networks(), redq.Config(num_critics=3)).policy
    critics = np.array([1.0, 2.0, 6.0], np.float32)
    value, metrics, _ = loss((), _state(critics, critics, 0.5), _batch(4), KEY)
    np.testing.assert_allclose(value, -0.5 * metrics["entropy"] - 3.0, rtol=1e-6)


def test_the_loss_by_hand_and_priorities_are_mean_absolute_errors() -> None:
    config = redq.Config(num_critics=3, subset_size=3, prioritized=True, importance_exponent=0.5)
    info = SampleInfo(np.array([0.4, 0.1]), np.full(2, 10), (), ())
    critics, targets = np.array([1.0, 2.0, 6.0], np.float32), np.array([3.0, 2.0, 5.0], np.float32)
    loss = redq.make_losses(_constant_networks(), config).critic
    output = loss(critics, _state(critics, targets, 0.5), _batch(2, info), KEY)
    policy = _constant_networks().policy.apply((), np.ones((2, 1), np.float32))
    _, log_prob = nets.sample_and_log_prob(policy, jax.random.split(KEY)[0])
    errors = critics[:, None] - (1.0 + 0.9 * (2.0 - 0.5 * np.asarray(log_prob)))
    np.testing.assert_allclose(output.priorities, np.mean(np.abs(errors), axis=0), rtol=1e-6)
    np.testing.assert_allclose(output.loss, np.mean([0.5, 1.0] * (0.5 * np.sum(errors**2, axis=0))), rtol=1e-6)
    np.testing.assert_allclose(output.metrics["critics_std"], np.std(critics), rtol=1e-6)


@pytest.mark.full
def test_policy_and_temperature_move_once_in_a_period_and_the_critics_always() -> None:
    agent = redq.make_agent(redq.Config(hidden_sizes=(8,), num_critics=3, policy_delay=4))
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    update = agent.make_update(networks)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    data = Transition(STATES, ACTIONS, np.ones(4, np.float32), np.full(4, 0.9, np.float32), STATES[::-1])
    moved, losses = [], []
    for _ in range(8):
        before = state
        state, output = step(before, ReplaySample((), data))
        losses.append(float(output.metrics["policy_loss"]))
        moved.append(
            [
                any(np.any(a != b) for a, b in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True))
                for old, new in (
                    (before.policy, state.policy),
                    (before.log_alpha, state.log_alpha),
                    (before.ensemble, state.ensemble),
                    (before.target_ensemble, state.target_ensemble),
                )
            ]
        )
    due = [False, False, False, True] * 2
    assert [row[0] for row in moved] == due and [row[1] for row in moved] == due
    assert all(row[2] and row[3] for row in moved)
    assert losses[:3] == [0.0] * 3 and losses[3] == losses[6] != 0.0 != losses[7] != losses[3]


@pytest.mark.full
def test_the_critics_of_an_ensemble_begin_differently() -> None:
    agent = redq.make_agent(redq.Config(hidden_sizes=(8,), num_critics=3))
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    state = jax.jit(agent.make_update(networks).init)(KEY)
    q = np.asarray(jax.vmap(networks.critic.apply, in_axes=(0, None, None))(state.ensemble, STATES, ACTIONS))
    assert q.shape == (3, 4) and np.all(np.std(q, axis=0) > 1e-3)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    """In half of the steps that SAC's test takes."""
    config = redq.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=100,
        num_critics=5,
        updates_per_step=5,
        updates_per_call=5,
        policy_delay=5,
    )
    learns(redq.make_agent(config), "agentkit:point_mass", num_steps=800, threshold=-2.0)
