"""FrameColumn against plain columns: the same bytes out, whatever goes in, in less memory."""

import numpy as np
import pytest

from agentkit import specs
from agentkit.replay.in_process.frame_column import MAX_FRAMES, FrameColumn, bytes_per_step, stack_axis
from agentkit.replay.in_process.step_store import PADDING_ROW, StepStore
from tests.replay.in_process.frames import KINDS, Camera, Kind, check_frames


@pytest.mark.parametrize("kind", KINDS, ids=repr)
@pytest.mark.parametrize("seed", [0, 1])
def test_rows_come_back_bit_for_bit_after_any_adds_and_releases(kind, seed):
    """Three interleaved writers with episodes; rows go in random order, and their memory is used again."""
    rng = np.random.default_rng([seed, 17])
    store = StepStore({"image": specs.Array(kind.shape, np.uint8), "number": specs.Array((), np.int32)})
    column = store.columns[0]
    assert isinstance(column, FrameColumn) and isinstance(store.columns[1], np.ndarray)
    cameras = [Camera(kind, rng) for _ in range(3)]
    before = [PADDING_ROW] * 3  # each writer's last row, which its history holds
    kept: dict[int, tuple[np.ndarray, int]] = {}
    for number in range(600):
        who = int(rng.integers(3))
        first = before[who] == PADDING_ROW
        image = cameras[who].reset() if first else cameras[who].step()
        row = store.add(store.read_leaves({"image": image, "number": np.int32(number)}), before[who])
        assert row not in kept and row != PADDING_ROW
        kept[row] = image.copy(), number
        before[who] = PADDING_ROW if rng.random() < 0.05 else row
        free = [row for row in kept if row not in before]
        most = 20 if number < 300 else 60
        while len(kept) > most and free:
            gone = free.pop(int(rng.integers(len(free))))
            del kept[gone]
            if rng.random() < 0.5:
                store.release(gone)
            else:
                store.release_references(np.array([gone]))
        if number % 20 == 0:
            check_frames(column, kept)
            _check_rows(store, kept, kind, rng)
    assert store.num_rows <= 70 and column.num_frames <= 1 + 65 * kind.num_frames * kind.colours
    store.release_references(np.array(list(kept)))
    check_frames(column, [])
    assert len(column._free) == column.num_frames - 1


@pytest.mark.parametrize("kind", KINDS, ids=repr)
def test_the_memory_of_a_step_is_known_beforehand(kind):
    """A camera that never stands still; rows beyond a stack's own are what each step adds."""
    spec, rng = specs.Array(kind.shape, np.uint8), np.random.default_rng(0)
    column, planes = FrameColumn(kind.shape, kind.axis), kind.num_frames * kind.colours
    column.frame_numbers = np.zeros((101, planes), np.int32)
    film = rng.integers(0, 256, (planes + 100 * kind.colours, *kind.size), np.uint8)
    for row in range(1, 101):
        stack = film[row * kind.colours :][:planes]
        column.frame_numbers[row] = column.keep(stack if kind.axis == 0 else np.moveaxis(stack, 0, 2), row - 1)
    used = (column.num_frames - 1 - planes) * np.prod(kind.size) / 99
    expected = used if kind.num_frames > 1 else used / kind.colours  # Four planes look like four frames.
    assert bytes_per_step(spec) == expected


def test_what_is_no_stack_takes_all_of_its_memory():
    for shape, dtype in (((64, 64, 3), np.uint8), ((10, 10, 4), np.uint8), ((84, 84, 4), np.float32), ((), np.int32)):
        assert bytes_per_step(specs.Array(shape, dtype)) == np.prod(shape) * np.dtype(dtype).itemsize


def _check_rows(store: StepStore, kept, kind: Kind, rng: np.random.Generator) -> None:
    plain = np.zeros((store.num_rows, *kind.shape), np.uint8)
    for row, (image, _) in kept.items():
        plain[row] = image
    for shape in ((7,), (3, 5), (0,)):
        rows = rng.choice([PADDING_ROW, *kept], shape).astype(np.intp)
        found, expected = store.columns[0].take(rows, 0), plain.take(rows, 0)
        np.testing.assert_array_equal(found, expected)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        assert found.flags.c_contiguous and found.flags.writeable and found.flags.aligned
    numbers = store.columns[1].take(sorted(kept))
    assert numbers.tolist() == [kept[row][1] for row in sorted(kept)]


def test_a_sample_is_the_callers_own():
    """Writing into what was drawn changes neither a frame nor another sample, for either axis."""
    for kind in KINDS[:2]:
        store = StepStore(specs.Array(kind.shape, np.uint8))
        image = Camera(kind, np.random.default_rng(0)).reset()
        rows = np.array([store.add([image])] * 2)
        kept, spoilt = store.columns[0].take(rows, 0), store.columns[0].take(rows, 0)
        spoilt[:] = 0
        np.testing.assert_array_equal(kept, np.stack([image, image]))
        np.testing.assert_array_equal(store.columns[0].take(rows, 0), kept)


@pytest.mark.parametrize(
    ("shape", "dtype", "axis"),
    [
        ((84, 84, 4), np.uint8, 2),
        ((4, 84, 84), np.uint8, 0),
        ((2, 64, 96), np.uint8, 0),
        ((84, 84, 12), np.uint8, 2),
        ((64, 48, MAX_FRAMES), np.uint8, 2),
        ((64, 48, MAX_FRAMES + 1), np.uint8, None),
        ((64, 64, 3), np.uint8, None),  # colours
        ((3, 64, 64), np.uint8, None),
        ((64, 64, 1), np.uint8, None),
        ((64, 64, 64), np.uint8, None),
        ((10, 10, 4), np.uint8, None),  # small
        ((0, 84, 84), np.uint8, None),
        ((84, 84), np.uint8, None),
        ((5, 84, 84, 4), np.uint8, None),  # segments
        ((84, 84, 4), np.float32, None),
        ((84, 84, 4), np.int8, None),
        ((17,), np.float32, None),
        ((), np.uint8, None),
    ],
)
def test_which_leaves_are_stacks(shape, dtype, axis):
    assert stack_axis(specs.Array(shape, dtype)) == axis
    (column,) = StepStore(specs.Array(shape, dtype)).columns
    assert isinstance(column, FrameColumn) == (axis is not None)


def test_memory_of_what_has_nothing_in_common():
    """Random images of four colours: no more than a plain column, but for the numbers and counts."""
    rng = np.random.default_rng(0)
    stores = [StepStore(specs.Array((84, 84, 4), np.uint8)), StepStore(specs.Array((84, 84, 4), np.float32))]
    for _ in range(400):
        image = rng.integers(0, 256, (84, 84, 4), np.uint8)
        for store in stores:
            store.add([image.astype(store.spec.dtype)])
    frames, plain = (store.nbytes for store in stores)
    assert frames <= 1.02 * plain / 4 + 400 * 4 * 8
