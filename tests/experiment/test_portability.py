"""A run in one process needs nothing of the system that Windows lacks, and a program nothing that macOS lacks."""

import ast
import contextlib
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from agentkit.distributed import ray
from agentkit.distributed.guard import Guard
from agentkit.distributed.processes import start_process
from agentkit.experiment.launching.nodes.inference import inference_role
from agentkit.experiment.launching.program import make_roles
from agentkit.experiment.sweeps.jobs import share_of_threads
from agentkit.experiment.training.devices import describe_devices
from tests.processes import is_alive

ROOT = Path(__file__).resolve().parents[2]
UNIX_ONLY = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}


def test_no_file_needs_a_unix_module_to_be_imported():
    for file in sorted((ROOT / "agentkit").rglob("*.py")):
        for statement in ast.parse(file.read_text()).body:  # In a function or a `try`, its absence can be met.
            if isinstance(statement, ast.Import):
                found = UNIX_ONLY & {alias.name for alias in statement.names}
                assert not found, f"{file}, line {statement.lineno}: {found} is not there on Windows. Use files.lock?"


WITHOUT = """
import os, signal, sys
sys.modules["fcntl"] = sys.modules["resource"] = None  # An import of these is an error from now on.
for name in ("SIGHUP", "SIGUSR1", "SIGUSR2", "SIGKILL"):
    delattr(signal, name)
del os.getuid, os.sched_getaffinity
from agentkit import checkpoint
from agentkit.cli import main
real_open = os.open
def refuse_folders(path, *rest, **named):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied")
    return real_open(path, *rest, **named)
os.open, checkpoint._WINDOWS = refuse_folders, True
train = "train dqn --env agentkit:catch --set min_replay_size=32 --eval-episodes 1".split()
code = main([*train, "--steps", "60"]) or main("train --resume runs/dqn-agentkit_catch-seed0 --steps 120".split())
sys.exit(code or main("evaluate runs/dqn-agentkit_catch-seed0 --episodes 1".split()))
"""


@pytest.mark.full
def test_training_resuming_and_evaluating_without_what_windows_lacks(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    assert "120/120 steps" in done.stdout and "(1 episode)" in done.stdout
    assert "could not" not in done.stdout.lower()


# Of `os`, as in Python 3.11 on macOS; 3.13 has waitid there.
NOT_ON_MACOS = (
    "copy_file_range", "eventfd", "memfd_create", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate",
    "sched_getaffinity", "sched_setaffinity", "setns", "splice", "unshare", "waitid",
)  # fmt: skip


def test_what_macos_lacks_is_looked_for_before_it_is_called():
    for file in sorted((ROOT / "agentkit").rglob("*.py")):
        text = file.read_text()
        for name in re.findall(rf"\bos\.({'|'.join(NOT_ON_MACOS)})\(", text):
            assert f'hasattr(os, "{name}")' in text, f"{file}: macOS has no os.{name}. What is done there?"


def test_cores_are_the_machines_where_the_system_does_not_say_which_are_ours(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert describe_devices(None) == "CPU, 8 cores"
    assert share_of_threads(2) == 4
    assert inference_role(16).environment["NPROC"] == "2"
    assert {role.name: role.environment["NPROC"] for role in make_roles(2)}["learner"] == "6"


def test_what_a_node_has_started_ends_with_it_without_waitid(monkeypatch, tmp_path):
    monkeypatch.delattr(os, "waitid")
    code = "import subprocess, sys; print(subprocess.Popen(['sleep', '60']).pid); sys.exit(7)"
    with contextlib.closing(Guard(os.getpid())) as guard, open(tmp_path / "log", "wb") as log:
        node = start_process(code, b"", guard, log, {})
        assert _soon(lambda: node.poll() is not None) and node.poll() == 7
    simulator = int((tmp_path / "log").read_text())
    assert _soon(lambda: not is_alive(simulator))


def test_the_end_of_a_process_of_rays_is_awaited_without_pidfd_open(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    process = subprocess.Popen(["sleep", "60"])
    killer = threading.Timer(0.2, lambda: (process.kill(), process.wait()))
    killer.start()
    ray._await_end_of(process.pid)
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    killer.join()


def _soon(condition, seconds=30.0):
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


WITHOUT_LINUX = f"""
import os, pathlib
for name in {NOT_ON_MACOS!r}:
    if hasattr(os, name):
        delattr(os, name)
is_dir = pathlib.Path.is_dir
pathlib.Path.is_dir = lambda path: str(path) != "/dev/shm" and is_dir(path)
"""


@pytest.mark.full
def test_a_program_runs_without_what_macos_lacks(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_LINUX)  # Each interpreter of the program loads it.
    words = "launch dqn --env agentkit:catch --steps 400 --set min_replay_size=32 --actors 2 --inference 1 --out runs"
    with tempfile.TemporaryDirectory(dir="/tmp") as temporary:  # A short path, which sockets need.
        done = subprocess.run(
            [sys.executable, "-m", "agentkit.cli", *words.split(), "--eval-episodes", "1"],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "TMPDIR": temporary},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout
        assert "reached 400 steps" in done.stdout
        assert not list(Path(temporary).glob("agentkit-*"))
