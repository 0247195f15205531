"""Draws in place on a terminal, below all other output, by rich's live display."""

from __future__ import annotations

import abc
import sys
from typing import Any, Self, TextIO, final


@final
class LiveDisplay:
    """Redraws what it shows in place; other output appears above.

    Attributes:
        console: rich's, on the terminal.
    """

    def __init__(self, stream: TextIO):
        """Starts on a terminal."""
        from rich.console import Console
        from rich.live import Live

        self.console = Console(file=stream)
        self._live = Live(console=self.console, auto_refresh=False, redirect_stdout=True, redirect_stderr=True)
        self._live.start()

    def show(self, renderable: Any) -> None:
        """Shows something instead of what is there."""
        self._live.update(renderable, refresh=True)

    def message(self, text: str) -> None:
        """Prints a line that stays, above."""
        self.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leaves what is shown, and gives the terminal back."""
        self._live.stop()


class LiveTable(abc.ABC):
    """Shows a table that changes on a terminal, and lines elsewhere. A context manager; `close` may be called twice."""

    def __init__(self, stream: TextIO | None, quiet: bool = False):
        """Starts.

        Args:
            stream: where to write; None for standard error.
            quiet: show nothing at all.
        """
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._display = LiveDisplay(self._stream) if not quiet and self._stream.isatty() else None
        self._closed = False

    @abc.abstractmethod
    def _last_lines(self) -> str:
        """Returns how it ended, for what is no terminal; empty for nothing."""

    def message(self, text: str) -> None:
        """Prints a line of its own above the table."""
        if self._display is not None:
            self._display.message(text)
        else:
            self._print(text)

    def close(self) -> None:
        """Shows how it ended and gives the terminal back."""
        if self._closed:
            return
        self._closed = True
        if self._display is not None:
            self._display.close()
        elif text := self._last_lines():
            self._print(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(text + "\n")
            self._stream.flush()
