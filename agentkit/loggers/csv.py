"""A CSV file that grows columns, survives a kill, and continues after a resume."""

from __future__ import annotations

import contextlib
import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

from agentkit.errors import ConfigError
from agentkit.files import open_new, open_to_append, read_text
from agentkit.loggers.base import Logger, to_numbers


@final
class CsvLogger(Logger):
    """Writes each row to a CSV file at once, so that a killed run keeps its log.

    A row is in the file whole or not at all: one that the disk has no room for raises OSError and leaves
    the log as it was, to be resumed.

    Columns appear in the order in which they are first seen. A row with a new column rewrites the
    file with the wider header (to a temporary file, then one atomic rename); earlier rows have
    empty cells there. None and absent values are empty cells; NaN is written as ``nan``.

    Args:
        path: the file; its folder is made if needed.
        resume_step: None for a new file. Otherwise the step from which a resumed run goes on: rows
            with a larger step are dropped, since the resumed run will write them again, and so is a
            last row that a kill cut short.
        step_key: the column that holds the step.

    Raises:
        ConfigError: if the file exists with rows in it and `resume_step` is None.
    """

    def __init__(self, path: str | os.PathLike[str], resume_step: int | None = None, step_key: str = "steps"):
        self._path = Path(path)
        self._step_key = step_key
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._columns: list[str] = []
        self._file: BinaryIO | None = None
        self._closed = False
        if self._path.exists() and self._path.stat().st_size > 0:
            if resume_step is None:
                raise ConfigError(
                    f"The log {self._path} exists already. Pass resume_step to continue it, or choose another folder."
                )
            columns, rows = read_csv(self._path)
            try:
                self._rewrite(columns, [row for row in rows if _step(row, step_key) <= resume_step])
            except ValueError as error:
                raise ConfigError(f"The log {self._path} is damaged: {error}. Mend it, or move it away.") from error

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends one row and flushes it.

        Raises:
            OSError: there is no room for it.
            SpecError: for a value that is not one number.
            ValueError: after `close`, or the first row is empty.
        """
        if self._closed:
            raise ValueError(f"The log {self._path} is closed.")
        row = {name: "" if value is None else str(value) for name, value in to_numbers(values).items()}
        new = [name for name in row if name not in self._columns]
        if new:
            self._rewrite([*self._columns, *new], read_csv(self._path)[1] if self._columns else [])
        if not self._columns:
            raise ValueError(f"The first row of the log {self._path} is empty: expected its columns, such as steps.")
        if self._file is None:
            self._file = open_to_append(self._path)  # This failed when the file got its columns.
        line = io.StringIO()
        csv.writer(line, lineterminator="\n").writerow([row.get(name, "") for name in self._columns])
        append_line(self._file, line.getvalue().encode())

    def close(self) -> None:
        """Closes the file."""
        self._closed = True
        self._let_go()

    def _rewrite(self, columns: list[str], rows: list[dict[str, str]]) -> None:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows([row.get(name, "") for name in columns] for row in rows)
        replace_file(self._path, text.getvalue().encode())
        self._let_go()
        self._columns = columns
        self._file = open_to_append(self._path)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def replace_file(path: Path, content: bytes) -> None:
    """Writes a file anew, whole or not at all.

    Raises:
        OSError: there is no room for it; the old one is as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open_new(temporary) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def append_line(file: BinaryIO, line: bytes) -> None:
    """Writes all of a line, or leaves the file as it was and raises OSError."""
    size, left = os.fstat(file.fileno()).st_size, memoryview(line)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(file.fileno(), size)
        raise


def read_csv(path: str | os.PathLike[str]) -> tuple[list[str], list[dict[str, str]]]:
    r"""Reads the columns and the complete rows of a log; a last row without its newline is left out.

    Raises:
        ConfigError: it is not text of columns.

    >>> import tempfile, pathlib
    >>> log = pathlib.Path(tempfile.mkdtemp(), "train.csv")
    >>> _ = log.write_text("steps,loss\n1,0.5\n2,0.")
    >>> read_csv(log)
    (['steps', 'loss'], [{'steps': '1', 'loss': '0.5'}])
    """
    try:
        text = read_text(path)
        complete = text[: text.rfind("\n") + 1]
        lines = list(csv.reader(complete.splitlines()))
    except (ValueError, csv.Error) as error:
        raise ConfigError(f"The log {path} is damaged: {error}. Mend it, or move it away.") from error
    if not lines:
        return [], []
    columns = lines[0]
    return columns, [dict(zip(columns, line, strict=True)) for line in lines[1:] if len(line) == len(columns)]


def _step(row: Mapping[str, str], step_key: str) -> float:
    """Returns the row's step; a row without one is older than every step, and is kept."""
    value = row.get(step_key, "")
    return float(value) if value else -1.0
