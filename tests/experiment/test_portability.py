"""A run in one process needs nothing of the system that Windows lacks."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

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
    assert "120/120 steps" in done.stdout and "(1 episodes)" in done.stdout
    assert "could not" not in done.stdout.lower()
