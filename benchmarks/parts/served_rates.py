"""The served replay beside Reverb, behind the same interface: batches and rows a second, alone and beside writers.

``python benchmarks/parts/served_rates.py [--kinds small,image,sequence] [--selectors uniform,prioritised]``

Each backend has its server in a process of its own and is asked from this one; they take turns, a few seconds each,
for some rounds, and only the ratios mean anything. Reverb is at its best here: items packed, drawn ahead, unlimited. A
batch of a prioritised table is followed by its new priorities, as a learner writes them. Writers at full speed are two
processes that do nothing else, and are stopped (SIGSTOP) while they are not wanted.
Needs the extra ``reverb``.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
from reverb_bare import KINDS, Data
from reverb_rates import Run, measure, our_adder, our_table, our_writer

from agentkit.replay import Prioritized, Replay, ReverbReplay, Table
from agentkit.replay.served import ReplayServer, ServedReplay

BACKENDS = ("served", "reverb")
SELECTORS = ("uniform", "prioritised")
NUM_WRITERS = 2
TABLE = "ours"


def table_of(kind: str, selector: str) -> Table:
    """The one table of a server: as an agent would make it, without a limit."""
    table = our_table(Data(KINDS[kind]))
    return table if selector == "uniform" else dataclasses.replace(table, sampler=Prioritized(0.6))


def serve(backend: str, kind: str, selector: str) -> None:
    """Serves until it is killed; the first line says where."""
    tables = [table_of(kind, selector)]
    if backend == "reverb":
        with ReverbReplay(tables) as replay:
            print(replay.address, flush=True)
            signal.pause()
    folder = tempfile.mkdtemp(prefix="rates-")  # Of mode 700.
    with contextlib.closing(ReplayServer(tables, f"ipc://{folder}/socket")) as server:
        print(server.address, flush=True)
        while True:
            server.serve(1.0)


def connect(backend: str, address: str, kind: str, selector: str) -> Replay:
    """A client that draws ahead, as a learner's."""
    tables = [table_of(kind, selector)]
    if backend == "reverb":
        return ReverbReplay(tables, address=address, draw_ahead=True)
    return ServedReplay(tables, address, draw_ahead=True)


def write(backend: str, address: str, kind: str, selector: str) -> None:
    """Writes at full speed until it is killed."""
    replay = connect(backend, address, kind, selector)
    call = our_writer(replay, Data(KINDS[kind]), TABLE)
    print("ready", flush=True)
    while True:
        call()


def taker(replay: Replay, batch_size: int, selector: str) -> Callable[[], int]:
    """Takes a batch, and writes its priorities where the table is prioritised."""
    sampler = replay.sampler(TABLE, batch_size)
    rng = np.random.default_rng(0)

    def take() -> int:
        keys = next(sampler).keys
        if selector != "uniform":
            replay.update_priorities(TABLE, keys, rng.random(len(keys)) + 0.1)
        return 1

    return take


class Side:
    """One backend: its server, two writers that are stopped, and this process's client."""

    def __init__(self, backend: str, kind: str, selector: str, stack: contextlib.ExitStack):
        self._stack = stack
        self.server = self._start("--serve", backend, kind, selector)
        address = _line(self.server)
        self.replay = connect(backend, address, kind, selector)
        stack.callback(self.replay.close)  # Before its server ends: Reverb's writers wait for one that is gone.
        data = Data(KINDS[kind])
        self.write, self.add = our_writer(self.replay, data, TABLE), our_adder(self.replay, data)
        while self.replay.info(TABLE).size < data.kind.num_items:
            self.write()
        self.writers = [self._start("--write", backend, kind, selector, address) for _ in range(NUM_WRITERS)]
        for process in self.writers:
            _line(process)
        self._signal(signal.SIGSTOP)

    def _start(self, *words: str) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE, text=True)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def _signal(self, number: int) -> None:
        for process in self.writers:
            process.send_signal(number)

    @contextlib.contextmanager
    def written_to(self) -> Iterator[None]:
        """Lets the writers go on for a while."""
        self._signal(signal.SIGCONT)
        try:
            yield
        finally:
            self._signal(signal.SIGSTOP)


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def measure_case(kind: str, selector: str, rounds: int, seconds: float) -> dict[str, dict[str, list[Run]]]:
    """All runs of one kind of items under one selector: by what is measured, then by backend."""
    batch_size = 32 if KINDS[kind].sequence else 256
    runs: dict[str, dict[str, list[Run]]] = {}
    with contextlib.ExitStack() as stack:
        sides = {backend: Side(backend, kind, selector, stack) for backend in BACKENDS}
        for _ in range(rounds):
            for backend, side in sides.items():
                pid = side.server.pid
                take = taker(side.replay, batch_size, selector)
                found = {"batches": measure(take, seconds, pid)}
                with side.written_to():
                    found["batches beside writers"] = measure(take, seconds, pid)
                del take
                found["rows"] = measure(side.write, seconds, pid)
                found["rows of an adder"] = measure(side.add, seconds, pid)
                for what, run in found.items():
                    runs.setdefault(what, {}).setdefault(backend, []).append(run)
    return runs


def report(title: str, runs: dict[str, dict[str, list[Run]]]) -> dict[str, Any]:
    """Prints a table; returns its figures."""
    print(f"\n{title}\n\n| | served, a second | Reverb | ratio | us, served | us, Reverb |\n|---|---|---|---|---|---|")
    rows: dict[str, Any] = {}
    for what, by_backend in runs.items():
        ratio = statistics.median(
            a.rate / b.rate for a, b in zip(*(by_backend[name] for name in BACKENDS), strict=True)
        )
        middles = [Run(*map(statistics.median, zip(*by_backend[name], strict=True))) for name in BACKENDS]
        us = [run.client_us + run.server_us for run in middles]
        print(
            f"| {what} | {middles[0].rate:,.0f} | {middles[1].rate:,.0f} | {ratio:.2f} | {us[0]:,.1f} | {us[1]:,.1f} |"
        )
        rows[what] = {"ratio": ratio, **{name: run._asdict() for name, run in zip(BACKENDS, middles, strict=True)}}
    for backend in BACKENDS:
        pairs = zip(runs["batches beside writers"][backend], runs["batches"][backend], strict=True)
        rows[f"kept by {backend}"] = kept = statistics.median(a.rate / b.rate for a, b in pairs)
        print(f"{backend}: {kept:.2f} of its batches beside {NUM_WRITERS} writers", flush=True)
    return rows


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="small,sequence,image")
    parser.add_argument("--selectors", default=",".join(SELECTORS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--write", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        serve(*arguments.serve)
    if arguments.write:
        backend, kind, selector, address = arguments.write
        write(backend, address, kind, selector)
    results = {}
    for kind in arguments.kinds.split(","):
        for selector in arguments.selectors.split(","):
            title = f"{kind}, {selector}"
            results[title] = report(title, measure_case(kind, selector, arguments.rounds, arguments.seconds))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1) + "\n")
    sys.stdout.flush()
    os._exit(0)  # Reverb's own threads may wait for a server that is gone.


if __name__ == "__main__":
    main()
