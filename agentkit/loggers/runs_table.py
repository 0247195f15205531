"""Several runs at once: a table redrawn in place on a terminal; elsewhere messages, and the table at the end."""

from __future__ import annotations

import sys
from typing import Any, TextIO, final

from agentkit.loggers.program_table import Grid, aligned
from agentkit.loggers.terminal import make_live_line


@final
class RunsTable:
    """Shows a grid of runs as it changes. A context manager; `close` may be called twice.

    Args:
        stream: where to write; None for standard error.
        quiet: show nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False):
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._live = make_live_line(self._stream) if not quiet and self._stream.isatty() else None
        self._grid: Grid | None = None
        self._shown: Grid | None = None
        self._closed = False

    def write(self, grid: Grid) -> None:
        """Takes the newest rows, and redraws them where they differ from those shown."""
        self._grid = grid
        if self._live is not None and grid != self._shown:
            self._live.update(_as_table(grid), refresh=True)
            self._shown = grid

    def message(self, text: str) -> None:
        """Prints a line of its own above the table."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._print(text)

    def close(self) -> None:
        """Shows how the runs ended and gives the terminal back."""
        if self._closed:
            return
        self._closed = True
        if self._live is not None:
            self._live.stop()
        elif self._grid is not None and not self._quiet:
            self._print(as_text(self._grid))

    def __enter__(self) -> RunsTable:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _print(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()


def as_text(grid: Grid) -> str:
    """Returns a grid as lines of plain text.

    >>> print(as_text(Grid(("seed", "return"), [("0", "-3.0"), ("12", "120.5")])))
    seed  return
    0       -3.0
    12     120.5
    """
    return "\n".join(aligned(grid))


def _as_table(grid: Grid) -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True, overflow="ellipsis")
    for row in grid.rows:
        table.add_row(*map(Text, row))
    return table
