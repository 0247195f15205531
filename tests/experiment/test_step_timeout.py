"""An environment that hangs ends the run with an error that names it, saves nothing half, and says what to set."""

import os
import signal
import subprocess
import sys
import time

import pytest

import agentkit
from agentkit import checkpoint, envs
from agentkit.agents import dqn
from agentkit.cli import main
from agentkit.experiment.checks.step_watch import StepTimeoutError, StepWatch
from agentkit.experiment.multi_agent.build import check_policies
from tests.experiment.launched import Launched
from tests.experiment.test_life_cycle import ROOT, folder, start


class Hanging:
    """catch, whose steps wait for a file that nobody makes; it can also refuse to be interrupted."""

    def __init__(self, deaf=False):
        self.inner = envs.make("agentkit:catch", seed=0)
        self.deaf = deaf
        self.resumable = False

    def reset(self):
        return self.inner.reset()

    def step(self, action):
        while True:
            try:
                time.sleep(600)
            except StepTimeoutError:
                if not self.deaf:
                    raise

    def close(self):
        self.inner.close()


@pytest.mark.both_stacks
def test_a_call_that_takes_too_long_is_interrupted_by_an_error_with_the_name():
    before = signal.getsignal(signal.SIGUSR2)
    with StepWatch("mine:Slow-v0", 0.5) as watch:
        environment = watch.watched(Hanging())
        environment.reset()
        time.sleep(1.0)  # Nobody waits for an environment.
        with pytest.raises(StepTimeoutError, match=r"mine:Slow-v0 has not returned from step\(\) for 0.5 s"):
            environment.step(0)
        with pytest.raises(StepTimeoutError, match="step"):  # And the next one.
            environment.step(0)
        environment.close()
    assert signal.getsignal(signal.SIGUSR2) is before


@pytest.mark.both_stacks
def test_ctrl_c_does_not_reach_the_process_beside():
    """A terminal sends it to all processes of its group; that one would end with a traceback."""
    with StepWatch("mine:Slow-v0", 10.0, beside=True) as watch:
        assert os.getpgid(watch._beside.pid) != os.getpgid(0)


DEAF = """
from agentkit.experiment.checks import step_watch
from tests.experiment.test_step_timeout import Hanging
step_watch.GRACE_SECONDS = 0.5
with step_watch.StepWatch("deaf", 0.5, on_stuck=lambda message: print("told:", message, flush=True)) as watch:
    watch.watched(Hanging(deaf=True)).step(0)
"""


@pytest.mark.full
@pytest.mark.both_stacks
def test_a_call_that_does_not_hear_ends_its_process():
    done = subprocess.run(
        [sys.executable, "-c", DEAF],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "told: The environment deaf has not returned from step()" in done.stdout
    assert "in step" in done.stderr  # Where it hangs: the thread's stack.


FROZEN = """
import ctypes
from agentkit.experiment.checks import step_watch
step_watch.GRACE_SECONDS = 0.5
with step_watch.StepWatch("frozen", 1.5, beside=True) as watch:
    watch.make(lambda: ctypes.PyDLL(None).sleep(20))
"""


@pytest.mark.full
def test_a_call_that_keeps_the_interpreter_from_the_first_moment_ends_its_process():
    start_time = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", FROZEN],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == -signal.SIGKILL, (done, time.monotonic() - start_time)
    assert "The environment frozen has not returned from a call for 1.5 s" in done.stderr
    assert "It kept the interpreter meanwhile" in done.stderr


@pytest.mark.both_stacks
def test_an_environment_that_cannot_be_made_in_time_is_refused_before_there_is_a_folder(tmp_path, capsys):
    def make(name, seed):
        time.sleep(600)

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(envs.prefixes._registered, "stuck", make)
        words = ["train", "dqn", "--env", "stuck:catch", "--steps", "100", "--out", str(tmp_path / "runs")]
        assert main([*words, "--step-timeout", "0.5"]) == 2
    said = capsys.readouterr().err
    assert "The environment stuck:catch has not returned from make_environment() for 0.5 s: it hangs." in said
    assert "Traceback" not in said and not (tmp_path / "runs").exists()


def test_nor_is_one_of_several_agents_waited_for():
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,)))
    with pytest.raises(StepTimeoutError, match=r"has not returned from make_environment\(\) for 0.5 s: it hangs"):
        check_policies(agentkit.MultiAgentConfig(agent, lambda seed: time.sleep(5), 10, "shared", step_timeout=0.5))


@pytest.mark.both_stacks
@pytest.mark.full  # Imports and compiles in a process of its own, and waits.
@pytest.mark.parametrize(
    ("hang", "code"),
    [
        ("time.sleep(600)", 1),
        ("import ctypes; ctypes.PyDLL(None).sleep(600)", -signal.SIGKILL),  # Which keeps the interpreter.
    ],
    ids=["python", "c"],
)
def test_a_run_whose_environment_hangs_ends_and_keeps_its_checkpoints(tmp_path, hang, code):
    trouble = f"def trouble(count):\n    if count == 1040:\n        {hang}\n"
    process = start(trouble, tmp_path, "--checkpoint-every", "100", "--step-timeout", "3")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == code, errors
    assert "The environment troubled:catch has not returned from " in errors and "--step-timeout" in errors
    assert checkpoint.read_latest(folder(tmp_path) / "checkpoints").step == 1000


HANGING = """
import pathlib, sys, time
from agentkit import envs
from agentkit.wrappers.base import EnvironmentWrapper

class Hanging(EnvironmentWrapper):
    def step(self, action):
        if pathlib.Path({bed!r}).exists():
            time.sleep(600)
        return super().step(action)
"""


@pytest.mark.reverb
@pytest.mark.full  # Starts a program, and waits until it notices.
def test_a_launched_program_names_what_hangs_and_is_stopped_at_once(tmp_path, monkeypatch):
    bed = tmp_path / "asleep"
    (tmp_path / "hanging.py").write_text(HANGING.format(bed=str(bed)))
    monkeypatch.setattr("tests.experiment.launched.ROOT", f"{os.environ.get('PYTHONPATH', '')}:{tmp_path}")
    words = ("--actors", "1", "--wrapper", "hanging:Hanging", "--import", "hanging", "--eval-every", "200")
    # An evaluation without end: between two of them the evaluator would take no step that could hang.
    words += ("--eval-episodes", "1_000_000", "--step-timeout", "8")
    with Launched(tmp_path / "out", 1_000_000, *words) as program:
        ready = program.wait_for(lambda s: s["nodes"]["evaluator-0"]["state"] == "ready")["totals"].get("steps", 0)
        program.wait_for(lambda s: s["totals"].get("steps", 0) > ready + 1_000)
        bed.touch()
        hung = program.wait_for(lambda s: s["nodes"]["actor-0"]["restarts"] and s["nodes"]["evaluator-0"]["restarts"])
        for name in ("actor-0", "evaluator-0"):
            words = "raised StepTimeoutError: The environment agentkit:catch has not returned from step() for 8 s"
            assert words in hung["nodes"][name]["last_error"]
        program.wait_for(lambda s: s["nodes"]["evaluator-0"]["state"] == "ready")
        start_time = time.monotonic()
        program.process.send_signal(signal.SIGINT)
        assert program.end(60.0) == 130, program.output()
        assert time.monotonic() - start_time < 40.0
