"""Writes nests as the parts of a message: structure and plain values as JSON, arrays as they lie in memory.

    head     JSON [version, number, bytes of small arrays, structure]; the first two stay where they are in all versions
    parts    the small arrays one behind another, which are copied; then the others, which are not.
             What is longer than `PART_BYTES` is cut.

Nothing is pickled, and nothing that a message says is imported.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import zmq

from agentkit.errors import AgentkitError, SpecError
from agentkit.nests import build, describe, is_numeric, numeric_dtype
from agentkit.types import Nest

VERSION = 2

PART_BYTES = 1 << 20
"""The longest part: what a stranger can make a server hold before it is known that he is one."""

LONGEST_FRAME = PART_BYTES + 1024
"""Of what libzmq receives: a part, and what encryption adds."""

SMALL_BYTES = 1 << 15
"""Arrays up to this share their parts: to copy them costs less than a part of their own."""

MOST_BYTES = 1 << 34
"""The most that the arrays of a message may take together."""

_ALIGNMENT = 16
_PLAIN = (bool, int, float, str)


class MessageError(AgentkitError, ConnectionError):
    """Says that a message is not one of this wire's, or of another version; `number` is its, None if it has none."""

    def __init__(self, message: str, number: int | None = None):
        super().__init__(message)
        self.number = number


def encode(number: int, nest: Nest) -> list[bytes | memoryview]:
    """Returns the parts of a message; they show the memory of the nest's arrays, which must not change meanwhile.

    Args:
        number: of the request that it is, or that it answers.
        nest: of arrays of numbers and of plain values (None, bool, int, float, str).

    Raises:
        SpecError: something else is in there, or the head would be too long.
    """
    small, parts = bytearray(), list[bytes | memoryview]()

    def describe_leaf(value: Any, path: str) -> dict[str, Any]:
        if isinstance(value, _PLAIN) and not isinstance(value, np.generic):
            return {"array": None, "value": value}
        array = np.asarray(value, order="C")
        if (name := _name(array.dtype)) is None:
            raise SpecError(f"{path}: expected an array of numbers or a plain value, found {value!r:.80}.")
        if array.nbytes == 0:
            pass  # Not even a place: what is read takes none.
        elif array.nbytes <= SMALL_BYTES:
            small.extend(bytes(-len(small) % _ALIGNMENT))
            small.extend(array.tobytes())
        else:
            parts.extend(_cut(array.reshape(-1).view(np.uint8).data))
        return {"array": name, "shape": array.shape}

    structure = describe(nest, describe_leaf, "message")
    head = json.dumps([VERSION, number, len(small), structure]).encode()
    if len(head) > PART_BYTES:
        raise SpecError(f"A message's structure and plain values take {PART_BYTES:,} bytes at most.")
    return [head, *_cut(memoryview(small)), *parts]


@functools.cache
def _name(dtype: np.dtype) -> str | None:
    """Returns the name of a dtype of numbers; None of another. Numpy takes 20 us for it."""
    return dtype.name if is_numeric(dtype) else None


_dtype = functools.lru_cache(256)(numeric_dtype)


def _cut(data: memoryview) -> list[memoryview]:
    return [data[i : i + PART_BYTES] for i in range(0, len(data), PART_BYTES)]


def decode(parts: Sequence[zmq.Frame]) -> tuple[int, Nest]:
    """Returns the number and the nest of a message; its arrays may be written to.

    Raises:
        MessageError: it is damaged, or of another version.
    """
    number = None
    try:
        version, found, *rest = json.loads(parts[0].bytes)
        number = int(found)
        if version != VERSION:
            raise MessageError(
                f"The message is of version {version!r} of the wire, expected {VERSION}. Use one version of agentkit "
                "for all processes of a run.",
                number,
            )
        num_small, structure = rest
        body = _Body(parts[1:], num_small)
        nest = build(structure, body.read_leaf)
        body.check_empty()
    except MessageError:
        raise
    except Exception as error:  # Of whatever kind: nothing that a message says may end who reads it.
        raise MessageError(f"The message is damaged: {error}.", number) from error
    return number, nest


class _Body:
    """Reads the arrays of a message, in order."""

    def __init__(self, parts: Sequence[zmq.Frame], num_small: int):
        self._waiting = list(reversed(parts))
        self._small = self._take(num_small)
        self._offset = 0

    def _take(self, size: int) -> Any:
        """Returns the next `size` bytes: the part itself where it is one, else a copy of its pieces."""
        if not 0 <= size <= min(MOST_BYTES, PART_BYTES * len(self._waiting)):  # Before memory is asked for.
            raise ValueError(f"{size} bytes in {len(self._waiting)} parts")
        if size == 0:
            return b""
        if size <= PART_BYTES:
            part = self._waiting.pop().buffer
            if len(part) != size:
                raise ValueError(f"a part of {len(part)} bytes, expected {size}")
            return part
        data = np.empty(size, np.uint8).data
        for start in range(0, size, PART_BYTES):
            data[start : start + PART_BYTES] = self._waiting.pop().buffer
        return data

    def read_leaf(self, node: dict[str, Any]) -> Any:
        if node["array"] is None:
            if not isinstance(node["value"], _PLAIN):
                raise ValueError("a plain value is none")
            return node["value"]
        dtype, shape = _dtype(node["array"]), node["shape"]
        if not all(type(n) is int and n >= 0 for n in shape):
            raise ValueError(f"a shape {shape}")
        count = math.prod(shape)
        size = count * dtype.itemsize
        if size > SMALL_BYTES:
            return np.frombuffer(self._take(size), dtype).reshape(shape)
        if size == 0:
            return np.zeros(shape, dtype)
        start = self._offset + -self._offset % _ALIGNMENT
        self._offset = start + size
        return np.frombuffer(self._small, dtype, count, start).reshape(shape)

    def check_empty(self) -> None:
        if self._waiting or self._offset != len(self._small):
            raise ValueError("bytes are left over")
