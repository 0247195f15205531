import collections
import pickle
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest
import tree

from agentkit import nests, specs
from agentkit.errors import CheckpointError, SpecError
from agentkit.nests import LeafReader, make_builder


class Point(NamedTuple):
    x: object
    y: object


FLOAT, INT = specs.Array((2,), np.float32), specs.Array((), np.int32)

STRUCTURES = [
    FLOAT,
    (),
    {},
    {"b": FLOAT, "a": INT},
    Point(FLOAT, INT),
    [FLOAT, (INT, {"z": FLOAT, "k": [INT]}), Point((), {"q": INT})],
    collections.OrderedDict([("b", FLOAT), ("a", INT)]),
    {"outer": collections.OrderedDict([("b", FLOAT)])},
]


def value_of(spec):
    count = iter(range(100))
    return tree.map_structure(lambda s: np.full(s.shape, next(count), s.dtype), spec)


@pytest.mark.parametrize("spec", STRUCTURES, ids=repr)
def test_reads_and_builds_what_tree_does(spec):
    value = value_of(spec)
    leaves = LeafReader(spec, "step")(value)
    flat = tree.flatten(value)
    assert len(leaves) == len(flat)
    assert all(np.array_equal(a, b) for a, b in zip(leaves, flat, strict=True))
    built = make_builder(spec)(iter(leaves))
    tree.assert_same_structure(built, value)
    assert all(np.array_equal(a, b) for a, b in zip(tree.flatten(built), flat, strict=True))


@pytest.mark.parametrize(
    "spec, value",
    [
        ({"a": INT}, {"a": np.int64(1)}),
        ({"a": INT}, {"a": np.zeros(1, np.int32)}),
        ({"a": INT}, {"a": np.zeros((), ">i4")}),
        ({"a": INT}, {"b": np.int32(1)}),
        ({"a": INT}, {"a": np.int32(1), "b": np.int32(1)}),
        ({"a": INT}, {"a": None}),
        (Point(INT, INT), (np.int32(1), np.int32(1))),
        ([INT], [np.int32(1), np.int32(1)]),
        ([INT], np.int32(1)),
        (FLOAT, [np.float32(1), np.float32(2)]),
        ((), np.int32(1)),
        (INT, ()),
    ],
    ids=repr,
)
def test_refuses_everything_else(spec, value):
    with pytest.raises(SpecError, match="step"):
        LeafReader(spec, "step")(value)


def test_takes_python_numbers_only_where_their_dtype_fits():
    reader = LeafReader(
        {"f": specs.Array((), np.float64), "i": specs.Array((), np.int64), "b": specs.Array((), np.bool_)},
        "step",
    )
    leaves = reader({"f": 1.5, "i": 2, "b": True})
    assert [x.dtype.name for x in leaves] == ["bool", "float64", "int64"]
    with pytest.raises(SpecError, match=r"'f': expected float64\[\], found int64"):
        reader({"f": 1, "i": 2, "b": True})


# Leaves by path ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    second: Any


STATE = {"b": Pair([np.ones(2), None], ()), "a": (np.float32(1), {"x/y": np.zeros((0, 3)), "x": True}), "c": []}


@pytest.mark.parametrize("nest", [STATE, Pair(1.5, STATE), [STATE, STATE], np.ones(3), None, {}])
def test_paths_are_those_that_jax_writes(nest):
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_flatten_with_path(nest)[0]}
    found = nests.flatten_to_paths(nest)
    assert list(found) == list(expected)
    assert all(found[path] is expected[path] for path in found)


def test_paths_lead_back():
    arrays = {path: np.asarray(leaf) for path, leaf in nests.flatten_to_paths(STATE).items()}
    like = tree.map_structure(lambda x: x if x is None else np.zeros_like(x), STATE)
    found = nests.restore_from_paths(like, arrays, "state")
    tree.map_structure(np.testing.assert_array_equal, found, STATE)
    assert type(found["b"]) is Pair and found["b"].first[1] is None


@pytest.mark.parametrize("change", ["missing", "more", "shape", "dtype"])
def test_paths_that_do_not_fit_are_refused(change):
    like = {"w": np.zeros((2, 3), np.float32)}
    arrays = {"['w']": np.zeros((3, 2) if change == "shape" else (2, 3), np.int32 if change == "dtype" else np.float32)}
    if change == "more":
        arrays["['v']"] = np.zeros(1)
    if change == "missing":
        arrays = {}
    message = r"'v'" if change == "more" else r"State \['w'\]: expected float32\[2, 3\]"
    with pytest.raises(CheckpointError, match=message):
        nests.restore_from_paths(like, arrays, "State")


@pytest.mark.parametrize("leaf", [{1, 2}, "text", object()])
def test_what_is_no_nest_has_no_paths(leaf):
    with pytest.raises(SpecError, match=r"\['a'\]\[1\]: expected"):
        nests.flatten_to_paths({"a": [np.ones(1), leaf]})


# Leaves by number --------------------------------------------------------------------------------------


def test_numbers_lead_back_and_are_checked():
    nest = {"b": np.ones(2, np.float32), "a": (np.int8(3),)}
    state = nests.number_leaves(nest)
    assert list(state) == ["0", "1"] and state["0"] == 3
    found = nests.restore_from_numbers(state, specs.spec_of(nest), "row")
    tree.map_structure(np.testing.assert_array_equal, found, nest)
    for wrong in ({"0": state["0"]}, {**state, "1": np.ones(3, np.float32)}, {"0": state["0"], "2": state["1"]}):
        with pytest.raises(CheckpointError, match="row"):
            nests.restore_from_numbers(wrong, specs.spec_of(nest), "row")


def test_a_copy_shares_no_memory():
    nest = {"a": np.ones(2), "b": (np.zeros(1),)}
    copied = nests.copy_nest(nest)
    nest["a"][:], nest["b"][0][:] = 5, 5
    assert copied["a"].tolist() == [1, 1] and copied["b"][0].tolist() == [0]


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
def test_a_dtype_from_another_process_is_numeric(dtype):
    """Of a dtype that was pickled, numpy no longer says that it is built in."""
    assert nests.is_numeric(pickle.loads(pickle.dumps(np.dtype(dtype))))


@pytest.mark.parametrize("dtype", [">f4", "O", "U3", "datetime64[s]", [("a", "f4")]])
def test_other_dtypes_are_not_numeric(dtype):
    assert not nests.is_numeric(np.dtype(dtype))
