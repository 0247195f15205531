from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs
from agentkit.agents import reinforce
from agentkit.learning import objective
from agentkit.networks import PolicyCritic
from agentkit.testing.agent import AgentContract
from agentkit.testing.learning import learns
from tests.agents import on_policy_by_hand as by_hand
from tests.agents import on_policy_settings
from tests.agents.on_policy_training import rows_of

UNTOUCHED: dict[str, Any] = {"hidden_sizes": (), "normalize_observations": False, "normalize_values": False}


@pytest.mark.full
class TestReinforce(AgentContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE
    refused: ClassVar = on_policy_settings.FITTED_REFUSED
    changes: ClassVar = on_policy_settings.FITTED_CHANGES

    def make_agent(self, **changes: Any) -> Any:
        return reinforce.make_agent(reinforce.Config(**{**on_policy_settings.SMALL_FITTED, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", by_hand.SPECS)
def test_the_gradient_weighs_actions_by_their_whole_return_less_the_baseline(kind: str, normalize: bool) -> None:
    """Segments that end in mid-episode, terminations, truncations."""
    config = reinforce.Config(**UNTOUCHED, discount=0.9, num_minibatches=1, normalize_advantages=normalize)
    networks = reinforce.make_agent(config).make_networks(by_hand.SPECS[kind])
    weights, batch = by_hand.weights(kind), by_hand.segments(kind)
    params = PolicyCritic(by_hand.policy_params(weights, "linear"), by_hand.value_params(weights, "linear"))
    found = by_hand.elements(batch, weights, 0.9, lambda_=1.0)
    advantages = np.array([element.whole_return - element.value for element in found])
    if normalize:
        advantages = (advantages - advantages.mean()) / advantages.std()
    gradients = [by_hand.log_prob_gradient(weights, element, kind) for element in found]
    expected = by_hand.policy_params(by_hand.total(gradients, -advantages / len(found)), "linear")

    update = reinforce.make_agent(config).make_update(networks)
    state = by_hand.state_of(update, params)
    rows = rows_of(networks, config, state, batch.data)
    gradient = jax.grad(objective(reinforce.make_losses(networks, config).policy), has_aux=True)
    grads, _ = jax.jit(gradient)(params.policy, state, batch._replace(data=rows), jax.random.PRNGKey(0))
    assert jax.tree.structure(grads) == jax.tree.structure(expected)
    for grad, wanted in zip(jax.tree.leaves(grads), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(grad, wanted, rtol=1e-4, atol=1e-5)
    mask = np.asarray(rows.mask) > 0
    targets = np.asarray(rows.target)[mask]
    np.testing.assert_allclose(targets, [element.whole_return for element in found], rtol=1e-4, atol=1e-5)

    _, output = jax.jit(update.update)(state, batch)
    norm = np.sqrt(sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(expected)))
    np.testing.assert_allclose(output.metrics["grad_norm"], norm, rtol=1e-4)


@pytest.mark.full
def test_the_policy_takes_one_step_and_the_baseline_many() -> None:
    """Adam's first step is the learning rate in each parameter."""
    weights, batch = by_hand.weights("discrete"), by_hand.segments("discrete")
    params = PolicyCritic(by_hand.policy_params(weights, "linear"), by_hand.value_params(weights, "linear"))
    moved = {}
    for num_epochs in (1, 20):
        config = reinforce.Config(**UNTOUCHED, num_minibatches=2, num_value_epochs=num_epochs, learning_rate=1e-3)
        agent = reinforce.make_agent(config)
        update = agent.make_update(agent.make_networks(by_hand.SPECS["discrete"]))
        state, _ = jax.jit(update.update)(by_hand.state_of(update, params), batch)
        distance = jax.tree.map(lambda a, b: np.abs(np.asarray(a) - b), state.variables.params, params)
        moved[num_epochs] = distance
        np.testing.assert_allclose(distance.policy["linear"]["w"], 1e-3, rtol=1e-2)
    np.testing.assert_array_equal(moved[1].policy["linear"]["w"], moved[20].policy["linear"]["w"])
    assert np.all(moved[1].critic["linear"]["w"] <= 2.1e-3) and np.all(moved[20].critic["linear"]["w"] > 4e-3)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = reinforce.Config(hidden_sizes=(32, 32), segment_length=20, learning_rate=1e-2)
    learns(reinforce.make_agent(config), "agentkit:catch", num_steps=20_000, threshold=0.8, num_envs=8)
