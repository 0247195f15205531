"""Reverb's streams, in the configuration that was measured to be fastest (``benchmarks/parts/reverb_rates.py``)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from agentkit.replay.reverb.library import TensorShape, pybind, sampling, uint8
from agentkit.replay.reverb.packing import Packing
from agentkit.replay.reverb.sampler import Piece
from agentkit.replay.table import Prioritized, Table, Uniform

LIMITER_TIMEOUT_MS = 200
"""A sampling stream that the rate limiter holds back this long ends, so that it can be closed."""

IN_FLIGHT = 256
"""Items that one sampling worker asks for ahead. More is hardly faster, and staler."""

LARGE_BATCH = 32
"""Batches from this size on are drawn by two workers; what they bring is in no certain order."""


def make_writer(address: str, chunk_lengths: Sequence[int], keep: int) -> Any:
    """Makes Reverb's C++ writer.

    Args:
        address: of the server.
        chunk_lengths: of each column, how many rows are compressed and sent together.
        keep: how many of its last rows of each column items may refer to.
    """
    options = [pybind.ConstantChunkerOptions(n, max(keep, n)) for n in chunk_lengths]
    writer = pybind.Client(address).NewTrajectoryWriter(options[0], False)  # we validate ourselves
    for column, option in enumerate(options):
        writer.ConfigureChunker(column, option)
    return writer


def make_pieces(address: str, table: Table, batch_size: int, streams: bool, num_prefetched: int = 0) -> Iterator[Piece]:
    """Yields pieces of at most `batch_size` items; ends when the rate limiter stops it.

    Args:
        address: of the server.
        table: to draw from.
        batch_size: B.
        streams: whether to draw ahead of what is asked for. Else every piece draws `batch_size` items and
            not one more: where the rate is limited, or items go after some samples, what is drawn too much
            would be lost, and others would wait for it.
        num_prefetched: pieces that a thread of TensorFlow's puts together in advance, for a stream that is not read
            by a thread of its own.
    """
    packing = Packing(table)
    shapes = packing.columns
    # A selector with an order needs one worker; so do items that go after some samples.
    many = isinstance(table.sampler, Uniform | Prioritized) and table.max_times_sampled == 0
    num_workers = 2 if many and batch_size >= LARGE_BATCH else 1
    in_flight = 2 * batch_size if streams else -(-batch_size // num_workers)
    library = sampling()
    dataset = library.TrajectoryDataset(
        address,
        table=table.name,
        dtypes=(uint8,) * len(shapes),
        shapes=tuple(map(TensorShape, shapes)),
        max_in_flight_samples_per_worker=min(IN_FLIGHT, in_flight),
        num_workers_per_iterator=num_workers,
        max_samples=-1 if streams else batch_size,
        rate_limiter_timeout_ms=LIMITER_TIMEOUT_MS,
    )
    options = library.Options()
    # Left to itself, tf.data prefetches: it would draw a batch that nobody asked for.
    options.experimental_optimization.inject_prefetch = False
    # Nothing here is to be tuned or run in parallel.
    options.experimental_optimization.apply_default_optimizations = False
    options.autotune.enabled = False
    options.threading.private_threadpool_size = 1
    batches = dataset.batch(batch_size)
    if num_prefetched:
        batches = batches.prefetch(num_prefetched)
    # Repeating opens a new stream at the next request: cheaper than a new iterator.
    for sample in (batches if streams else batches.repeat()).with_options(options):
        columns = [np.asarray(memoryview(column)) for column in sample.data]
        yield [leaf.numpy() for leaf in sample.info] + packing.unpack(columns)
