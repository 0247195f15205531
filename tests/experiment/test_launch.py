"""Launched experiments, from their command: to the end, after a resume, and what they refuse."""

import csv
import json
import signal
import socket
import time

import psutil
import pytest

from agentkit import checkpoint
from agentkit.distributed import RunStoreClient, WrongRunError
from agentkit.experiment import evaluate
from tests.experiment.launched import Launched
from tests.test_ports import another_host, needs_namespaces

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_a_program_reaches_its_steps_is_saved_and_goes_on(tmp_path):
    with Launched(tmp_path, 1500, "--actors", "2", "--eval-every", "500", "--checkpoint-every", "500") as program:
        assert program.end() == 0, program.output()
        run = program.directory
    saved = checkpoint.read_latest(run / "checkpoints")
    assert saved.step == saved.state["num_steps"] and 1500 <= saved.step < 1600 and (saved.path / "replay").is_dir()
    updates = saved.state["learner"]["num_updates"]
    assert saved.state["totals"]["updates"] == updates  # Those after the actors had stopped included.
    # 0.1 updates for each inserted item, of which catch's episodes of 9 steps make 18.
    assert 0.5 < updates / (0.1 * 2 * saved.step - 10) < 1.3
    evaluations = rows(run / "logs" / "evaluation.csv")
    assert float(evaluations[-1]["steps"]) >= 1500  # A slow one passes over earlier ones.
    assert len(rows(run / "logs" / "train.csv")) > 20 and len(rows(run / "logs" / "train-1.csv")) > 20
    assert not (run / "board.json").exists()
    assert evaluate(run, num_episodes=2)["steps"] == saved.step

    goal = saved.step + 1500
    with Launched(tmp_path, goal, "--actors", "1", resume=run) as program:
        first = program.wait_for(lambda status: status["nodes"]["replay-0"]["state"] == "ready")
        assert first["totals"]["steps"] >= saved.step
        assert program.end() == 0, program.output()
    again = checkpoint.read_latest(run / "checkpoints")
    assert goal <= again.step < goal + 100 and again.state["learner"]["num_updates"] > updates
    assert json.loads((run / "config.json").read_text())["launch"]["num_actors"] == 1


def test_ctrl_c_saves_and_ends_within_seconds(tmp_path):
    with Launched(tmp_path, 1_000_000, "--actors", "1", "--eval-every", "0") as program:
        program.wait_for(lambda status: status["totals"].get("steps", 0) > 200)
        processes = program.processes()
        start = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        assert program.end(30.0) == 130, program.output()
        seconds = time.monotonic() - start
        assert not [process for process in processes if process.is_running()]
        assert checkpoint.read_latest(program.directory / "checkpoints").step > 200
    print(f"From Ctrl-C to the end: {seconds:.1f} s")
    assert seconds < 15.0  # 2.4 s alone on the machine; tests are not.


def test_a_setting_that_cannot_work_ends_at_once_with_its_reason(tmp_path):
    start = time.monotonic()
    with Launched(tmp_path, 1000, "--set", "batch_size=0") as program:
        assert program.end(60.0) in (1, 2)
        text = program.log.read_text()
    assert "batch_size" in text or "batch" in text
    assert time.monotonic() - start < 60.0


@pytest.mark.full
@needs_namespaces
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_no_port_of_a_program_is_open_to_other_machines(tmp_path, engine):
    """On Ray this is said of agentkit's own ports: Ray's listen on all devices, and ask for its token."""
    with Launched(tmp_path, 1_000_000, "--actors", "1", "--eval-every", "0", "--engine", engine) as program:
        status = program.wait_for(lambda status: status["totals"].get("updates", 0) > 5)
        board = json.loads((program.directory / "board.json").read_text())["address"]
        # A served replay has a socket in the run's folder, and no port.
        served = json.loads((program.directory / "config.json").read_text())["replay"] == "served"
        ports = {int(board.rpartition(":")[2])} | (set() if served else {status["values"]["port/replay-0"]})
        if engine == "processes":
            ports |= {
                connection.laddr.port
                for process in program.processes()
                for connection in process.net_connections(kind="tcp")
                if connection.status == psutil.CONN_LISTEN
            }
        with another_host() as (address, _, reach), socket.create_server(("0.0.0.0", 0)) as control:
            open_port = control.getsockname()[1]
            assert reach([*ports, open_port]) == {open_port}, address
    assert len(ports) >= (1 if served else 2)  # The run store, and Reverb.


def test_a_stranger_without_the_run_id_learns_nothing(tmp_path):
    with Launched(tmp_path, 1_000_000, "--actors", "1", "--eval-every", "0") as program:
        program.wait_for(lambda status: status["totals"].get("steps", 0) > 5)
        record = json.loads((program.directory / "board.json").read_text())
        with pytest.raises(WrongRunError):
            RunStoreClient(record["address"], "0" * 32, timeout=5.0)
        words = [word for process in program.processes() for word in process.cmdline()]
        assert not [word for word in words if record["run_id"] in word]
        assert (program.directory / "board.json").stat().st_mode & 0o077 == 0
