"""What all sides of the comparison measure with, so that they measure the same. Standard library only.

A side is a script: ``python X_side.py JOB``, JOB being a JSON object of `workloads.make_job`. It builds what the job
says, trains, calls `StepClock.tick` as environment steps begin, stops once `StepClock.ended`, and prints one line of
JSON, its last, by `StepClock.report`. With one environment and ``last`` steps in all it has nothing else to do.

The job, beside what `workloads.Workload` says (``settings``, ``num_envs``, ``environment``, ``algorithm``):

* ``learning_starts``: steps before the first update; 0 for on-policy workloads.
* ``first``, ``last``: the window is from the moment at which step ``first`` begins to that of step ``last``.
* ``updates_per_step``: gradient updates for each environment step, once learning has begun.
* ``rows_per_iteration``: environment steps that on-policy learning is done after; 0 where learning is off-policy.
* ``threads``: of a peer; agentkit configures itself.
* ``seed``; ``started``: wall-clock time at which the process was asked for.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from typing import Any, NamedTuple


class Reading(NamedTuple):
    """The clocks as a step began: seconds, CPU seconds, seconds since 1970, and the counts until then."""

    seconds: float
    cpu_seconds: float
    date: float
    steps: int
    episodes: int


class WindowEnded(BaseException):
    """Raised by `StepClock.tick` where its side asked for it: there is nothing more to measure.

    No Exception, which a library that restarts its environments would catch.
    """


class StepClock:
    """Counts environment steps and reads the clocks at four of them.

    `tick` is called as a step begins. By then every earlier action is known, so every update that it needed
    is finished, on a device that computes asynchronously too. The window from step `first` to step `last`
    therefore holds exactly ``last - first`` steps with their share of everything else.

    Attributes:
        num_steps: steps begun.
        num_slots: the same, with the calls in which an environment of a batch was reset instead of stepped.
            The window is in slots: on-policy learning takes turns with a fixed number of them.
        num_episodes: episodes begun; the side counts.
        ended: the window is over.
    """

    def __init__(self, job: dict[str, Any], raise_at_end: bool = False):
        """
        Args:
            job: see above.
            raise_at_end: raise `WindowEnded` as it ends, for a side that cannot be stopped otherwise.
        """
        self._job = job
        self._raise_at_end = raise_at_end
        # The first update follows an iteration's steps, or the first turn of learning after `learning_starts`; what N
        # environments stored at a step may be seen at the next.
        num_envs = job.get("num_envs", 1)
        settings = job["settings"]
        self._rows_to_item = settings.get("sequence_length", 0) + settings.get("sequence_period", 0)
        turn = max(round(1 / job["updates_per_step"]), 1 if num_envs == 1 else 2 * num_envs) + self._rows_to_item
        updated = job.get("rows_per_iteration") or job["learning_starts"] + turn
        self._marks = [(1, "began"), (updated + 1, "updated"), (job["first"], "first"), (job["last"], "last")]
        self._read: dict[str, Reading] = {}
        self.num_steps = 0
        self.num_slots = 0
        self.num_episodes = 0
        self.ended = False

    def tick(self, slots: int = 1, steps: int | None = None) -> None:
        """So many steps begin together; `steps` where some of the environments are only being reset."""
        self.num_slots += slots
        while self._marks and self.num_slots >= self._marks[0][0]:
            _, name = self._marks.pop(0)
            self._read[name] = Reading(
                time.perf_counter(), time.process_time(), time.time(), self.num_steps, self.num_episodes
            )
            self.ended = name == "last"
        self.num_steps += slots if steps is None else steps
        if self.ended and self._raise_at_end:
            raise WindowEnded

    def updates_owed(self) -> tuple[float, float]:
        """How many updates the steps begun so far call for, and how far from it a side may be."""
        job, settings = self._job, self._job["settings"]
        if rows := job.get("rows_per_iteration", 0):
            per_iteration = job["updates_per_step"] * rows
            return (self.num_slots // rows) * per_iteration, per_iteration
        # Calls of several updates may be under way, steps wait for their sequence to be full, and n-step adders (and
        # those of sequences, in another way) learn from each episode's end as well.
        steps = max(job.get("num_envs", 1), self._rows_to_item)
        together = max(settings.get("updates_per_call", 1), job["updates_per_step"] * steps, 1)
        ends = (settings.get("n_step", 1) - 1) * self.num_episodes
        return job["updates_per_step"] * (self.num_steps - job["learning_starts"]), 2 * together + 2 + ends

    def report(self, *, import_seconds: float, num_updates: float, versions: dict[str, str]) -> None:
        """Prints the measurement as one line of JSON, the last of the output.

        Args:
            import_seconds: how long the library took to import.
            num_updates: gradient updates of the whole run.
            versions: of the packages that matter.

        Raises:
            RuntimeError: another number of updates than the workload asks for was done.
        """
        began, first, last, updated = (self._read[name] for name in ("began", "first", "last", "updated"))
        seconds = last.seconds - first.seconds
        owed, slack = self.updates_owed()
        # As many updates as the workload says, or the comparison means nothing.
        if abs(num_updates - owed) > slack:
            raise RuntimeError(
                f"Expected {self._job['updates_per_step']:g} updates per step, {owed:.0f} (+- {slack:.0f}) in all; "
                f"found {num_updates}."
            )
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        print(
            json.dumps(
                {
                    "steps_per_second": (last.steps - first.steps) / seconds,
                    "window_seconds": seconds,
                    "cores_used": (last.cpu_seconds - first.cpu_seconds) / seconds,
                    "episodes": last.episodes - first.episodes,
                    "import_seconds": import_seconds,
                    "first_step_seconds": began.date - self._job["started"],
                    "first_update_seconds": updated.date - self._job["started"],
                    "peak_mebibytes": peak / (2**20 if sys.platform == "darwin" else 2**10),
                    "last_mebibytes": _resident_mebibytes(),
                    "updates": num_updates,
                    "versions": versions,
                }
            ),
            flush=True,
        )


def _resident_mebibytes() -> float | None:
    """What this process has in memory now; None where Linux does not say so."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * resource.getpagesize() / 2**20
    except OSError:
        return None
