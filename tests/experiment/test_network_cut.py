"""A run of two hosts, started by hand: the second one is a network namespace, whose link is cut and healed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from agentkit.distributed import RunStoreError, connect_to_run
from agentkit.errors import ConfigError
from tests.experiment.launched import REPLAY, ROOT
from tests.experiment.other_host import other_host
from tests.launch.test_by_hand import free_port
from tests.test_ports import another_host, needs_namespaces

pytestmark = [pytest.mark.both_stacks, pytest.mark.full, needs_namespaces]

DQN = "dqn --env agentkit:catch --set hidden_sizes=16 --set min_replay_size=100 --set updates_per_step=0.1"
LOOP = "until agentkit node learner {}; do echo starts again >&2; sleep 1; done"
LIMIT_SECONDS = 100.0  # Of each wait: less than the limit of a test, so that it says what it waited for.


class ByHand:
    """The processes of one run, with their output in files; all are killed at the end."""

    def __init__(self, folder):
        self.folder, self.processes = folder, {}
        (folder / "bin").mkdir()
        command = folder / "bin" / "agentkit"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -m agentkit.cli "$@"\n')
        command.chmod(0o755)
        self._environment = os.environ | {
            "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TF_CPP_MIN_LOG_LEVEL": "2",
        }

    def start(self, name, *words):
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in words],
                cwd=self.folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def status(self):
        try:
            with contextlib.closing(connect_to_run(self.folder / "RUN", timeout=2.0)) as client:
                return client.status()
        except (RunStoreError, ConfigError, ValueError):
            return None

    def wait_for(self, condition):
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            status = self.status()
            if status is not None and condition(status):
                return status
            logs = "\n".join(f"== {name}\n{self.log(name)[-1500:]}" for name in self.processes)
            assert time.monotonic() < deadline, f"{status}\n{logs}"
            time.sleep(0.2)

    def stop(self):
        """Asks the run to stop; the exit codes of all."""
        with contextlib.closing(connect_to_run(self.folder / "RUN", timeout=5.0)) as client:
            client.command("stop", reason="seen enough")
        return {name: process.wait(60.0) for name, process in self.processes.items()}

    def close(self):
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10.0)


@pytest.fixture(name="run")
def _run(tmp_path):
    with contextlib.closing(ByHand(tmp_path)) as run:
        yield run


def host(run, port, device):
    words = (*DQN.split(), "--steps", "10_000_000", "--eval-every", "0", "--checkpoint-every", "2000")
    words += ("--replay", REPLAY, "--run", "RUN", "--board-port", port, "--listen", device)
    run.start("host", "agentkit", "node", "replay", *words)
    run.wait_for(lambda s: True)


def inserted(status):
    return status["values"]["tables"]["transitions"]["num_inserted"]


def updates(status):
    return status["nodes"]["learner-0"]["gauges"].get("updates", 0)


def goes_on(before, node):
    """Whether steps, updates, this node and its parameters have moved on since."""

    def condition(status):
        actor = status["nodes"]["actor-0"]
        return (
            status["totals"]["steps"] > before["totals"]["steps"] + 50
            and status["totals"]["updates"] > before["totals"]["updates"] + 5
            and status["nodes"][node]["state"] == "ready"
            and status["nodes"][node]["beat_age_seconds"] < 2.0
            and actor["gauges"].get("parameter_age_seconds", 99.0) < 5.0
        )

    return condition


def cut_for(run, other, seconds, node, starts_again):
    """Cuts the link for a while; what it cost. A node that is started again may go on for a moment before it leaves."""
    before = run.status()
    other.cut()
    time.sleep(seconds)
    meanwhile = run.status()
    assert meanwhile["nodes"][node]["beat_age_seconds"] > seconds - 2.0
    other.heal()
    start = time.monotonic()
    old, condition = before["nodes"][node]["pid"], goes_on(meanwhile, node)
    after = run.wait_for(lambda s: condition(s) and not (starts_again and s["nodes"][node]["pid"] == old))
    row = {
        "away": node,
        "cut_seconds": seconds,
        "seconds_until_all_go_on": round(time.monotonic() - start, 1),
        "items_lost": max(0, inserted(before) - inserted(after)),
        "updates_redone": int(max(0, updates(meanwhile) - updates(after))),
        "started_again": after["nodes"][node]["pid"] != old,
    }
    print(json.dumps(row), flush=True)
    return row


@pytest.mark.full
@pytest.mark.parametrize("away", ["actor-0", "learner-0"])
def test_a_cut_network_heals(run, away):
    """For less than the 15 s that a node waits for its store, and for longer: then it is started again by its loop."""
    with other_host() as other:
        port = free_port()
        host(run, port, other.device)
        place = f"{other.address}:{port}"
        actors = (ROOT / "launch" / "actors_by_hand.sh", place, "RUN/run_id", "0", "1")
        if away == "actor-0":
            run.start("learner", "bash", "-c", LOOP.format(f"--run-id-file RUN/board.json --listen {other.device}"))
            run.start("actors", *other.command(*actors))
        else:
            words = f"--connect {place} --run-id-file RUN/run_id --listen {other.their_device}"
            run.start("learner", *other.command("bash", "-c", LOOP.format(words)))
            run.start("actors", *actors)
        first = run.wait_for(lambda s: s["totals"].get("updates", 0) > 20 and s["totals"].get("steps", 0) > 200)
        assert first["nodes"]["actor-0"]["host"] != first["nodes"]["learner-0"]["host"]
        version = first["nodes"]["actor-0"]["gauges"]["parameter_version"]
        run.wait_for(lambda s: s["nodes"]["actor-0"]["gauges"]["parameter_version"] > version)
        short = cut_for(run, other, 10.0, away, starts_again=False)
        long = cut_for(run, other, 40.0, away, starts_again=True)
        assert set(run.stop().values()) == {0}
    assert not short["started_again"]
    assert short["items_lost"] == long["items_lost"] == 0
    assert short["updates_redone"] == long["updates_redone"] == 0
    log = run.log("actors" if away == "actor-0" else "learner")
    assert "stops: The run store at" in log and "starts again" in log


def test_no_port_of_a_run_hosted_by_hand_is_open_to_other_machines(run):
    host(run, free_port(), "lo")
    run.start("learner", "agentkit", "node", "learner", "--run-id-file", "RUN/board.json")
    run.wait_for(lambda s: s["nodes"].get("learner-0", {}).get("state") == "ready")
    ports = set()
    for process in run.processes.values():
        for connection in psutil.Process(process.pid).net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN:
                ports.add(connection.laddr.port)
    assert len(ports) >= (2 if REPLAY == "reverb" else 1)  # The run store, and Reverb.
    with another_host() as (_, _, reach):
        assert reach(sorted(ports)) == set()
