"""Chunks of a run's training: how long they are, and what comes out of one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, final

import jax
import numpy as np

from agentkit.experiment.on_device.loop import MOST_ROUNDS, Chunk, DeviceLoop, Report, State
from agentkit.experiment.on_device.replay.store import stores_of
from agentkit.types import Array, Nest

CHUNK_SECONDS = 0.25
"""How long a chunk may take that has more than one round: so late may Ctrl-C and the progress line be.

A round is never cut, so they are as late as one takes where that is longer."""


class Ran(NamedTuple):
    """Holds what a run's work needs of a chunk.

    Attributes:
        training: the training state after it.
        metrics: of the newest update.
        tally: see `learning.finite.start_tally`.
        report: of its rounds, numpy arrays ``[rounds]``.
    """

    training: Nest
    metrics: Mapping[str, Array]
    tally: Array
    report: Report


class DeviceLearner(Protocol):
    """Holds the training state between chunks: `learning.Learner`, or those of several policies by id."""

    @property
    def state(self) -> Nest:
        """Returns the training state."""
        ...

    @property
    def tally(self) -> Any:
        """Returns what was counted; see `learning.finite.start_tally`."""
        ...

    def take(self, state: Nest, metrics: Mapping[str, Any], tally: Any) -> None:
        """Takes over what a chunk's updates have made; see `learning.Learner.take`."""
        ...


class Chunks(Protocol):
    """Runs the chunks of one run."""

    @property
    def state(self) -> State:
        """Returns all that the next chunk needs beside the learner's; the next chunk donates its buffers."""
        ...

    @state.setter
    def state(self, state: State) -> None: ...

    def counts(self) -> dict[str, tuple[int, int]]:
        """Returns how many items there is room for, and how many were inserted, of each replay; see `stores_of`."""
        ...

    def next(self, learner: DeviceLearner, target: int) -> Ran:
        """Runs a chunk.

        Args:
            learner: holds the training state, which is donated.
            target: environment steps in all, at which it ends.
        """
        ...


@final
class Pace:
    """Finds how many rounds take `CHUNK_SECONDS`; no result depends on it.

    Attributes:
        num_rounds: of the next chunk, at most.
    """

    def __init__(self) -> None:
        """Begins with a round, which compiles."""
        self.num_rounds = 1
        self._has_compiled = False

    def measure(self, num_rounds: int, begun: float) -> None:
        """Takes the rounds of a chunk, and when it began."""
        seconds = time.monotonic() - begun
        if self._has_compiled:
            fits = int(CHUNK_SECONDS * num_rounds / max(seconds, 1e-9))
            self.num_rounds = min(max(fits, 1), 2 * self.num_rounds, MOST_ROUNDS)
        self._has_compiled = True


@final
class OneRun:
    """Runs the chunks of a run that has a program to itself: `Chunks`."""

    def __init__(self, loop: DeviceLoop, key: Array):
        """Makes the first state; runs nothing yet.

        Args:
            loop: to run.
            key: PRNG key ``uint32[2]``, of environments and policy.
        """
        self._loop, self._pace = loop, Pace()
        self.state = loop.start(key)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Returns the counts of the replay; see `Chunks`."""
        stores = stores_of(self.state.store)
        return {name: (store.ring.capacity, int(store.ring.num_inserted)) for name, store in stores.items()}

    def next(self, learner: DeviceLearner, target: int) -> Ran:
        """Runs a chunk; see `Chunks`."""
        begun = time.monotonic()
        chunk: Chunk = self._loop.run(learner.state, self.state, learner.tally, target, self._pace.num_rounds)
        num_rounds = int(chunk.num_rounds)  # Waits for the device.
        self._pace.measure(num_rounds, begun)
        self.state = chunk.state
        report: Report = jax.tree.map(lambda x: np.asarray(x)[:num_rounds], chunk.report)
        return Ran(chunk.training, chunk.state.metrics, chunk.tally, report)
