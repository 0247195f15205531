"""Numpy arrays that grow in place, and that are written to and read from a directory."""

from __future__ import annotations

import pathlib

import numpy as np

from agentkit.errors import CheckpointError

GROWTH = 32
"""Arrays grow by 1/GROWTH of their length: little is ever reserved in vain, and realloc moves
pages instead of copying them where the system can."""


def grow(array: np.ndarray, least: int, most: int | None = None) -> None:
    """Lengthens an array ``[n, ...]`` in place to at least `least` rows, and to no more than `most`.

    No view of `array` may be alive: its memory may move.
    """
    row_bytes = max(1, array.itemsize * int(np.prod(array.shape[1:], dtype=np.int64)))
    step = max(array.shape[0] // GROWTH, min(1024, 1 + 2**20 // row_bytes))
    length = max(least, array.shape[0] + step)
    if most is not None:
        length = max(least, min(length, most))
    array.resize((length, *array.shape[1:]), refcheck=False)


def write(directory: pathlib.Path, name: str, array: np.ndarray) -> dict[str, object]:
    """Writes `array` to a file, without a copy if it is contiguous; returns dtype and shape, which `read` needs."""
    with (directory / f"{name}.bin").open("wb") as file:
        # Not tofile: what it holds back of a small array it writes when it closes, and a full disk goes unheard then.
        file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return {"dtype": array.dtype.name, "shape": list(array.shape)}


def read(
    directory: pathlib.Path, name: str, saved: dict[str, object], dtype: np.dtype, shape: tuple[int, ...]
) -> np.ndarray:
    """Returns the array that `write` wrote; it owns its memory, so that it can grow.

    Raises:
        CheckpointError: missing, cut short, too long, or not of this dtype and shape.
    """
    path = directory / f"{name}.bin"
    expected = {"dtype": dtype.name, "shape": list(shape)}
    if saved != expected:
        raise CheckpointError(f"Replay array {path}: expected {expected}, the checkpoint says {saved}.")
    array = np.empty(shape, dtype)
    try:
        found = path.stat().st_size
        if found == array.nbytes and found:
            with path.open("rb") as file:
                found = file.readinto(array.reshape(-1).view(np.uint8).data)
    except OSError as error:
        raise CheckpointError(f"Replay array {path} cannot be read: {error}") from error
    if found != array.nbytes:
        raise CheckpointError(
            f"Replay array {path}: expected {array.nbytes} bytes, found {found}. The checkpoint is damaged: "
            "restore an older one."
        )
    return array
