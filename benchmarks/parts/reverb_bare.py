"""The bare Reverb client by hand, as fast as it goes: what `reverb_rates.py` compares us with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from agentkit import specs
from agentkit.replay.reverb.library import pybind, tensorflow

tf = tensorflow()
import reverb  # noqa: E402 - whole, as a user of the bare client has it, behind TensorFlow's own warnings.
from reverb import structured_writer as structured  # noqa: E402

LENGTH, PERIOD = 32, 16
ACTIONS = 6
MAX_SIZE = 4000
EPISODE = 1000
IN_FLIGHT = 32


class Kind(NamedTuple):
    """What is written and sampled."""

    shape: tuple[int, ...]
    dtype: type
    sequence: bool = False
    num_items: int = 4000  # in the tables that are sampled


KINDS = {
    "small": Kind((4,), np.float32),
    "medium": Kind((17,), np.float32),
    "image": Kind((84, 84, 4), np.uint8, num_items=1000),
    "sequence": Kind((17,), np.float32, sequence=True, num_items=1000),
}


class Data:
    """Time steps to write, made beforehand; images are flat with some noise, as games are."""

    def __init__(self, kind: Kind):
        """Makes an episode."""
        rng = np.random.default_rng(0)
        self.kind = kind
        size = 64 if kind.dtype is np.uint8 else EPISODE
        self.observations = rng.integers(0, 255, (size, *kind.shape)).astype(kind.dtype)
        if kind.dtype is np.uint8:
            self.observations *= rng.random((size, *kind.shape)) < 0.05
        else:
            self.observations += rng.standard_normal((size, *kind.shape)).astype(kind.dtype)
        self.actions = rng.standard_normal((EPISODE, ACTIONS)).astype(np.float32)
        self.scalars = [np.float32(x) for x in rng.standard_normal(EPISODE)]
        self.bools = [np.bool_(i == 0) for i in range(EPISODE)]
        self.size = size

    @property
    def spec(self) -> specs.EnvironmentSpec:
        """Of an environment of such data."""
        return specs.EnvironmentSpec(
            specs.Array(self.kind.shape, self.kind.dtype),
            specs.Array((ACTIONS,), np.float32),
            specs.Array((), np.float32),
            specs.Array((), np.float32),
        )

    def leaves(self, i: int) -> list[Any]:
        """A transition's, or a row of a sequence."""
        i %= EPISODE
        first = self.observations[i % self.size]
        if self.kind.sequence:
            return [first, self.actions[i], self.scalars[i], self.scalars[0], self.bools[i]]
        return [first, self.actions[i], self.scalars[i], self.scalars[0], self.observations[(i + 1) % self.size]]

    def num_bytes(self) -> int:
        """Of those leaves."""
        return sum(leaf.nbytes for leaf in self.leaves(0))


# --- writing -----------------------------------------------------------------------------------------

Write = Callable[[], int]
"""Writes a hundred steps or so; returns how many."""


def packed(leaves: list[Any]) -> np.ndarray:
    """The leaves' bytes."""
    return np.frombuffer(b"".join(leaves), np.uint8)


def bare_trajectories(address: str, table: str, data: Data, chunk: int, pack: bool) -> Write:
    """A `TrajectoryWriter`; items of one packed row, of references to packed rows, or of a column per leaf."""
    options = pybind.ConstantChunkerOptions(chunk, max(chunk, LENGTH))
    writer = pybind.Client(address).NewTrajectoryWriter(options, False)
    sequence = data.kind.sequence

    def hundred() -> int:
        recent: list[Any] = []
        for i in range(100 if not sequence else 10 * LENGTH):
            leaves = data.leaves(i)
            refs = writer.Append([packed(leaves)] if pack else leaves)
            if not sequence:
                writer.CreateItem(table, 1.0, [[ref] for ref in refs], [True] * len(refs))
            else:
                recent.append(refs)
                if len(recent) < LENGTH or (len(recent) - LENGTH) % PERIOD:
                    continue
                columns = [list(x) for x in zip(*recent[-LENGTH:], strict=True)]
                writer.CreateItem(table, 1.0, columns, [False] * len(refs))
            if i % 8 == 0 or sequence:
                writer.Flush(IN_FLIGHT, 60_000)
        return 100 if not sequence else 10 * LENGTH

    return hundred


def bare_whole_items(address: str, table: str, data: Data) -> Write:
    """A `TrajectoryWriter` that sends a row of bytes for each sequence."""
    writer = pybind.Client(address).NewTrajectoryWriter(pybind.ConstantChunkerOptions(1, 2), False)

    def some() -> int:
        recent: list[bytes] = []
        for i in range(10 * LENGTH):
            recent.append(b"".join(data.leaves(i)))
            if len(recent) >= LENGTH and (len(recent) - LENGTH) % PERIOD == 0:
                row = np.frombuffer(b"".join(recent[-LENGTH:]), np.uint8)
                writer.CreateItem(table, 1.0, [writer.Append([row])], [True])
                writer.Flush(IN_FLIGHT, 60_000)
        return 10 * LENGTH

    return some


def bare_references(address: str, table: str, data: Data) -> Write:
    """A `TrajectoryWriter` that stores each observation once; transitions refer to two of them."""
    writer = pybind.Client(address).NewTrajectoryWriter(pybind.ConstantChunkerOptions(1, 2), False)

    def hundred() -> int:
        last = None
        for i in range(101):
            refs = writer.Append([np.ascontiguousarray(data.observations[i % data.size]), packed(data.leaves(i)[1:4])])
            if last is not None:
                writer.CreateItem(table, 1.0, [[last[0]], [last[1]], [refs[0]]], [True] * 3)
                if i % 8 == 0:
                    writer.Flush(IN_FLIGHT, 60_000)
            last = refs
        return 100

    return hundred


def bare_structured(address: str, table: str, data: Data, pack: bool) -> Write:
    """A `StructuredWriter`: a pattern makes an item of every row, or of every `PERIOD`-th."""
    number = 1 if pack else len(data.leaves(0))
    length = LENGTH if data.kind.sequence else None
    pattern = structured.pattern_from_transform(
        (0,) * number, lambda x: tuple(column[-length:] if length else column[-1] for column in x)
    )
    conditions = [structured.Condition.step_index() % PERIOD == PERIOD - 1] if length else []
    config = structured.create_config(pattern, table, conditions)
    writer = pybind.Client(address).NewStructuredWriter([config.SerializeToString()])
    count = 100 if length is None else 10 * LENGTH

    def hundred() -> int:
        for i in range(count):
            leaves = data.leaves(i)
            writer.Append([packed(leaves)] if pack else leaves)
            if i % (8 if length is None else PERIOD) == 0:
                writer.Flush(IN_FLIGHT, 60_000)
        return count

    return hundred


CHUNKS = ("packed, chunk 1", "packed, chunk 2", "packed, long chunk")
WRITERS = (*CHUNKS, "structured packed", "structured", "columns", "whole")


def bare_writers(address: str, data: Data) -> dict[str, Write]:
    """By name, each to the table of its name."""
    long = LENGTH if data.kind.sequence else 8
    made = {
        "structured packed": bare_structured(address, "structured packed", data, True),
        "structured": bare_structured(address, "structured", data, False),
        "columns": bare_trajectories(address, "columns", data, LENGTH if data.kind.sequence else 2, False),
    }
    if data.kind.sequence:
        made["whole"] = bare_whole_items(address, "whole", data)
    elif data.kind.dtype is np.uint8:
        made["whole"] = bare_references(address, "whole", data)
    for name, chunk in zip(CHUNKS, (1, 2, long), strict=True):
        made[name] = bare_trajectories(address, name, data, chunk, True)
    return made


# --- sampling ----------------------------------------------------------------------------------------

Sample = Callable[[], int]
"""Takes a batch; returns how many items."""

SAMPLED = ("rows", "leaves")


def fill_bare(address: str, data: Data) -> None:
    """Tables of packed rows ("rows") and of a column per leaf ("leaves")."""
    client = pybind.Client(address)
    for table in SAMPLED:
        pack = table == "rows"
        chunk = (1 if data.kind.sequence or data.num_bytes() > 1024 else 2) if pack else 2
        writer = client.NewTrajectoryWriter(pybind.ConstantChunkerOptions(chunk, LENGTH), False)
        for i in range(data.kind.num_items):
            leaves = data.leaves(i)
            if data.kind.sequence:
                leaves = [np.stack(x) for x in zip(*(data.leaves(i + k) for k in range(LENGTH)), strict=True)]
            refs = writer.Append([packed(leaves)] if pack else leaves)
            writer.CreateItem(table, 1.0, [[ref] for ref in refs], [True] * len(refs))
            writer.Flush(IN_FLIGHT, 60_000)
        writer.Flush(0, 60_000)
        writer.Close()


def bare_dataset(
    address: str, data: Data, table: str, batch_size: int, in_flight: int, workers: int, *, exact: bool = False
) -> Iterator[Sample]:
    """A `TrajectoryDataset`; packed rows are split into leaves, without copies."""
    leaves = data.leaves(0)
    if data.kind.sequence:
        leaves = [np.stack([leaf] * LENGTH) for leaf in leaves]
    pack = table == "rows"
    row = packed(leaves)
    bounds = np.cumsum([0] + [leaf.nbytes for leaf in leaves])
    dataset = reverb.TrajectoryDataset(
        address,
        table=table,
        dtypes=(tf.uint8,) if pack else tuple(tf.as_dtype(leaf.dtype) for leaf in leaves),
        shapes=(tf.TensorShape(row.shape),) if pack else tuple(tf.TensorShape(leaf.shape) for leaf in leaves),
        max_in_flight_samples_per_worker=in_flight,
        num_workers_per_iterator=workers,
        max_samples=batch_size if exact else -1,
        rate_limiter_timeout_ms=200,
    ).batch(batch_size, drop_remainder=True)
    iterator = iter(dataset.repeat() if exact else dataset)

    def take() -> int:
        sample = next(iterator)
        columns = [leaf.numpy() for leaf in (*sample.info, *sample.data)]
        if pack:
            rows = columns.pop()
            for leaf, start, stop in zip(leaves, bounds[:-1], bounds[1:], strict=True):
                columns.append(rows[:, start:stop].view(leaf.dtype).reshape(-1, *leaf.shape))
        return len(columns[0])

    yield take


def bare_pybind(address: str, batch_size: int, in_flight: int) -> Iterator[Sample]:
    """Reverb's C++ sampler, and numpy to stack."""
    sampler = pybind.Client(address).NewSampler("rows", 1 << 40, in_flight)

    def take() -> int:
        items = [sampler.GetNextTrajectory() for _ in range(batch_size)]
        columns = [np.stack(x) for x in zip(*items, strict=True)]
        return len(columns[0])

    yield take
    sampler.Close() if hasattr(sampler, "Close") else None
