import jax
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.errors import SpecError

KEY = jax.random.PRNGKey(0)
OBSERVATION = {"a": specs.Array((2,), np.float32), "b": specs.Array((2, 3), np.float32)}
ACTION = specs.BoundedArray((4,), np.float32, -1.0, 1.0)


def _inputs(batch: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(0)
    observation = {name: rng.normal(size=(batch, *spec.shape)).astype(np.float32) for name, spec in OBSERVATION.items()}
    return observation, rng.uniform(-1, 1, (batch, 4)).astype(np.float32)


@pytest.mark.full
def test_a_critic_is_a_network_of_observation_and_action() -> None:
    network = networks.make_network(lambda o, a: networks.critic(o, a, (8,), 3), OBSERVATION, ACTION)
    params = network.init(KEY)
    assert params["linear"]["w"].shape == (2 + 6 + 4, 8)
    observation, action = _inputs(5)
    outputs = network.apply(params, observation, action)
    assert outputs.shape == (5, 3)
    moved = observation | {"a": -observation["a"]}
    for changed in (network.apply(params, observation, -action), network.apply(params, moved, action)):
        assert np.all(np.any(np.asarray(changed != outputs), axis=-1))


def test_a_tanh_policy_begins_near_zero_and_stays_in_its_range() -> None:
    network = networks.make_network(lambda o: networks.tanh_action(o, 4, (8,)), OBSERVATION)
    params = network.init(KEY)
    observation, _ = _inputs(5)
    first = network.apply(params, observation)
    assert first.shape == (5, 4) and 0 < np.abs(first).max() < 0.1
    extreme = network.apply(jax.tree.map(lambda leaf: 1e3 * leaf, params), observation)
    assert np.abs(extreme).max() == 1.0


def test_equal_keys_give_equal_parameters_and_other_keys_others() -> None:
    network = networks.make_network(lambda o: networks.tanh_action(o, 4, (8,)), OBSERVATION)
    first, again, other = (network.init(jax.random.PRNGKey(seed))["linear"]["w"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert np.all(np.asarray(first != other))


@pytest.mark.parametrize(
    "spec",
    [
        specs.DiscreteArray(3),
        specs.Array((2,), np.float32),
        specs.BoundedArray((2,), np.int32, -1, 1),
        specs.BoundedArray((), np.float32, -1.0, 1.0),
        specs.BoundedArray((2,), np.float32, -1.0, [1.0, 2.0]),
        [ACTION],
    ],
)
def test_other_than_canonical_actions_are_refused(spec: specs.Array) -> None:
    with pytest.raises(SpecError, match=r"XY needs one continuous action .* found"):
        specs.canonical_action_size(spec, "XY")


def test_canonical_actions_are_counted() -> None:
    assert specs.canonical_action_size(ACTION, "XY") == 4
