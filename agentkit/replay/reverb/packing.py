"""How items lie on a Reverb server: as rows of bytes. This file does not import Reverb.

Reverb's costs, to a writer, a server and a sampler, are per column and per item, whatever a column holds.
So the leaves of an item are laid side by side: an item of small data is one row of one column, and an item
of large data (images, long sequences) refers to the rows of its steps, each of which is stored once (decision 32).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.replay.table import FromInline, Layout, Select, Table, describe_leaves
from agentkit.types import Nest

WHOLE_ITEM_BYTES = 16 * 1024
"""Items of at most so many bytes are one row of their own. A step is then stored in each item that refers to
it; what that costs in memory is about what the references cost."""

FORMAT = "bytes-2"
"""Changes whenever rows are laid out in another way, so that nobody reads them wrongly."""


_COUNT = np.dtype(np.int32)  # Of an item's number of steps.


class Part(NamedTuple):
    """Describes one run of bytes in an item.

    Attributes:
        select: of its steps; None for the inline values.
        start: the first byte it takes of the step's row, or of the inline values'.
        stop: the byte after the last.
        length: rows in it, where it has a time axis; else None. The steps of its history are among them, first.
        history: steps before those selected.
    """

    select: Select | None
    start: int
    stop: int
    length: int | None
    history: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        """Returns the shape of its bytes."""
        size = self.stop - self.start
        return (size,) if self.length is None else (self.length, size)

    @property
    def num_bytes(self) -> int:
        """Returns the number of bytes in all its rows."""
        return (self.stop - self.start) * (self.length or 1)


class _FromFirst(NamedTuple):
    """Stands for the rows up to an item's first step, which lie elsewhere in items of another length."""

    history: int


class _Leaf(NamedTuple):
    """Where a leaf of the data lies: bytes ``[start, stop)`` of `rows` of part number `part`."""

    part: int
    rows: slice | int | _FromFirst | None
    start: int
    stop: int
    dtype: np.dtype
    shape: tuple[int, ...]


class Packing:
    """Organises the items of one table as rows of bytes.

    Attributes:
        parts: what an item holds, in this order.
        whole: whether an item is one row with all parts behind each other; else there is a column for each
            part, which refers to rows of whole steps: of items of one length there is one column of all their steps.
        span: rows of the one column of steps that items of several lengths have, too, where the greatest is known and
            they have a history: it ends at their last step. Their inline values end with the number of their steps.
            Else None.
        key: the same for packings whose rows may share a column.
    """

    def __init__(self, table: Table):
        """Chooses the layout.

        Raises:
            ConfigError: a dtype that is no plain number.
        """
        layout = table.layout
        step, self.step_bytes = _offsets(table.name, layout.step)
        inline, self.inline_bytes = _offsets(table.name, layout.inline)
        selects: list[Select | None] = []
        leaves: list[tuple[int, int, int, specs.Array]] = []  # part, start, stop, spec; start in the step's row
        taken: list[int] = []  # steps of its history that a leaf takes
        for source in tree.flatten(layout.data):
            of_inline = isinstance(source, FromInline)
            select = None if of_inline else source.select
            if select not in selects:
                selects.append(select)
            leaves.append((selects.index(select), *(inline if of_inline else step)[source.column]))
            taken.append(0 if of_inline else source.history)
        histories = [0 if select is None else layout.history(select) for select in selects]
        counts = [_num_rows(layout, select, more) for select, more in zip(selects, histories, strict=True)]
        ranges = [_hull([leaf for leaf in leaves if leaf[0] == i]) for i in range(len(selects))]
        parts = [Part(select, *hull, n) for select, hull, n in zip(selects, ranges, counts, strict=True)]
        self.num_bytes = sum(part.num_bytes for part in parts)
        self.whole = self.num_bytes <= WHOLE_ITEM_BYTES and not any(histories)
        self._longest_history = layout.longest_history
        self.span: int | None = None
        if not self.whole:
            if layout.length is None and layout.max_length is not None and any(histories):
                self.span = layout.longest_history + layout.max_length
            parts = self._columns_of_steps(layout, selects)
        self.parts = parts
        place = {part.select: i for i, part in enumerate(parts)}
        shared = next((i for i, part in enumerate(parts) if part.select is not None), 0)
        self._leaves = []
        for (number, start, stop, spec), more in zip(leaves, taken, strict=True):
            select = selects[number]
            i = place.get(select, shared)
            rows: slice | int | _FromFirst | None = None
            if select is not None:
                moves = self.span is not None and select is Select.FIRST
                rows = _FromFirst(more) if moves else _rows_of(parts[i], select, more)
            begin = parts[i].start
            self._leaves.append(_Leaf(i, rows, start - begin, stop - begin, spec.dtype, tuple(spec.shape)))
        self.key = repr((self.whole, parts, describe_leaves(layout.step), describe_leaves(layout.inline)))
        self._ends = np.cumsum([0] + [part.num_bytes for part in parts]).tolist()

    def _columns_of_steps(self, layout: Layout, selects: Sequence[Select | None]) -> list[Part]:
        """Returns parts that are rows of whole steps: each costs an item a reference to every chunk that it is in."""
        if self.span is not None:
            steps = Part(Select.LAST, 0, self.step_bytes, self.span, self.span - 1)
            return [steps, Part(None, 0, self.inline_bytes + _COUNT.itemsize, None)]
        fixed = layout.length is not None  # Then all selects are at known places among all steps.
        parts = []
        for select in dict.fromkeys(Select.ALL if select and fixed else select for select in selects):
            if select is None:
                parts.append(Part(None, 0, self.inline_bytes, None))
            else:
                history = layout.longest_history if fixed else layout.history(select)
                parts.append(Part(select, 0, self.step_bytes, _num_rows(layout, select, history), history))
        return parts

    @property
    def columns(self) -> list[tuple[int, ...]]:
        """Returns the shape of each of Reverb's columns, all of bytes."""
        return [(self.num_bytes,)] if self.whole else [part.shape for part in self.parts]

    def rows_before(self, num_steps: int) -> int:
        """Returns how many rows before its first step an item of so many steps refers to."""
        return self._longest_history if self.span is None else self.span - num_steps

    def own_row(self, inline: bytes, num_steps: int) -> bytes:
        """Returns the row of an item's own, with its inline values, where it refers to the rows of its steps."""
        return inline if self.span is None else inline + _COUNT.type(num_steps).tobytes()

    def row(self, steps: Sequence[bytes], inline: bytes) -> bytes:
        """Returns the row of a whole item with these steps (padding included) and inline values."""
        pieces: list[bytes] = []
        for select, start, stop, *_ in self.parts:
            if select is Select.FIRST:
                pieces.append(steps[0][start:stop])
            elif select is Select.LAST:
                pieces.append(steps[-1][start:stop])
            elif select is None:
                pieces.append(inline[start:stop])
            elif stop - start == self.step_bytes:
                pieces += steps
            else:
                pieces += [step[start:stop] for step in steps]
        return b"".join(pieces)

    def unpack(self, columns: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Returns the leaves of the data, ``[B, ...]``, new arrays, from sampled columns (uint8, ``[B, ...]``)."""
        if self.whole:
            size, ends = len(columns[0]), self._ends
            blocks = [
                columns[0][:, start:stop].reshape(size, *part.shape)
                for part, start, stop in zip(self.parts, ends[:-1], ends[1:], strict=True)
            ]
        else:
            blocks = list(columns)
        found = []
        for leaf in self._leaves:
            block = blocks[leaf.part][..., leaf.start : leaf.stop]
            if isinstance(leaf.rows, _FromFirst):
                block = self._up_to_first(block, blocks[-1], leaf.rows.history)
            elif leaf.rows is not None:
                block = block[:, leaf.rows]
            data = np.array(block, order="C")
            found.append(data.view(leaf.dtype).reshape(block.shape[:-1] + leaf.shape))
        return found

    def _up_to_first(self, steps: np.ndarray, own: np.ndarray, history: int) -> np.ndarray:
        """Returns the rows of each item's first step, ``[B, bytes]``, or with a history ``[B, history + 1, bytes]``."""
        num_steps = np.ascontiguousarray(own[:, self.inline_bytes :]).view(_COUNT)[:, 0]
        first = steps.shape[1] - num_steps
        batch = np.arange(len(steps))
        if not history:
            return steps[batch, first]
        return steps[batch[:, None], first[:, None] + np.arange(-history, 1)]


def _num_rows(layout: Layout, select: Select | None, history: int) -> int | None:
    """Returns the rows of a part with a time axis; None where it has none."""
    if select is Select.ALL:
        return history + (layout.length or 0)
    return history + 1 if history else None


def _rows_of(part: Part, select: Select, history: int) -> slice | int | None:
    """Returns which rows of a part a leaf takes that selects these steps; None for all that there is."""
    if part.length is None:
        return None
    first = part.length - 1 if select is Select.LAST else part.history
    last = part.history if select is Select.FIRST else part.length - 1
    if select is not Select.ALL and not history:
        return first
    return None if last - first + history + 1 == part.length else slice(first - history, last + 1)


def to_bytes(leaves: Sequence[Any]) -> bytes:
    """Returns the bytes of arrays and numpy scalars, one behind the other, in C order."""
    try:
        return b"".join(leaves)
    except (TypeError, ValueError, BufferError):  # not contiguous, or of a dtype that numpy does not know
        return b"".join([np.asarray(leaf).tobytes() for leaf in leaves])


def _offsets(table: str, nest: Nest) -> tuple[list[tuple[int, int, specs.Array]], int]:
    """Returns the range of bytes and the spec of each leaf of a packed nest, and the size of all."""
    found: list[tuple[int, int, specs.Array]] = []
    start = 0
    for name, spec in zip(specs.leaf_names(nest), tree.flatten(nest), strict=True):
        dtype = np.dtype(spec.dtype)
        if dtype.kind not in "biufc" and not (dtype.kind == "V" and dtype.isbuiltin == 2):
            raise ConfigError(
                f"Table {table!r}: Reverb cannot store leaf {name!r} of dtype {dtype}. Use numbers or booleans."
            )
        stop = start + dtype.itemsize * int(np.prod(spec.shape, dtype=np.int64))
        found.append((start, stop, spec))
        start = stop
    return found, start


def _hull(leaves: Sequence[tuple[int, int, int, specs.Array]]) -> tuple[int, int]:
    """Returns the least range of bytes that holds these leaves."""
    return min(leaf[1] for leaf in leaves), max(leaf[2] for leaf in leaves)
