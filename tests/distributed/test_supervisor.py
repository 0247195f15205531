"""The supervisor on real processes: restarts, hangs, first errors, orders, orphans."""

import contextlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from agentkit.distributed import (
    Node,
    Program,
    ProgramError,
    RestartPolicy,
    Role,
    RunStore,
    Supervisor,
    connect_to_run,
)
from agentkit.distributed.processes import ProcessEngine
from agentkit.distributed.threads import ThreadEngine
from agentkit.distributed.worker import EXIT_ERROR, EXIT_SIGNALLED, RunAddress, run_node
from agentkit.errors import ConfigError
from tests.processes import is_alive

pytestmark = pytest.mark.both_stacks

QUICK = RestartPolicy(max_restarts=5, first_delay_seconds=0.05, max_delay_seconds=0.2)


def run(program, directory=None, *, engine=None, seconds=60.0, watch=None):
    """Runs a program with a deadline; `watch` is called with the supervisor and each status."""
    deadline = time.monotonic() + seconds
    with Supervisor(program, engine or ProcessEngine(), run_directory=directory) as supervisor:

        def on_tick(status):
            assert time.monotonic() < deadline, json.dumps(status, indent=1)
            if watch is not None:
                watch(supervisor, status)

        reason = supervisor.run(on_tick, tick_seconds=0.05)
        return reason, supervisor.store.status()


def one_role(target, *args, **role):
    program = Program("test")
    program.add_role(Role("node", **{"restart": QUICK, **role}))
    program.add_node("node", target, *args)
    return program


def serve(context, value):
    context.ready({"value": value, "pid": os.getpid()})
    while not context.wait(0.05):
        context.heartbeat(rounds=1)


def use(context, server):
    context.ready()
    context.heartbeat(value=server["value"])
    context.store.put("pids", [server["pid"], os.getpid()])
    context.request_stop("seen")
    while not context.wait(0.05):
        pass


@pytest.mark.parametrize("engine", [ProcessEngine, ThreadEngine])
def test_a_handle_becomes_what_the_node_gave_to_ready(engine):
    program = Program("test")
    program.add_role(Role("server", stop_order=1))
    program.add_role(Role("user"))
    handle = program.add_node("server", serve, 42)
    program.add_node("user", use, server=handle)
    reason, status = run(program, engine=engine())
    assert reason == "seen" and status["totals"]["value"] == 42
    pids = set(status["values"]["pids"])
    assert len(pids | {os.getpid()}) == (3 if engine is ProcessEngine else 1)
    assert {node["state"] for node in status["nodes"].values()} == {"done"}


def crash_twice(context):
    context.ready()
    context.heartbeat(lives=1)
    context.sync()
    if context.incarnation < 2:
        raise RuntimeError(f"crash number {context.incarnation}")


def test_a_node_that_crashes_is_started_again_and_its_counts_add_up(tmp_path):
    reason, status = run(one_role(crash_twice), tmp_path)
    node = status["nodes"]["node-0"]
    assert reason == "done" and node["restarts"] == 2 and node["incarnation"] == 2
    assert status["totals"] == {"lives": 3}
    assert "crash number 1" in node["last_error"]
    assert "crash number 0" in (tmp_path / "nodes" / "node-0.log").read_text()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("is_read", [False, True])
def test_a_pipe_in_the_place_of_a_log_is_not_waited_for(is_read, tmp_path):
    log = tmp_path / "nodes" / "node-0.log"
    log.parent.mkdir()
    os.mkfifo(log)
    with contextlib.ExitStack() as stack:
        if is_read:
            stack.callback(os.close, os.open(log, os.O_RDONLY | os.O_NONBLOCK))
        with pytest.raises(ProgramError, match=rf"node-0 could not be started: .*{log}"):
            run(one_role(crash_twice), tmp_path)


def crash(context):
    context.ready()
    raise RuntimeError("the same again")


def test_too_many_restarts_stop_the_program_with_the_error_and_the_log(tmp_path):
    with pytest.raises(ProgramError) as caught:
        run(one_role(crash, restart=RestartPolicy(2, 60.0, 0.01, 0.01)), tmp_path)
    text = str(caught.value)
    assert "node-0 raised RuntimeError: the same again" in text and "2 restarts in 60 s did not help" in text
    assert str(tmp_path / "nodes" / "node-0.log") in text and "Traceback" in text
    assert json.loads((tmp_path / "nodes" / "node-0.error.json").read_text())["type"] == "RuntimeError"


def refuse(context):
    context.ready()
    raise ConfigError("The bolt is too long. Take a shorter one.")


def test_an_error_that_says_all_is_told_without_its_traceback_which_is_in_the_log(tmp_path):
    with pytest.raises(ProgramError) as caught:
        run(one_role(refuse), tmp_path)
    log = tmp_path / "nodes" / "node-0.log"
    assert str(caught.value) == (
        f"node-0 raised ConfigError: The bolt is too long. Take a shorter one. (its log: {log})"
    )
    assert "Traceback" in log.read_text()


def no_work(context):
    context.ready()


def test_a_system_that_is_short_of_descriptors_for_a_while_ends_nothing():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    program = one_role(no_work, restart=RestartPolicy(2, 60.0, 0.6, 0.6))
    with Supervisor(program, ProcessEngine()) as supervisor:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        threading.Timer(0.3, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard))).start()
        assert supervisor.run() == "done"
        (node,) = supervisor.store.status()["nodes"].values()
    assert node["restarts"] == 1 and "could not be started: Too many open files" in node["last_error"]


def live_a_while(context):
    context.ready()
    context.wait(0.6)
    if context.incarnation < 3:
        raise RuntimeError("once in a while")


def test_restarts_long_ago_do_not_count(tmp_path):
    """A node that works for longer than the window before it crashes, more often than a window allows."""
    policy = RestartPolicy(max_restarts=1, window_seconds=0.3, first_delay_seconds=0.01)
    _, status = run(one_role(live_a_while, restart=policy), tmp_path, engine=ThreadEngine())
    assert status["nodes"]["node-0"]["restarts"] == 3 and status["nodes"]["node-0"]["state"] == "done"


def ready_but_once(context):
    if context.incarnation != 1:
        context.ready()
    if context.incarnation == 0:
        raise RuntimeError("was ready")
    while context.incarnation == 1 and not context.wait(0.05):
        pass


def test_a_node_is_not_ready_because_the_one_before_it_was():
    """What an incarnation published says nothing about the next one, which here never gets so far."""
    program = one_role(ready_but_once, start_seconds=1.0)
    _, status = run(program, engine=ThreadEngine(), seconds=20.0)
    node = status["nodes"]["node-0"]
    assert node["restarts"] == 2 and "was not ready within 1 s" in node["last_error"]


def wrong(context):
    raise ConfigError("learning_rate must be positive, found -1.")


def wait_for_stop(context):
    context.ready()
    while not context.wait(0.05):
        pass
    context.store.put(f"stopped/{context.name}", time.time())


def test_a_fault_that_no_restart_mends_stops_all_at_once_with_the_first_error(tmp_path):
    program = Program("test")
    program.add_role(Role("good"))
    program.add_role(Role("bad", restart=QUICK))
    program.add_node("good", wait_for_stop)
    program.add_node("bad", wrong)
    start = time.monotonic()
    with pytest.raises(ProgramError, match="bad-0 raised ConfigError: learning_rate must be positive"):
        run(program, tmp_path)
    assert time.monotonic() - start < 20.0


def die(context):
    context.ready()
    context.heartbeat(lives=1)
    context.sync()
    if context.incarnation < 3:
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.full
def test_kill_9_is_survived():
    _, status = run(one_role(die))
    node = status["nodes"]["node-0"]
    assert node["restarts"] == 3 and status["totals"] == {"lives": 4}
    assert node["last_error"] == "node-0 was killed by SIGKILL"


def stop_self(context):
    context.ready()
    if context.incarnation == 0:
        os.kill(os.getpid(), signal.SIGSTOP)


def hang(context):
    context.ready()
    if context.incarnation == 0:
        time.sleep(3600)  # Its heartbeat thread goes on: only the main loop hangs.


def never_ready(context):
    if context.incarnation == 0:
        time.sleep(3600)
    context.ready()


@pytest.mark.parametrize(
    ("target", "role", "why"),
    [
        (stop_self, {"heartbeat_seconds": 2.0}, "gave no sign of life"),
        (hang, {"idle_seconds": 2.0}, "made no progress"),
        (never_ready, {"start_seconds": 3.0}, "was not ready within 3 s"),
    ],
)
def test_a_node_that_hangs_is_killed_and_started_again(target, role, why):
    _, status = run(one_role(target, **role))
    node = status["nodes"]["node-0"]  # On a busy machine the next one may be late, too, and meet the same.
    assert node["restarts"] >= 1 and why in node["last_error"] and node["state"] == "done"


@pytest.mark.full
def test_roles_stop_in_their_order():
    program = Program("test")
    for name, order in (("first", 0), ("second", 1), ("third", 2)):
        program.add_role(Role(name, stop_order=order))
    for role in ("third", "second", "first", "first"):
        program.add_node(role, wait_for_stop)

    def watch(supervisor, status):
        if all(node["state"] == "ready" for node in status["nodes"].values()):
            supervisor.store.stop("enough")

    reason, status = run(program, watch=watch)
    times = [status["values"][f"stopped/{name}"] for name in ("first-0", "first-1", "second-0", "third-0")]
    assert reason == "enough" and max(times[:2]) < times[2] < times[3]


def judge(context, server, dies):
    """Takes a while to be ready, and has something to say at the end if what it depends on is still there."""
    context.store.get("looking", timeout=60.0)
    if dies and context.incarnation == 0:
        os._exit(1)
    time.sleep(1.5)
    served = "stopped/server-0" not in context.store.status()["values"]
    context.ready()
    while not context.wait(0.05):
        pass
    context.store.put("judged", served)


def reach_goal(context, waits):
    context.store.put("looking", True)  # However late it came, it sees the judge start, or die and wait.
    while context.store.status()["nodes"]["judge-0"]["state"] != waits:
        time.sleep(0.02)
    context.ready()
    context.request_stop("reached")
    while not context.wait(0.05):
        pass


@pytest.mark.parametrize(("state", "hurry"), [("starting", False), ("restarting", False), ("starting", True)])
def test_who_has_work_at_the_end_is_waited_for_unless_somebody_is_in_a_hurry(state, hurry):
    program = Program("test")
    program.add_role(Role("goal"))
    program.add_role(Role("server", stop_order=1))
    slow = RestartPolicy(max_restarts=5, first_delay_seconds=2.0, max_delay_seconds=2.0)
    program.add_role(Role("judge", stop_order=2, finishes=True, restart=slow))
    server = program.add_node("server", wait_for_stop)
    program.add_node("judge", judge, server, state == "restarting")
    program.add_node("goal", reach_goal, state)

    def watch(supervisor, status):
        if hurry and status["stop"] is not None:
            supervisor.store.commands.put(("stop", {"reason": "stopped by SIGINT"}))

    reason, status = run(program, watch=watch)
    assert reason == "reached" and status["values"].get("judged") == (None if hurry else True)
    assert {node["state"] for node in status["nodes"].values()} == {"done"}


def never_ready(context):
    context.store.put("waits", True)
    while not context.wait(0.05):
        pass


@pytest.mark.parametrize("engine", [ProcessEngine, ThreadEngine])
def test_who_waits_for_a_node_stops_as_soon_as_it_is_told(engine):
    program = Program("test")
    program.add_role(Role("server", stop_order=1))
    program.add_role(Role("user"))
    program.add_node("user", use, server=program.add_node("server", never_ready))
    told = []

    def watch(supervisor, status):
        if "waits" in status["values"] and not told:
            time.sleep(1.0)  # The user asks for the server's endpoint by now.
            supervisor.store.stop("enough")
            told.append(time.monotonic())

    reason, status = run(program, engine=engine(), watch=watch)
    assert reason == "enough" and time.monotonic() - told[0] < 10.0  # It may take 20 s.
    assert {node["state"] for node in status["nodes"].values()} == {"done"}, status
    assert not {"user-0", "server-0"} & {thread.name for thread in threading.enumerate() if thread.is_alive()}


def never_stop(context):
    context.ready()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(0.05)
        context.heartbeat()


def test_a_node_that_does_not_stop_is_killed():
    def watch(supervisor, status):
        if status["nodes"]["node-0"]["state"] == "ready":
            supervisor.store.stop("enough")

    start = time.monotonic()
    reason, status = run(one_role(never_stop, stop_seconds=1.0), watch=watch)
    assert reason == "enough" and "did not stop within 1 s" in status["nodes"]["node-0"]["last_error"]
    assert time.monotonic() - start < 20.0


def test_a_role_grows_and_shrinks_while_the_program_runs(tmp_path):
    seen = []

    def watch(supervisor, status):
        ready = sorted(name for name, node in status["nodes"].items() if node["state"] == "ready")
        if not seen and ready == ["node-0"]:
            seen.append("one")
            with contextlib.closing(connect_to_run(tmp_path)) as client:  # as `agentkit scale` does
                client.command("scale", role="node", count=3)
        elif seen == ["one"] and len(ready) == 3:
            seen.append("three")
            supervisor.scale("node", 1)
        elif seen == ["one", "three"] and list(status["nodes"]) == ["node-0"]:
            supervisor.store.stop("enough")

    reason, _ = run(one_role(wait_for_stop), tmp_path, watch=watch)
    assert reason == "enough" and seen == ["one", "three"]


SCRIPT = """
import pathlib, sys, os
from agentkit.distributed import Program, Role, Supervisor
from agentkit.distributed.processes import ProcessEngine

def node(context):
    context.ready()
    (context.run_directory / f"pid-{context.name}").write_text(str(os.getpid()))
    while not context.wait(0.05):
        pass
    (context.run_directory / f"saved-{context.name}").write_text("saved")

if __name__ == "__main__":
    program = Program("script")
    program.add_role(Role("node", heartbeat_seconds=4.0))
    for _ in range(2):
        program.add_node("node", node)
    with Supervisor(program, ProcessEngine(), run_directory=pathlib.Path(sys.argv[1])) as supervisor:
        print("reason:", supervisor.run())
"""


def start_script(directory):
    path = directory / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    root = str(pathlib.Path(__file__).resolve().parents[2])
    process = subprocess.Popen(
        [sys.executable, str(path), str(directory)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    files = [directory / f"pid-node-{i}" for i in range(2)]
    wait_until(lambda: all(file.exists() and file.read_text() for file in files))
    return process, [int(file.read_text()) for file in files]


def wait_until(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_signal_to_the_supervisor_stops_and_saves(tmp_path, number):
    process, pids = start_script(tmp_path)
    start = time.monotonic()
    process.send_signal(number)
    output, _ = process.communicate(timeout=20.0)
    assert time.monotonic() - start < 5.0
    assert f"stopped by {number.name}" in output and process.returncode == 0
    assert (tmp_path / "saved-node-0").exists() and (tmp_path / "saved-node-1").exists()
    assert not any(map(is_alive, pids)) and not (tmp_path / "board.json").exists()


def test_orphans_do_not_survive_a_supervisor_that_was_killed(tmp_path):
    process, pids = start_script(tmp_path)
    os.kill(pids[1], signal.SIGSTOP)  # Not even one that is stopped.
    process.kill()
    process.communicate(timeout=10.0)
    wait_until(lambda: not any(map(is_alive, pids)), 10.0)
    assert not (tmp_path / "saved-node-1").exists()


@pytest.mark.full
def test_a_supervisor_that_was_stopped_itself_takes_nobody_for_dead(tmp_path):
    """Longer than the heartbeat's limit: it heard of nobody, since it did not listen."""
    process, pids = start_script(tmp_path)
    process.send_signal(signal.SIGSTOP)
    time.sleep(9.0)
    process.send_signal(signal.SIGCONT)
    time.sleep(3.0)
    assert all(map(is_alive, pids))
    with contextlib.closing(connect_to_run(tmp_path)) as client:
        assert [node["restarts"] for node in client.status()["nodes"].values()] == [0, 0]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20.0)
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("before", "code", "state"),
    [
        ("ready", EXIT_SIGNALLED, "done"),
        ("ready", EXIT_ERROR, "failed"),
        ("ready", -signal.SIGTERM, "failed"),
        ("starting", -signal.SIGTERM, "done"),
    ],
)
def test_who_was_signalled_with_the_whole_program_has_saved_before_the_supervisor_has_asked(before, code, state):
    """A reboot, systemd and scancel send it to all processes at once; who is starting has no handler for it yet."""
    with Supervisor(one_role(wait_for_stop), ThreadEngine()) as supervisor:
        node = supervisor._nodes["node-0"]
        supervisor._stopping, node.state = True, before
        supervisor._ended(node, code)
        assert node.state == state


@pytest.mark.parametrize("says_why", [False, True])
def test_who_leaves_since_the_run_store_was_away_has_saved(says_why):
    """It ends with the exit code of an error, and without an error."""
    with Supervisor(one_role(wait_for_stop), ThreadEngine()) as supervisor:
        node = supervisor._nodes["node-0"]
        if says_why:
            error = {
                "incarnation": node.incarnation,
                "type": "ValueError",
                "message": "no",
                "traceback": "",
                "fatal": False,
            }
            supervisor.store.put("error/node-0", error)
        node.state, node.unsaved = "ready", True
        supervisor._ended(node, EXIT_ERROR)
        assert (node.state, node.unsaved) == ("restarting", says_why)


def leave_when_told(context):
    context.wait(60.0)


def test_a_node_whose_board_is_silent_ends_with_a_code_that_asks_for_a_restart(monkeypatch):
    """Its program may still be there: a network was cut, or the supervisor was stopped for a while."""
    monkeypatch.setattr("agentkit.distributed.context.LOST_SECONDS", 0.5)
    node = Node("node-0", "node", 0, leave_when_told)
    codes = []
    with RunStore("01234567" * 4) as store:
        run_address = RunAddress(store.address, "01234567" * 4)
        thread = threading.Thread(target=lambda: codes.append(run_node(node, run_address)), daemon=True)
        thread.start()
        wait_until(lambda: store.last_heartbeat("node-0") is not None)
    thread.join(timeout=60.0)
    assert codes == [EXIT_ERROR]


def test_the_board_file_is_for_its_owner_alone(tmp_path):
    with Supervisor(one_role(wait_for_stop), ProcessEngine(), run_directory=tmp_path):
        assert (tmp_path / "board.json").stat().st_mode & 0o777 == 0o600
    with pytest.raises(ConfigError, match="No launched program runs in"):
        connect_to_run(tmp_path)


def test_what_cannot_be_sent_to_a_process_is_an_error_that_names_the_node():
    with pytest.raises(ProgramError, match="node-0 could not be started: TypeError"):
        run(one_role(serve, threading.Lock()))
