"""What is taken for dead and what is not, what ends with a node, and when restarting it is given up."""

import ctypes
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from agentkit.distributed import Node, Program, ProgramError, RestartPolicy, Role, Supervisor
from agentkit.distributed.processes import ProcessEngine, RunningProcess
from agentkit.distributed.restarts import Restarts, TooManyRestartsError
from agentkit.distributed.worker import RunAddress
from tests.processes import is_alive

pytestmark = pytest.mark.both_stacks

QUICK = RestartPolicy(max_restarts=5, first_delay_seconds=0.05, max_delay_seconds=0.2)


def run(target, *args, watch=None, seconds=60.0, directory=None, **role):
    """The status at the end of a program of one node."""
    program = Program("test")
    program.add_role(Role("node", **{"restart": QUICK, **role}))
    program.add_node("node", target, *args)
    deadline = time.monotonic() + seconds
    with Supervisor(program, ProcessEngine(), run_directory=directory) as supervisor:

        def on_tick(status):
            assert time.monotonic() < deadline, status
            if watch is not None:
                watch(supervisor, status)

        supervisor.run(on_tick, tick_seconds=0.05)
        return supervisor.store.status()


def hold_and_work(seconds):
    """Works in C for about so long, and lets no other thread of Python's run."""
    start = time.perf_counter()
    sum(itertools.repeat(0, 10**7))
    sum(itertools.repeat(0, int(10**7 * seconds / (time.perf_counter() - start))))


def hold_once(context, seconds):
    context.ready()
    if context.incarnation == 0:
        hold_and_work(seconds)


@pytest.mark.full
def test_a_node_whose_interpreter_is_held_is_alive_as_long_as_it_works():
    status = run(hold_once, 5.0, heartbeat_seconds=1.5)
    assert status["nodes"]["node-0"]["restarts"] == 0


@pytest.mark.full
def test_one_whose_interpreter_is_held_for_too_long_is_not():
    status = run(hold_once, 600.0, heartbeat_seconds=1.5, held_seconds=3.0)
    node = status["nodes"]["node-0"]
    assert node["restarts"] == 1 and "was not heard for" in node["last_error"] and "holds Python" in node["last_error"]


def stop_while_held(context):
    context.ready()
    if context.incarnation == 0:
        stop = f"import os, time; time.sleep(2); os.kill({os.getpid()}, {int(signal.SIGSTOP)})"
        subprocess.Popen([sys.executable, "-c", stop])
        hold_and_work(600.0)


@pytest.mark.full
def test_one_that_is_stopped_while_its_interpreter_is_held_is_found_at_the_short_limit():
    start = time.monotonic()
    status = run(stop_while_held, heartbeat_seconds=2.0)
    assert "gave no sign of life" in status["nodes"]["node-0"]["last_error"]
    assert time.monotonic() - start < 30.0


def announce(context, announced, seconds):
    """A call that holds the interpreter and uses no processor time to speak of, before the node is ready."""
    if context.incarnation == 0:
        context.sync()
        with context.busy("restoring replay", announced):
            ctypes.PyDLL(None).sleep(seconds)
    context.ready()


def test_a_call_that_was_announced_has_its_time_and_is_shown():
    seen = set()

    def watch(supervisor, status):
        seen.add((status["values"].get("busy/node-0") or {}).get("what"))

    # On a busy machine a process has begun after seconds; the call takes longer than it may take to be ready.
    status = run(announce, 60.0, 10, watch=watch, heartbeat_seconds=1.0, start_seconds=8.0)
    assert status["nodes"]["node-0"]["restarts"] == 0 and seen == {None, "restoring replay"}
    assert "busy/node-0" not in status["values"]


def test_one_that_takes_longer_than_was_announced_has_not():
    status = run(announce, 1.0, 600, heartbeat_seconds=1.0)
    assert "gave no sign of life" in status["nodes"]["node-0"]["last_error"]


def save_slowly(context):
    context.ready()
    while not context.wait(0.05):
        pass
    with context.busy("saving", 60.0):
        time.sleep(2.5)
    context.store.put("saved", True)


def test_a_stop_waits_for_a_call_that_was_announced():
    def watch(supervisor, status):
        if status["nodes"]["node-0"]["state"] == "ready":
            supervisor.store.stop("enough")

    status = run(save_slowly, watch=watch, stop_seconds=0.5)
    assert status["values"]["saved"] and status["nodes"]["node-0"]["state"] == "done"


# --- what a node has started -------------------------------------------------------------------------

CHILD = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(600)"


def start_child(folder):
    """A simulator, say: a process that nobody has told to end. Its pid is in a file of the folder."""
    sign = folder / f"up-{os.getpid()}"
    child = subprocess.Popen([sys.executable, "-S", "-c", CHILD, str(sign)])
    while not sign.exists():
        time.sleep(0.01)
    (folder / f"child-{os.getpid()}").write_text(str(child.pid))


def die_with_a_child(context):
    start_child(context.run_directory)
    context.ready()
    if context.incarnation == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def children(folder):
    return [int(text) for path in folder.glob("child-*") if (text := path.read_text())]


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_node_has_started_ends_with_it(tmp_path):
    """Whether it was killed (the first one) or returned (the second)."""
    status = run(die_with_a_child, directory=tmp_path)
    assert status["nodes"]["node-0"]["restarts"] == 1 and len(children(tmp_path)) == 2
    wait_until(lambda: not any(map(is_alive, children(tmp_path))), 5.0)


SCRIPT = """
import pathlib, sys
from agentkit.distributed import Program, Role, Supervisor
from agentkit.distributed.processes import ProcessEngine
from tests.distributed.test_liveness import start_child

def node(context):
    start_child(context.run_directory)
    context.wait(600.0)

if __name__ == "__main__":
    program = Program("script", [Role("node")])
    program.add_node("node", node)
    with Supervisor(program, ProcessEngine(), run_directory=pathlib.Path(sys.argv[1])) as supervisor:
        supervisor.run()
"""


def test_what_a_node_has_started_ends_with_a_supervisor_that_was_killed(tmp_path):
    root = str(pathlib.Path(__file__).resolve().parents[2])
    (tmp_path / "script.py").write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(tmp_path / "script.py"), str(tmp_path)], env={**os.environ, "PYTHONPATH": root}
    )
    try:
        wait_until(lambda: children(tmp_path))
    finally:
        process.kill()
        process.wait(timeout=10.0)
    wait_until(lambda: not any(map(is_alive, children(tmp_path))), 10.0)


def test_a_child_that_does_not_read_holds_up_nobody(tmp_path, monkeypatch):
    """Its arguments are larger than a pipe's buffer; the child sleeps instead of asking for them."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\ncase "$*" in *worker*) exec sleep 600;; esac\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    engine = ProcessEngine()
    node = Node("node-0", "node", 0, start_child, (bytes(1 << 20),))
    start = time.monotonic()
    running = engine.start(node, Role("node"), RunAddress("127.0.0.1:1", "0" * 32))
    assert time.monotonic() - start < 10.0 and running.poll() is None
    running.kill()
    engine.close()


class Sleepers:
    """An engine whose nodes sleep, each in a process that the system takes long to end."""

    store_host = "127.0.0.1"

    def __init__(self):
        self.processes = []

    def start(self, node, role, run_address):
        self.processes.append(subprocess.Popen(["sleep", "600"], start_new_session=True))
        return RunningProcess(self.processes[-1], SimpleNamespace(add=int, discard=int))

    def close(self):
        pass


def test_a_node_that_takes_long_to_die_takes_nobody_with_it(monkeypatch):
    def wait(timeout):
        raise subprocess.TimeoutExpired("sleep", timeout)

    program, engine = Program("test", [Role("node")]), Sleepers()
    for _ in range(2):
        program.add_node("node", print)
    with Supervisor(program, engine) as supervisor:
        supervisor._poll()
        with monkeypatch.context() as patch:
            for process in engine.processes:
                patch.setattr(process, "wait", wait)
            supervisor._lost(supervisor._nodes["node-0"], "was silent")
            assert supervisor._nodes["node-0"].state == "restarting"
            supervisor.kill_all()
    assert [process.wait(10.0) for process in engine.processes] == [-signal.SIGKILL] * 2


# --- restarts ------------------------------------------------------------------------------------------


def never_get_ready(context):
    raise RuntimeError("no licence")


def test_restarts_that_bring_no_progress_end_the_program_however_far_apart_they_are():
    policy = RestartPolicy(1_000, 1e-6, 0.01, 0.01, max_in_vain=2)
    with pytest.raises(ProgramError, match="RuntimeError: no licence; 2 restarts in a row brought no progress"):
        run(never_get_ready, restart=policy)


def test_progress_and_kills_by_others_are_no_restarts_in_vain():
    restarts = Restarts(RestartPolicy(1_000, 1.0, 1.0, 1.0, max_in_vain=2))
    times = itertools.count(0.0, 100.0)
    for progress, from_outside in [(False, False), (False, True), (False, False), (True, False)] * 3:
        assert restarts.add(now := next(times), progress=progress, from_outside=from_outside) == now + 1.0
    assert restarts.number == 12
    restarts.add(next(times), progress=False, from_outside=False)
    restarts.add(next(times), progress=False, from_outside=False)
    with pytest.raises(TooManyRestartsError, match="2 restarts in a row"):
        restarts.add(next(times), progress=False, from_outside=False)


def fail_the_same_way(context):
    """Ready each time, and then nothing more: what it counts does not grow."""
    context.heartbeat(steps=0 if context.incarnation else 5)
    context.ready()
    raise RuntimeError("no step")


def test_a_node_that_is_ready_and_counts_nothing_more_makes_no_progress():
    policy = RestartPolicy(1_000, 1e-6, 0.01, 0.01, max_in_vain=1)
    with pytest.raises(ProgramError, match="no step; 1 restarts in a row brought no progress"):
        run(fail_the_same_way, restart=policy)
