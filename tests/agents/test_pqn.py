from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, losses, specs
from agentkit.agents import pqn
from agentkit.learning import Linear
from agentkit.networks import Network
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, Step

KEY = jax.random.PRNGKey(0)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "segment_length": 16, "num_minibatches": 2, "epsilon": 0.3}


@pytest.mark.full
class TestPqn(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    steps_before_learning = 12  # A segment of 16 rows has 15 steps or less, with the ends of episodes.
    refused: ClassVar = {
        "segment_length": 0,
        "batch_size": 0,
        "batch_mode": "whole",
        "discount": 1.5,
        "q_lambda": -0.5,
        "learning_rate": 0.0,
        "max_grad_norm": 0.0,
        "adam_epsilon": 0.0,
        "num_epochs": 0,
        "num_minibatches": 3,
        "epsilon": Linear(1.0, -0.1, 40),
        "epsilon_evaluation": 1.1,
    }
    changes: ClassVar = {
        "hidden_sizes": (8, 8),
        "segment_length": 8,
        "batch_size": 2,
        "batch_mode": Change("complete_episodes", {"segment_length": 24}),
        "discount": 0.5,
        "q_lambda": 0.1,
        "learning_rate": 1e-2,
        "max_grad_norm": 1e-3,
        "adam_epsilon": 1e-2,
        "num_epochs": 3,
        "num_minibatches": 4,
        "epsilon": 0.9,
        "epsilon_evaluation": 0.9,
    }

    def make_agent(self, **changes: Any) -> Any:
        return pqn.make_agent(pqn.Config(**{**SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


def test_lambda_returns_by_hand_end_before_a_row_without_an_action_and_with_the_sequence() -> None:
    """One sequence is truncated in its second row, whose third is the final observation; one terminates there."""
    reward = np.array([[1.0, 2.0, 0.0, 4.0, 5.0]] * 2, np.float32)
    discount = np.array([[0.9, 0.9, 0.0, 0.9, 0.9], [0.9, 0.0, 0.0, 0.9, 0.9]], np.float32)
    values = np.array([[10.0, 20.0, 30.0, 40.0, 50.0]] * 2, np.float32)
    mask = np.array([[1.0, 1.0, 0.0, 1.0, 1.0]] * 2, np.float32)
    found = losses.lambda_returns(reward, discount, values, mask, 0.5)
    last, second = 5.0 + 0.9 * 50.0, np.array([2.0 + 0.9 * 20.0, 2.0])
    np.testing.assert_allclose(found[:, 4], [last, last], rtol=1e-6)
    np.testing.assert_allclose(found[:, 3], np.full(2, 4.0 + 0.9 * (0.5 * 40.0 + 0.5 * last)), rtol=1e-6)
    np.testing.assert_allclose(found[:, 1], second, rtol=1e-6)
    np.testing.assert_allclose(found[:, 0], 1.0 + 0.9 * (0.5 * 10.0 + 0.5 * second), rtol=1e-6)


def _table() -> Network:
    """Action values of four states are the parameters ``[4, 2]``; observations are one-hot."""
    return Network(lambda key: jnp.arange(8.0).reshape(4, 2), lambda params, observation: observation @ params)


def _segments() -> Step:
    """One segment of three rows: states 0, 1 and, of the next episode, 2, before which state 3 was final."""
    order, start = [0, 3, 2, 1], [True, False, True, False]
    return Step(
        observation=np.eye(4, dtype=np.float32)[order][None],
        action=np.array([[1, 0, 0, 0]], np.int32),
        reward=np.array([[0.5, 0.0, 1.5, 9.0]], np.float32),
        discount=np.array([[1.0, 0.0, 1.0, 1.0]], np.float32),
        start_of_episode=np.array([start]),
    )


def test_targets_are_of_the_largest_values_and_the_loss_is_of_rows_with_an_action() -> None:
    config, network = pqn.Config(discount=0.5, q_lambda=0.7), _table()
    params = network.init(KEY)
    rows = pqn.make_rows(network, params, _segments(), config)
    np.testing.assert_array_equal(rows.mask, [1.0, 0.0, 1.0])
    first, third = 0.5 + 0.5 * 7.0, 1.5 + 0.5 * 3.0  # State 3 was truncated there: its largest value, 7, counts.
    np.testing.assert_allclose(rows.target[np.array([0, 2])], [first, third], rtol=1e-6)
    output = pqn.make_loss(network, config)(params, None, ReplaySample((), rows), KEY)
    np.testing.assert_allclose(output.loss, 0.25 * ((1.0 - first) ** 2 + (4.0 - third) ** 2), rtol=1e-6)
    np.testing.assert_allclose(output.metrics["q"], 2.5, rtol=1e-6)


def test_an_update_steps_towards_targets_of_the_parameters_from_before() -> None:
    """Two epochs of one minibatch, by plain gradient descent: the second has the same targets."""
    import optax

    config = pqn.Config(discount=0.5, q_lambda=0.7, num_epochs=2, num_minibatches=1)
    network = _table()
    update = pqn.make_update(network, pqn.make_loss(network, config), config, optax.sgd(0.1))
    state = update.init(KEY)
    after, output = jax.jit(update.update)(state, ReplaySample((), _segments()))
    expected = np.arange(8.0).reshape(4, 2)
    for _ in range(2):
        expected[0, 1] -= 0.1 * 0.5 * (expected[0, 1] - 4.0)  # Of two rows with an action each counts half.
        expected[2, 0] -= 0.1 * 0.5 * (expected[2, 0] - 3.0)
    np.testing.assert_allclose(after.params, expected, rtol=1e-5)
    assert set(output.metrics) == {"loss", "q", "grad_norm"}


@pytest.mark.full
def test_layers_are_normalised_whatever_the_scale_of_the_observation() -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:catch"))
    network = pqn.make_agent(pqn.Config(hidden_sizes=(16,))).make_networks(spec)
    params = network.init(KEY)
    x = np.random.default_rng(0).normal(size=(3, *spec.observations.shape)).astype(np.float32)
    q = network.apply(params, x)
    np.testing.assert_allclose(network.apply(params, 100 * x), q, rtol=1e-2, atol=1e-3)
    assert np.ptp(q) > 1e-2


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = pqn.Config(hidden_sizes=(32,), segment_length=16, num_minibatches=4, learning_rate=3e-3)
    config = pqn.Config(**{**vars(config), "epsilon": Linear(1.0, 0.05, 5_000)})
    learns(pqn.make_agent(config), "agentkit:catch", num_steps=20_000, threshold=0.8, num_envs=8)
