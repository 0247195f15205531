"""JSON lines: a row is one JSON object on a line of its own, with the names that the row itself has."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, final

from agentkit.errors import ConfigError
from agentkit.files import MOST_TEXT, open_to_append, read_lines
from agentkit.loggers.base import Logger, to_numbers
from agentkit.loggers.csv import append_line, replacing


@final
class JsonLinesLogger(Logger):
    """Writes each row at once as a line ``{"steps": 100, "loss": 0.5}``, for programs that read it while it grows.

    Values that are None are left out. NaN and infinity, which JSON does not have, are null. As in `CsvLogger`, a row
    is in the file whole or not at all.

    Args:
        path: the file; its folder is made if needed.
        resume_step: None for a new file. Otherwise the step from which a resumed run goes on: rows of later steps are
            dropped, and so is a last row that a kill cut short.
        step_key: the name of the step.

    Raises:
        ConfigError: the file has rows in it and `resume_step` is None, or it is damaged.
    """

    def __init__(self, path: str | os.PathLike[str], resume_step: int | None = None, step_key: str = "steps"):
        self._path = Path(path)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.exists() and self._path.stat().st_size > 0:
            if resume_step is None:
                raise ConfigError(
                    f"The log {self._path} exists already. Pass resume_step to continue it, or choose another folder."
                )
            with replacing(self._path) as file:
                rows = _rows(self._path, only_numbers=True)
                file.writelines(_line(row) for row in rows if _step(row, step_key) <= resume_step)
        self._file: BinaryIO | None = open_to_append(self._path)

    def write(self, values: Mapping[str, Any]) -> None:
        """Appends one row.

        Raises:
            OSError: there is no room for it.
            SpecError: for a value that is not one number.
            ValueError: after `close`.
        """
        if self._file is None:
            raise ValueError(f"The log {self._path} is closed.")
        row = {name: value for name, value in to_numbers(values).items() if value is not None}
        append_line(self._file, _line(row).encode())

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def read_jsonl(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """Reads the complete rows of a log; a last row without its newline is left out.

    Raises:
        ConfigError: a line is no JSON object.
    """
    return list(_rows(path, MOST_TEXT))


def _check_numbers(row: Mapping[str, Any]) -> None:
    """Refuses what `JsonLinesLogger.write` never writes."""
    for name, value in row.items():
        if value is not None and not isinstance(value, int | float):
            raise ValueError(f"expected a number as {name!r}, found {value!r:.60}")
        if isinstance(value, int):
            float(value)  # One of over 308 digits is none.


def _rows(
    path: str | os.PathLike[str], most: int | None = None, only_numbers: bool = False
) -> Iterator[dict[str, Any]]:
    """Yields the complete rows of a log, in the memory of one."""
    try:
        for line in read_lines(path, most):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("expected an object on each line")
            if only_numbers:
                _check_numbers(row)
            yield row
    except (ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"The log {path} is damaged: {error}. Mend it, or move it away.") from error


def _line(row: Mapping[str, Any]) -> str:
    plain = {name: value if value is not None and math.isfinite(value) else None for name, value in row.items()}
    return json.dumps(plain) + "\n"


def _step(row: Mapping[str, Any], step_key: str) -> float:
    """Returns the row's step; a row without one is older than every step, and is kept."""
    value = row.get(step_key)
    return -1.0 if value is None else float(value)
