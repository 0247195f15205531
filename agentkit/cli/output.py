"""Lets a training outlive its reader: output that nobody takes any more (`train | head`) is dropped."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, TextIO, cast, final

_READER_GONE = (errno.EPIPE, errno.EIO, errno.ENXIO)


@final
class LastingStream:
    """Writes to a stream as long as that takes it; later text is dropped, and so is what a full disk refuses."""

    def __init__(self, stream: TextIO):
        """Wraps a stream, all of whose other attributes this one has, too."""
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes, or drops."""
        with self._dropping():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flushes, or drops."""
        with self._dropping():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    @contextlib.contextmanager
    def _dropping(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in _READER_GONE:
                self._point_nowhere()

    def _point_nowhere(self) -> None:
        """Sends what the stream still holds nowhere: it would raise again, at the latest when Python ends."""
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)


def prepare_output() -> None:
    """Replaces standard output and error that were closed, and lets any text into an encoding that lacks its signs.

    A closed one's number would else go to the next file that is opened, into which what libraries print then goes.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)  # Workers and nodes write there, too.
    os.close(number)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8", errors="backslashreplace")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def lasting_output() -> Iterator[None]:
    """Makes standard output and error such streams for as long as the context lasts."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", LastingStream(stream)) for stream in before)
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        sys.stdout, sys.stderr = before
