"""A replay column for stacked images: every frame stored once, however many stacks and steps show it (decision 41)."""

from __future__ import annotations

import array
import math
import pathlib
from typing import Any, Literal

import numpy as np

from agentkit import specs
from agentkit.errors import CheckpointError
from agentkit.replay.in_process import arrays

MIN_FRAME_BYTES = 1024
"""Smaller frames (below 32 x 32) stay in their stacks: looking for them costs more time than they cost memory."""

MAX_FRAMES = 32
"""Longer stacks stay whole: each frame of a new one is compared with each of the one before."""

NUM_COLOURS = 3
"""An axis of 3 is taken for colours, which no two steps share."""

ZERO_FRAME = 0
"""The frame of zeros that the padding row shows; never written, never freed."""

ZERO_REFERENCES = 2**30
"""What that frame's count begins with."""


def stack_axis(spec: specs.Array) -> Literal[0, 2] | None:
    """Returns the axis along which images of `spec` are stacks of frames; None where they are to be stored as they are.

    Stacks are uint8 ``[H, W, k]``, as `agentkit.wrappers.FrameStack` and `AtariPreprocessing` make them, or
    ``[k, H, W]``, as EnvPool does: the shorter of the outer axes is the stack's. Coloured frames joined along
    their last axis are stacks, too, of one frame per colour.
    """
    if spec.dtype != np.uint8 or len(spec.shape) != 3:
        return None
    axis: Literal[0, 2] = 0 if spec.shape[0] < spec.shape[2] else 2
    frame = spec.shape[1:] if axis == 0 else spec.shape[:2]
    num_frames = spec.shape[axis]
    if not 2 <= num_frames <= MAX_FRAMES or num_frames == NUM_COLOURS or math.prod(frame) < MIN_FRAME_BYTES:
        return None
    return axis


def bytes_per_step(spec: specs.Array) -> int:
    """Returns how many bytes a step adds for a leaf: of a stack whose other frames the steps before it have, one frame.

    A stack of a multiple of three is taken for one of coloured frames.
    """
    num_bytes = math.prod(spec.shape) * spec.dtype.itemsize
    axis = stack_axis(spec)
    if axis is None:
        return num_bytes
    num_frames = spec.shape[axis]
    return num_bytes // (num_frames if num_frames % NUM_COLOURS else num_frames // NUM_COLOURS)


class FrameColumn:
    """Stores stacks of frames, a row per step, as the numbers of their frames; exact, whatever the data.

    A new stack is compared with the one that its writer stored before. What is equal there, at any place, is
    named again, and so is what occurs twice in the new stack, as at the start of an episode; the rest is stored.
    A frame lives while a row shows it, and its memory is then used again. Not thread-safe.

    A row of stacks that have nothing in common takes what it would take in a plain column, and 8 bytes a frame.

    Attributes:
        shape: of one stack.
        frame_numbers: int32 ``[rows, k]``, the frames of each row's stack; zeros are the padding row's. The caller
            grows it and writes there what `keep` returned.
        num_frames: frames in use or free; those above have never been used.
    """

    def __init__(self, shape: tuple[int, ...], axis: Literal[0, 2]):
        """Makes an empty one.

        Args:
            shape: of one stack, three axes.
            axis: the stack's axis, as `stack_axis` finds it.
        """
        self.shape = shape
        self._axis = axis
        self._depth = shape[axis]  # k
        self.frame_numbers: np.ndarray = np.zeros((0, self._depth), np.int32)
        self._frames: np.ndarray = np.zeros((0, math.prod(shape) // self._depth), np.uint8)  # [frames, H * W]
        arrays.grow(self._frames, 1)
        self.num_frames = 1
        self._references = array.array("i", [ZERO_REFERENCES])  # as in `StepStore`
        self._free = array.array("q")

    @property
    def nbytes(self) -> int:
        """Returns the memory held, in bytes."""
        counts = sum(x.itemsize * len(x) for x in (self._references, self._free))
        return self.frame_numbers.nbytes + self._frames.nbytes + counts

    def keep(self, stack: np.ndarray, before: int) -> list[int]:
        """Stores the frames of a stack that are new, and counts a reference to each of its frames.

        Args:
            stack: uint8 of `shape`.
            before: the row that the same writer stored before this one, where most frames will be found; any
                row in use, or the padding row, is right.

        Returns:
            The numbers of the frames, [k], for `frame_numbers`.
        """
        numbers = self.frame_numbers[before].tolist()
        # As bytes they are compared by memcmp, which stops at the first difference; numpy compares to the end.
        known = [self._frames[number].tobytes() for number in numbers]
        found = []
        for frame in self._split(stack):
            data = frame.tobytes()
            if data in known:  # not index alone: its error would spell the bytes, in 50 us
                number = numbers[known.index(data)]
            else:
                number = self._store(frame)
                numbers.append(number)
                known.append(data)
            self._references[number] += 1
            found.append(number)
        return found

    def _split(self, stack: np.ndarray) -> np.ndarray:
        """Returns the frames of a stack, ``[k, H * W]``."""
        if self._axis == 0:
            return stack.reshape(self._depth, -1)
        return np.ascontiguousarray(stack.reshape(-1, self._depth).T)

    def _store(self, frame: np.ndarray) -> int:
        if self._free:
            number = self._free.pop()
        else:
            number = self.num_frames
            if number >= self._frames.shape[0]:
                arrays.grow(self._frames, number + 1)
            self._references.append(0)
            self.num_frames = number + 1
        self._frames[number] = frame
        return number

    def free(self, row: int) -> None:
        """Takes back the references of a row that is in use no more."""
        references = self._references
        for number in self.frame_numbers[row].tolist():
            references[number] = left = references[number] - 1
            if left == 0:
                self._free.append(number)

    def take(self, rows: np.ndarray, axis: Literal[0] = 0) -> np.ndarray:
        """Returns the stacks of some rows, as ``np.ndarray.take(rows, 0)`` gives those of a plain column.

        Args:
            rows: intp ``[B]`` or ``[B, T]``.
            axis: 0, the rows'.

        Returns:
            A new uint8 array ``[*rows.shape, *shape]``, contiguous.
        """
        numbers = self.frame_numbers.take(rows, axis)  # [B, k] or [B, T, k]
        if self._axis == 0:
            return self._frames.take(numbers, 0).reshape(*rows.shape, *self.shape)
        numbers = numbers.reshape(-1, self._depth)
        stacks = np.empty((numbers.shape[0], self._frames.shape[1], self._depth), np.uint8)
        for i in range(self._depth):
            stacks[:, :, i] = self._frames.take(numbers[:, i], 0)
        return stacks.reshape(*rows.shape, *self.shape)

    # --- saving ----------------------------------------------------------------------------------

    def save(self, directory: pathlib.Path, name: str, num_rows: int) -> dict[str, Any]:
        """Writes the frames, and which of them the rows show, to files named `name`...; returns the rest, for JSON."""
        self.sort_free()
        return {
            "num_frames": self.num_frames,
            "frames": arrays.write(directory, f"{name}.frames", self._frames[: self.num_frames]),
            "frame_numbers": arrays.write(directory, f"{name}.frame_numbers", self.frame_numbers[:num_rows]),
        }

    def restore(self, directory: pathlib.Path, name: str, saved: dict[str, Any], num_rows: int) -> None:
        """Restores the contents that `save` wrote, or a plain column of whole stacks, into this new column.

        Every row counts as in use; the caller frees those that are not, and then calls `sort_free`.

        Raises:
            CheckpointError: damaged, or not of this shape.
        """
        byte = np.dtype(np.uint8)
        if "num_frames" not in saved:
            self._keep_all(arrays.read(directory, name, saved, byte, (num_rows, *self.shape)))
            return
        num_frames = int(saved["num_frames"])
        shape = (num_frames, self._frames.shape[1])
        frames = arrays.read(directory, f"{name}.frames", saved["frames"], byte, shape)
        numbers = arrays.read(
            directory, f"{name}.frame_numbers", saved["frame_numbers"], np.dtype(np.int32), (num_rows, self._depth)
        )
        if num_frames < 1 or not 0 <= numbers.min() <= numbers.max() < num_frames:
            raise CheckpointError(
                f"The replay checkpoint {directory} refers to frames it does not hold ({name}). It is damaged: "
                "restore an older one."
            )
        self._frames, self.frame_numbers, self.num_frames = frames, numbers, num_frames
        counts = np.bincount(numbers[1:].reshape(-1), minlength=num_frames)  # row 0 is padding
        counts[ZERO_FRAME] += ZERO_REFERENCES
        self._references = array.array("i", counts.astype(np.int32).tobytes())
        self._free = array.array("q", np.flatnonzero(counts == 0).tolist())

    def _keep_all(self, stacks: np.ndarray) -> None:
        """Takes over whole stacks ``[rows, ...]``; the row before is the step before, unless rows were used again."""
        self.frame_numbers = np.zeros((stacks.shape[0], self._depth), np.int32)
        for row in range(1, stacks.shape[0]):
            self.frame_numbers[row] = self.keep(stacks[row], row - 1)

    def sort_free(self) -> None:
        """Orders the free frames, so that who saves and goes on uses them as who restores does."""
        self._free = array.array("q", sorted(self._free, reverse=True))
