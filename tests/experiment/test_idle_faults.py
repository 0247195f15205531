"""Faults of a program that stands still: nobody acts, or the learner is stopped and the rate limit holds the actors."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

from agentkit import checkpoint
from tests.experiment.launched import ROOT, Launched

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]

ROLES = ("actor-0", "learner-0", "replay-0")
LIMIT_SECONDS = 300.0


class Sleepy(Launched):
    """A program of one actor, whose environment sleeps while there is a file ``asleep``."""

    def __init__(self, out):
        self.out, self.log, self.bed = out, out / "terminal.txt", out / "asleep"
        words = [str(pathlib.Path(__file__).with_name("sleepy_program.py")), str(out / "RUN"), str(self.bed), "1000000"]
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )


def inserted(status):
    return status["values"]["tables"]["transitions"]["num_inserted"]


def updates(status):
    return status["nodes"]["learner-0"]["gauges"].get("updates", 0)


def strike(program, name, number):
    """Sends a signal to a node that has nothing to do; what it cost."""
    before = program.wait_for(lambda s: s["nodes"][name]["state"] == "ready" and s["nodes"][name]["pid"], LIMIT_SECONDS)
    node, start = before["nodes"][name], time.monotonic()
    os.kill(node["pid"], number)
    after = program.wait_for(
        lambda s: s["nodes"][name]["incarnation"] > node["incarnation"] and s["nodes"][name]["state"] == "ready",
        LIMIT_SECONDS,
    )
    row = {
        "role": name,
        "signal": signal.Signals(number).name,
        "seconds_until_ready": round(time.monotonic() - start, 1),
        "items_lost": max(0, inserted(before) - inserted(after)),
        "updates_redone": max(0, updates(before) - updates(after)),
    }
    print(json.dumps(row), flush=True)
    assert after["stop"] is None and after["totals"]["steps"] >= before["totals"]["steps"]
    return row


def stands_still(program, seconds=3.0):
    """Waits until neither a step nor an update happens for some seconds."""
    seen, since = None, time.monotonic()

    def same(status):
        nonlocal seen, since
        now = (status["totals"].get("steps"), updates(status), inserted(status))
        if now != seen:
            seen, since = now, time.monotonic()
        return time.monotonic() - since > seconds

    return program.wait_for(same, LIMIT_SECONDS)


def goes_on(program):
    status = program.status()
    steps, done = status["totals"]["steps"], status["totals"]["updates"]
    start = time.monotonic()
    program.wait_for(lambda s: s["totals"]["steps"] > steps + 50 and s["totals"]["updates"] > done + 2, LIMIT_SECONDS)
    return round(time.monotonic() - start, 1)


def started(program):
    program.wait_for(lambda s: s["totals"].get("updates", 0) > 10, LIMIT_SECONDS)
    program.wait_for(lambda s: checkpoint.steps(program.out / "RUN" / "checkpoints"), LIMIT_SECONDS)


def test_nodes_that_wait_for_an_environment_survive_every_signal(tmp_path):
    with Sleepy(tmp_path) as program:
        started(program)
        program.bed.touch()
        stands_still(program)
        table = [strike(program, name, number) for number in (signal.SIGKILL, signal.SIGTERM) for name in ROLES]
        table += [strike(program, name, signal.SIGSTOP) for name in ROLES]
        program.bed.unlink()
        print("all go on after", goes_on(program), "s")
        program.bed.touch()
        steps = stands_still(program)["totals"]["steps"]
        program.process.send_signal(signal.SIGTERM)
        assert program.end(120.0) == 130, program.output()
        assert checkpoint.steps(program.out / "RUN" / "checkpoints")[-1] >= steps
    kept = [row for row in table if row["role"] != "replay-0" or row["signal"] == "SIGTERM"]
    assert all(row["items_lost"] == 0 for row in kept), table
    assert all(row["updates_redone"] == 0 for row in table if row["role"] != "learner-0"), table


@pytest.mark.full
def test_actors_that_wait_for_a_stopped_learner_survive(tmp_path):
    """SIGSTOP of the learner: the rate limit soon holds the actor, which is then killed; 20 s later all go on."""
    with Sleepy(tmp_path) as program:
        started(program)
        os.kill(program.pid("learner-0"), signal.SIGSTOP)
        program.wait_for(lambda s: s["values"]["tables"]["transitions"]["waiting"] == "writers", LIMIT_SECONDS)
        row = strike(program, "actor-0", signal.SIGKILL)
        assert row["items_lost"] == 0
        program.wait_for(lambda s: s["nodes"]["learner-0"]["incarnation"] == 1, LIMIT_SECONDS)
        assert "no sign of life" in program.status()["nodes"]["learner-0"]["last_error"]
        print("all go on after", goes_on(program), "s")


@pytest.mark.full
def test_a_supervisor_that_was_stopped_for_a_while_goes_on(tmp_path):
    """Longer than its nodes wait for it: they save, leave, and are started again; nothing is lost but time."""
    with Sleepy(tmp_path) as program:
        started(program)
        before = program.status()
        program.process.send_signal(signal.SIGSTOP)
        time.sleep(35.0)
        program.process.send_signal(signal.SIGCONT)
        start = time.monotonic()
        after = program.wait_for(
            lambda s: (
                all(node["state"] == "ready" for node in s["nodes"].values())
                and s["totals"]["steps"] > before["totals"]["steps"] + 100
            ),
            LIMIT_SECONDS,
        )
        print(f"all go on {time.monotonic() - start:.1f} s after a supervisor was continued")
        assert after["stop"] is None and inserted(after) >= inserted(before) and updates(after) >= updates(before)
        goes_on(program)


def test_nobody_outlives_a_supervisor_that_was_stopped_and_killed(tmp_path):
    with Sleepy(tmp_path) as program:
        started(program)
        processes = program.processes()
        program.process.send_signal(signal.SIGSTOP)
        time.sleep(5.0)
        program.process.kill()
        program.process.wait(timeout=10.0)
        deadline = time.monotonic() + 20.0
        while any(process.is_running() and process.status() != "zombie" for process in processes[1:]):
            assert time.monotonic() < deadline
            time.sleep(0.1)
