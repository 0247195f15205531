"""Several runs at once: a table redrawn in place on a terminal; elsewhere messages, and the table at the end."""

from __future__ import annotations

from typing import TextIO, final

from agentkit.loggers.grid import Grid, aligned, rich_table
from agentkit.loggers.live import LiveTable


@final
class RunsTable(LiveTable):
    """Shows a grid of runs as it changes.

    Args:
        stream: where to write; None for standard error.
        quiet: show nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, quiet: bool = False):
        super().__init__(stream, quiet)
        self._grid: Grid | None = None

    def write(self, grid: Grid) -> None:
        """Takes the newest rows, and redraws them where they differ from those shown."""
        if self._display is not None and grid != self._grid:
            self._display.show(rich_table(grid, wrap=False))
        self._grid = grid

    def _last_lines(self) -> str:
        return "" if self._grid is None else as_text(self._grid)


def as_text(grid: Grid) -> str:
    """Returns a grid as lines of plain text.

    >>> print(as_text(Grid(("seed", "return"), [("0", "-3.0"), ("12", "120.5")])))
    seed  return
    0       -3.0
    12     120.5
    """
    return "\n".join(aligned(grid))
