"""Replay tables as plain data: the same description builds an in-process table or a Reverb one.

The terms are Reverb's (Cassirer et al. 2021, "Reverb: A Framework For Experience Replay"): a table
holds *items*; a *sampler* selects which item is drawn, a *remover* which one goes when the table is
full; a *rate limiter* says when inserting and sampling may proceed.

An item refers to the contiguous steps ``[start, stop)`` that a writer appended, and carries a few
values of its own (`inline`, such as an n-step reward). A table's `layout` says how the two make the
item's data, so that a step is stored once however many items refer to it (decision 1).
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.replay.rate_limiter import MinSize, Queue, RateLimiter
from agentkit.types import Nest


class Select(enum.Enum):
    """Says which of an item's steps a leaf of its data takes."""

    FIRST = "first"  # the first step: a leaf of [...], with history h of [h + 1, ...]
    LAST = "last"  # the last step: a leaf of [...], with history h of [h + 1, ...]
    ALL = "all"  # every step: a leaf of [T, ...], with history h of [h + T, ...]


@dataclasses.dataclass(frozen=True)
class FromStep:
    """Takes a leaf of an item from leaf number `column` of the (flattened) steps.

    Attributes:
        column: the leaf's number.
        select: which of the item's steps.
        history: how many of the episode's steps before those it takes, too, oldest first; where the writer's episode
            has fewer, the rest are steps of zeros. They are stored once, like all steps.
    """

    column: int
    select: Select
    history: int = 0


@dataclasses.dataclass(frozen=True)
class FromInline:
    """Takes a leaf of an item from leaf number `column` of the (flattened) inline values."""

    column: int


@dataclasses.dataclass(frozen=True)
class Layout:
    """Says how an item's data is made of steps and inline values.

    Attributes:
        step: nest of array specs of one appended step.
        data: nest with the structure of the item's data, whose leaves are `FromStep`, `FromInline`.
        length: T, the number of steps in every item; None for items of any number of steps, of which only the first
            and the last are looked at. Where any leaf selects ALL it is needed.
        inline: nest of array specs of the values that an item itself carries.
        max_length: the most steps of an item of any number, where that is known: a server stores items with a history
            in less room then.
    """

    step: Nest
    data: Nest
    length: int | None = None
    inline: Nest = ()
    max_length: int | None = None

    def __post_init__(self) -> None:
        if self.takes_all and not (isinstance(self.length, int) and self.length >= 1):
            raise ConfigError(f"A layout with a leaf that selects ALL steps needs length >= 1, found {self.length!r}.")
        if self.length is not None and self.length < 1:
            raise ConfigError(f"A layout's length must be None or at least 1, found {self.length!r}.")
        if self.max_length is not None and self.max_length < (self.length or 1):
            raise ConfigError(
                f"A layout's max_length must be None or at least {self.length or 1}, found {self.max_length!r}."
            )
        counts = {FromStep: len(tree.flatten(self.step)), FromInline: len(tree.flatten(self.inline))}
        for name, source in zip(specs.leaf_names(self.data), tree.flatten(self.data), strict=True):
            if type(source) not in counts:
                raise ConfigError(f"A layout's data holds FromStep and FromInline only, found {source!r} at {name!r}.")
            if isinstance(source, FromStep) and source.history < 0:
                raise ConfigError(f"Layout leaf {name!r}: a history is 0 or more steps, found {source.history}.")
            count = counts[type(source)]
            if not 0 <= source.column < count:
                raise ConfigError(
                    f"Layout leaf {name!r} takes column {source.column} of {count} "
                    f"({'step' if isinstance(source, FromStep) else 'inline'} leaves, counted from 0)."
                )

    @property
    def takes_all(self) -> bool:
        """Returns whether any leaf selects ALL steps."""
        return any(isinstance(s, FromStep) and s.select is Select.ALL for s in tree.flatten(self.data))

    def history(self, *selects: Select) -> int:
        """Returns the most steps before those it selects that a leaf of these selects takes."""
        steps = [source for source in tree.flatten(self.data) if isinstance(source, FromStep)]
        return max((source.history for source in steps if source.select in selects), default=0)

    @functools.cached_property
    def longest_history(self) -> int:
        """Holds `history` of all leaves; kept, because each item is checked against it."""
        return self.history(*Select)

    @property
    def signature(self) -> Nest:
        """Returns a nest of array specs of an item's data: the content of a sample, without the batch axis."""
        step, inline = tree.flatten(self.step), tree.flatten(self.inline)

        def leaf(source: FromStep | FromInline) -> specs.Array:
            if isinstance(source, FromInline):
                return specs.to_arrays(inline[source.column])
            spec = step[source.column]
            if source.select is Select.ALL and self.length is not None:
                return specs.add_leading(spec, self.length + source.history)
            if source.history:
                return specs.add_leading(spec, source.history + 1)
            return specs.to_arrays(spec)

        return tree.map_structure(leaf, self.data)


def number_leaves(step: Nest) -> Nest:
    """Returns a nest like `step` that has each leaf's number in its place, for `FromStep.column`."""
    return tree.unflatten_as(step, list(range(len(tree.flatten(step)))))


def row_layout(step: Nest) -> Layout:
    """Returns the layout of items that are one step each, as it was appended: for data that is no trajectory.

    Args:
        step: nest of array specs, e.g. those of gradients.
    """
    columns = [FromStep(column, Select.FIRST) for column in range(len(tree.flatten(step)))]
    return Layout(step=specs.to_arrays(step), data=tree.unflatten_as(step, columns))


@dataclasses.dataclass(frozen=True)
class Uniform:
    """Selects every item with the same chance."""


@dataclasses.dataclass(frozen=True)
class Fifo:
    """Selects the oldest item."""


@dataclasses.dataclass(frozen=True)
class Lifo:
    """Selects the newest item."""


@dataclasses.dataclass(frozen=True)
class MinHeap:
    """Selects the item of least priority; of equals the one inserted or updated longest ago."""


@dataclasses.dataclass(frozen=True)
class MaxHeap:
    """Selects the item of greatest priority; of equals the one inserted or updated longest ago."""


@dataclasses.dataclass(frozen=True)
class Prioritized:
    """Selects item i with chance p_i**exponent / sum_k p_k**exponent (Schaul et al. 2016, eq. 1).

    Attributes:
        exponent: alpha >= 0; 0 is uniform over the items whose priority is not 0.

    While every priority is 0, every item has the same chance (as in Reverb).
    """

    exponent: float = 0.6

    def __post_init__(self) -> None:
        if not (math.isfinite(self.exponent) and self.exponent >= 0):
            raise ConfigError(f"Prioritized needs a finite exponent >= 0, found {self.exponent!r}.")


Selector = Uniform | Fifo | Lifo | MinHeap | MaxHeap | Prioritized


@dataclasses.dataclass(frozen=True)
class Table:
    """Describes a replay table, as data.

    Attributes:
        name: unique within a replay.
        layout: how items are made; `signature` follows from it.
        max_size: items held at most; one more makes the remover's choice go. The new item is among
            the choices, as in Reverb: with `Lifo`, a full table drops whatever is new.
        sampler: selects what is drawn.
        remover: selects what goes when the table is full.
        rate_limiter: when inserts and samples may proceed.
        max_times_sampled: an item drawn this often is removed; 0 means never.
    """

    name: str
    layout: Layout
    max_size: int
    sampler: Selector = Uniform()
    remover: Selector = Fifo()
    rate_limiter: RateLimiter = MinSize(1)
    max_times_sampled: int = 0

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigError("A table needs a name that is not empty.")
        if not isinstance(self.max_size, int | np.integer) or not 1 <= self.max_size < 2**31:
            raise ConfigError(
                f"Table {self.name!r}: max_size must be a whole number from 1 to 2**31 - 1, found {self.max_size!r}."
            )
        if not isinstance(self.max_times_sampled, int | np.integer) or self.max_times_sampled < 0:
            raise ConfigError(
                f"Table {self.name!r}: max_times_sampled must be 0 (no limit) or a greater whole number, "
                f"found {self.max_times_sampled!r}."
            )
        for role, selector in (("sampler", self.sampler), ("remover", self.remover)):
            if not isinstance(selector, Selector):
                raise ConfigError(
                    f"Table {self.name!r}: {role} must be one of Uniform(), Fifo(), Lifo(), MinHeap(), "
                    f"MaxHeap(), Prioritized(exponent), found {selector!r}."
                )
        if self.rate_limiter.min_size_to_sample > self.max_size:
            raise ConfigError(
                f"Table {self.name!r} would wait for ever: sampling starts at "
                f"{self.rate_limiter.min_size_to_sample} items and max_size is {self.max_size}. "
                "Raise max_size or lower the minimum size."
            )
        self.rate_limiter.check_table(self.name, self.max_size, self.max_times_sampled)

    def check_batch(self, batch_size: int) -> None:
        """Refuses a batch size that is not positive, or that this table could never serve."""
        if not isinstance(batch_size, int | np.integer) or batch_size < 1:
            raise ConfigError(
                f"Table {self.name!r}: a batch size is a whole number of at least 1, found {batch_size!r}."
            )
        if batch_size > self.max_size:
            raise ConfigError(
                f"Table {self.name!r}: a batch of {batch_size} items is larger than the table, which holds "
                f"{self.max_size} at most. Raise max_size or lower the batch size."
            )
        self.rate_limiter.check_batch(self.name, batch_size, self.max_times_sampled)

    @property
    def signature(self) -> Nest:
        """Returns a nest of array specs of one item's data."""
        return self.layout.signature

    def fingerprint(self) -> dict[str, Any]:
        """Returns all settings as plain values, to tell whether a checkpoint was made by the same table."""
        return {
            "name": self.name,
            "max_size": int(self.max_size),
            "max_times_sampled": int(self.max_times_sampled),
            "sampler": repr(self.sampler),
            "remover": repr(self.remover),
            "rate_limiter": repr(self.rate_limiter),
            "signature": describe_leaves(self.signature),
            "step": describe_leaves(self.layout.step),
            "inline": describe_leaves(self.layout.inline),
            "sources": [_describe_source(source) for source in tree.flatten(self.layout.data)],
            "length": self.layout.length,
        }


def queue_table(name: str, layout: Layout, size: int) -> Table:
    """Makes a table that is a queue: each item is drawn once, oldest first; writers wait while it is full.

    Args:
        name: the table's.
        layout: of its items.
        size: items that it holds at most.
    """
    return Table(name, layout, size, Fifo(), Fifo(), Queue(size), max_times_sampled=1)


def with_room(table: Table, num_items: int) -> Table:
    """Returns a queue with room for so many items where the insert of one may proceed.

    Where one thread writes for all and draws in between, writers would else wait for room that only it could make.
    Other tables are returned as they are: replay `in_turns` makes nobody wait for them.
    """
    if table.rate_limiter != Queue(table.max_size):
        return table
    size = table.max_size + num_items - 1
    return dataclasses.replace(table, max_size=size, rate_limiter=Queue(size))


def describe_leaves(spec: Nest) -> list[str]:
    """Returns name, dtype and shape of every leaf of a nest of specs, as one string each."""
    leaves = zip(specs.leaf_names(spec), tree.flatten(spec), strict=True)
    return [f"{name}: {leaf.dtype.name}{list(leaf.shape)}" for name, leaf in leaves]


def _describe_source(source: FromStep | FromInline) -> str:
    if isinstance(source, FromStep):
        before = f", {source.history} before" if source.history else ""
        return f"step leaf {source.column}, {source.select.value}{before}"
    return f"inline leaf {source.column}"
