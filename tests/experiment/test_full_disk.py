"""A launched program whose run folder is on a disk that fills up: a small tmpfs, filled by another file."""

import contextlib
import os
import shutil
import signal
import subprocess

import pytest

from agentkit import checkpoint
from agentkit.loggers import read_csv
from tests.experiment.launched import Launched

pytestmark = [pytest.mark.both_stacks, pytest.mark.full]

MEGABYTES = 24
SETTINGS = ("--actors", "1", "--eval-every", "0", "--checkpoint-every", "200", "--set", "replay_size=2000")


def can_mount(folder):
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={MEGABYTES}m", "tmpfs", str(folder)]
    return os.geteuid() == 0 and shutil.which("mount") and not subprocess.run(command, capture_output=True).returncode


@pytest.fixture(name="disk")
def _disk(tmp_path):
    """A folder with room for 24 MB."""
    folder = tmp_path / "disk"
    if not can_mount(folder):
        pytest.skip("mounting a small disk needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


def fill(disk):
    """Takes all the room that is left, to the last byte."""
    with open(disk / "other", "ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


def failures(status):
    return status["nodes"]["learner-0"]["gauges"].get("checkpoint_failures", 0)


def saved(program):
    return checkpoint.steps(program.directory / "checkpoints")


def test_training_outlives_a_full_disk_and_saves_again_when_there_is_room(disk):
    with Launched(disk, 10_000_000, *SETTINGS) as program:
        program.wait_for(lambda s: len(saved(program)) > 1)
        fill(disk)
        full = program.wait_for(lambda s: failures(s) >= 1)
        kept = saved(program)
        assert checkpoint.read_latest(program.directory / "checkpoints").step == kept[-1]
        later = program.wait_for(
            lambda s: (
                failures(s) >= failures(full) + 2
                and s["totals"]["steps"] > full["totals"]["steps"] + 500
                and s["nodes"]["actor-0"]["gauges"].get("log_rows_dropped", 0) > 0
            )
        )
        assert later["totals"]["updates"] > full["totals"]["updates"]
        restarted = {name: node for name, node in later["nodes"].items() if node["restarts"]}
        assert not restarted, f"{restarted}\n{program.output()}"
        for name in ("replay-0", "learner-0", "actor-0"):  # Coming back needs no room either.
            os.kill(program.pid(name), signal.SIGKILL)
            program.wait_for(
                lambda s, name=name: s["nodes"][name]["incarnation"] == 1 and s["nodes"][name]["state"] == "ready"
            )
        back = program.wait_for(lambda s: s["totals"]["steps"] > later["totals"]["steps"] + 100)
        assert saved(program) == kept
        (disk / "other").unlink()
        program.wait_for(lambda s: saved(program)[-1] > back["totals"]["steps"])
        whole = checkpoint.read_latest(program.directory / "checkpoints")
        assert whole.step == saved(program)[-1] and (whole.path / "replay").is_dir()
        written = len(read_csv(program.directory / "logs" / "train.csv")[1])
        program.wait_for(lambda s: len(read_csv(program.directory / "logs" / "train.csv")[1]) > written)
        program.process.send_signal(signal.SIGINT)
        assert program.end(60.0) == 130, program.output()
        for path in (program.directory / "logs").glob("*.csv"):
            lines = path.read_text().splitlines()
            assert {line.count(",") for line in lines} == {lines[0].count(",")}, path
        assert not list((program.directory / "checkpoints").glob(".*"))


@pytest.mark.full
def test_a_last_checkpoint_that_finds_no_room_is_told(disk, tmp_path):
    with Launched(disk, 10_000_000, *SETTINGS, terminal=tmp_path) as program:
        program.wait_for(lambda s: len(saved(program)) > 1)
        fill(disk)
        program.wait_for(lambda s: failures(s) >= 1)
        kept, run = saved(program)[-1], program.directory
        program.process.send_signal(signal.SIGINT)
        assert program.end(60.0) == 1
        assert "its last checkpoint was not written" in program.log.read_text()
    (disk / "other").unlink()
    with Launched(disk, kept + 300, resume=run) as program:
        assert program.end() == 0, program.output()
    assert saved(program)[-1] >= kept + 300
