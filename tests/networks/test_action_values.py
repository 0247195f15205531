import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, networks, specs
from agentkit.errors import SpecError

KEY = jax.random.PRNGKey(0)


def test_the_function_gets_the_number_of_actions_and_other_inputs() -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))
    network = networks.value_network(
        spec,
        "Test",
        lambda observation, num_actions, scale: networks.q_values(observation, num_actions, (8,)) * scale[:, None],
        specs.Array((), np.float32),
    )
    params, boards = network.init(KEY), np.ones((2, *spec.observations.shape), np.float32)
    once, twice = (network.apply(params, boards, jnp.full(2, scale)) for scale in (1.0, 2.0))
    assert once.shape == (2, spec.actions.num_values) == (2, 3)
    np.testing.assert_allclose(twice, 2.0 * once, rtol=1e-6)


def test_other_actions_are_refused_by_the_name_of_who_asks() -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0))
    with pytest.raises(SpecError, match="Somebody"):
        networks.value_network(spec, "Somebody", lambda o, n: networks.q_values(o, n, (8,)))


def test_a_categorical_networks_values_are_means_where_an_action_is_legal() -> None:
    network = networks.CategoricalNetwork(None, None, jnp.float32([-1.0, 0.0, 3.0]))
    logits = jnp.log(jnp.float32([[[0.5, 0.25, 0.25], [0.0, 0.0, 1.0]]]))
    observation = {"board": np.zeros((1, 2), np.float32), specs.ACTION_MASK: np.array([[1, 0]])}
    np.testing.assert_allclose(network.q_values(logits, observation), [[0.25, specs.ILLEGAL_VALUE]])
    np.testing.assert_allclose(network.q_values(logits, observation["board"]), [[0.25, 3.0]])
