from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs
from agentkit import networks as nets
from agentkit.agents import tqc
from agentkit.losses import quantile_huber_loss
from agentkit.networks import Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
STATES, ACTIONS = np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)


@pytest.mark.full
class TestTqc(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**settings.SOFT_REFUSED, "num_critics": 0, "num_quantiles": 0, "num_dropped": 5}
    changes: ClassVar = {
        **settings.SOFT_CONTINUOUS_CHANGES,
        "num_critics": 4,
        "num_quantiles": 7,
        "num_dropped": 3,
    }

    def make_agent(self, **changes: Any) -> Any:
        own = {"num_critics": 3, "num_quantiles": 5, "num_dropped": 1}
        small = {**settings.SMALL, "num_random_steps": 20, **own}
        return tqc.make_agent(tqc.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_the_quantiles_of_a_certain_chain_are_its_values(terminates: bool) -> None:
    """With a temperature so small that entropy is worth nothing, and nothing dropped: all quantiles are to agree."""
    config = tqc.Config(
        hidden_sizes=(32,),
        discount=0.8,
        tau=0.2,
        batch_size=64,
        learning_rate=3e-3,
        num_critics=2,
        num_quantiles=3,
        num_dropped=0,
        initial_temperature=1e-6,
        learn_temperature=False,
    )
    networks, state = learned(tqc.make_agent(config), Chain(terminates), num_updates=2_000)
    q = jax.vmap(networks.critic.apply, in_axes=(0, None, None))(state.critics, STATES, ACTIONS)  # [2, 4, 3]
    np.testing.assert_allclose(q.mean(axis=2), np.tile(values(0.8, terminates), (2, 1)), atol=0.05)


def test_the_quantile_loss_is_least_at_the_quantiles_of_its_targets() -> None:
    """By hand, and by trying every value: of targets that lie far apart the least is at the target of that fraction."""
    quantiles, fractions = np.array([[1.0, 4.0]], np.float32), np.array([0.25, 0.75], np.float32)
    targets = np.array([[0.5, 3.0, 4.2]], np.float32)
    # Of 1: errors -0.5, 2, 3.2, at 0.25; of 4: -3.5, -1, 0.2, at 0.75.
    lower = 0.75 * 0.125 + 0.25 * 1.5 + 0.25 * 2.7
    upper = 0.25 * 3.0 + 0.25 * 0.5 + 0.75 * 0.02
    np.testing.assert_allclose(quantile_huber_loss(quantiles, fractions, targets), [(lower + upper) / 6], rtol=1e-6)
    spread, tried = np.arange(0.0, 1_000.0, 100.0, np.float32)[None], np.arange(-100.0, 1_000.0, 10.0, np.float32)
    found = quantile_huber_loss(tried[:, None], np.array([0.75], np.float32), np.repeat(spread, len(tried), axis=0))
    assert tried[np.argmin(found)] == 700.0


def _constant_networks() -> nets.ActorCriticNetworks:
    """A critic's quantiles are its parameters, whatever it sees; the policy is a standard normal before tanh."""

    def policy(params: Any, observation: Any) -> nets.TanhNormal:
        del params
        return nets.TanhNormal(np.zeros_like(observation), np.zeros_like(observation))

    def critic(params: Any, observation: Any, action: Any) -> Any:
        del action
        return params[None, :] * np.ones((len(observation), 1), np.float32)

    return nets.ActorCriticNetworks(Network(None, policy), Network(None, critic), (1,))


def _state(critics: Any, targets: Any, alpha: float) -> tqc.State:
    return tqc.State((), critics, targets, np.log(np.float32(alpha)), ((), (), ()), KEY)


def _batch(size: int, info: Any = ()) -> ReplaySample:
    ones = np.ones(size, np.float32)
    return ReplaySample(info, Transition(ones[:, None], 0.5 * ones[:, None], ones, 0.9 * ones, ones[:, None]))


@pytest.mark.parametrize(("num_dropped", "kept"), [(0, [1, 2, 3, 4, 5, 90]), (1, [1, 2, 3, 4]), (2, [1, 2])])
def test_a_target_is_the_mixture_of_all_critics_without_its_largest_quantiles(num_dropped: int, kept: Any) -> None:
    """Of all together: from the second critic both of the largest are dropped, from the first none, before one is."""
    config = tqc.Config(num_critics=2, num_quantiles=3, num_dropped=num_dropped, prioritized=True)
    losses = tqc.make_losses(_constant_networks(), config)
    targets = np.array([[1.0, 3.0, 4.0], [2.0, 5.0, 90.0]], np.float32)
    critics = np.array([[0.0, 1.0, 2.0], [1.0, 2.0, 3.0]], np.float32)
    info = SampleInfo(np.full(2, 0.5), np.full(2, 10), (), ())
    output = losses.critic(critics, _state(critics, targets, 1e-30), _batch(2, info), KEY)
    expected = 1.0 + 0.9 * np.array(kept, np.float32)
    np.testing.assert_allclose(output.priorities, np.full(2, abs(1.5 - expected.mean())), rtol=1e-5)
    fractions = np.array([1, 3, 5], np.float32) / 6
    by_critic = [quantile_huber_loss(critic[None], fractions, expected[None]) for critic in critics]
    np.testing.assert_allclose(output.loss, np.mean(by_critic), rtol=1e-5)
    np.testing.assert_allclose(output.metrics["q"], 1.5, rtol=1e-6)


def test_entropy_is_part_of_a_target_and_the_policy_climbs_the_mean_of_all_quantiles() -> None:
    config = tqc.Config(num_critics=2, num_quantiles=2, num_dropped=1, prioritized=True)
    losses = tqc.make_losses(_constant_networks(), config)
    critics = np.array([[1.0, 2.0], [3.0, 6.0]], np.float32)
    state, batch = _state(critics, critics, 0.5), _batch(4)
    value, metrics, _ = losses.policy((), state, batch, KEY)
    np.testing.assert_allclose(value, -0.5 * metrics["entropy"] - 3.0, rtol=1e-6)
    info = SampleInfo(np.full(4, 0.25), np.full(4, 10), (), ())
    found = losses.critic(critics, state, _batch(4, info), KEY).priorities
    _, log_prob = nets.sample_and_log_prob(_constant_networks().policy.apply((), batch.data.next_observation), KEY)
    np.testing.assert_allclose(found, np.abs(3.0 - (1.0 + 0.9 * (1.5 - 0.5 * log_prob))), rtol=1e-5)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = tqc.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        min_replay_size=100,
        num_random_steps=100,
        num_critics=2,
        num_quantiles=8,
        num_dropped=1,
    )
    learns(tqc.make_agent(config), "agentkit:point_mass", num_steps=1_600, threshold=-2.0)
