"""Times the calls of a profiled run's dataset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, final

from agentkit.types import ReplaySample


class CallTimer(Protocol):
    """Measures the time of calls; see `profile.Timer`."""

    def timed(self, function: Callable[..., Any], part: str, counted: bool = True) -> Callable[..., Any]:
        """Returns the function, timed as `part`; its calls are counted if `counted`."""
        ...


@final
class TimedDataset:
    """Stands for a `ReplayDataset`; a batch that is due and still on its way is waited for."""

    def __init__(self, dataset: Any, timer: CallTimer):
        """Takes the dataset, and the timer that is told of the calls."""
        self._dataset = dataset
        self._draw_late = timer.timed(dataset.__next__, "waiting")
        self._next = timer.timed(self._draw, "sampling")
        self.ready = timer.timed(dataset.ready, "waiting", counted=False)

    def _draw(self) -> ReplaySample:
        return next(self._dataset) if self._dataset.fetched() else self._draw_late()

    def __iter__(self) -> TimedDataset:
        return self

    def __next__(self) -> ReplaySample:
        return self._next()
