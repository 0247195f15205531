"""agentkit beside its peers: the same work, one process at a time, in alternating runs.

    python benchmarks/peers/compare.py --environments ~/peers --reverb-python /path/to/reverb/stack/bin/python
    python benchmarks/peers/compare.py --environments ~/peers --peers tianshou --workloads --prefill 10000 100000

Run it on an otherwise idle machine, with an interpreter that has agentkit's dependencies. Each peer has a virtual
environment of its own under ``--environments``, made from the package registry where it is not there. A round runs
every variant of agentkit and every peer once, every other round in reverse order; the first round tries every peer
at each number of threads, and the later ones use the fastest. agentkit configures itself, as its users have it.
Ratios are of runs of the same round. CPU only. Standard library only: on Linux a child process starts with its
parent's peak memory, so this one stays small.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from compare_report import best_run, write_report
from peer_environments import PEERS, interpreter
from workloads import LEARNING_STARTS, WORKLOADS, make_job

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
STARTUP_SECONDS = 4.0

Row = dict[str, Any]


class Case(NamedTuple):
    """A workload with so many steps stored before learning begins; None for the usual number."""

    workload: str
    stored: int | None = None

    @property
    def name(self) -> str:
        """Its name in tables."""
        return self.workload if self.stored is None else f"{self.workload}, {self.stored:,} stored"


class Run(NamedTuple):
    """One process: agentkit's variant, or a peer and its threads."""

    side: str
    variant: str | None = None
    threads: int | None = None


class SideError(Exception):
    """A side ended without a measurement."""


def run_side(python: str, script: str, job: dict[str, Any], timeout: float) -> tuple[Row, list[str]]:
    """Runs one side in a process group of its own; its measurement and the other lines it printed.

    Raises:
        SideError: it failed or took longer than `timeout` seconds.
    """
    environment = dict(os.environ, JAX_PLATFORMS="cpu", CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(ROOT))
    if threads := job.get("threads"):
        # torch and BLAS, jax, TensorFlow.
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
        environment |= {name: str(threads) for name in names}
    command = [python, str(HERE / script), json.dumps(job | {"started": time.time()})]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        raise SideError(f"{script} took more than {timeout:.0f} s for {job['workload']}") from None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode != 0 or not output.strip():
        raise SideError(f"{script} failed for {job['workload']}:\n{errors[-3000:]}")
    *others, last = output.strip().splitlines()
    return json.loads(last), others


def peers_of(case: Case, options: argparse.Namespace, number: int = 0) -> list[str]:
    """The peers that take part in round `number` of a case, in the order of `--peers`."""
    found = [peer for peer in options.peers if peer in WORKLOADS[case.workload].rates]
    return [peer for peer in found if not PEERS[peer].slow or number < options.slow_pairs]


def variants_of(case: Case, options: argparse.Namespace) -> list[str]:
    """agentkit's variants; those for one peer only where that peer takes part."""
    variants = WORKLOADS[case.workload].variants
    return [name for name, variant in variants.items() if variant.only is None or variant.only in options.peers]


def plan_round(
    case: Case, number: int, fastest: dict[str, int], options: argparse.Namespace, threads: Sequence[int]
) -> list[Run]:
    """The runs of a round: agentkit's spread among the peers'."""
    peers = [
        Run(peer, threads=n)
        for peer in peers_of(case, options, number)
        for n in ([fastest[peer]] if peer in fastest else threads)
    ]
    ours = [Run("agentkit", variant) for variant in variants_of(case, options)]
    runs = list(peers)
    for i, run in enumerate(ours):
        runs.insert(i * (len(peers) // len(ours) + 1), run)
    return runs[::-1] if number % 2 else runs


def seconds_of(case: Case, run: Run, options: argparse.Namespace) -> float:
    """About how long a run takes; random steps cost a tenth of others."""
    workload = WORKLOADS[case.workload]
    startup = STARTUP_SECONDS if run.side == "agentkit" else PEERS[run.side].startup
    job = make_job(case.workload, run.side, stored=case.stored, seconds=options.window_seconds)
    stored = min(job["first"], job["learning_starts"])
    learning = job["last"] - stored
    rate = workload.rates[run.side]
    return startup + learning / rate + stored / max(10 * rate, 2_000)


def estimate(cases: Sequence[Case], options: argparse.Namespace) -> float:
    """Seconds that everything takes."""
    total = 0.0
    for case in cases:
        first = dict.fromkeys(peers_of(case, options), options.threads[0])
        for number in range(pairs_of(case, options)):
            known = {} if number == 0 or options.all_threads else first
            runs = plan_round(case, number, known, options, options.threads)
            total += sum(seconds_of(case, run, options) for run in runs)
    return total


def pairs_of(case: Case, options: argparse.Namespace) -> int:
    """How many rounds a case has."""
    return options.pairs if case.stored is None else options.slow_pairs


def measure_round(
    case: Case, number: int, fastest: dict[str, int], pythons: dict[str, str], options: argparse.Namespace
) -> dict[str, Any]:
    """Runs one round: rows by variant of agentkit, rows by peer and threads, and what failed."""
    found: dict[str, Any] = {"agentkit": {}, "peers": {}, "failed": {}}
    for run in plan_round(case, number, fastest, options, options.threads):
        job = make_job(
            case.workload,
            run.side,
            variant=run.variant,
            stored=case.stored,
            seconds=options.window_seconds,
            seed=number,
        )
        try:
            if run.side == "agentkit":
                assert run.variant is not None
                python = pythons["reverb" if job["replay"] == "reverb" else "agentkit"]
                row, _ = run_side(python, "agentkit_side.py", job, options.timeout)
                found["agentkit"][run.variant] = row
            else:
                peer = PEERS[run.side]
                job |= {**peer.more, "threads": run.threads}
                row, _ = run_side(pythons[run.side], peer.script, job, options.timeout)
                found["peers"].setdefault(run.side, {})[str(run.threads)] = row
        except SideError as error:
            name = run.variant if run.side == "agentkit" else f"{run.side}, {run.threads} threads"
            found["failed"][name] = str(error)
            print(f"{case.name}: {name} failed; see the record.\n{str(error)[-1500:]}", file=sys.stderr, flush=True)
    return found


def measure(case: Case, pythons: dict[str, str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rounds of a case; says the ratios of each."""
    fastest: dict[str, int] = {}
    for number in range(pairs_of(case, options)):
        found = measure_round(case, number, fastest, pythons, options)
        if not options.all_threads:
            for peer, rows in found["peers"].items():
                fastest.setdefault(peer, int(best_run(rows)[0]))
        for variant, ours in found["agentkit"].items():
            ratios = [
                f"{ours['steps_per_second'] / best_run(rows)[1]['steps_per_second']:.2f} {PEERS[peer].label}"
                for peer, rows in found["peers"].items()
                if WORKLOADS[case.workload].variants[variant].only in (None, peer)
            ]
            text = ", ".join(ratios)
            print(f"{case.name} {number + 1}/{pairs_of(case, options)} {variant}: times {text}", flush=True)
        yield found


def describe_machine() -> dict[str, Any]:
    """Processor, cores, load and time."""
    model = platform.processor()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = lines[0].partition(":")[2].strip() if lines else model
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "system": platform.platform(),
        "load_average_before": os.getloadavg()[0],
        "date": datetime.date.today().isoformat(),
        "command": shlex.join(["python", *sys.argv]),
    }


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = pathlib.Path.home() / ".cache" / "agentkit-benchmarks"
    parser.add_argument("--environments", type=pathlib.Path, default=default, help="has the peers' environments")
    parser.add_argument("--peers", nargs="+", choices=list(PEERS), help="default: all that can be run")
    parser.add_argument("--workloads", nargs="*", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--prefill", type=int, nargs="+", default=[], metavar="N", help="SAC with N steps stored, too")
    parser.add_argument("--stack", choices=("newest", "reverb"), default="newest", help="names the files")
    parser.add_argument("--agentkit-python", default=sys.executable, help="runs agentkit; default: this one")
    parser.add_argument("--reverb-python", help="runs the Acme-like loop, and agentkit beside it with Reverb replay")
    parser.add_argument("--add", action="store_true", help="add to the record that is there")
    parser.add_argument("--pairs", type=int, default=5, help="rounds")
    parser.add_argument("--slow-pairs", type=int, default=2, help="rounds of slow peers, and with --prefill")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="of a peer; the fastest counts")
    parser.add_argument("--all-threads", action="store_true", help="try each number of threads in every round")
    parser.add_argument("--window-seconds", type=float, default=8.0, help="about how long a run is measured")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds that one run may take")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs" / "benchmarks")
    options = parser.parse_args(arguments)
    if options.peers is None:
        options.peers = [peer for peer in PEERS if peer != "acme_like" or options.reverb_python]
    if min(options.pairs, options.slow_pairs, *options.threads) < 1 or options.window_seconds <= 0:
        parser.error("--pairs, --slow-pairs and --threads are at least 1, --window-seconds more than 0.")
    if any(stored < LEARNING_STARTS for stored in options.prefill):
        parser.error(f"--prefill is at least {LEARNING_STARTS:,}, as every run of SAC has it; found {options.prefill}.")
    return options


def start_record(path: pathlib.Path, machine: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """A record without cases, or with those that are there."""
    record: dict[str, Any] = {
        "stack": options.stack,
        "machine": machine,
        "threads": options.threads,
        "window_seconds": options.window_seconds,
        "cases": {},
    }
    if options.add and path.exists():
        before = json.loads(path.read_text())
        record["cases"] = before["cases"]
        machine["command"] = f"{before['machine']['command']}; {machine['command']}"
        machine["load_average_before"] = max(machine["load_average_before"], before["machine"]["load_average_before"])
    return record


def main(options: argparse.Namespace) -> int:
    """Measures and writes the report; 1 if a side failed."""
    cases = [Case(name) for name in options.workloads] + [Case("sac", stored) for stored in options.prefill]
    cases = [case for case in cases if peers_of(case, options)]
    if not cases:
        raise SystemExit("None of the peers has one of the workloads, so there is nothing to measure.")
    needed = {peer for case in cases for peer in peers_of(case, options)}
    pythons = {peer: interpreter(peer, options.environments, options.reverb_python) for peer in sorted(needed)}
    pythons |= {"agentkit": options.agentkit_python, "reverb": options.reverb_python}
    machine = describe_machine()
    if machine["load_average_before"] > 0.5:
        print(f"warning: the machine is busy (load {machine['load_average_before']:.2f}); ratios will be off")
    print(f"This takes about {estimate(cases, options) / 60:.0f} minutes.", flush=True)
    stem = options.output / f"compare_{options.stack}"
    record = start_record(stem.with_suffix(".json"), machine, options)
    for case in cases:
        # Ratios are of runs of one round, so rounds of other peers can stand beside those that are there.
        new: dict[str, Any] = {"workload": case.workload, "stored": case.stored, "rounds": []}
        entry = record["cases"].setdefault(case.name, new)
        for found in measure(case, pythons, options):
            entry["rounds"].append(found)
            write_report(options.output, record)  # What there is: a later failure or Ctrl-C loses nothing.
    draw = [sys.executable, str(HERE / "compare_report.py"), str(stem.with_suffix(".json"))]
    if subprocess.run(draw, check=False).returncode:
        print(f"No plot: repeat {shlex.join(draw)} with an interpreter that has matplotlib.", file=sys.stderr)
    print(stem.with_suffix(".md").read_text())
    return int(any(found["failed"] for entry in record["cases"].values() for found in entry["rounds"]))


if __name__ == "__main__":
    raise SystemExit(main(parse()))
