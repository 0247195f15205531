import pickle
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


DTYPES = [np.bool_, np.int8, np.uint8, np.int32, np.int64, np.uint64, np.float32, np.float64]


@pytest.mark.parametrize("found", DTYPES)
@pytest.mark.parametrize("promised", DTYPES)
def test_what_is_taken_is_what_was_given(found: Any, promised: Any) -> None:
    """For each pair of dtypes numbers at and around the ends of both: equal after the cast, or refused."""
    ends = [np.iinfo(d) for d in DTYPES if np.dtype(d).kind in "iu"]
    some = {0, 1, 2, *(int(x) + d for info in ends for x in (info.min, info.max) for d in (-1, 0, 1))}
    floats = [0.0, 0.7, -0.5, 2.0, 300.7, 1e38, 1e300, -1e300, np.inf, np.nan]
    for number in floats if np.dtype(found).kind == "f" else sorted(some):
        with np.errstate(over="ignore"):
            if np.dtype(found).kind != "f" and not _holds(number, found):
                continue
            value = np.array([number], found)
        try:
            taken = specs.fit(value, specs.Array((1,), promised), "x")
        except SpecError:
            whole_to_whole = np.dtype(found).kind != "f" and _holds(number, promised)
            assert not whole_to_whole, (number, found, promised)
            assert not (np.dtype(promised) == found and np.isfinite(value[0])), (number, found, promised)
            continue
        assert taken.dtype == promised and np.isfinite(taken).all()
        if np.dtype(promised).kind == "f":
            assert taken[0] == value.astype(promised)[0]
        else:
            assert np.dtype(found).kind != "f" and int(taken[0]) == number


def _holds(number: int, dtype: Any) -> bool:
    if np.dtype(dtype).kind == "b":
        return number in (0, 1)
    return np.dtype(dtype).kind == "f" or np.iinfo(dtype).min <= number <= np.iinfo(dtype).max


IMAGE = specs.BoundedArray((2, 2), np.uint8, 0, 255)
SEVERAL = specs.BoundedArray((2,), np.int32, 0, [1, 3])


@pytest.mark.parametrize(
    ("value", "spec", "options", "message"),
    [
        (np.full((2, 2), 0.7), IMAGE, {}, r"x: expected uint8\[2, 2\], found float64\[2, 2\], such as 0\.7\. Give"),
        (np.ones((2, 2)), IMAGE, {}, r"found float64\[2, 2\], such as 1\.0"),
        ([[0, 1], [2, -1]], IMAGE, {}, r"expected uint8\[2, 2\] from 0 to 255, found int64 -1 at \[1, 1\]\. Give"),
        ([[256, 0], [2, -1]], IMAGE, {}, r"found int64 256 at \[0, 0\] and 1 more such of 4 numbers"),
        (4, specs.DiscreteArray(4), {}, r"x: expected int32\[\] from 0 to 3, found int64 4\. Give"),
        ([0, 4], SEVERAL, {}, r"found int64 4 at \[1\]"),
        ([2, 0], SEVERAL, {}, r"found int64 2 at \[0\]"),
        ([0.0, np.nan], FLOAT, {}, r"found float64 nan at \[1\]"),
        ([0.0, 1e300], FLOAT, {}, r"found float64 1e\+300 at \[1\]"),
        (["a", "b"], FLOAT, {}, r"expected float32\[2\], found list \['a', 'b'\]"),
        ([[1.0], [1.0, 2.0]], FLOAT, {}, r"expected float32\[2\], found "),
        (None, FLOAT, {}, "found None"),
        ({"a": 1}, FLOAT, {}, "found a dictionary of a"),
        ([[0, 1], [0, 9]], SEVERAL, {"leading": "step"}, r"x of step 1: .* found int64 9 at \[1\]"),
        (0, SEVERAL, {"leading": "step"}, r"expected int32\[2\] at each step, found int64\[\]"),
        ([1.1, 0.0], specs.BoundedArray((2,), np.float32, -1, 1), {"slack": 0.01}, "from -1 to 1, found float64 1.1"),
    ],
)
def test_what_would_not_say_the_same_is_refused_in_one_line(value: Any, spec: Any, options: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        specs.fit(value, spec, "x", **options)
    assert "\n" not in str(caught.value)


def test_nests_are_taken_in_their_specs_structure() -> None:
    taken = specs.fit({"a": [0, 1], "b": [1, np.ones(3)]}, NEST, "x")
    specs.validate(taken, NEST)
    assert type(taken["b"]) is tuple
    for value, message in (({"a": [0, 1]}, "x: expected a dictionary of a, b"), ([1, 2], "expected a dictionary")):
        with pytest.raises(SpecError, match=message):
            specs.fit(value, NEST, "x")
    with pytest.raises(SpecError, match="x/b: expected a tuple of 2"):
        specs.fit({"a": [0, 1], "b": (1,)}, NEST, "x")
    with pytest.raises(SpecError, match=r"x/b/0: expected int32\[\], found float64\[\]"):
        specs.fit({"a": [0, 1], "b": (1.5, np.ones(3))}, NEST, "x")


@pytest.mark.parametrize("start", [3, -2, 2**40])
def test_choices_go_into_the_environments_own_terms_and_back(start: int) -> None:
    nest = (specs.DiscreteFrom(4, start=start), specs.BoundedFrom((2,), np.int32, 0, [1, 2], "x", [start, 0]), FLOAT)
    own = specs.in_own_terms(nest)
    assert (own[0].minimum, own[0].maximum) == (start, start + 3) and own[2] is FLOAT
    assert (own[1].minimum.tolist(), own[1].maximum.tolist()) == ([start, 0], [start + 1, 2])
    value = (np.int32([0, 3]), np.int32([[1, 2], [0, 0]]), np.ones((2, 2), np.float32))
    theirs = specs.to_own_terms(value, nest)
    assert theirs[0].tolist() == [start, start + 3] and theirs[1].tolist() == [[start + 1, 2], [start, 0]]
    specs.fit(theirs, own, "x", leading="row")
    for found, expected in zip(specs.from_own_terms(theirs, nest), value, strict=True):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    for leaf in nest[:2]:
        again = pickle.loads(pickle.dumps(leaf))
        assert again == leaf and np.array_equal(again.start, leaf.start) and type(again) is type(leaf)


def test_booleans_in_words() -> None:
    seen = {"board": specs.BoundedArray((10, 10), bool, False, True), "mask": specs.Array((3,), bool)}
    assert specs.in_words(seen) == "board: bool[10, 10], mask: bool[3]"
