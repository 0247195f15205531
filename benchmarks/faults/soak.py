"""A soak: a launched run whose processes are killed, told to stop and stopped dead, at random, for minutes on end.

    python benchmarks/faults/soak.py --minutes 20 --out /tmp/soak

Strikes a random node every few seconds (SIGKILL mostly, sometimes SIGTERM, SIGSTOP or SIGHUP) and now and then the
supervisor (SIGKILL, or SIGHUP as a closed terminal sends it), which is then resumed. With ``--disk-megabytes`` the run
folder is on a small disk of its own, which is full for 15 s every minute; that needs root. When the time is up the
program takes its last steps undisturbed, its newest checkpoint is evaluated, and the counters are compared with each
other. Prints one JSON object and ends with 1 if a check failed.
Needs the extra ``gymnasium`` and the package psutil.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import csv
import dataclasses
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
from soak_resources import Resources, SmallDisk, node_pids

from agentkit import checkpoint, experiment
from agentkit.distributed import connect_to_run
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.launching.sharing.transports import parameters_name
from agentkit.variables.shared_memory import shared_memory_path

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLAN = ("dqn", "--env", "gymnasium:CartPole-v1", "--set", "n_step=20", "--set", "discount=0.995")
TABLE, N_STEP = "transitions", 20
FOR_EVER = 10**9
POLL_SECONDS = 0.25
START_SECONDS, STOP_SECONDS = 240.0, 240.0
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP, signal.SIGHUP)
WEIGHTS = (7, 2, 1, 1)
FULL_SECONDS, DISK_SECONDS, RESOURCE_SECONDS = 15.0, 60.0, 5.0


@dataclasses.dataclass
class Record:
    """What was seen so far; ``problems`` is empty if all is well."""

    strikes: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    recoveries: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    max_recovery_seconds: dict[str, float] = dataclasses.field(default_factory=lambda: collections.defaultdict(float))
    max_seconds_without: dict[str, float] = dataclasses.field(default_factory=lambda: {"steps": 0.0, "updates": 0.0})
    lost: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    rolled_back: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    peak_updates_per_second: float = 0.0
    problems: list[str] = dataclasses.field(default_factory=list)


class Run:
    """One run folder, and the supervisors that work in it one after the other."""

    def __init__(self, out: pathlib.Path, arguments: argparse.Namespace, record: Record):
        self.out, self.record = out / "runs", record
        self.out.mkdir()
        self.resources = Resources()
        self.disk = SmallDisk(self.out, arguments.disk_megabytes) if arguments.disk_megabytes else None
        self.run_ids: set[str] = set()
        self.supervisors: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        self._log = open(out / "terminal.txt", "ab")  # noqa: SIM115 (kept open)
        self.new = [
            *PLAN, "--seed", str(arguments.seed), "--steps", str(FOR_EVER), "--out", str(self.out),
            "--actors", str(arguments.actors), "--evaluators", "1", "--max-restarts", str(FOR_EVER),
            "--eval-every", str(arguments.period), "--checkpoint-every", str(arguments.period),
        ]  # fmt: skip

    @property
    def directory(self) -> pathlib.Path:
        return next(path for path in sorted(self.out.iterdir()) if path.is_dir())

    def start(self, steps: int | None = None) -> None:
        words = self.new if not self.supervisors else ["--resume", str(self.directory), "--steps", str(steps)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agentkit.cli", "launch", *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        self.supervisors.append(self.process.pid)

    def status(self) -> dict[str, Any] | None:
        """The run store's; None while there is none."""
        try:
            record = json.loads((self.directory / "board.json").read_text())
            with contextlib.closing(connect_to_run(self.directory, timeout=2.0)) as client:
                self.run_ids.add(record["run_id"])
                return client.status()
        except Exception:  # It is just being started, killed or stopped.
            return None

    def processes(self) -> list[psutil.Process]:
        """Nodes of any supervisor of this run that are alive: each has its supervisor's PID as its last word."""
        ours, found = {str(pid) for pid in self.supervisors}, []
        for process in psutil.process_iter(["cmdline", "status"]):
            words = process.info["cmdline"] or [""]
            if words[-1] in ours and "agentkit.distributed" in " ".join(words):
                found.append(process)
        return [process for process in found if process.info["status"] != psutil.STATUS_ZOMBIE]

    def end(self, seconds: float) -> int | None:
        """The supervisor's exit code; None, and it is killed, if it has not ended by then."""
        assert self.process is not None
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.record.problems.append(f"the supervisor had not ended after {seconds:g} s")
            return None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(timeout=10.0)


class Watch:
    """Follows the counters of one program: what falls that never may, what is lost, and how long things take."""

    def __init__(self, run: Run, record: Record, before: dict[str, int]):
        """``before``: the counters at the end of the program before, to see what its end has cost."""
        self.run, self.record, self.before = run, record, before
        self.totals: dict[str, int] = {}
        self.counters = {"inserted": 0, "sampled": 0, "updates": 0}
        self.pending: dict[str, tuple[int, float, str]] = {}
        self.moved = {name: (0, time.monotonic()) for name in record.max_seconds_without}
        self.last: dict[str, Any] | None = None

    def look(self) -> dict[str, Any] | None:
        status = self.run.status()
        if status is None or "tables" not in status["values"]:
            return None
        self._compare_totals(status["totals"])
        self._compare_counters(status)
        self._note_recoveries(status)
        self.last = status
        return status

    def _compare_totals(self, totals: dict[str, int]) -> None:
        for name, value in self.totals.items():
            if totals.get(name, 0) < value:
                self.record.problems.append(f"total {name} fell from {value} to {totals.get(name, 0)}")
        now = time.monotonic()
        for name, (value, at) in self.moved.items():
            longest = max(self.record.max_seconds_without[name], now - at)
            self.record.max_seconds_without[name] = longest
            if totals.get(name, 0) > value:
                if value and name == "updates":
                    rate = (totals[name] - value) / max(now - at, 0.5)
                    self.record.peak_updates_per_second = max(self.record.peak_updates_per_second, rate)
                self.moved[name] = totals[name], now
        self.totals = totals

    def _compare_counters(self, status: dict[str, Any]) -> None:
        table = status["values"]["tables"][TABLE]
        now = {
            "inserted": table["num_inserted"],
            "sampled": table["num_sampled"],
            "updates": int(status["nodes"]["learner-0"]["gauges"].get("updates", self.counters["updates"])),
        }
        if self.last is None:  # What the end of the last program took back, of all counters together.
            self.record.rolled_back.update({k: max(0, self.before.get(k, 0) - v) for k, v in now.items()})
            steps = status["totals"].get("steps", 0)
            self.record.rolled_back["steps"] += max(0, self.before.get("steps", 0) - steps)
        else:
            self.record.lost.update({name: max(0, self.counters[name] - value) for name, value in now.items()})
        self.counters = now

    def _note_recoveries(self, status: dict[str, Any]) -> None:
        for name, (incarnation, at, kind) in list(self.pending.items()):
            node = status["nodes"].get(name)
            if node is not None and node["incarnation"] > incarnation and node["state"] == "ready":
                self.recovered(kind, time.monotonic() - at)
                del self.pending[name]

    def recovered(self, kind: str, seconds: float) -> None:
        self.record.recoveries[kind] += 1
        self.record.max_recovery_seconds[kind] = max(self.record.max_recovery_seconds[kind], round(seconds, 1))

    def end(self) -> dict[str, int]:
        """The last counters, for the next program's watch."""
        return {**self.counters, "steps": self.totals.get("steps", 0)}

    def wait_until_all_ready(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            status = self.look()
            if status is not None and all(node["state"] == "ready" for node in status["nodes"].values()):
                return True
            assert self.run.process is not None
            if self.run.process.poll() is not None:
                return False
            time.sleep(POLL_SECONDS)
        return False


def strike(run: Run, watch: Watch, chance: random.Random) -> str:
    """Sends a random signal to a random node that lives; says what it did."""
    status = watch.look()
    if status is None:
        return "no board"
    assert run.process is not None
    children = {child.pid for child in psutil.Process(run.process.pid).children()}
    names = sorted(name for name, node in status["nodes"].items() if node["pid"] in children)
    if not names:
        return "no node lives"
    name, (number,) = chance.choice(names), chance.choices(SIGNALS, WEIGHTS)
    node = status["nodes"][name]
    kind = f"{node['role']} {number.name}"
    with contextlib.suppress(ProcessLookupError):
        os.kill(node["pid"], number)
        run.record.strikes[kind] += 1
        watch.pending.setdefault(name, (node["incarnation"], time.monotonic(), kind))
    return f"{number.name} to {name}, which was {node['state']}"


def strike_supervisor(run: Run, watch: Watch, number: signal.Signals) -> Watch:
    """Sends the supervisor a signal, sees that its nodes go with it, and resumes; the new program's watch."""
    if run.disk is not None:
        run.disk.free()  # A program is not resumed on a full disk.
    start = time.monotonic()
    kind = f"supervisor {number.name}"
    if number == signal.SIGHUP:
        run.process.send_signal(number)  # type: ignore[union-attr]
        if (code := run.end(STOP_SECONDS)) != 130:
            run.record.problems.append(f"a program whose terminal was closed ended with {code}")
    run.kill()
    run.record.strikes[kind] += 1
    while run.processes():
        if time.monotonic() - start > 10.0:
            run.record.problems.append(f"nodes outlived their supervisor: {run.processes()}")
            break
        time.sleep(0.1)
    run.start(FOR_EVER)
    watch = Watch(run, run.record, watch.end())
    if watch.wait_until_all_ready(START_SECONDS):
        watch.recovered(kind, time.monotonic() - start)
    else:
        run.record.problems.append(f"not all nodes were ready {START_SECONDS:g} s after the {kind}")
    return watch


def strike_disk(disk: SmallDisk, record: Record) -> tuple[str, float]:
    """Fills the disk, or frees it; returns what it did, and the seconds until its next turn."""
    if disk.is_full:
        disk.free()
        return "the disk has room", DISK_SECONDS - FULL_SECONDS
    disk.fill()
    record.strikes["disk full"] += 1
    return "the disk is full", FULL_SECONDS


def soak(run: Run, arguments: argparse.Namespace) -> Watch:
    """Strikes until the time is up; then lets all recover, stops, and takes the last steps in peace."""
    chance = random.Random(arguments.seed)
    run.start()
    watch = Watch(run, run.record, {})
    if not watch.wait_until_all_ready(START_SECONDS):
        raise SystemExit(f"The program did not start within {START_SECONDS:g} s: see {run.out / 'terminal.txt'}")
    run.record.max_seconds_without.update(steps=0.0, updates=0.0)  # The start itself is not counted.
    start = time.monotonic()
    next_strike, next_supervisor = start + arguments.interval, start + arguments.supervisor_interval
    next_disk, next_look = start + DISK_SECONDS, start
    while (now := time.monotonic()) < start + 60.0 * arguments.minutes and run.process.poll() is None:  # type: ignore[union-attr]
        status = watch.look()
        if status is not None and now >= next_look:
            run.resources.look(node_pids(status, run.process.pid))  # type: ignore[union-attr]
            next_look = now + RESOURCE_SECONDS
        if now >= next_supervisor:
            number = chance.choice((signal.SIGKILL, signal.SIGHUP))
            say(start, f"{number.name} to the supervisor")
            watch = strike_supervisor(run, watch, number)
            next_supervisor = time.monotonic() + arguments.supervisor_interval * chance.uniform(0.5, 1.5)
        elif run.disk is not None and now >= next_disk:
            done, seconds = strike_disk(run.disk, run.record)
            say(start, done)
            next_disk = now + seconds
        elif now >= next_strike:
            say(start, strike(run, watch, chance))
            next_strike = time.monotonic() + arguments.interval * chance.uniform(0.2, 1.8)
        time.sleep(POLL_SECONDS)
    say(start, "no more strikes: stops, and takes the last steps undisturbed")
    if run.disk is not None:
        run.disk.free()
    if not watch.wait_until_all_ready(START_SECONDS):
        run.record.problems.append(f"not all nodes were ready {START_SECONDS:g} s after the last strike")
    run.process.send_signal(signal.SIGTERM)  # type: ignore[union-attr]
    code = run.end(STOP_SECONDS)
    if code != 130:
        run.record.problems.append(f"a program that was told to stop ended with {code}: see {run.out}/terminal.txt")
        run.kill()
    saved = checkpoint.read_latest(run.directory / "checkpoints")
    goal = (0 if saved is None else saved.step) + arguments.last_steps
    run.start(goal)
    watch = Watch(run, run.record, watch.end())
    deadline = time.monotonic() + START_SECONDS + arguments.last_steps / 20.0
    while run.process.poll() is None and time.monotonic() < deadline:  # type: ignore[union-attr]
        watch.look()
        time.sleep(POLL_SECONDS)
    code = run.end(1.0)
    if code != 0:
        run.record.problems.append(f"the last program ended with {code}")
    return watch


def check_counters(run: Run, watch: Watch) -> dict[str, Any]:
    """Compares the last counters with each other, allowing for what each strike may hide between two looks."""
    record, counters = run.record, watch.end()
    plan = experiment.read_config(run.directory)
    table = plan.agent.make_tables(find_spec(plan))[0]
    batch = plan.agent.batch_plan.batch_size
    saved = checkpoint.read_latest(run.directory / "checkpoints")
    if saved is None:
        record.problems.append("there is no checkpoint")
        return {}
    found = {**counters, "checkpoint_step": saved.step, "checkpoint_updates": saved.state["learner"]["num_updates"]}
    if saved.step != saved.state["totals"]["steps"] or saved.step < counters["steps"]:
        record.problems.append(f"the last checkpoint is of step {saved.step}, the store counted {counters['steps']}")
    if found["checkpoint_updates"] < counters["updates"]:
        record.problems.append(f"the last checkpoint has {found['checkpoint_updates']} updates, fewer than were seen")
    limiter = table.rate_limiter
    balance = counters["inserted"] * limiter.samples_per_insert - counters["sampled"]
    room = 40 * plan_actors(run) * limiter.samples_per_insert + 8 * batch  # On their way, and drawn ahead.
    if not limiter.min_difference - room <= balance <= limiter.max_difference + room:
        record.problems.append(f"the rate limit is broken: {balance=}, {limiter=}")
    strikes = sum(record.strikes.values()) + 2
    # A learner that is killed loses what it drew ahead; what happened since the last look is not in any counter.
    hidden = strikes * (8 * batch + 2.0 * record.peak_updates_per_second * batch)
    drawn = counters["sampled"] + record.lost["sampled"]
    used = (counters["updates"] + record.lost["updates"]) * batch
    if abs(drawn - used) > hidden:
        record.problems.append(f"{drawn} items were sampled and {used} learned from: more apart than {hidden:.0f}")
    episodes = sum(len(read_rows(path)) for path in (run.directory / "logs").glob("train*.csv"))
    expected = counters["steps"] + (N_STEP - 1) * episodes
    written = counters["inserted"] + record.lost["inserted"]
    if abs(written - expected) > 0.1 * expected + strikes * 500:
        record.problems.append(f"{written} items for {counters['steps']} steps in {episodes} episodes, not {expected}")
    found |= {"balance": round(balance), "samples_used": used, "samples_drawn": drawn, "items_expected": expected}
    return found


def say(start: float, text: str) -> None:
    print(f"{time.monotonic() - start:7.1f} s  {text}", file=sys.stderr, flush=True)


def plan_actors(run: Run) -> int:
    return int(json.loads((run.directory / "config.json").read_text())["launch"]["num_actors"])


def read_rows(path: pathlib.Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def check_leftovers(run: Run) -> None:
    """Nothing of the run may be left but its own files."""
    problems = run.record.problems
    if left := run.processes():
        problems.append(f"processes are left: {[process.pid for process in left]}")
    for run_id in run.run_ids:
        path = shared_memory_path(parameters_name(run_id, "learner-0"))
        problems += [f"shared memory is left: {found}" for found in path.parent.glob(f"{path.name}*")]
    known = {"config.json", "logs", "nodes", "checkpoints", "replay_handover", "best", "lock"}
    problems += [f"left in the run folder: {p.name}" for p in run.directory.iterdir() if p.name not in known]
    for folder in ("checkpoints", "replay_handover", "logs"):
        leftovers = (run.directory / folder).glob(".*") if (run.directory / folder).is_dir() else ()
        problems += [f"left in {folder}: {path.name}" for path in leftovers]
    steps = [float(row["steps"]) for row in read_rows(run.directory / "logs" / "evaluation.csv")]
    if steps != sorted(steps):
        problems.append(f"evaluation.csv goes back in steps: {steps}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True, help="a new folder")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--interval", type=float, default=5.0, help="mean seconds between strikes")
    parser.add_argument("--supervisor-interval", type=float, default=240.0, help="the same for the supervisor")
    parser.add_argument("--disk-megabytes", type=int, default=0, help="of the run folder's own disk; 0 for none")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--period", type=int, default=5_000, help="steps between checkpoints, and evaluations")
    parser.add_argument("--last-steps", type=int, default=30_000, help="taken undisturbed in the end")
    parser.add_argument(
        "--expected",
        type=float,
        default=380.0,
        help="least mean of all evaluations: what three runs without faults had",
    )
    parser.add_argument("--longest", type=float, default=180.0, help="most seconds without a step, or an update")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True)
    record = Record()
    run = Run(arguments.out, arguments, record)
    try:
        watch = soak(run, arguments)
    finally:
        run.kill()
    counters = check_counters(run, watch)
    check_leftovers(run)
    resources = run.resources.summary()
    final = experiment.evaluate(run.directory, num_episodes=20)
    mean = sum(final["episode_return"]) / len(final["episode_return"])
    # Not the last one's: without a fault, too, this DQN falls and comes back once replay has lost its first episodes.
    evaluations = [float(row["episode_return"]) for row in read_rows(run.directory / "logs" / "evaluation.csv")]
    evaluated = sum(evaluations) / max(len(evaluations), 1)
    if evaluated < arguments.expected:
        record.problems.append(f"evaluations returned {evaluated:.1f} in mean, expected {arguments.expected:g}")
    for name, seconds in record.max_seconds_without.items():
        record.max_seconds_without[name] = round(seconds, 1)
        if seconds > arguments.longest:
            record.problems.append(f"{seconds:.0f} s went by without {name}")
    table = vars(record) | {"minutes": arguments.minutes, "counters": counters, "final_return": mean}
    table["evaluations"] = {"number": len(evaluations), "mean": round(evaluated, 1)}
    table["resources"] = resources
    if run.disk is not None:
        run.disk.unmount(arguments.out)
    print(json.dumps(table, indent=1))
    return 1 if record.problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
