"""The scripts of launch/, run for real with a tiny environment: replay servers, processes, kills."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentkit.loggers import read_csv
from tests.experiment.launched import REPLAY

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]

ROOT = Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "launch"
DQN = ["dqn", "--env", "agentkit:catch", "--set", "hidden_sizes=16", "--set", "min_replay_size=32"]
DQN += ["--set", "batch_size=8", "--eval-episodes", "2", "--replay", REPLAY]


@pytest.fixture(name="environment")
def _environment(tmp_path):
    """Variables with which `agentkit` is a command, also where the package is not installed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    console = folder / "agentkit"
    console.write_text(
        f'#!/bin/sh\nexec {sys.executable} -c "import sys; from agentkit.cli import main; sys.exit(main())" "$@"\n'
    )
    console.chmod(0o755)
    return os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "JAX_PLATFORMS": "cpu",
        "NPROC": "1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }


class Started:
    """Processes with their output in files; all are killed at the end, with what they started."""

    def __init__(self, tmp_path, environment):
        self.folder, self.environment, self.processes = tmp_path, environment, {}

    def __call__(self, name, *words, **variables):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in words],
                cwd=self.folder,
                env=self.environment | variables,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        return self.processes[name]

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def wait(self, name, seconds=300):
        try:
            return self.processes[name].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{name} did not end: {self.log(name)[-3000:]}") from None


@pytest.fixture(name="run")
def _run(tmp_path, environment):
    started = Started(tmp_path, environment)
    yield started
    for process in started.processes.values():
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def until(condition, seconds=300, what=""):
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def node_pids(session, words):
    """The processes of a session (here: of one script) whose command line has these words in order."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if os.getsid(int(folder.name)) == session and words in line and "bash" not in line:
                found.append(int(folder.name))
        except (OSError, ProcessLookupError):
            continue
    return found


def test_actors_by_hand(run, tmp_path):
    """A host, a learner, and actors in the shell loop; one is killed, and comes back."""
    port = free_port()
    run("host", "agentkit", "node", "replay", *DQN, "--steps", "12_000", "--run", "RUN", "--board-port", port)
    until((tmp_path / "RUN" / "board.json").exists, what="no board")
    until(lambda: "RUN/run_id" in run.log("host"), what="it does not say how to join")
    secret = (tmp_path / "RUN" / "run_id").read_text().strip()
    run("scale", "agentkit", "scale", "RUN", "--actors", "5")
    assert run.wait("scale") == 2 and "agentkit node actor" in run.log("scale")
    assert secret not in run.log("host")
    assert (tmp_path / "RUN" / "run_id").stat().st_mode & 0o077 == 0
    run("learner", "agentkit", "node", "learner", "--run-id-file", "RUN/board.json")
    run("evaluator", "agentkit", "node", "evaluator", "--run-id-file", "RUN/board.json", "--index", "7")
    # Where there is no board of that run, an actor is tried again; here it is there from the start.
    actors = run("actors", LAUNCH / "actors_by_hand.sh", f"127.0.0.1:{port}", "RUN/run_id", "0", "2")
    first = until(lambda: node_pids(actors.pid, "node actor"), what="no actors")
    until(lambda: len(node_pids(actors.pid, "node actor")) == 2, what="not both actors")
    log = tmp_path / "RUN" / "logs" / "train.csv"
    until(lambda: log.exists() and log.stat().st_size > 200, what=run.log("actors"))
    os.kill(first[0], signal.SIGKILL)
    for name in ("host", "learner", "actors", "evaluator"):
        assert run.wait(name) == 0, run.log(name)
    evaluations = read_csv(tmp_path / "RUN" / "logs" / "evaluation-7.csv")[1]
    assert int(float(evaluations[-1]["steps"])) >= 12_000
    assert re.search(r"exit code 137, starts again in 1 s", run.log("actors"))
    assert "reached 12,000 steps" in run.log("host")
    assert list((tmp_path / "RUN" / "checkpoints").glob("step_*"))
    assert not (tmp_path / "RUN" / "board.json").exists()
    assert secret not in run.log("host") + run.log("learner") + run.log("actors")
    columns, rows = read_csv(tmp_path / "RUN" / "logs" / "program.csv")
    assert int(rows[-1]["steps"]) >= 12_000 and any(row["actor_running"] == "2" for row in rows), rows
    assert {"evaluator_running", "learner_waiting", "transitions_size"} <= set(columns)


def test_actors_by_hand_end_with_their_loop_and_give_up_in_the_end(run, tmp_path):
    (tmp_path / "run_id").write_text("0123456789abcdef\n")
    words = (LAUNCH / "actors_by_hand.sh", "-", "nothing/board.json", "0", "2")
    run("hopeless", *words, MAX_FAILURES="0")
    assert run.wait("hopeless", 60) == 1
    assert run.log("hopeless").count("gives up after 1 failures in a row; the last exit code was 1") == 2
    stopped = run("stopped", *words)
    until(lambda: "starts again" in run.log("stopped"))
    stopped.send_signal(signal.SIGTERM)
    assert run.wait("stopped", 30) == 130
    until(lambda: not node_pids(stopped.pid, "node actor"), 20, "an actor outlived its loop")
    run("wrong", LAUNCH / "actors_by_hand.sh", "nowhere", "run_id", "0", "1")  # no port
    assert run.wait("wrong", 60) == 2
    run("usage", LAUNCH / "actors_by_hand.sh")
    assert run.wait("usage", 10) == 2 and "Usage" in run.log("usage")


@pytest.mark.full
def test_a_killed_host_goes_on_by_the_same_command(run, tmp_path):
    """As a scheduler does it: the very same words again."""
    port = free_port()
    words = ("agentkit", "node", "replay", *DQN, "--steps", "6_000", "--run", "RUN", "--board-port", port)
    words += ("--port", free_port(), "--checkpoint-every", "500")
    host = run("host", *words)
    until((tmp_path / "RUN" / "board.json").exists, what="no board")
    run("actors", LAUNCH / "actors_by_hand.sh", f"127.0.0.1:{port}", "RUN/run_id", "0", "1")
    run("learner", "bash", "-c", "until agentkit node learner --run-id-file RUN/board.json; do sleep 1; done")
    until(lambda: list((tmp_path / "RUN" / "checkpoints").glob("step_*")), what=run.log("learner"))
    os.killpg(host.pid, signal.SIGKILL)
    host.wait()
    run("host", *words)
    for name in ("host", "learner", "actors"):
        assert run.wait(name) == 0, run.log(name)
    assert "reached 6,000 steps" in run.log("host")
    steps = [int(row["steps"]) for row in read_csv(tmp_path / "RUN" / "logs" / "program.csv")[1]]
    assert steps == sorted(steps) and steps[-1] >= 6_000  # It went on in the same log.


def steps_at_the_end(log):
    """What one_machine.py says at its end; actors overrun the number asked for by what they do in half a second."""
    found = re.search(r"([\d,]+) steps, [\d,]+ updates; the run is in RUN", log)
    assert found is not None, log
    return int(found[1].replace(",", ""))


@pytest.mark.full
def test_one_machine(run, tmp_path):
    script = (sys.executable, LAUNCH / "one_machine.py", "--env", "agentkit:catch", "--run", "RUN", "--actors", "1")
    run("first", *script, "--steps", "1500")
    assert run.wait("first") == 0, run.log("first")
    first = steps_at_the_end(run.log("first"))
    assert first >= 1500
    run("more", *script, "--steps", "2000")
    assert run.wait("more") == 0, run.log("more")
    assert steps_at_the_end(run.log("more")) >= max(first, 2000)
