"""Makes the folder of a new run, and takes it away again where the run is refused before it has begun."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import final

from agentkit.errors import AgentkitError, ConfigError
from agentkit.experiment.runs.config_json import refuse_of_several_learners

RUNS = "runs"
"""Where run folders are made if nobody says otherwise."""


@final
class NewFolder:
    """Is a folder that was made for a run.

    Attributes:
        path: of the folder.
    """

    def __init__(self, path: Path, made: list[Path]):
        """Holds the path, and which folders had to be made for it, the innermost first."""
        self.path, self._made = path, made

    @contextlib.contextmanager
    def removed_if_refused(self) -> Iterator[None]:
        """Deletes what was made where an `AgentkitError` passes and nothing was written."""
        try:
            yield
        except AgentkitError:
            with contextlib.suppress(OSError):  # There is something in it.
                for folder in self._made:
                    with contextlib.suppress(FileNotFoundError):  # Who gave its lock back has deleted it.
                        folder.rmdir()
            raise


def make_folder(out: str | os.PathLike[str], agent: str, environment: str, ending: str) -> NewFolder:
    """Makes a new, empty folder in `out`, named after agent and environment: ``sac-gymnasium_Pendulum-v1-seed0``.

    A run that has the name already keeps it: the new one gets ``-2``, ``-3``, ...

    Raises:
        ConfigError: no folder can be made there.
    """
    name = f"{agent}-{re.sub(r'[^A-Za-z0-9._-]+', '_', environment)}-{ending}"
    parents = _missing(Path(out))
    for number in itertools.count(1):
        directory = Path(out) / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            _make(directory, "--out")
            return NewFolder(directory, [directory, *parents])
        if not directory.is_dir():
            raise ConfigError(f"--out: {directory} cannot be made: a file is in the way.")
    raise AssertionError("itertools.count ended")


def make_this_folder(directory: str | os.PathLike[str]) -> NewFolder:
    """Makes a run folder that has a name already; an empty one may be there.

    Raises:
        ConfigError: there is a run in it, or it cannot be made.
    """
    path = Path(directory)
    refuse_of_several_learners(path)
    if (path / "config.json").exists() or (path / "group.json").exists():
        raise ConfigError(
            f"--run-directory: {path} has a run in it already. Go on with it by --resume {path}, or choose another one."
        )
    made = _missing(path)
    try:
        _make(path, "--run-directory")
    except FileExistsError:
        if not path.is_dir():
            raise ConfigError(f"--run-directory: {path} cannot be made: a file is in the way.") from None
    return NewFolder(path, made)


def _missing(path: Path) -> list[Path]:
    """Returns which folders have to be made for a path, the innermost first."""
    return [folder for folder in (path, *path.parents) if not folder.exists()]


def _make(path: Path, option: str) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(f"{option}: {path} cannot be made: {error.strerror}.") from error
