"""How runs end: errors, signals, and half-built runs. Everything is closed once, and what was saved stays whole."""

import dataclasses
import os
import pathlib
import signal
import subprocess
import sys
import time
from typing import Any

import dm_env
import numpy as np
import pytest

from agentkit import checkpoint, envs
from agentkit.actors import PolicyActor
from agentkit.agents import dqn
from agentkit.child import ECHO_SECONDS
from agentkit.cli import main
from agentkit.datasets import ReplayDataset
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig, local, resume, run
from agentkit.replay import InProcessReplay

pytestmark = pytest.mark.both_stacks

ROOT = pathlib.Path(__file__).resolve().parents[2]
SMALL = {"hidden_sizes": (16,), "batch_size": 8, "n_step": 3, "min_replay_size": 20, "replay_size": 500}

SCRIPT = """
import pathlib, sys, time
from agentkit import envs
from agentkit.cli import main

class Troubled:
    def __init__(self, inner):
        self.inner, self.count = inner, 0

    def __getattr__(self, name):
        if name.startswith("_") or name == "inner":
            raise AttributeError(name)
        return getattr(self.inner, name)

    def step(self, action):
        self.count += 1
        trouble(self.count)
        return self.inner.step(action)

def report(text):
    print(text, file=sys.stderr, flush=True)

{trouble}
envs.register("troubled", lambda name, seed: Troubled(envs.make("agentkit:" + name, seed=seed, raw=True)))
sys.exit(main(sys.argv[1:]))
"""
CALM = "def trouble(count): pass"


def make_agent() -> Any:
    return dqn.make_agent(dqn.Config(**SMALL))


def start(trouble: str, out: pathlib.Path, *words: str) -> subprocess.Popen:
    command = ["train", "dqn", "--env", "troubled:catch", "--steps", "10_000_000", "--eval-every", "0"]
    for name, value in SMALL.items():
        command += ["--set", f"{name}={value[0] if isinstance(value, tuple) else value}"]
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT.replace("{trouble}", trouble), *command, "--out", str(out), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def folder(out: pathlib.Path) -> pathlib.Path:
    return out / "dqn-troubled_catch-seed0"


def wait_for_checkpoint(process: subprocess.Popen, out: pathlib.Path) -> None:
    wait_for(process, lambda: any((folder(out) / "checkpoints").glob("step_*")))


def wait_for(process: subprocess.Popen, condition: Any) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert process.poll() is None, process.stderr.closed or process.stderr.read()
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.05)


# --- in a process of its own -------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("replay", ["in_process", pytest.param("reverb", marks=pytest.mark.reverb)])
def test_an_error_in_mid_episode_ends_the_program(replay: str, tmp_path: pathlib.Path) -> None:
    trouble = """
def trouble(count):
    if count == 140:
        report(f"raised at {time.time()}")
        raise RuntimeError("the simulator broke")
"""
    process = start(trouble, tmp_path, "--checkpoint-every", "60", "--replay", replay)
    _, errors = process.communicate(timeout=300)
    ended = time.time()
    assert process.returncode == 1, errors
    assert "agentkit: an error in your code:" in errors and "RuntimeError: the simulator broke" in errors
    raised = float(errors.split("raised at ")[1].split()[0])
    assert ended - raised < 15.0  # 5.3 s were seen with two test runs and trainings beside it.
    found = checkpoint.read_latest(folder(tmp_path) / "checkpoints")
    assert found is not None and found.step == 120

    script = SCRIPT.replace("{trouble}", CALM)
    done = subprocess.run(
        [sys.executable, "-c", script, "train", "--resume", str(folder(tmp_path)), "--steps", "150"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = checkpoint.read_latest(folder(tmp_path) / "checkpoints")
    assert found is not None and found.step == 150


@pytest.mark.full
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_saves(number: signal.Signals, tmp_path: pathlib.Path) -> None:
    process = start(CALM, tmp_path, "--checkpoint-every", "50")
    wait_for_checkpoint(process, tmp_path)
    process.send_signal(number)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    step = int(output.split("Stopped at step ")[1].split(" and saved")[0].replace(",", ""))
    found = checkpoint.read_latest(folder(tmp_path) / "checkpoints")
    assert found is not None and found.step == step > 0


def test_a_closed_terminal_saves_and_a_reader_that_has_gone_ends_nothing(tmp_path: pathlib.Path) -> None:
    talkative = "def trouble(count): report(str(count)) or print(count, flush=True)"
    process = start(talkative, tmp_path, "--checkpoint-every", "50", "--eval-every", "25", "--eval-episodes", "1")
    process.stdout.readline()
    process.stdout.close()
    process.stderr.close()  # As of `agentkit train 2>&1 | head`.
    wait_for(process, lambda: len(list((folder(tmp_path) / "checkpoints").glob("step_*"))) == 2)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGHUP)  # The shell's, and the system's.
    assert process.wait(60) == 130
    found = checkpoint.read_latest(folder(tmp_path) / "checkpoints")
    assert found is not None and found.step > 50


@pytest.mark.full
def test_a_full_disk_ends_nothing_but_the_last_checkpoint(tmp_path: pathlib.Path) -> None:
    """It is full from step 110 to 230, and from step 270 on. No file can then be longer than 100 bytes."""
    filled = """
import resource
def trouble(count):
    if count in (110, 230, 270):
        resource.setrlimit(resource.RLIMIT_FSIZE, (-1 if count == 230 else 100, -1))
"""
    process = start(filled, tmp_path, "--checkpoint-every", "50", "--steps", "290", "--profile", "--tensorboard")
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    lines = [line for line in errors.splitlines() if line.startswith("agentkit: ")]
    (first, *_, last), steps = lines, [line.partition("step_000000000")[2][:3] for line in lines if "step_0" in line]
    assert steps == ["150", "200", "290"] and "Traceback" not in errors, errors
    assert "File too large" in first and "Training goes on" in first
    assert "Older checkpoints are untouched; the last good one is" in last and "Free some space" in last
    assert "goes on" not in last
    assert checkpoint.steps(folder(tmp_path) / "checkpoints") == [100, 250]
    found = checkpoint.read_latest(folder(tmp_path) / "checkpoints")
    assert found is not None and found.step == 250


@pytest.mark.full
def test_a_disk_that_is_full_from_the_start_is_one_line_and_leaves_no_folder(tmp_path: pathlib.Path) -> None:
    filled = f"{CALM}\nimport resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))"
    process = start(filled, tmp_path)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2 and not folder(tmp_path).exists()
    (line,) = (line for line in errors.splitlines() if line.startswith("agentkit: "))
    assert "cannot be written to: File too large. Free some space" in line and "Traceback" not in errors


@pytest.mark.full
def test_a_run_folder_that_can_only_be_read_is_evaluated_and_plotted(tmp_path: pathlib.Path) -> None:
    agent, words = make_agent(), {"evaluation_episodes": 1, "evaluation_period": 40, "run_directory": tmp_path / "run"}
    run(ExperimentConfig(agent, "agentkit:catch", 80, **words))
    script = """
from agentkit.cli import main
words = (["evaluate", "run", "--episodes", "1"], ["plot", "run", "-o", "/dev/null"], ["status", "run"])
print([main([*each]) for each in (*words, ["train", "--resume", "run"])])
"""
    # Root may write anywhere, but not without these capabilities (CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH).
    bound = "import ctypes, os, sys; [ctypes.CDLL(None).prctl(24, number) for number in (1, 2)]; "
    bound += "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])"
    for path in (tmp_path / "run", *(tmp_path / "run").rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    done = subprocess.run(
        [sys.executable, "-c", bound, script],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    for path in (tmp_path / "run", *(tmp_path / "run").rglob("*")):
        path.chmod(0o755)  # Else pytest could not delete it.
    assert done.stdout.splitlines()[-1] == "[0, 0, 2, 2]", done.stderr
    assert "run cannot be written to: Permission denied" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.full
def test_a_second_ctrl_c_stops_at_once(tmp_path: pathlib.Path) -> None:
    trouble = """
def trouble(count):
    if count == 120:
        report("sleeping")
        time.sleep(600)
"""
    process = start(trouble, tmp_path, "--checkpoint-every", "50")
    try:
        while "sleeping" not in (line := process.stderr.readline()):
            assert line, "ended early"
        process.send_signal(signal.SIGINT)
        time.sleep(2 * ECHO_SECONDS)
        assert process.poll() is None, "the first one waits for the step to end"
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "stopped at once" in errors and "Traceback" not in errors and "saved" not in output
    found = checkpoint.read_latest(folder(tmp_path) / "checkpoints")
    assert found is not None and found.step == 100


# --- in this process ---------------------------------------------------------------------------------


class Events:
    """Notes in order what is made and closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        for cls, name in ((ReplayDataset, "iterator"), (InProcessReplay, "replay"), (PolicyActor, "writer")):
            self._note(monkeypatch, cls, name)

    def _note(self, monkeypatch: pytest.MonkeyPatch, cls: type, name: str) -> None:
        close = cls.close  # type: ignore[attr-defined]

        def noted(part: Any) -> None:
            self.log.append(f"close {name}")
            close(part)

        monkeypatch.setattr(cls, "close", noted)

    def environment(self, name: str, fail_at: float = float("inf"), bad: Any = None) -> Any:
        return _Noted(self.log, name, fail_at, bad)


class _Noted:
    def __init__(self, log: list[str], name: str, fail_at: float, bad: Any) -> None:
        self._log, self._name, self._fail_at, self._bad = log, name, fail_at, bad
        self._inner = envs.make("agentkit:catch")
        self._count = 0
        log.append(f"make {name}")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        timestep = self._inner.step(action)
        if self._count < self._fail_at:
            return timestep
        if self._bad is None:
            raise RuntimeError("the simulator broke")
        return self._bad(timestep)

    def close(self) -> None:
        self._log.append(f"close {self._name}")
        self._inner.close()


def _run(environment: Any, **settings: Any) -> None:
    quiet = {"agent": make_agent(), "num_steps": 40, "evaluation_period": 20, "evaluation_episodes": 1}
    run(ExperimentConfig(environment=environment, **{**quiet, **settings}))


ORDER = ["close writer", "close iterator", "close replay", "close training"]


@pytest.mark.parametrize("fail_at", [float("inf"), 30])
def test_all_is_closed_once_in_order_after_a_run_and_after_an_error(
    fail_at: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    events, names = Events(monkeypatch), iter(["training", "evaluation"])

    def factory(seed: int) -> Any:
        name = next(names)
        return events.environment(name, fail_at if name == "training" else float("inf"))

    if fail_at == 30:
        with pytest.raises(RuntimeError, match="the simulator broke"):
            _run(factory)
    else:
        _run(factory)
    assert [event for event in events.log if event in ORDER] == ORDER
    assert events.log.count("close evaluation") == 1


@pytest.mark.parametrize(
    "where",
    [
        *["networks", "make_replay_in_turns", "ReplayDataset", "VariableClient"],
        *["make_learner", "make_actor", "RunLogs", "evaluation"],
    ],
)
def test_what_was_made_is_closed_if_building_fails(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class BuildError(Exception):
        pass

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise BuildError

    events, names = Events(monkeypatch), iter(["training", "evaluation"])
    agent = make_agent()
    if where == "networks":
        agent = dataclasses.replace(agent, make_networks=fail)
    elif where != "evaluation":
        monkeypatch.setattr(local, where, fail)

    def factory(seed: int) -> Any:
        name = next(names)
        return fail() if name == where else events.environment(name)

    with pytest.raises(BuildError):
        _run(factory, agent=agent)
    made = [event for event in events.log if event.startswith("make")]
    closed = [event for event in events.log if event.startswith("close")]
    assert made == ["make training"] and closed[-1] == "close training"
    assert len(set(closed)) == len(closed), "closed twice"
    expected = {"evaluation": ORDER, "make_actor": ORDER[1:], "make_learner": ORDER[1:], "VariableClient": ORDER[1:]}
    assert closed == (expected | {"ReplayDataset": ORDER[2:]}).get(where, ORDER[3:])


def test_of_a_batch_those_made_are_closed_if_another_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    events, numbers = Events(monkeypatch), iter(range(4))

    def factory(seed: int) -> Any:
        number = next(numbers)
        if number == 2:
            raise RuntimeError("no licence for a third simulator")
        return events.environment(str(number))

    with pytest.raises(RuntimeError, match="no licence"):
        _run(factory, num_envs=4)
    assert events.log == ["make 0", "make 1", "close 1", "close 0"]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (lambda t: t._replace(observation=t.observation[:5]), "observation"),
        (lambda t: t._replace(observation=t.observation.astype(np.float64)), "observation"),
        (lambda t: t._replace(observation={"board": t.observation}), "observation"),
        (lambda t: t._replace(reward=np.zeros(2, np.float32)), "reward"),
        (lambda t: t._replace(discount=None), "discount"),
    ],
    ids=["shape", "dtype", "structure", "reward", "discount"],
)
def test_data_that_breaks_its_spec_is_refused_by_name(bad: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = Events(monkeypatch)
    with pytest.raises(SpecError, match=message):
        _run(lambda seed: events.environment("e", 30, bad), evaluation_period=0)


@pytest.fixture
def saved(tmp_path: pathlib.Path) -> pathlib.Path:
    """A run folder with one checkpoint."""
    _run("agentkit:catch", run_directory=tmp_path / "run", evaluation_period=0)
    return tmp_path / "run"


@pytest.mark.filterwarnings("ignore:Passing over a damaged checkpoint")
def test_a_run_that_cannot_be_resumed_is_one_line_and_exit_code_2(
    saved: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (path,) = saved.glob("checkpoints/step_*/arrays.npz")
    path.write_bytes(path.read_bytes()[:-10])
    assert main(["train", "--resume", str(saved), "--steps", "50"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("agentkit: No checkpoint can be read.") and error.count("\n") == 1


def test_a_checkpoint_that_does_not_fit_is_one_line_too(
    saved: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = saved / "config.json"
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 5'))
    assert main(["train", "--resume", str(saved), "--steps", "50"]) == 2
    error = capsys.readouterr().err
    assert "was made with seed=0, and this experiment has 5" in error and error.count("\n") == 1


def test_a_last_checkpoint_that_cannot_be_written_is_an_error_while_running(
    saved: pathlib.Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise checkpoint.CheckpointError("No space left on device")

    monkeypatch.setattr(local.checkpoint, "write", full)
    assert main(["train", "--resume", str(saved), "--steps", "50"]) == 1  # 2 would say that nothing was trained.
    assert "agentkit: No space left" in capsys.readouterr().err
    monkeypatch.undo()
    assert resume(saved, num_steps=50).steps == 50
