from typing import Any, ClassVar

import jax
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

from agentkit import envs
from agentkit.agents import npg
from agentkit.agents.common.natural_gradient import mean_kl_from, natural_gradient
from agentkit.learning import objective
from agentkit.networks import PolicyCritic
from agentkit.testing.agent import AgentContract
from agentkit.testing.learning import learns
from tests.agents import on_policy_by_hand as by_hand
from tests.agents import on_policy_settings
from tests.agents.on_policy_training import Training, rows_of

UNTOUCHED: dict[str, Any] = {"hidden_sizes": (), "normalize_observations": False, "normalize_values": False}


@pytest.mark.full
class TestNpg(AgentContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE
    refused: ClassVar = {
        **on_policy_settings.FITTED_REFUSED,
        "step_size": 0.0,
        "cg_iterations": 0,
        "damping": 0.0,
    }
    changes: ClassVar = {**on_policy_settings.FITTED_CHANGES, "step_size": 0.3, "cg_iterations": 2, "damping": 0.5}

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()

    def make_agent(self, **changes: Any) -> Any:
        return npg.make_agent(npg.Config(**{**on_policy_settings.SMALL_FITTED, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


def fisher_matrix(weights: by_hand.Weights, elements: list[by_hand.Element], kind: str) -> np.ndarray:
    """Of a linear policy: g g^T, with g the gradient of an action's log-probability, in mean over all actions.

    And over the observations. Gaussian actions are integrated over by quadrature.
    """
    matrices = []
    for element in elements:
        outputs = element.observation @ weights.w + weights.b
        if kind == "discrete":
            exponentials = np.exp(outputs - outputs.max())
            draws = [(p, np.int32(a)) for a, p in enumerate(exponentials / exponentials.sum())]
        else:
            draws = [(w, outputs + np.exp(weights.log_std) * noise) for w, noise in gauss_hermite(len(outputs))]
        matrix = np.zeros(())
        for probability, sample in draws:
            gradient = by_hand.log_prob_gradient(weights, element._replace(sample=sample), kind)
            vector = flatten(gradient)
            matrix = matrix + probability * np.outer(vector, vector)
        matrices.append(matrix)
    return np.mean(matrices, axis=0)


def gauss_hermite(size: int) -> list[tuple[float, np.ndarray]]:
    """Weights and points of a quadrature that is exact for the fourth moments of `size` unit normals."""
    points, weights = np.polynomial.hermite_e.hermegauss(4)
    weights = weights / weights.sum()
    grid = np.stack(np.meshgrid(*[np.arange(4)] * size), axis=-1).reshape(-1, size)
    return [(float(np.prod(weights[index])), points[index]) for index in grid]


def divergence_at(observation: np.ndarray, before: by_hand.Weights, after: by_hand.Weights, kind: str) -> float:
    """KL of a linear policy, from what it was to what it is."""
    old, new = (observation @ weights.w + weights.b for weights in (before, after))
    if kind == "discrete":
        old, new = (x - np.log(np.sum(np.exp(x))) for x in (old, new))
        return float(np.sum(np.exp(old) * (old - new)))
    std, new_std = np.exp(before.log_std), np.exp(after.log_std)
    return float(np.sum(np.log(new_std / std) + (std**2 + (old - new) ** 2) / (2 * new_std**2) - 0.5))


def flatten(gradient: by_hand.Weights) -> np.ndarray:
    """In the order of the policy's parameters."""
    return np.asarray(ravel_pytree(by_hand.policy_params(gradient, "linear"))[0], np.float64)


@pytest.mark.full
@pytest.mark.parametrize("kind", by_hand.SPECS)
def test_the_policy_steps_along_the_inverse_of_the_fisher_matrix(kind: str) -> None:
    """The matrix written out, and numpy's solution."""
    config = npg.Config(**UNTOUCHED, discount=0.9, step_size=0.05, damping=0.3, cg_iterations=50, num_minibatches=1)
    networks = npg.make_agent(config).make_networks(by_hand.SPECS[kind])
    weights, batch = by_hand.weights(kind), by_hand.segments(kind)
    params = PolicyCritic(by_hand.policy_params(weights, "linear"), by_hand.value_params(weights, "linear"))
    elements = by_hand.elements(batch, weights, 0.9, config.gae_lambda)
    advantages = np.array([element.advantage for element in elements])
    advantages = (advantages - advantages.mean()) / advantages.std()
    gradients = [by_hand.log_prob_gradient(weights, element, kind) for element in elements]
    gradient = flatten(by_hand.total(gradients, advantages / len(elements)))
    fisher = fisher_matrix(weights, elements, kind)
    expected = 0.05 * np.linalg.solve(fisher + 0.3 * np.eye(len(gradient)), gradient)

    update = npg.make_agent(config).make_update(networks)
    state, output = jax.jit(update.update)(by_hand.state_of(update, params), batch)
    moved = jax.tree.map(lambda a, b: np.asarray(a) - b, state.variables.params, params)
    np.testing.assert_allclose(ravel_pytree(moved.policy)[0], expected, rtol=1e-3, atol=3e-5)
    assert output.metrics["cg_residual"] < 1e-4
    steps = {**moved.policy["linear"], **moved.policy.get("~", {})}
    after = weights._replace(**{name: getattr(weights, name) + np.float64(step) for name, step in steps.items()})
    divergence = np.mean([divergence_at(element.observation, weights, after, kind) for element in elements])
    np.testing.assert_allclose(output.metrics["kl"], divergence, rtol=1e-2)
    assert all(np.all(leaf != 0) for leaf in jax.tree.leaves(moved.critic))


@pytest.mark.full
@pytest.mark.parametrize("name", ["agentkit:catch", "agentkit:point_mass"])
def test_the_fit_of_the_value_leaves_the_policy_alone_and_improves_the_value(name: str) -> None:
    config = npg.Config(**{**on_policy_settings.SMALL_FITTED, "num_value_epochs": 100, "learning_rate": 0.01})
    training = Training(npg.make_agent(config), name, 3)
    batch = training.next_batch()
    before = training.state
    rows = rows_of(training.networks, config, before, batch.data)
    params, policy_loss = before.variables.params, npg.make_losses(training.networks, config).policy
    gradient, _ = jax.grad(objective(policy_loss), has_aux=True)(
        params.policy, before, batch._replace(data=rows), jax.random.PRNGKey(0)
    )
    mean_kl = mean_kl_from(training.networks, params, rows)
    natural = natural_gradient(mean_kl, params.policy, gradient, config.cg_iterations, config.damping)
    policy = jax.tree.map(lambda x, d: x - config.step_size * d, params.policy, natural.direction)
    metrics = training.learn(batch)
    after = training.state.variables.params
    for found, expected in zip(jax.tree.leaves(after.policy), jax.tree.leaves(policy), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)

    def error(params: PolicyCritic) -> float:
        mask = np.asarray(rows.mask) > 0
        return float(np.mean(0.5 * np.square(training.networks.apply(params, rows.observation)[1] - rows.target)[mask]))

    assert error(after) < 0.8 * error(before.variables.params)
    assert error(after) < metrics["value_loss"] < error(before.variables.params)


@pytest.mark.full
def test_it_learns_the_point_mass() -> None:
    config = npg.Config(hidden_sizes=(32, 32), segment_length=32, discount=0.9, learning_rate=3e-3)
    learns(npg.make_agent(config), "agentkit:point_mass", num_steps=12_000, threshold=-1.5, num_envs=8)
