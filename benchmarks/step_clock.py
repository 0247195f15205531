"""What both sides of the comparison measure with, so that they measure the same. Standard library only."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any


class StepClock:
    """Counts environment steps and reads the clocks at three of them.

    `tick` is called as a step begins. By then every earlier action is known, so every update that it needed
    is finished, on a device that computes asynchronously too. The window from step `first` to step `last`
    therefore holds exactly ``last - first`` steps with their share of everything else.
    """

    def __init__(self, job: dict[str, Any], on_window: Callable[[bool], None] | None = None):
        """
        Args:
            job: what `compare_sb3.py` asks for: ``learning_starts``, ``first``, ``last``, ``started``.
            on_window: called with True as the window begins and with False as it ends.
        """
        self._job = job
        self._on_window = on_window
        # Both sides learn for the first time after step `learning_starts` + 1.
        self._marks = {job["learning_starts"] + 2: "updated", job["first"]: "first", job["last"]: "last"}
        self._read: dict[str, tuple[float, float, float, int]] = {}
        self.num_steps = 0
        self.num_episodes = 0

    def tick(self) -> None:
        """A step begins."""
        self.num_steps += 1
        if self.num_steps in self._marks:
            name = self._marks[self.num_steps]
            now = (time.perf_counter(), time.process_time(), time.time(), self.num_episodes)
            self._read[name] = now
            if self._on_window is not None and name != "updated":
                self._on_window(name == "first")

    def report(self, *, import_seconds: float, num_updates: int, versions: dict[str, str]) -> None:
        """Prints the measurement as one line of JSON, the last of the output.

        Args:
            import_seconds: how long the library took to import.
            num_updates: gradient updates of the whole run.
            versions: of the packages that matter.
        """
        first, last, updated = self._read["first"], self._read["last"], self._read["updated"]
        steps, seconds = self._job["last"] - self._job["first"], last[0] - first[0]
        owed = self.num_steps - self._job["learning_starts"]
        # One update per step, or the comparison means nothing; a call of several may be under way at the end.
        if abs(num_updates - owed) > 2 * self._job["settings"].get("updates_per_call", 1) + 2:
            raise RuntimeError(f"Expected one update per step, {owed} in all; found {num_updates}.")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            json.dumps(
                {
                    "steps_per_second": steps / seconds,
                    "cores_used": (last[1] - first[1]) / seconds,
                    "episodes": last[3] - first[3],
                    "import_seconds": import_seconds,
                    "first_update_seconds": updated[2] - self._job["started"],
                    "peak_mebibytes": peak / (2**20 if sys.platform == "darwin" else 2**10),
                    "updates": num_updates,
                    "versions": versions,
                }
            ),
            flush=True,
        )
