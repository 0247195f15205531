"""A live progress line for a terminal; plain lines at intervals for a file or a pipe."""

from __future__ import annotations

import collections
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO, final

from agentkit.errors import ConfigError
from agentkit.loggers.base import Logger, to_numbers

_NUM_RETURNS = 10  # The line shows the mean return of this many last episodes.
_RATE_SECONDS = 30.0  # Rates are over about this much of the past, so that they follow changes.
_REDRAW_SECONDS = 0.1
_SETTLE_SECONDS = 5.0  # Before this, compiling hides how fast a run is, and no time left is shown.


@final
class TerminalLogger(Logger):
    """Shows how far a run is: steps, episodes, return, updates per second, samples per insert, time left.

    Rows may hold any of ``steps``, ``episodes``, ``episode_return``, ``updates``, ``updates_per_second``
    and ``samples_per_insert``; other names are ignored, so that every logger can get the same rows.
    ``updates`` counts since the start of training, and gives the rate where ``updates_per_second`` is
    absent. The time left follows from the steps of the last half minute or so.

    On a terminal one line is redrawn in place; elsewhere a line is printed every `interval_seconds`.
    No thread is used: the line moves when rows come.

    Args:
        num_steps: where the run ends.
        start_step: where this process starts; above 0 for a resumed run.
        interval_seconds: between lines when the output is no terminal.
        stream: where to write; None for standard error.
        clock: seconds, monotonic; for tests.

    Raises:
        ConfigError: for a negative or zero `num_steps` or `interval_seconds`.
    """

    def __init__(
        self,
        num_steps: int,
        start_step: int = 0,
        interval_seconds: float = 10.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if num_steps < 1 or not interval_seconds > 0:
            raise ConfigError(
                f"Expected num_steps >= 1 and interval_seconds > 0, found {num_steps} and {interval_seconds}."
            )
        self._num_steps = num_steps
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._live = make_live_line(self._stream) if self._stream.isatty() else None
        self._period = interval_seconds if self._live is None else _REDRAW_SECONDS
        self._shown_at = -math.inf
        self._latest: dict[str, float] = {"steps": start_step}
        self._returns: collections.deque[float] = collections.deque(maxlen=_NUM_RETURNS)
        self._step_rate = _Rate()
        self._update_rate = _Rate()
        self._started = clock()
        self._step_rate.add(self._started, start_step)
        self._closed = False

    def write(self, values: Mapping[str, Any]) -> None:
        """Takes the row's values, and redraws if it is time.

        Raises:
            SpecError: for a value that is not one number.
        """
        row = {name: value for name, value in to_numbers(values).items() if value is not None}
        now = self._clock()
        self._latest.update(row)
        if "episode_return" in row:
            self._returns.append(row["episode_return"])
        if "steps" in row:
            self._step_rate.add(now, row["steps"])
        if "updates" in row:
            self._update_rate.add(now, row["updates"])
        if now - self._shown_at >= self._period:
            self._show(now)

    def message(self, text: str) -> None:
        """Prints a line of its own above the progress line: an evaluation, a checkpoint, a warning."""
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._print(text)

    def close(self) -> None:
        """Shows where the run ended and gives the terminal back."""
        if self._closed:
            return
        self._closed = True
        self._show(self._clock())
        if self._live is not None:
            self._live.stop()

    def line(self) -> str:
        """Returns the progress line as it stands."""
        return self._line(self._clock())

    def _line(self, now: float) -> str:
        latest = self._latest
        steps = latest["steps"]
        parts = [f"{min(steps / self._num_steps, 1.0):4.0%} {steps:,.0f}/{self._num_steps:,} steps"]
        steps_per_second = self._step_rate.per_second()
        if steps >= self._num_steps or self._closed:
            parts.append(f"took {duration(now - self._started)}")
        elif steps_per_second and now - self._started >= _SETTLE_SECONDS:
            parts.append(f"{duration((self._num_steps - steps) / steps_per_second)} left")
        if self._returns:
            parts.append(f"return {sum(self._returns) / len(self._returns):.1f}")
        if "episodes" in latest:
            parts.append(f"{latest['episodes']:,.0f} episodes")
        updates_per_second = latest.get("updates_per_second", self._update_rate.per_second())
        if updates_per_second is not None:
            parts.append(f"{updates_per_second:,.0f} updates/s")
        if "samples_per_insert" in latest:
            parts.append(f"{latest['samples_per_insert']:.1f} samples/insert")
        return " | ".join(parts)

    def _show(self, now: float) -> None:
        self._shown_at = now
        if self._live is None:
            self._print(self._line(now))
        else:
            from rich.text import Text

            self._live.update(Text(self._line(now)), refresh=True)  # wraps on a narrow terminal

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


class _Rate:
    """How fast a count grows, over the recent past."""

    def __init__(self) -> None:
        self._points: collections.deque[tuple[float, float]] = collections.deque()

    def add(self, now: float, count: float) -> None:
        points = self._points
        points.append((now, count))
        while len(points) > 2 and now - points[1][0] > _RATE_SECONDS:
            points.popleft()

    def per_second(self) -> float | None:
        if len(self._points) < 2:
            return None
        (first_time, first), (last_time, last) = self._points[0], self._points[-1]
        return (last - first) / (last_time - first_time) if last_time > first_time else None


def make_live_line(stream: TextIO) -> Any:
    """Starts a `rich.live.Live` on a terminal; other output appears above it."""
    from rich.console import Console
    from rich.live import Live

    live = Live(console=Console(file=stream), auto_refresh=False, redirect_stdout=True, redirect_stderr=True)
    live.start()
    return live


def duration(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    >>> duration(59.6), duration(3725)
    ('1:00', '1:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
