"""Parts 5 to 7: parameters published and fetched, checkpoints, and memory per stored transition."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import psutil
import variables
from data import IMAGE, VECTOR, environment_spec, fill, raw_step_bytes, transition_replay
from turns import Line, in_turns, line, repeat

from agentkit import checkpoint
from agentkit.variables import SharedMemoryPublisher, SharedMemorySource, VariableStore

PARAMETERS, CHECKPOINTS = "Parameters, published and fetched", "Checkpoints of in-process replay"
MEMORY = "Memory per stored transition"
MEMORY_LIMIT = 1.3


def parameter_lines(megabytes: tuple[float, ...] = variables.MEGABYTES, seconds: float = 0.05) -> list[Line]:
    """Publishing and fetching in one process beside a copy; `variables.py` has the same between processes."""
    found = []
    for size in megabytes:
        nest = {"policy": variables.tree(size)}
        leaves = [layer["w"] for layer in nest["policy"].values()]
        held = [np.empty_like(leaf) for leaf in leaves]
        publisher = SharedMemoryPublisher(f"parts-{os.getpid()}-{size:g}")
        source, store = SharedMemorySource(f"parts-{os.getpid()}-{size:g}"), VariableStore()
        versions = iter(range(10**9))
        try:
            contestants: dict[str, Callable[[], Any]] = {
                "a numpy copy": lambda: [np.copyto(a, b) for a, b in zip(held, leaves, strict=True)],  # noqa: B023
                "publish": lambda: publisher.publish(next(versions), nest),  # noqa: B023
                "fetch": lambda: source.get(["policy"]),  # noqa: B023
                "store": lambda: (store.publish(next(versions), nest), store.get(["policy"])),  # noqa: B023
            }
            timed = {}
            for name, call in contestants.items():
                call()
                start = time.perf_counter()
                call()
                timed[name] = repeat(call, max(1, min(2_000, int(seconds / (time.perf_counter() - start)))))
            times = in_turns(timed)
        finally:
            publisher.close()
        for name, words in (
            ("publish", "publish to shared memory"),
            ("fetch", "fetch from it"),
            ("store", "publish and fetch in one process (nothing is copied)"),
        ):
            shown = line(PARAMETERS, f"{size:g} MB: {words}", times, name, "a numpy copy")
            shown.note = f"{1e6 / shown.ours:,.0f} a second"
            found.append(shown)
    return found


def checkpoint_lines(sizes: tuple[int, ...], directory: str | None = None) -> list[Line]:
    """A whole checkpoint, with checksums and fsync, beside the same bytes written by numpy and one fsync a file."""
    spec, found = environment_spec(VECTOR), []
    for size in sizes:
        replay = transition_replay(spec, size)
        fill(replay, spec, size)
        with tempfile.TemporaryDirectory(dir=directory) as folder:
            root = pathlib.Path(folder)
            written = checkpoint.write(root / "first", 0, {}, {"replay": replay.save})
            arrays = [np.fromfile(path, np.uint8) for path in sorted(written.rglob("*.bin"))]
            shutil.rmtree(root / "first")
            times = in_turns(
                {"ours": _timed(root / "a", _save(replay)), "numpy": _timed(root / "b", _write(arrays))},
                rounds=5,
            )
        shown = line(CHECKPOINTS, f"{size:,} transitions", times, "ours", "numpy", unit="s")
        shown.reference = "numpy write and fsync"
        gigabytes = sum(x.nbytes for x in arrays) / 1e9
        shown.note = f"{gigabytes:.3g} GB: {gigabytes / shown.ours:.2g} GB/s beside {gigabytes / shown.theirs:.2g}"
        found.append(shown)
    return found


def _timed(folder: pathlib.Path, write: Callable[[pathlib.Path], None]) -> Callable[[], float]:
    def run() -> float:
        folder.mkdir()
        start = time.perf_counter()
        write(folder)
        seconds = time.perf_counter() - start
        shutil.rmtree(folder)
        return seconds

    return run


def _save(replay: Any) -> Callable[[pathlib.Path], None]:
    return lambda folder: [checkpoint.write(folder, 0, {}, {"replay": replay.save}), None][1]


def _write(arrays: list[np.ndarray]) -> Callable[[pathlib.Path], None]:
    def write(folder: pathlib.Path) -> None:
        for i, array in enumerate(arrays):
            with (folder / f"{i}.bin").open("wb") as file:
                array.tofile(file)
                file.flush()
                os.fsync(file.fileno())

    return write


def memory_lines(num_vectors: int, num_images: int) -> list[Line]:
    """Bytes of a full replay by its own count, and what the process grew by, over the raw bytes of its steps."""
    found = []
    for words, num_items in (("17 floats", num_vectors), ("84x84x4 bytes", num_images)):
        command = [sys.executable, __file__, words, str(num_items)]
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        measured = json.loads(result.stdout.splitlines()[-1])
        for name, value in measured["bytes"].items():
            ratio = value / measured["raw"]
            found.append(
                Line(
                    MEMORY, f"{words}, {num_items:,} transitions, {name}", "observation, action, reward, discount",
                    "bytes", value, measured["raw"], ratio, ratio, ratio, limit=MEMORY_LIMIT,
                )
            )  # fmt: skip
    return found


def _measure_memory(words: str, num_items: int) -> None:
    """In a process of its own: prints bytes a transition."""
    spec = environment_spec(IMAGE if words.startswith("84") else VECTOR)
    fill(transition_replay(spec, 100), spec, 300)  # what is loaded and made once
    replay = transition_replay(spec, num_items)
    before = psutil.Process().memory_info().rss
    fill(replay, spec, num_items)
    grown = psutil.Process().memory_info().rss - before
    sizes = {"its own count": replay.nbytes / num_items, "growth of the process (RSS)": grown / num_items}
    print(json.dumps({"raw": raw_step_bytes(spec), "bytes": sizes}))


if __name__ == "__main__":
    _measure_memory(sys.argv[1], int(sys.argv[2]))
