"""Keeps a run folder for one training at a time, by a lock that ends with the process that holds it."""

from __future__ import annotations

import contextlib
import errno
import os
import pathlib
import socket
import threading
from collections.abc import Iterator
from typing import IO, final

from agentkit.errors import ConfigError
from agentkit.files import check_links, lock, open_lock

LOCK_FILE = "lock"
_MOST_NAME = 300

_mine: set[pathlib.Path] = set()
_mine_lock = threading.Lock()


@final
class LockedError(ConfigError):
    """Says that another training or program holds a run folder."""


@contextlib.contextmanager
def run_lock(directory: str | os.PathLike[str] | None) -> Iterator[None]:
    """Holds a run folder, which is made if needed, until the end of the context; None holds nothing.

    The lock is the system's, on the file ``lock``: however its process ends, it is free then. Forked
    children do not keep it (see `files.lock`): an environment's helper that outlives a killed training
    does not stand in the way of the next one. Copy a folder in its own training without the file ``lock``:
    the copying would free it.

    Raises:
        LockedError: another training holds it, here or in another process.
        ConfigError: the folder cannot be written to, or a link in it leads to files outside of it.
    """
    if directory is None:
        yield
        return
    folder = pathlib.Path(directory).resolve()
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]  # From the innermost.
        is_new = bool(made) or not any(folder.iterdir())
    except OSError as error:  # It is a file, say.
        raise unwritable(folder, error) from error
    with _mine_lock:
        if folder in _mine:  # The system's locks are a process's: it would grant this one again.
            raise _taken(folder, f"in this process, {os.getpid()}")
        _mine.add(folder)
    try:
        with _open(folder) as file:
            _lock(folder, file)
            yield
    except BaseException:
        if is_new:
            _remove_empty(folder, made or [folder])
        raise
    finally:
        with _mine_lock:
            _mine.discard(folder)


def _open(folder: pathlib.Path) -> IO[str]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        check_links(folder)
        return open_lock(folder / LOCK_FILE)
    except OSError as error:
        raise unwritable(folder, error) from error


def _lock(folder: pathlib.Path, file: IO[str]) -> None:
    try:
        lock(file, wait=False)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EAGAIN):
            raise unwritable(folder, error) from error
        raise _taken(folder, file.readline(_MOST_NAME).strip() or "of another process") from None
    with contextlib.suppress(OSError):  # On a full disk the next one is refused without the name.
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()


def _remove_empty(folder: pathlib.Path, made: list[pathlib.Path]) -> None:
    """Takes a folder back in which nothing was begun, and the empty ones around it that were made for it."""
    with contextlib.suppress(OSError):
        if [path.name for path in folder.iterdir()] == [LOCK_FILE]:
            (folder / LOCK_FILE).unlink()
            for path in made:
                path.rmdir()


def _taken(folder: pathlib.Path, holder: str) -> LockedError:
    return LockedError(
        f"A training or a program runs in {folder} now ({holder}). Two would overwrite each other's checkpoints: "
        "stop it first, or wait until it has ended."
    )


@final
class RunFolderGoneError(ConfigError):
    """Says that a run's folder was moved or removed while the run trained."""


@final
class RunFolder:
    """Knows a run's folder from another one of its name, such as half of one that a writer would make anew."""

    def __init__(self, directory: str | os.PathLike[str] | None):
        """Takes the folder that there is now; None is always there."""
        self._path = None if directory is None else pathlib.Path(directory)
        self._identity = self._look()

    def check(self) -> None:
        """Looks whether the folder is still there. A disk that does not answer says neither.

        Raises:
            RunFolderGoneError: it is not, or another one is in its place.
        """
        with contextlib.suppress(OSError):
            if self._look() != self._identity:
                raise folder_gone(self._path)

    def _look(self) -> tuple[int, int] | None:
        if self._path is None:
            return None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = self._path.stat()
            return found.st_dev, found.st_ino
        return None


def folder_gone(folder: pathlib.Path | None) -> RunFolderGoneError:
    """Returns the error for a run folder that is not there any more."""
    return RunFolderGoneError(
        f"The run folder {folder} was moved or removed while the run trained, so the training ends and what came after "
        "its last checkpoint is lost. Where it was moved, resume it there."
    )


def unwritable(folder: pathlib.Path, error: OSError) -> ConfigError:
    """Returns the error for a run folder that the disk or its permissions refuse to be written to."""
    return ConfigError(
        f"The run folder {folder} cannot be written to: {error.strerror or error}. Free some space, or check its "
        "permissions; 'agentkit evaluate', 'plot' and 'status' only read it."
    )
