import collections
from typing import NamedTuple

import numpy as np
import pytest
import tree

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.replay.nest_codec import LeafReader, make_builder


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
