"""What it costs to publish parameters and to fetch them, in another process, by size and transport.

Run alone on the machine: ``python benchmarks/parts/variables.py``. Loopback only; the wire encrypts there, too. Random
float32 trees of 12 leaves, as two networks of three layers have.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np

from agentkit.variables import SharedMemoryPublisher, SharedMemorySource
from agentkit.variables.served import ServedPublisher, ServedSource

MEGABYTES = (0.3, 5, 50)
ROUNDS = 15


def tree(megabytes: float) -> dict[str, Any]:
    rng, num_leaves = np.random.default_rng(0), 12
    size = int(megabytes * 1e6 / 4 / num_leaves)
    return {f"layer_{i}": {"w": rng.standard_normal(size, np.float32)} for i in range(num_leaves)}


def make_source(kind: str, place: str) -> Any:
    if kind == "shared memory":
        return SharedMemorySource(place)
    return ServedSource(place, "benchmark")


def make_publisher(kind: str) -> tuple[Any, str]:
    if kind == "shared memory":
        name = f"benchmark-{os.getpid()}"
        return SharedMemoryPublisher(name), name
    publisher = ServedPublisher("benchmark", "tcp://127.0.0.1:*")
    return publisher, publisher.address


def read(kind: str, place: str) -> None:
    """The other process: at each line on stdin it fetches, and asks again for what is not there."""
    source, held = make_source(kind, place), -1
    for _ in sys.stdin:
        start = time.perf_counter()
        found = source.get(["policy"], newer_than=held)
        middle = time.perf_counter()
        held = found.version
        assert source.get(["policy"], newer_than=held) is None
        print(json.dumps([middle - start, time.perf_counter() - middle]), flush=True)


def measure(kind: str, megabytes: float) -> tuple[float, float, float]:
    """Milliseconds to publish, to fetch, and to ask for nothing newer: medians."""
    publisher, place = make_publisher(kind)
    command = [sys.executable, __file__, "read", kind, place]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdin is not None and reader.stdout is not None
    nest, rows = tree(megabytes), []
    try:
        for version in range(ROUNDS):
            start = time.perf_counter()
            publisher.publish(version, {"policy": nest})
            seconds = time.perf_counter() - start
            reader.stdin.write("\n")
            reader.stdin.flush()
            rows.append([seconds, *json.loads(reader.stdout.readline())])
    finally:
        reader.stdin.close()
        reader.wait(60)
        publisher.close()
    published, fetched, asked = (1e3 * statistics.median(column) for column in zip(*rows[2:], strict=True))
    return published, fetched, asked


def main() -> None:
    print(f"{'transport':<14} {'MB':>5} {'publish ms':>11} {'fetch ms':>9} {'nothing newer ms':>17}")
    for kind in ("shared memory", "wire"):
        for megabytes in MEGABYTES:
            published, fetched, asked = measure(kind, megabytes)
            print(f"{kind:<14} {megabytes:>5} {published:>11.3f} {fetched:>9.3f} {asked:>17.4f}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["read"]:
        read(*sys.argv[2:])
    else:
        main()
