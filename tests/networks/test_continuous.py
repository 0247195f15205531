from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, networks, specs
from agentkit.errors import SpecError

KEY = jax.random.PRNGKey(0)
SIZES = (8,)
SPEC = specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0))
OBSERVATION, ACTION = np.float32([[0.5, -1.0], [2.0, 0.0], [1.0, 1.0]]), np.float32([[0.1, 0.2]] * 3)


def _apply(network: networks.Network, *inputs: Any) -> Any:
    return network.apply(network.init(KEY), *inputs)


@pytest.mark.full
def test_policy_and_critic_are_made_for_the_environments_actions() -> None:
    found = networks.actor_critic_networks(
        SPEC,
        "Test",
        policy=lambda observation, size: networks.tanh_normal_action(observation, size, SIZES, -1.0, 2.0),
        critic=lambda observation, action: networks.action_value(observation, action, SIZES),
    )
    assert found.action_shape == (2,)
    assert _apply(found.policy, OBSERVATION).mean.shape == (3, 2)
    assert _apply(found.critic, OBSERVATION, ACTION).shape == (3,)


def test_deterministic_networks_have_actions_in_bounds_and_any_critic() -> None:
    found = networks.deterministic_networks(SPEC, "Test", SIZES, networks.twin_action_values)
    params = jax.tree.map(lambda x: 1e3 * x, found.policy.init(KEY))
    assert np.all(np.abs(found.policy.apply(params, OBSERVATION)) <= 1.0)
    first, second = _apply(found.critic, OBSERVATION, ACTION)
    assert first.shape == second.shape == (3,) and np.all(first != second)


def test_other_actions_are_refused_by_the_name_of_who_asks() -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))
    with pytest.raises(SpecError, match="Somebody"):
        networks.deterministic_networks(spec, "Somebody", SIZES, networks.action_value)


def test_the_squashed_gaussians_deviation_is_clipped() -> None:
    def policy(observation: Any) -> Any:
        return networks.tanh_normal_action(1e6 * observation, 2, SIZES, -1.0, 0.5)

    log_std = _apply(networks.make_network(policy, SPEC.observations), OBSERVATION).log_std
    assert log_std.min() == -1.0 and log_std.max() == 0.5


def test_the_gaussians_deviation_is_a_clipped_parameter_and_its_mean_depends_on_the_observation() -> None:
    network = networks.make_network(lambda o: networks.gaussian_action(o, 2, SIZES), SPEC.observations)
    params = network.init(KEY)
    distribution = network.apply(params, OBSERVATION)
    np.testing.assert_array_equal(distribution.log_std, np.zeros((3, 2)))
    assert np.ptp(distribution.mean, axis=0).min() > 0
    (holder,) = [name for name, module in params.items() if "log_std" in module]
    params[holder]["log_std"] = jnp.float32([-100.0, 100.0])
    np.testing.assert_array_equal(network.apply(params, OBSERVATION).log_std, np.tile([-5.0, 2.0], (3, 1)))


def test_a_states_value_is_one_number() -> None:
    network = networks.make_network(lambda o: networks.state_value(o, SIZES), SPEC.observations)
    assert _apply(network, OBSERVATION).shape == (3,)
