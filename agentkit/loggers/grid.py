"""Text in columns, as plain lines and for a terminal."""

from __future__ import annotations

from typing import Any, NamedTuple


class Grid(NamedTuple):
    """Holds text in columns: their headings, and rows of as many cells."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


def aligned(grid: Grid) -> list[str]:
    """Returns the grid's lines, if it has rows: the first column to the left, the others to the right."""
    if not grid.rows:
        return []
    rows = [grid.columns, *grid.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(grid.columns))]
    return [
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def rich_table(grid: Grid, *, wrap: bool) -> Any:
    """Returns a grid for rich: the first column to the left, the others to the right.

    Args:
        grid: the text.
        wrap: go on in a second line where the terminal is too narrow, rather than be cut.
    """
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for number, column in enumerate(grid.columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=not wrap)
    for row in grid.rows:
        table.add_row(*map(Text, row))  # Text, because an error's [brackets] are no markup.
    return table
