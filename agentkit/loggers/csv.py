"""A CSV file that grows columns, survives a kill, and continues after a resume."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TextIO, final

from agentkit.errors import ConfigError
from agentkit.files import MOST_TEXT, open_new, open_to_append, read_lines
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
            rows = csv_rows(self._path)
            columns = next(rows, [])
            self._rewrite(columns, self._until(resume_step, columns, rows))

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
            before = itertools.islice(csv_rows(self._path), 1, None) if self._columns else []
            self._rewrite([*self._columns, *new], ([*cells, *[""] * len(new)] for cells in before))
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

    def _until(self, step: int, columns: list[str], rows: Iterable[list[str]]) -> Iterator[list[str]]:
        """Yields the rows up to a step; one without a step is older than every step."""
        place = columns.index(self._step_key) if self._step_key in columns else None
        for row in rows:
            try:
                if place is None or float(row[place] or -1.0) <= step:
                    yield row
            except ValueError as error:
                raise _damaged(self._path, error) from error

    def _rewrite(self, columns: list[str], rows: Iterable[list[str]]) -> None:
        with replacing(self._path) as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(rows)
        self._let_go()
        self._columns = columns
        self._file = open_to_append(self._path)

    def _let_go(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Gives a file of text to write that takes the place of another at the end, whole or not at all.

    Raises:
        OSError: there is no room for it; the old one is as it was.
    """
    temporary = path.with_name(path.name + ".tmp")
    try:
        with io.TextIOWrapper(open_new(temporary), "utf-8", newline="") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
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
    rows = csv_rows(path, MOST_TEXT)
    columns = next(rows, [])
    return columns, [dict(zip(columns, row, strict=True)) for row in rows]


def csv_rows(path: str | os.PathLike[str], most: int | None = None) -> Iterator[list[str]]:
    """Yields the columns and then the complete rows of a log, in the memory of one.

    Args:
        path: the file.
        most: bytes that it may have; None for any number.

    Raises:
        ConfigError: it is not text of columns.
    """
    try:
        lines = read_lines(path, most)
        columns = next(csv.reader(lines), None)
        if columns is None:
            return
        yield columns
        for line in lines:
            text = line.rstrip("\r\n")
            # Numbers need no quotes, and to split them takes half of the reader's time.
            plain = text.split(",") if text else []
            cells = plain if '"' not in text else next(csv.reader(itertools.chain([line], lines)))
            if len(cells) == len(columns):
                yield cells
    except (ValueError, csv.Error) as error:
        raise _damaged(path, error) from error


def _damaged(path: str | os.PathLike[str], error: Exception) -> ConfigError:
    return ConfigError(f"The log {path} is damaged: {error}. Mend it, or move it away.")
