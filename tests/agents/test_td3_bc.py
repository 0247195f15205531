from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import td3_bc
from agentkit.learning import objective
from agentkit.networks import ActorCriticNetworks, Network
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import ReplaySample, Transition
from tests.agents import offline_data, settings


@pytest.mark.full
class TestTd3Bc(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {**settings.TD3_REFUSED, "value_weight": -1.0}
    changes: ClassVar = {**settings.TD3_CHANGES, "value_weight": 0.5, "normalize_observations": False}

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20}
        return td3_bc.make_agent(td3_bc.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    config = td3_bc.Config(hidden_sizes=(32,), discount=0.8, tau=0.2, batch_size=64, learning_rate=3e-3,
                           normalize_observations=False)  # fmt: skip
    networks, state = learned(td3_bc.make_agent(config), Chain(terminates), num_updates=1_500)
    q = np.stack(networks.critic.apply(state.critics, np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32)))
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates), (2, 1)), atol=0.05)


def _losses(value_weight: float) -> Any:
    """The policy is a number; the critics' values are rows of the parameters times (observation, action)."""

    def policy(params: jax.Array, observation: jax.Array) -> jax.Array:
        return jnp.full(observation.shape, params)

    def critics(params: jax.Array, observation: jax.Array, action: jax.Array) -> jax.Array:
        return params @ jnp.concatenate([observation, action], axis=-1).T  # [2, B]

    networks = ActorCriticNetworks(Network(None, policy), Network(None, critics), (1,))
    return td3_bc.make_losses(networks, td3_bc.Config(value_weight=value_weight))


def _state(critics: Any) -> td3_bc.State:
    return td3_bc.State((), critics, (), (), ((), ()), {}, jax.random.PRNGKey(0), np.int32(0), ())


def _policy_loss(policy: float, critics: Any, value_weight: float = 2.5) -> Any:
    """Returns the gradient by the policy, and the loss's output."""
    loss, state = _losses(value_weight).policy, _state(critics)
    return jax.grad(objective(loss), has_aux=True)(jnp.float32(policy), state, _batch(), state.key)


def _batch() -> ReplaySample:
    observation, action = np.float32([[1.0], [2.0], [-3.0]]), np.float32([[0.5], [0.0], [-1.0]])
    return ReplaySample((), Transition(observation, action, np.ones(3), np.ones(3), observation))


def test_the_policys_loss_by_hand() -> None:
    critics, policy = np.float32([[1.0, 2.0], [9.0, 9.0]]), 0.25
    observation, action = np.array([1.0, 2.0, -3.0]), np.array([0.5, 0.0, -1.0])
    q = observation + 2.0 * policy
    scale = 2.5 / np.mean(np.abs(q))
    expected = np.mean((policy - action) ** 2 - scale * q)
    slope = np.mean(2.0 * (policy - action)) - scale * 2.0  # As if lambda were a constant.
    found, output = _policy_loss(policy, critics)
    np.testing.assert_allclose((output.loss, found), (expected, slope), rtol=1e-5)
    np.testing.assert_allclose(output.metrics["cloning_loss"], np.mean((policy - action) ** 2), rtol=1e-5)


def test_the_distance_from_the_data_is_a_mean_over_the_actions_dimensions() -> None:
    """As the authors' code has it, to which alpha = 2.5 belongs."""
    networks = ActorCriticNetworks(
        Network(None, lambda params, o: jnp.full((3, 2), params)), Network(None, lambda *_: jnp.ones((2, 3))), (2,)
    )
    action = np.float32([[0.5, -0.5], [0.0, 1.0], [-1.0, 0.25]])
    batch = ReplaySample((), Transition(np.ones((3, 1), np.float32), action, np.ones(3), np.ones(3), ()))
    losses = td3_bc.make_losses(networks, td3_bc.Config())
    output = jax.jit(losses.policy)(jnp.float32(0.1), _state(()), batch, jax.random.PRNGKey(0))
    np.testing.assert_allclose(output.metrics["cloning_loss"], np.mean((0.1 - action) ** 2), rtol=1e-5)


@pytest.mark.full
def test_learner_and_policy_see_observations_normalised_by_the_data() -> None:
    """The scale and offset of the data do not matter to what is learned, nor to how the published policy acts."""
    agent = td3_bc.make_agent(td3_bc.Config(hidden_sizes=(8,)))
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:point_mass")))
    update, rng = agent.make_update(networks), np.random.default_rng(0)
    observation, following = rng.normal(size=(2, 256, 2)).astype(np.float32)
    action, ones = rng.uniform(-1, 1, (256, 2)).astype(np.float32), np.ones(256, np.float32)
    actions = []
    for scale, offset in ((1.0, 0.0), (50.0, 300.0)):
        data = Transition(scale * observation + offset, action, ones, ones, scale * following + offset)
        state, step = update.init(jax.random.PRNGKey(0)), jax.jit(update.update)
        for _ in range(4):
            state, _ = step(state, ReplaySample((), data))
        policy = agent.make_policy(networks, evaluation=True)
        variables = update.variables(state)["policy"]
        actions.append(policy.act(variables, jax.random.PRNGKey(0), scale * following[0] + offset, ())[0])
        (statistics,) = variables.statistics
        np.testing.assert_allclose(statistics.mean, np.mean(data.observation, axis=0), rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(actions[0], actions[1], atol=1e-3)


def test_without_value_the_policy_is_a_clone() -> None:
    slope, output = _policy_loss(-0.5 / 3.0, np.float32([[5.0, 5.0]] * 2), value_weight=0.0)
    assert output.loss == output.metrics["cloning_loss"] > 0.0
    np.testing.assert_allclose(slope, 0.0, atol=1e-6)  # -0.5 / 3 is the data's mean action.


def test_the_size_of_rewards_does_not_matter_to_the_policy() -> None:
    critics = np.float32([[1.0, 2.0], [9.0, 9.0]])
    slopes = [_policy_loss(0.25, scale * critics)[0] for scale in (1.0, 1_000.0)]
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-4)


@pytest.mark.full
def test_it_learns_more_than_the_data_show() -> None:
    config = td3_bc.Config(hidden_sizes=(32, 32), learning_rate=3e-3, tau=0.02, batch_size=64, updates_per_call=10)
    data = offline_data.make_episodes(offline_data.POINT_MASS, 100, [0.0, 0.3])
    assert offline_data.mean_return(data) < -7.0
    offline_data.learns(td3_bc.make_agent(config), offline_data.POINT_MASS, data, 1_000, -2.5)
