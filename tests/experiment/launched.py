"""Helpers for tests of launched experiments: small ones, with a deadline, and their processes found by name."""

import contextlib
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import psutil

ROOT = pathlib.Path(__file__).resolve().parents[2]
REPLAY = "served" if importlib.util.find_spec("reverb") is None else "reverb"
"""On the stack with Reverb, programs in tests of both stacks run with it."""
SMALL = ("--set", "min_replay_size=100", "--set", "updates_per_step=0.1", "--set", "hidden_sizes=16")


class Launched:
    """``agentkit launch dqn`` on catch, in a process of its own."""

    def __init__(self, out, steps, *words, resume=None, terminal=None):
        command = [sys.executable, "-m", "agentkit.cli", "launch"]
        if resume is not None:
            command += ["--resume", str(resume), "--steps", str(steps), *words]
        else:
            command += ["dqn", "--env", "agentkit:catch", "--steps", str(steps), "--out", str(out), *SMALL, *words]
            command += ["--replay", REPLAY]
        self.log = pathlib.Path(terminal or out) / f"terminal-{time.time_ns()}.txt"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": str(ROOT)}
            )
        self.out = pathlib.Path(out)

    @property
    def directory(self):
        return next(path for path in sorted(self.out.iterdir()) if path.is_dir())

    def status(self):
        """The run store's status; None while there is none."""
        from agentkit.distributed import connect_to_run

        try:
            with contextlib.closing(connect_to_run(self.directory, timeout=2.0)) as client:
                return client.status()
        except Exception:
            return None

    def wait_for(self, condition, seconds=300.0):
        """Waits until ``condition(status)`` is true; returns that status."""
        deadline = time.monotonic() + seconds
        while True:
            status = self.status()
            if status is not None and condition(status):
                return status
            assert time.monotonic() < deadline, f"{status}\n{self.output()}"
            assert self.process.poll() is None, self.output()
            time.sleep(0.1)

    def pid(self, name):
        return self.wait_for(lambda status: status["nodes"][name]["pid"])["nodes"][name]["pid"]

    def end(self, seconds=400.0):
        """Its exit code."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s:\n{self.status()}\n{self.output()}") from None

    def output(self):
        logs = [self.log, *sorted(self.out.glob("*/nodes/*.log"))]
        return "\n".join(f"== {path}\n{path.read_text(errors='replace')[-1500:]}" for path in logs)

    def processes(self):
        """All processes of the program that are alive, its own included."""
        with contextlib.suppress(psutil.NoSuchProcess):
            own = psutil.Process(self.process.pid)
            return [own, *own.children(recursive=True)]
        return []

    def close(self):
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait(timeout=10.0)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.close()
