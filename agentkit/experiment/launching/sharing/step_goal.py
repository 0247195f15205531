"""Keeps a program's actors from outrunning the word to stop, which takes up to a second and a half to reach them.

An actor knows the program's steps from its heartbeats, and its own at once. So each may take half its share of the
steps that were left at its last heartbeat, since the others have taken some meanwhile, and a hundredth of the goal at
most, since it may have been held up while they took all; who has done so asks the run store anew, the more often the
fewer are left. The run store does not lend steps: those of an actor that is killed, or leaves without a word, would
have to come back, or the program waits for steps that nobody takes.
"""

from __future__ import annotations

import contextlib

from agentkit.distributed.context import NodeContext
from agentkit.distributed.run_store_client import RunStoreError

FEW_STEPS = 100
"""An actor may take so many without asking, however small the goal, until half its share is less."""


class StepGoal:
    """Tells one actor when all actors of a program have taken the steps that they are to take together."""

    def __init__(self, context: NodeContext, num_actors: int):
        """Asks the run store for the number of steps.

        Args:
            context: the actor's, whose heartbeats count ``steps``.
            num_actors: those who share them. Where `scale` has added some since, the last steps may be overrun.

        Raises:
            RunStoreError: it is not there; replay nodes put it.
        """
        self._context = context
        self._num_actors = num_actors
        self._goal = int(context.store.get("num_steps"))

    def reached(self) -> bool:
        """Returns whether no step is left; asks the run store where it may be so."""
        left = self._goal - self._context.totals().get("steps", 0)
        unasked = min(left / (2 * self._num_actors), max(FEW_STEPS, self._goal / 100))
        if self._context.unsent("steps") < unasked:
            return False
        with contextlib.suppress(RunStoreError):  # It is away: what is known of it counts.
            self._context.sync()
            self._goal = int(self._context.store.get("num_steps", timeout=1.0))  # A host that came back may want more.
        return self._context.totals().get("steps", 0) >= self._goal
