from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs
from agentkit.agents import a2c
from agentkit.learning import Linear, apply_gradients, objective
from agentkit.testing.agent import AgentContract
from agentkit.testing.learning import learns
from tests.agents import on_policy_by_hand as by_hand
from tests.agents import on_policy_settings
from tests.agents.on_policy_training import KEY, Training, rows_of

UNTOUCHED: dict[str, Any] = {"hidden_sizes": (), "normalize_observations": False, "normalize_values": False}


@pytest.mark.full
class TestA2c(AgentContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE
    refused: ClassVar = {**on_policy_settings.REFUSED, "rms_decay": 1.5, "rms_epsilon": 0.0}
    changes: ClassVar = {
        **on_policy_settings.CHANGES,
        "normalize_advantages": True,
        "value_cost": 0.1,
        "entropy_cost": 0.1,
        "rms_decay": 0.5,
        "rms_epsilon": 1e-3,
    }

    def make_agent(self, **changes: Any) -> Any:
        return a2c.make_agent(a2c.Config(**{**on_policy_settings.SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def test_the_contracts_batch_has_several_segments() -> None:
    contract = TestA2c()
    batch = contract._batch(contract.make_agent(), 0.0)
    assert len(batch.data.reward) == 64 and len(np.unique(batch.data.observation, axis=0)) > 1


def expected_gradient(config: a2c.Config, weights: by_hand.Weights, batch: Any, kind: str) -> by_hand.Weights:
    """Of the whole loss, as a sum over every action."""
    found = by_hand.elements(batch, weights, config.discount, config.gae_lambda)
    gradients, factors = [], []
    for element in found:
        gradients.append(by_hand.log_prob_gradient(weights, element, kind))
        factors.append(-element.advantage / len(found))
        gradients.append(by_hand.entropy_gradient(weights, element, kind))
        factors.append(-config.entropy_cost / len(found))
        gradients.append(by_hand.value_gradient(element, element.value + element.advantage))
        factors.append(config.value_cost / len(found))
    return by_hand.total(gradients, factors)


@pytest.mark.one_case
@pytest.mark.parametrize("lambda_", [0.7, 1.0])
@pytest.mark.parametrize("kind", by_hand.SPECS)
def test_an_update_is_one_step_of_rmsprop_on_the_gradient_by_hand(kind: str, lambda_: float) -> None:
    """Segments that end in mid-episode, terminations, truncations; then numpy's RMSProp."""
    config = a2c.Config(**UNTOUCHED, discount=0.9, gae_lambda=lambda_, entropy_cost=0.3, max_grad_norm=None)
    networks = a2c.make_agent(config).make_networks(by_hand.SPECS[kind])
    weights, batch = by_hand.weights(kind), by_hand.segments(kind)
    params = {**by_hand.policy_params(weights, "linear_1"), **by_hand.value_params(weights, "linear")}
    expected = expected_gradient(config, weights, batch, kind)
    leaves = {**by_hand.policy_params(expected, "linear_1"), **by_hand.value_params(expected, "linear")}

    update = a2c.make_agent(config).make_update(networks)
    state = by_hand.state_of(update, params)
    rows = rows_of(networks, config, state, batch.data)
    gradient = jax.jit(jax.grad(objective(a2c.make_loss(networks, config)), has_aux=True))
    grads, _ = gradient(params, state, batch._replace(data=rows), KEY)
    assert jax.tree.structure(grads) == jax.tree.structure(leaves)
    for found, wanted in zip(jax.tree.leaves(grads), jax.tree.leaves(leaves), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)

    state, output = jax.jit(update.update)(state, batch)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(leaves)))
    np.testing.assert_allclose(output.metrics["grad_norm"], norm, rtol=1e-4)
    for before, after, g in zip(*map(jax.tree.leaves, (params, state.variables.params, leaves)), strict=True):
        step = 7e-4 * g / np.sqrt(0.99 + 0.01 * np.square(g) + 1e-5)  # The mean of squares began at 1.
        np.testing.assert_allclose(np.asarray(after) - before, -step, rtol=1e-2, atol=1e-6)


def test_rmsprops_epsilon_is_inside_of_the_root() -> None:
    """As in the paper's (algorithm S1): g / sqrt(mean of squares + epsilon), over steps whose mean decays from 1."""
    optimizer = a2c.make_optimizer(a2c.Config(rms_decay=0.75, rms_epsilon=0.5, max_grad_norm=None))
    state, squares = optimizer.init({"a": np.zeros(2)}), np.ones(2)
    for gradient in (np.array([2.0, -0.1]), np.array([0.3, 1.0])):
        squares = 0.75 * squares + 0.25 * gradient**2
        steps, state = optimizer.update({"a": gradient}, state)
        np.testing.assert_allclose(steps["a"], -gradient / np.sqrt(squares + 0.5), rtol=1e-5)


@pytest.mark.full
def test_gradients_are_clipped_before_rmsprop_sees_them() -> None:
    """From parameters of 0, of which a step so small is no rounding."""
    weights, batch = by_hand.Weights(*map(np.zeros_like, by_hand.weights("discrete"))), by_hand.segments("discrete")
    params = {**by_hand.policy_params(weights, "linear_1"), **by_hand.value_params(weights, "linear")}
    steps = []
    for limit in (None, 1e-4):
        config = a2c.Config(**UNTOUCHED, max_grad_norm=limit, rms_epsilon=1.0)
        agent = a2c.make_agent(config)
        update = agent.make_update(agent.make_networks(by_hand.SPECS["discrete"]))
        state, output = jax.jit(update.update)(by_hand.state_of(update, params), batch)
        assert output.metrics["grad_norm"] > 0.1  # Before the clip.
        moved = jax.tree.map(lambda a, b: np.asarray(a) - b, state.variables.params, params)
        steps.append(np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(moved))))
    # With so large an epsilon a step is as its gradient; the mean of squares began at 1, and decays by 0.99.
    np.testing.assert_allclose(steps[1], 7e-4 * 1e-4 / np.sqrt(0.99 + 1.0), rtol=1e-3)
    assert steps[0] > 100 * steps[1]


@pytest.mark.full
def test_the_learning_rate_falls_to_zero() -> None:
    config = a2c.Config(**on_policy_settings.SMALL, learning_rate=Linear(0.01, 0.0, 2 * 48))
    training = Training(a2c.make_agent(config), "agentkit:catch", 3)
    rates, steps = [], [0]
    while steps[-1] < 2 * 48:  # A segment of 48 rows has final observations, too, which are no steps.
        batch = training.next_batch()
        rates.append(training.learn(batch)["learning_rate"])
        steps.append(training.loop.num_steps)
    np.testing.assert_allclose(rates, 0.01 * (1 - np.array(steps[:-1]) / (2 * 48)), rtol=1e-4)
    assert training.learn(training.next_batch())["learning_rate"] == 0.0


UNNORMALIZED: dict[str, Any] = {"normalize_observations": False, "normalize_values": False}


@pytest.mark.full
def test_gradients_of_actors_make_the_update_that_the_learner_makes() -> None:
    agent = a2c.make_agent(a2c.Config(**on_policy_settings.SMALL, **UNNORMALIZED))
    training = Training(agent, "agentkit:catch", 3)
    batch, update = training.next_batch(), training.update
    assert update.gradient is not None
    grads = jax.jit(update.gradient)(update.variables(training.state)["policy"], batch, KEY)
    sent = jax.tree.map(lambda x: np.asarray(x)[None], grads)
    halves, _ = apply_gradients(update).update(training.state, batch._replace(data=sent))
    whole, _ = training.compiled(training.state, batch)
    assert int(halves.num_updates) == 1
    for a, b in zip(jax.tree.leaves(halves.variables), jax.tree.leaves(whole.variables), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "change",
    [
        {"normalize_observations": True},
        {"normalize_values": True},
        {"learning_rate": Linear(1e-3, 0.0, 100)},
        {"entropy_cost": Linear(0.1, 0.0, 100)},
    ],
    ids=lambda change: ",".join(change),
)
def test_what_needs_more_than_the_parameters_has_no_gradient_for_actors(change: dict[str, Any]) -> None:
    def gradient(**settings: Any) -> Any:
        agent = a2c.make_agent(a2c.Config(**{**on_policy_settings.SMALL, **UNNORMALIZED, **settings}))
        return agent.make_update(agent.make_networks(by_hand.SPECS["discrete"])).gradient

    assert gradient() is not None and gradient(**change) is None


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = a2c.Config(hidden_sizes=(32, 32), segment_length=8, learning_rate=5e-3, rms_decay=0.9)
    learns(a2c.make_agent(config), "agentkit:catch", num_steps=30_000, threshold=0.8, num_envs=8)
