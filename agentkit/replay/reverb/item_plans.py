"""Which columns Reverb's writer has for the items of some tables, and how many may be on their way."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import tree

from agentkit.errors import SpecError
from agentkit.nests import LeafReader
from agentkit.replay.in_process.selectors import max_priority
from agentkit.replay.reverb.packing import Packing
from agentkit.replay.table import Table, describe_leaves

MAX_IN_FLIGHT = 40
"""Items that may wait for confirmation, so that none queue without bound in an actor. Above 50 Reverb
prints a warning for every tenth item."""

MIN_IN_FLIGHT = 8
"""The same where the rate limiter's error buffer is small: what waits here is not counted there."""

CHUNK_BYTES = 1024
"""Small rows are compressed and sent together, up to so many bytes: less work for writer and server than
one by one. A sampled item brings all of its chunk, which costs nothing to speak of up to this size."""

MAX_CHUNK = 4
"""And at most so many rows: with more, a learner that takes turns with its environment would see items late."""

MAX_SEQUENCE_CHUNK = 32
"""The most steps compressed together where items take sequences."""


class ItemPlan(NamedTuple):
    """Says how items of one table are sent.

    Attributes:
        table: as described.
        packing: how its items are laid out.
        column: of its own rows: of whole items, or of inline values.
        squeezed: of each of an item's columns, whether it is one row, without a time axis.
        read_inline: checks and flattens inline values.
        most: the greatest priority that may be given.
    """

    table: Table
    packing: Packing
    column: int
    squeezed: list[bool]
    read_inline: LeafReader
    most: float


class TableGroup:
    """Defines Reverb's columns for some tables.

    One holds the steps, where items refer to them; each kind of row that items have of their own has another.

    Args:
        tables: of one step structure.
    """

    def __init__(self, tables: Sequence[Table]):
        self.step = tables[0].layout.step
        self.plans: dict[str, ItemPlan] = {}
        packings = {table.name: Packing(table) for table in tables}
        self.sends_steps = any(not packing.whole for packing in packings.values())
        self.keeps_steps = any(packing.whole for packing in packings.values())
        self.chunk_lengths: list[int] = []
        if self.sends_steps:
            longest = max(
                (table.layout.length or 0) + table.layout.longest_history
                for table in tables
                if not packings[table.name].whole
            )
            size = next(iter(packings.values())).step_bytes
            self.chunk_lengths.append(min(longest, MAX_SEQUENCE_CHUNK) or _chunk_length(size))
        first_of: dict[str, int] = {}  # tables whose rows look alike share their column
        for table in tables:
            packing = packings[table.name]
            if packing.key not in first_of:
                first_of[packing.key] = len(self.chunk_lengths)
                if table.layout.longest_history:  # Its rows of steps keep each item waiting anyway.
                    self.chunk_lengths.append(self.chunk_lengths[0])
                else:
                    size = packing.num_bytes if packing.whole else packing.inline_bytes
                    self.chunk_lengths.append(_chunk_length(size))
            squeezed = [len(shape) == 1 for shape in packing.columns]
            reader = LeafReader(table.layout.inline, "inline values")
            self.plans[table.name] = ItemPlan(
                table, packing, first_of[packing.key], squeezed, reader, min(max_priority(table), sys.float_info.max)
            )
        # Rows before an item's history that it refers to, where it is shorter than others of its table.
        self.slack = max(packings[table.name].rows_before(1) - table.layout.longest_history for table in tables)
        self.history = max(table.layout.longest_history for table in tables) + self.slack
        self.max_length = max(table.layout.length or 0 for table in tables)
        self.max_in_flight = min(_in_flight(table) for table in tables)


def _chunk_length(num_bytes: int) -> int:
    return min(max(CHUNK_BYTES // max(num_bytes, 1), 1), MAX_CHUNK)


def _in_flight(table: Table) -> int:
    """Items that may be on their way without upsetting the rate limiter's balance."""
    limiter = table.rate_limiter
    inserts = (limiter.max_difference - limiter.min_difference) / limiter.samples_per_insert
    if inserts < 2:  # `Lockstep`: a writer waits for samplers at each item, not some items later.
        return 0
    return int(min(max(inserts / 4, MIN_IN_FLIGHT), MAX_IN_FLIGHT))


def check_power(table: Table, priority: float) -> None:
    """Refuses a finite priority whose power would overflow in Reverb's sum tree.

    Raises:
        SpecError: says what fits.
    """
    most = max_priority(table)
    if priority > most:
        raise SpecError(
            f"Table {table.name!r}: a priority of {priority:g} is too great for {table.sampler}, "
            f"{table.remover}; at most {most:g} fits. Scale it down."
        )


def group_tables(tables: Mapping[str, Table]) -> list[TableGroup]:
    """Returns the tables' columns, one entry for every step structure among them."""
    groups: dict[str, list[Table]] = {}
    for table in tables.values():
        key = repr((describe_leaves(table.layout.step), tree.map_structure(lambda _: 0, table.layout.step)))
        groups.setdefault(key, []).append(table)
    return [TableGroup(group) for group in groups.values()]
