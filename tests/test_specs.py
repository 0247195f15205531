from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from dm_env import specs as dm_specs

from agentkit import envs, specs
from agentkit.errors import SpecError

FLOAT = specs.Array((2,), np.float32, "position")
NEST = {"a": FLOAT, "b": (specs.Array((), np.int32), specs.BoundedArray((3,), np.float32, -1, 1))}


def _value() -> dict[str, Any]:
    return {"a": np.zeros(2, np.float32), "b": (np.int32(1), np.ones(3, np.float32))}


def test_environment_spec_is_read_off() -> None:
    environment = envs.make("agentkit:catch", seed=0)
    spec = specs.make_environment_spec(environment)
    assert spec.observations == environment.observation_spec()
    assert spec.actions.num_values == 3
    assert spec.rewards == environment.reward_spec()
    assert spec.discounts == environment.discount_spec()


def test_zeros_fit_their_spec() -> None:
    zeros = specs.zeros(NEST)
    specs.validate(zeros, NEST)
    assert not np.any(zeros["a"]) and not np.any(zeros["b"][1])


def test_leading_axis_drops_bounds_and_keeps_names() -> None:
    stacked = specs.add_leading(NEST, 5)
    assert stacked["a"].shape == (5, 2) and stacked["a"].name == "position"
    assert stacked["b"][0].shape == (5,) and stacked["b"][0].dtype == np.int32
    assert type(stacked["b"][1]) is dm_specs.Array


def test_to_arrays_drops_bounds_only() -> None:
    plain = specs.to_arrays(NEST)
    assert type(plain["b"][1]) is dm_specs.Array
    specs.validate(_value(), plain)


class Pair(NamedTuple):
    x: Any
    y: Any


def test_leaf_names_are_paths_in_flattening_order() -> None:
    assert specs.leaf_names({"b": Pair(1, [2, 3]), "a": 0}) == ["a", "b/x", "b/y/0", "b/y/1"]
    assert specs.leaf_names(3.0) == ["value"]


def test_spec_of_what_is_there() -> None:
    specs.validate(_value(), specs.spec_of(_value()))
    assert specs.spec_of(2.0).dtype == np.float64


def test_is_spec() -> None:
    assert specs.is_spec(FLOAT) and specs.is_spec(specs.DiscreteArray(3))
    assert not specs.is_spec(NEST) and not specs.is_spec(np.zeros(2))


def test_valid_data_passes_as_lists_of_numbers_do_not() -> None:
    specs.validate(_value(), NEST)
    with pytest.raises(SpecError, match="structure"):
        specs.validate([0.0, 0.0], FLOAT)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"a": np.zeros(3, np.float32)}, r"step leaf 'a': expected float32\[2\], found float32\[3\]"),
        ({"a": np.zeros(2, np.float64)}, r"step leaf 'a': expected float32\[2\], found float64\[2\]"),
        ({"b": (np.int64(1), np.ones(3, np.float32))}, r"leaf 'b/0': expected int32\[\], found int64\[\]"),
        ({"b": (np.int32(1),)}, r"another structure .* expected leaves \['a', 'b/0', 'b/1'\], found \['a', 'b/0'\]"),
        ({"b": [np.int32(1), np.ones(3, np.float32)]}, "another structure"),
        ({"c": 1}, "another structure"),
        ({"a": None}, r"leaf 'a'.*found object"),
        ({"a": "text"}, r"leaf 'a': expected float32\[2\]"),
    ],
)
def test_wrong_data_is_refused_naming_the_leaf(change: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        specs.validate(_value() | change, NEST, "step")


def test_what_is_no_environment_is_refused_with_advice() -> None:
    specs.check_is_environment(envs.make("agentkit:catch", seed=0))
    gym_like = SimpleNamespace(reset=lambda: None, step=lambda action: None, observation_space=None)
    with pytest.raises(SpecError, match=r"SimpleNamespace without observation_spec.*GymnasiumEnvironment"):
        specs.check_is_environment(gym_like)


def test_a_batch_is_told_by_num_envs() -> None:
    assert not specs.is_batched(envs.make("agentkit:catch", seed=0))
    assert specs.is_batched(SimpleNamespace(num_envs=1))
