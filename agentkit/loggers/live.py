"""Draws in place on a terminal, below all other output, by rich; elsewhere prints lines."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import Any, NamedTuple, TextIO, final


@final
class LiveDisplay:
    """Redraws what it shows in place on a terminal; messages appear above. Elsewhere there are messages alone.

    Attributes:
        console: rich's, on the terminal; None where there is none, or nothing is to be shown.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False):
        """Starts.

        Args:
            stream: where to write; None for standard error.
            quiet: show nothing at all.
        """
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self.console: Any = None
        if not quiet and self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self.console = Console(file=self._stream)
            self._live = Live(console=self.console, auto_refresh=False, redirect_stdout=True, redirect_stderr=True)
            self._live.start()

    def show(self, renderable: Any) -> None:
        """Shows something instead of what is there, on a terminal."""
        if self.console is not None:
            self._live.update(renderable, refresh=True)

    def message(self, text: str) -> None:
        """Prints a line that stays."""
        if self.console is not None:
            self.console.print(text, markup=False, highlight=False)
        elif not self._quiet:
            self._stream.write(text + "\n")
            self._stream.flush()

    def close(self) -> None:
        """Leaves what is shown, and gives the terminal back. May be called twice."""
        if self.console is not None:
            self._live.stop()


class Grid(NamedTuple):
    """Holds text in columns: their headings, and rows of as many cells."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]

    def table(self, wrap: bool = False) -> Any:
        """Returns it for rich: the first column to the left, the others to the right.

        Args:
            wrap: go on in a second line where the terminal is too narrow, rather than be cut.
        """
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for number, column in enumerate(self.columns):
            table.add_column(column, justify="left" if number == 0 else "right", no_wrap=not wrap)
        for row in self.rows:
            table.add_row(*map(Text, row))  # Text, because an error's [brackets] are no markup.
        return table


def as_text(renderable: Any) -> str:
    """Returns what rich would draw as plain text, however wide.

    >>> print(as_text(Grid(("seed", "return"), [("0", "-3.0"), ("12", "120.5")]).table()))
    seed  return
    0       -3.0
    12     120.5
    """
    from rich.console import Console

    text = io.StringIO()
    Console(file=text, width=10_000, color_system=None).print(renderable)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


@final
class RunsTable(contextlib.AbstractContextManager["RunsTable"]):
    """Shows a grid of runs as it changes: redrawn on a terminal; elsewhere messages, and the table at the end.

    Args:
        stream: where to write; None for standard error.
        quiet: show nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False):
        self._display = LiveDisplay(stream, quiet)
        self._grid: Grid | None = None
        self.message = self._display.message

    def write(self, grid: Grid) -> None:
        """Takes the newest rows, and redraws them where they differ from those shown."""
        if grid != self._grid:
            self._display.show(grid.table())
        self._grid = grid

    def close(self) -> None:
        """Shows how it ended and gives the terminal back. May be called twice."""
        if self._grid is not None and self._display.console is None:
            self._display.message(as_text(self._grid.table()))
        self._grid = None
        self._display.close()

    def __exit__(self, *exc_info: object) -> None:
        self.close()
