"""A live progress bar for a terminal or a notebook; plain lines at intervals for a file or a pipe."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO, final

from agentkit.errors import ConfigError
from agentkit.loggers.base import Logger, to_numbers
from agentkit.loggers.live import LiveDisplay
from agentkit.loggers.progress import Progress

_REDRAW_SECONDS = 0.1
_MOST_BAR = 40
_CURVE_WIDTH = 24
_NOTEBOOK_WIDTH = 100


@final
class TerminalLogger(Logger):
    """Shows how far a run is: steps, speed, time left, returns, episodes, updates per second.

    Rows may hold any of ``steps``, ``episodes``, ``episode_return``, ``updates`` and ``updates_per_second``; other
    names are ignored, so that every logger can get the same rows. ``episode_raw_return`` is shown instead of
    ``episode_return`` where there is one. ``updates`` counts since the start of training, and gives the rate where
    ``updates_per_second`` is absent. The time left follows from the steps of the last half minute or so.

    On a terminal, and in a notebook, two lines with a bar and the returns as a small curve are redrawn in place;
    elsewhere a line is printed every `interval_seconds`. No thread is used: the bar moves when rows come.

    Args:
        num_steps: where the run ends.
        start_step: where this process starts; above 0 for a resumed run.
        interval_seconds: between lines when the output is no terminal.
        unit: the word for what the run counts, "step" or "update".
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
        unit: str = "step",
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        if num_steps < 1 or not interval_seconds > 0:
            raise ConfigError(
                f"Expected num_steps >= 1 and interval_seconds > 0, found {num_steps} and {interval_seconds}."
            )
        self._clock = clock
        self._progress = Progress(num_steps, start_step, clock(), unit)
        self._display = LiveDisplay(stream)
        self._notebook: _Notebook | None = None
        if self._display.console is None and stream is None and in_notebook():
            self._notebook = _Notebook()
        is_lines = self._display.console is None and self._notebook is None
        self._period = interval_seconds if is_lines else _REDRAW_SECONDS
        self._shown_at = -math.inf
        self._line = ""

    def write(self, values: Mapping[str, Any]) -> None:
        """Takes the row's values, and redraws if it is time.

        Raises:
            SpecError: for a value that is not one number.
        """
        now = self._clock()
        self._progress.add(now, {name: value for name, value in to_numbers(values).items() if value is not None})
        if now - self._shown_at >= self._period:
            self._show(now)

    def message(self, text: str) -> None:
        """Prints a line of its own above the progress line: an evaluation, a checkpoint, a warning."""
        if self._notebook is not None:
            print(text)
        else:
            self._display.message(text)

    def close(self) -> None:
        """Shows where the run ended and gives the terminal back."""
        if self._progress.ended:
            return
        self._progress.ended = True
        self._show(self._clock())
        self._display.close()

    def line(self) -> str:
        """Returns the progress as one plain line."""
        return plain_line(self._progress, self._clock())

    def _show(self, now: float) -> None:
        self._shown_at = now
        if self._notebook is not None:
            self._notebook.show(self._progress, now)
        elif self._display.console is not None:
            self._display.show(_drawn(self._progress, now, self._display.console))
        else:
            line = plain_line(self._progress, now)
            if line != self._line:  # Of a run with nothing to do, the first line is the last one.
                self._display.message(line)
            self._line = line


def plain_line(progress: Progress, now: float) -> str:
    """Returns progress as one line of plain text."""
    parts = [f"{progress.share:4.0%} {progress.counted()}", progress.speed(), progress.time(now)]
    parts += [progress.mean_return(), *progress.counts()]
    return " | ".join(part for part in parts if part)


def drawn_lines(progress: Progress, now: float, width: int) -> list[tuple[str, str, str, str]]:
    """Returns progress as two lines of at most `width` columns: the text before the bar, its two parts, the text after.

    In the second line the curve of returns stands where the bar does in the first one.
    """
    said = [progress.counted(), progress.speed(), progress.time(now)]
    while len(text := "  ".join(part for part in said if part)) > width - 5 and len(said) > 1:
        del said[1]  # A very narrow terminal.
    bar = min(width - 1 - len(text) - 7, _MOST_BAR)
    full = round(progress.share * bar)
    first = (f"{progress.share:4.0%} ", "━" * full, "━" * (bar - full), f"  {text}" if bar > 0 else text)
    counts = progress.counts()
    while counts and len("     return -10000.0" + "  ".join(counts)) + 4 > width:
        counts.pop()
    before, after = f"     {progress.mean_return()}", "  ".join(counts)
    curve = progress.curve(min(_CURVE_WIDTH, width - len(before) - len(after) - 5))
    if not progress.mean_return():
        return [first, ("     ", "", "", after)] if after else [first]
    return [first, (f"{before} ", curve, "", f"{'  ' if curve else ' '}{after}")]


def in_notebook() -> bool:
    """Returns whether this is a Jupyter kernel, whose output is no terminal and is looked at all the same."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


def _drawn(progress: Progress, now: float, console: Any) -> Any:
    """Returns progress for rich: two lines, or a plain one where the terminal has no signs for a bar."""
    from rich.text import Text

    if not str(console.encoding).lower().startswith("utf"):
        return Text(plain_line(progress, now))
    lines = [
        Text.assemble(before, (full, "green"), (rest, "bright_black"), after, no_wrap=True, overflow="crop")
        for before, full, rest, after in drawn_lines(progress, now, console.width)
    ]
    return Text("\n").join(lines)


@final
class _Notebook:
    """Draws in the output of a notebook's cell."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, progress: Progress, now: float) -> None:
        text = "\n".join("".join(parts) for parts in drawn_lines(progress, now, _NOTEBOOK_WIDTH))
        shown = {"text/plain": text}
        if self._handle is None:
            self._handle = sys.modules["IPython"].display.display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)
