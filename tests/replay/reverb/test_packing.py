"""Items as bytes and back (no Reverb needed)."""

import ml_dtypes
import numpy as np
import pytest
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.replay.reverb.packing import WHOLE_ITEM_BYTES, Packing, to_bytes
from agentkit.replay.table import FromInline, FromStep, Layout, Select, Table

pytestmark = pytest.mark.both_stacks

FIRST, LAST, ALL = Select.FIRST, Select.LAST, Select.ALL


def make_layout(size, sources, length=None):
    step = {
        "a": specs.Array((), np.bool_),
        "b": specs.Array((size,), np.float32),
        "c": specs.Array((2, 0), np.int16),
        "d": specs.Array((3,), np.dtype(ml_dtypes.bfloat16)),
        "e": specs.Array((2, 3), np.complex64),
    }
    inline = (specs.Array((), np.float64), specs.Array((2,), np.uint8))
    return Layout(step=step, data=sources, length=length, inline=inline)


def random(spec, rng):
    return tree.map_structure(
        lambda s: (
            np.frombuffer(rng.bytes(int(np.prod(s.shape)) * s.dtype.itemsize), s.dtype).reshape(s.shape)
            if s.dtype != bool
            else rng.random(s.shape) < 0.5
        ),
        spec,
    )


SOURCES = {
    "ends": {"x": FromStep(1, FIRST), "y": FromStep(1, LAST), "z": FromInline(0), "w": FromStep(0, LAST)},
    "one leaf": FromStep(4, LAST),
    "inline alone": (FromInline(1), FromInline(0)),
    "empty leaf": [FromStep(2, FIRST)],
    "some of all": (FromStep(1, ALL), FromStep(3, ALL), FromStep(0, FIRST), FromInline(0)),
    "all": tuple(FromStep(i, ALL) for i in range(5)),
}


def test_items_of_one_length_have_one_column_of_steps():
    """Whichever of its steps their leaves take, and however far these look back."""
    sources = {
        "o": FromStep(1, FIRST, 3),
        "next o": FromStep(1, LAST, 3),
        "a": FromStep(0, FIRST),
        "last a": FromStep(0, LAST, 1),
        "all d": FromStep(3, ALL, 2),
        "some e": FromStep(4, LAST),
        "own": FromInline(1),
    }
    layout = make_layout(5, sources, 2)
    packing = Packing(Table("t", layout, 10))
    rng = np.random.default_rng(0)
    steps, inline = [random(layout.step, rng) for _ in range(3 + 2)], random(layout.inline, rng)
    rows = b"".join(to_bytes(tree.flatten(step)) for step in steps)
    assert packing.columns == [(5, packing.step_bytes), (packing.inline_bytes,)]
    columns = [
        np.frombuffer(x, np.uint8).reshape(1, *shape)
        for x, shape in zip((rows, to_bytes(tree.flatten(inline))), packing.columns, strict=True)
    ]
    found = packing.unpack(columns)
    expected = {"o": [0, 4], "next o": [1, 5], "a": 3, "last a": [3, 5], "all d": [1, 5], "some e": 4}
    for name, value in zip(sorted(sources), found, strict=True):
        if name == "own":
            np.testing.assert_array_equal(value[0], inline[1])
            continue
        column = [tree.flatten(step)[sources[name].column] for step in steps]
        at = expected[name]
        np.testing.assert_array_equal(value[0], column[at] if isinstance(at, int) else np.stack(column[slice(*at)]))


@pytest.mark.parametrize("size", [3, WHOLE_ITEM_BYTES // 4])
@pytest.mark.parametrize("name", SOURCES)
def test_what_is_packed_comes_back(size, name):
    length = 4 if "all" in name else None
    layout = make_layout(size, SOURCES[name], length)
    packing = Packing(Table("t", layout, 10))
    rng = np.random.default_rng(0)
    columns, expected = [[] for _ in packing.columns], []
    for _ in range(3):
        steps, inline = [random(layout.step, rng) for _ in range(4)], random(layout.inline, rng)
        rows, own = [to_bytes(tree.flatten(step)) for step in steps], to_bytes(tree.flatten(inline))
        assert {len(row) for row in rows} == {packing.step_bytes} and len(own) == packing.inline_bytes
        if packing.whole:
            values = [np.frombuffer(packing.row(rows, own), np.uint8)]
        else:
            of = {FIRST: rows[0], LAST: rows[-1], ALL: b"".join(rows), None: own}
            values = [np.frombuffer(of[part.select], np.uint8).reshape(part.shape) for part in packing.parts]
        for column, value, shape in zip(columns, values, packing.columns, strict=True):
            assert value.shape == shape
            column.append(value)
        flat = [tree.flatten(step) for step in steps]
        pick = {FIRST: lambda i, f=flat: f[0][i], LAST: lambda i, f=flat: f[-1][i]}
        pick[ALL] = lambda i, f=flat: np.stack([x[i] for x in f])
        expected.append(
            [
                tree.flatten(inline)[s.column] if isinstance(s, FromInline) else pick[s.select](s.column)
                for s in tree.flatten(layout.data)
            ]
        )
    sampled = [np.stack(column) for column in columns]
    for column in sampled:
        column.flags.writeable = False  # as TensorFlow's memory is
    leaves = packing.unpack(sampled)
    for leaf, spec, values in zip(leaves, tree.flatten(layout.signature), zip(*expected, strict=True), strict=True):
        assert leaf.dtype == spec.dtype and leaf.shape == (3, *spec.shape)
        assert leaf.flags.c_contiguous and leaf.flags.writeable
        assert leaf.tobytes() == np.stack(values).tobytes()


def test_small_items_are_rows_of_their_own_and_large_ones_refer_to_steps():
    small = Packing(Table("t", make_layout(3, SOURCES["ends"]), 10))
    large = Packing(Table("t", make_layout(WHOLE_ITEM_BYTES // 4, SOURCES["ends"]), 10))
    assert small.whole and small.columns == [(12 + 1 + 12 + 8 + 0,)]
    assert not large.whole and len(large.columns) == 3 and small.key != large.key


def test_arrays_that_are_not_contiguous():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    for leaf in (array.T, array[:, ::2], array[::-1]):
        assert to_bytes([np.int8(1), leaf]) == b"\x01" + np.ascontiguousarray(leaf).tobytes()


@pytest.mark.parametrize("dtype", ["datetime64[s]", "U4", "O"])
def test_what_is_no_number_is_refused(dtype):
    layout = Layout({"x": specs.Array((2,), np.dtype(dtype))}, FromStep(0, FIRST))
    with pytest.raises(ConfigError, match=r"'t'.*cannot store leaf 'x'"):
        Packing(Table("t", layout, 10))
