from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, losses
from agentkit.agents import discrete_bcq
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import ReplaySample, Transition
from tests.agents import offline_data, settings
from tests.agents.target_state import state_of_targets

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
class TestDiscreteBcq(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {**settings.VALUE_REFUSED, "threshold": 1.5}
    changes: ClassVar = {**settings.VALUE_CHANGES, "threshold": 0.99}

    def make_agent(self, **changes: Any) -> Any:
        return discrete_bcq.make_agent(discrete_bcq.Config(**{**settings.SMALL_VALUES, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_it_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = discrete_bcq.Config(
        hidden_sizes=(32,),
        discount=0.8,
        n_step=n_step,
        learning_rate=3e-3,
        target_update_period=20,
    )
    networks, state = learned(discrete_bcq.make_agent(config), Chain(terminates, num_actions=2), num_updates=1_000)
    q = networks.q_values(state.params, np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates)[:, None], 2), atol=0.15)


@pytest.mark.full
def test_it_learns_more_than_the_data_show() -> None:
    config = discrete_bcq.Config(hidden_sizes=(32, 32), batch_size=64, target_update_period=50, updates_per_call=10)
    data = offline_data.make_episodes(offline_data.CATCH, 200, [0.0, 0.3])
    assert offline_data.mean_return(data) < 0.0
    offline_data.learns(discrete_bcq.make_agent(config), offline_data.CATCH, data, 3_000, 0.8)


def _networks(threshold: float) -> tuple[Any, Any]:
    """Parameters are values ``[A]`` and logits ``[A]``, the same for every observation."""
    networks = discrete_bcq.Networks(
        None,
        lambda params, o: np.ones((len(o), 1), np.float32) * params["values"][None],
        lambda params, o: np.ones((len(o), 1), np.float32) * params["behaviour"][None],
    )
    return networks, discrete_bcq.Config(threshold=threshold, epsilon_evaluation=0.0)


PARAMS = {"values": np.float32([1.0, 9.0, 2.0]), "behaviour": np.log(np.float32([0.6, 0.1, 0.3]))}


@pytest.mark.parametrize(("threshold", "best"), [(0.0, 1), (0.1, 1), (0.2, 2), (0.49, 2), (0.6, 0), (1.0, 0)])
def test_the_best_action_is_sought_among_the_likely_ones(threshold: float, best: int) -> None:
    networks, config = _networks(threshold)
    policy = discrete_bcq.make_policy(networks, config, evaluation=True)
    action, _, _ = policy.act(PARAMS, KEY, np.zeros(1, np.float32), policy.init(KEY))
    assert action == best


def test_the_loss_by_hand() -> None:
    networks, config = _networks(0.2)
    observation, action = np.zeros((2, 1), np.float32), np.int32([0, 2])
    data = Transition(observation, action, np.float32([0.5, 1.0]), np.float32([0.9, 0.0]), observation)
    state = state_of_targets({**PARAMS, "values": np.float32([5.0, 6.0, 0.5])})
    found = jax.jit(discrete_bcq.make_loss(networks, config))(PARAMS, state, ReplaySample((), data), KEY)
    errors = np.array([0.5 + 0.9 * 0.5 - 1.0, 1.0 - 2.0])  # Action 2 is the best likely one.
    huber = np.where(np.abs(errors) < 1, 0.5 * errors**2, np.abs(errors) - 0.5)
    cloning = -np.log([0.6, 0.3])
    np.testing.assert_allclose(found.loss, np.mean(huber + cloning), rtol=1e-5)
    np.testing.assert_allclose(found.metrics["cloning_loss"], np.mean(cloning), rtol=1e-5)


def test_the_likeliest_action_is_always_among_the_likely_ones() -> None:
    logits = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    likely = np.asarray(losses.bcq_action_mask(logits, 1.0))
    np.testing.assert_array_equal(likely.argmax(-1), logits.argmax(-1))
    assert likely.sum() == 50 and np.all(losses.bcq_action_mask(logits, 0.0))
