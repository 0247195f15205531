"""Our Reverb path beside the bare Reverb client in its best configurations: rates, ratios and processor time.

``python benchmarks/parts/reverb_rates.py [--kinds small,medium,image,sequence] [--what write,sample,local]``

All contestants run in turns, a few seconds each, for some rounds, so that each pair of runs sees about the same
machine: only the ratios mean anything. Each line is a contestant: items (sequences: steps) per second and
microseconds of processor time per item in this process and in the server's, medians over the rounds; then the
median over the rounds of our rate divided by its rate, and the same of the processor times (below 1 is better).

The bare client gets what a user could do by hand at best: all leaves of an item packed into one row of bytes, or
a column each; a `TrajectoryWriter` with chunks of 1, 2 or the whole item, or a `StructuredWriter`; and for sampling
a `TrajectoryDataset` of various requests in flight and workers, and Reverb's own C++ sampler.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import dm_env
import tree
from reverb_bare import (
    EPISODE,
    KINDS,
    LENGTH,
    MAX_SIZE,
    PERIOD,
    SAMPLED,
    WRITERS,
    Data,
    Sample,
    Write,
    bare_dataset,
    bare_pybind,
    bare_writers,
    fill_bare,
)

from agentkit.adders import NStepAdder, SequenceAdder
from agentkit.replay import MinSize, Replay, ReverbReplay, SampleToInsertRatio, Table
from agentkit.replay.reverb.library import reverb

OURS = "agentkit"


def our_table(data: Data, limited: bool = False) -> Table:
    """As an agent would make it; limited by a ratio that the benchmark never meets, or not at all."""
    layout = SequenceAdder.layout(data.spec, LENGTH) if data.kind.sequence else NStepAdder.layout(data.spec)
    limiter: Any = SampleToInsertRatio(1.0, 1, (-1e12, 1e12)) if limited else MinSize(1)
    return Table("limited" if limited else "ours", layout, MAX_SIZE, rate_limiter=limiter)


def serve(kind: str) -> tuple[ReverbReplay, Any]:
    """Our server and a bare one, both in this process."""
    data = Data(KINDS[kind])
    bare = [
        reverb.Table(
            name=name,
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=MAX_SIZE,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        for name in (*WRITERS, *SAMPLED)
    ]
    return ReverbReplay([our_table(data), our_table(data, limited=True)]), reverb.Server(bare)


def our_writer(replay: Replay, data: Data, table: str = "ours") -> Write:
    """Our writer, called as our adders do."""
    writer = replay.writer(LENGTH if data.kind.sequence else 2)
    at = iter(range(1 << 60))

    def transitions() -> int:
        for _ in range(EPISODE):
            i = next(at) % EPISODE
            index = writer.append((data.observations[i % data.size], data.actions[i], ()))
            if index:
                writer.create_item(table, 1.0, index - 1, index + 1, (data.scalars[i], data.scalars[0]))
        writer.end_episode()
        return EPISODE - 1

    def sequences() -> int:
        for i in range(EPISODE):
            index = writer.append((*data.leaves(i), ()))
            if index + 1 >= LENGTH and (index + 1 - LENGTH) % PERIOD == 0:
                writer.create_item(table, 1.0, index + 1 - LENGTH, index + 1)
        writer.end_episode()
        return EPISODE

    # Nests of the adders' own classes.
    step = tree.map_structure(lambda x: x, replay.table(table).layout.step)
    append = writer.append
    writer.append = lambda leaves: append(type(step)(*leaves))  # type: ignore[method-assign]
    if not data.kind.sequence:
        create = writer.create_item
        inline = type(replay.table(table).layout.inline)
        writer.create_item = lambda t, p, a, b, x: create(t, p, a, b, inline(*x))  # type: ignore[method-assign]
    return sequences if data.kind.sequence else transitions


def our_adder(replay: Replay, data: Data) -> Write:
    """The whole way from time steps to items."""
    writer, spec = replay.writer(LENGTH if data.kind.sequence else 2), data.spec
    if data.kind.sequence:
        adder: Any = SequenceAdder(writer, spec, tables="ours", length=LENGTH, period=PERIOD)
    else:
        adder = NStepAdder(writer, spec, tables="ours", n=1, discount=0.99)
    steps = [dm_env.transition(float(data.scalars[i]), data.observations[i % data.size]) for i in range(EPISODE)]

    def episode() -> int:
        adder.add_first(dm_env.restart(data.observations[0]))
        for i in range(1, EPISODE):
            adder.add(data.actions[i], steps[i])
        adder.add(data.actions[0], dm_env.termination(0.0, data.observations[0]))
        return EPISODE

    return episode


def our_sampler(replay: Replay, table: str, batch_size: int) -> Iterator[Sample]:
    """Our sampler, exact where the table is limited and the replay does not draw ahead."""
    sampler = replay.sampler(table, batch_size)

    def take() -> int:
        return len(next(sampler).keys)

    yield take
    sampler.close()


def samplers(
    ours: ReverbReplay, ahead: ReverbReplay, address: str, data: Data, batch: int
) -> dict[str, Callable[[], Iterator[Sample]]]:
    """By name."""
    made: dict[str, Callable[[], Iterator[Sample]]] = {
        OURS: lambda: our_sampler(ahead, "limited", batch),
        f"{OURS}, exact": lambda: our_sampler(ours, "limited", batch),
        "exact, 64 x 2": lambda: bare_dataset(address, data, "rows", batch, 64, 2, exact=True),
        "C++ sampler, 64": lambda: bare_pybind(address, batch, 64),
        "columns, 64 x 2": lambda: bare_dataset(address, data, "leaves", batch, 64, 2),
    }
    for in_flight, workers in ((64, 1), (64, 2), (128, 2), (256, 2)):
        made[f"packed, {in_flight} x {workers}"] = lambda f=in_flight, w=workers: bare_dataset(  # type: ignore[misc]
            address, data, "rows", batch, f, w
        )
    return made


# --- measuring ---------------------------------------------------------------------------------------


def server_seconds(pid: int | None) -> float:
    """Processor time of another process so far."""
    if pid is None:
        return 0.0
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Run(NamedTuple):
    """One run of one contestant."""

    rate: float
    client_us: float
    server_us: float


def measure(call: Callable[[], int], seconds: float, pid: int | None) -> Run:
    """Calls it for some seconds."""
    call()
    started, cpu, server = time.perf_counter(), time.process_time(), server_seconds(pid)
    count = 0
    while (took := time.perf_counter() - started) < seconds:
        count += call()
    return Run(count / took, 1e6 * (time.process_time() - cpu) / count, 1e6 * (server_seconds(pid) - server) / count)


def median(runs: list[Run]) -> Run:
    """Of each figure."""
    return Run(*(statistics.median(values) for values in zip(*runs, strict=True)))


def report(title: str, runs: dict[str, list[Run]]) -> dict[str, Any]:
    """Prints a table; returns its figures."""
    print(f"\n{title}\n{'':24s}{'items/s':>10s}{'client us':>11s}{'server us':>11s}{'rate ratio':>12s}", end="")
    print(f"{'cpu ratio':>11s}")
    rows = {}
    for name in sorted(runs, key=lambda name: -median(runs[name]).rate):
        middle = median(runs[name])
        pairs = list(zip(runs[OURS], runs[name], strict=True))
        rate = statistics.median(a.rate / b.rate for a, b in pairs)
        cpu = statistics.median((a.client_us + a.server_us) / (b.client_us + b.server_us) for a, b in pairs)
        print(f"{name:24s}{middle.rate:10.0f}{middle.client_us:11.1f}{middle.server_us:11.1f}{rate:12.2f}{cpu:11.2f}")
        rows[name] = {**middle._asdict(), "rate_ratio": rate, "cpu_ratio": cpu}
    sys.stdout.flush()
    return rows


class Plan(NamedTuple):
    """How long and whom to measure."""

    rounds: int
    seconds: float
    batch_size: int
    only: str

    def chosen(self, contestants: dict[str, Any]) -> dict[str, Any]:
        """Us, and whoever else was asked for."""
        return {name: what for name, what in contestants.items() if name == OURS or re.search(self.only, name)}


def write_case(plan: Plan, ours: ReverbReplay, bare: str, data: Data, pid: int) -> dict[str, list[Run]]:
    """All writers in turns."""
    contestants = {OURS: our_writer(ours, data), f"{OURS}, adder": our_adder(ours, data), **bare_writers(bare, data)}
    runs: dict[str, list[Run]] = {}
    for _ in range(plan.rounds):
        for name, call in plan.chosen(contestants).items():
            runs.setdefault(name, []).append(measure(call, plan.seconds, pid))
    return runs


def sample_case(plan: Plan, ours: ReverbReplay, bare: str, data: Data, pid: int | None) -> dict[str, list[Run]]:
    """All samplers in turns, each opened anew."""
    fill_bare(bare, data)
    fill = our_writer(ours, data, "limited")
    while ours.info("limited").num_inserted < data.kind.num_items:
        fill()
    runs: dict[str, list[Run]] = {}
    with ReverbReplay(list(ours.tables.values()), address=ours.address, draw_ahead=True) as ahead:
        for _ in range(plan.rounds):
            for name, make in plan.chosen(samplers(ours, ahead, bare, data, plan.batch_size)).items():
                opened = make()
                take = next(opened)
                take()
                take()
                runs.setdefault(name, []).append(measure(take, plan.seconds, pid))
                next(opened, None)
                del opened, take
    return runs


def measure_kind(kind: str, plan: Plan, what: set[str]) -> dict[str, Any]:
    """All that was asked for of one kind of data."""
    data = Data(KINDS[kind])
    if data.kind.sequence:
        plan = plan._replace(batch_size=plan.batch_size // 8)
    found: dict[str, Any] = {}
    command = [sys.executable, __file__, "--serve", kind]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address, bare = process.stdout.readline().split()
        with ReverbReplay([our_table(data), our_table(data, limited=True)], address=address) as ours:
            if "write" in what:
                found["write"] = report(f"write {kind}", write_case(plan, ours, bare, data, process.pid))
            if "sample" in what:
                title = f"sample {kind}, batches of {plan.batch_size}"
                found["sample"] = report(title, sample_case(plan, ours, bare, data, process.pid))
    finally:
        process.kill()
        process.wait()
    if "local" in what:
        replay, server = serve(kind)
        with replay:
            title = f"sample {kind} in the server's process, batches of {plan.batch_size}"
            found["local"] = report(title, sample_case(plan, replay, f"localhost:{server.port}", data, None))
    return found


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--what", default="write,sample,local")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--only", default="", help="contestants whose names match this regular expression")
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        replay, server = serve(arguments.serve)
        print(replay.address, f"localhost:{server.port}", flush=True)
        sys.stdin.read()
        return
    plan = Plan(arguments.rounds, arguments.seconds, arguments.batch_size, arguments.only)
    what = set(arguments.what.split(","))
    results = {kind: measure_kind(kind, plan, what) for kind in arguments.kinds.split(",")}
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))
    sys.stdout.flush()
    os._exit(0)  # Reverb's own threads may wait for a server that is gone


if __name__ == "__main__":
    main()
