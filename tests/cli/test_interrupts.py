"""Ctrl-C while a command starts: it ends at once, whatever is being imported."""

import subprocess
import sys

import pytest

# Sends SIGINT to itself at an event of Python's, such as the import of a module, and runs the command.
_AT = """
import os, signal, sys
sys.argv[0] = "/usr/bin/agentkit"
event, found = sys.argv.pop(1), []
def at(name, args):
    if not found and event == f"{name} {args[0] if args else ''}":
        found.append(name)
        os.kill(os.getpid(), signal.SIGINT)
sys.addaudithook(at)
from agentkit.cli import main
sys.exit(main())
"""


def run(event, *words, folder):
    return subprocess.run(
        [sys.executable, "-c", _AT, event, *words], capture_output=True, text=True, timeout=120, cwd=folder
    )


@pytest.mark.parametrize("event", ["import argparse", "import agentkit.cli.words.parser"])
def test_a_command_ends_at_once_from_its_first_line_on(tmp_path, event):
    ended = run(event, "list", "agents", folder=tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "agentkit: stopped at once by Ctrl-C.\n")


@pytest.mark.full
@pytest.mark.parametrize("name", ["numpy", "jax", "haiku", "agentkit.experiment.local"])
def test_a_training_ends_at_once_while_it_starts(tmp_path, name):
    words = ["--env", "agentkit:catch", "--steps", "1M", "--out", str(tmp_path)]
    ended = run(f"import {name}", "train", "dqn", *words, folder=tmp_path)
    assert (ended.returncode, ended.stderr) == (130, "agentkit: stopped at once by Ctrl-C.\n")


@pytest.mark.full
def test_a_training_that_has_begun_saves(tmp_path):
    # The first checkpoint is written by os.mkdir into the run folder, after the first steps.
    words = ["--env", "agentkit:catch", "--steps", "1M", "--checkpoint-every", "200", "--out", str(tmp_path)]
    ended = run(f"os.mkdir {tmp_path}/dqn-agentkit_catch-seed0/checkpoints", "train", "dqn", *words, folder=tmp_path)
    assert ended.returncode == 130
    assert "and saved. Go on with:" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_what_clears_up_after_itself_gets_the_exception():
    code = """
import os, signal
from agentkit.cli import interrupts
interrupts.end_at_once()
try:
    with interrupts.interruptible():
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    print("cleared up", flush=True)
os.kill(os.getpid(), signal.SIGINT)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (130, "cleared up\n")


def test_a_program_that_imports_the_commands_keeps_its_ctrl_c():
    code = "import signal, agentkit.cli; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "True\n"
