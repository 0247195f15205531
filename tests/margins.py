"""Keeps by how much learning tests learn: the returns of each seed beside the threshold, in tests/learning_margins.csv.

In one process a training is the same each time, so such a test does not fail from run to run but from machine to
machine and from one JAX to the next: what stands close to its threshold is seen here before it falls. A run with
`Margins` registered writes the lines of the tests that it ran anew, for the stack that it ran on.
"""

import csv
import importlib.util
import os
import pathlib
import tempfile

MARGINS_VARIABLE = "AGENTKIT_LEARNING_MARGINS"  # That of agentkit.testing.learning, whose import would bring JAX.
FILE = pathlib.Path(__file__).with_name("learning_margins.csv")
COLUMNS = ("test", "stack", "threshold", "least", "returns")

Line = tuple[str, ...]


def merge(kept: list[Line], new: list[Line]) -> list[Line]:
    """Returns the lines, sorted, of which new ones replace those of the same test and stack."""
    seen = {line[:2] for line in new}
    return sorted([line for line in kept if line[:2] not in seen] + new, key=lambda line: line[:2])


def read(path: pathlib.Path) -> list[Line]:
    """Returns the lines of a file of margins; none where there is no file."""
    if not path.exists():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [tuple(row) for row in csv.reader(file)][1:]


def write(path: pathlib.Path, lines: list[Line]) -> None:
    """Writes a file of margins."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([COLUMNS, *lines])


class Margins:
    """A plugin: lets the trainings of this session, and of its workers, note their returns, and keeps them."""

    def __init__(self, file: pathlib.Path = FILE):
        """Must be made before workers start, which inherit where to write."""
        self._file, self._notes = file, None
        if MARGINS_VARIABLE not in os.environ:  # Else this is a worker, or somebody keeps them elsewhere.
            handle, path = tempfile.mkstemp(prefix="agentkit-margins-")
            os.close(handle)
            self._notes = pathlib.Path(path)
            os.environ[MARGINS_VARIABLE] = path

    def pytest_sessionfinish(self) -> None:
        """Takes what was noted into the file."""
        if self._notes is None:
            return
        with open(self._notes, newline="", encoding="utf-8") as file:
            noted = list(csv.reader(file))
        stack = "reverb" if importlib.util.find_spec("reverb") else "newest"
        new = [(test, stack, threshold, least, returns) for test, threshold, least, returns in noted]
        if new:
            write(self._file, merge(read(self._file), new))
        self._notes.unlink()
        del os.environ[MARGINS_VARIABLE]
