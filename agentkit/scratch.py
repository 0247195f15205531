"""Makes temporary folders and files that the next program removes if this one is killed, and no sooner.

Who uses one holds a shared lock on it, which the system frees with the last process that does, however that
ends: whoever gets an exclusive lock knows that it is nobody's. That holds across containers, too, whose
process ids are no use.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator

try:
    import fcntl
except ImportError:  # Windows: only launched programs hold scratch folders, and they do not run there.
    fcntl = None  # type: ignore[assignment]

GRACE_SECONDS = 2.0
"""Spares folders younger than this, since their maker may not have locked them yet."""

_held: dict[pathlib.Path, int] = {}


def make_scratch(kind: str, parent: str | os.PathLike[str] | None = None) -> pathlib.Path:
    """Makes a temporary folder, and removes those of its kind that killed programs of this user have left.

    Args:
        kind: part of its name, e.g. "reverb".
        parent: where; None for the system's own place.
    """
    prefix = f"agentkit-{kind}-{os.getuid()}-"
    folder = pathlib.Path(tempfile.gettempdir() if parent is None else parent)
    remove_unused(folder.glob(f"{prefix}*"))
    made = pathlib.Path(tempfile.mkdtemp(prefix=prefix, dir=folder))
    _held[made] = os.open(made, os.O_RDONLY)
    hold(_held[made])
    return made


@contextlib.contextmanager
def named_scratch(kind: str, name: str) -> Iterator[pathlib.Path]:
    """Makes a private temporary folder whose path follows from its name, and deletes it at the end.

    Who is killed leaves it to the next one of its kind, or finds it again under the same name.
    """
    prefix = f"agentkit-{kind}-{os.getuid()}-"
    folder = pathlib.Path(tempfile.gettempdir())
    made = folder / f"{prefix}{name}"
    remove_unused(path for path in folder.glob(f"{prefix}*") if path != made)
    made.mkdir(mode=0o700, exist_ok=True)
    _held[made] = os.open(made, os.O_RDONLY | os.O_NOFOLLOW)
    hold(_held[made])
    try:
        yield made
    finally:
        remove_scratch(made)


def remove_scratch(folder: pathlib.Path) -> None:
    """Deletes a folder of `make_scratch`. May be called twice."""
    shutil.rmtree(folder, ignore_errors=True)
    if (descriptor := _held.pop(folder, None)) is not None:
        os.close(descriptor)


def hold(descriptor: int) -> None:
    """Says that an open file or folder is in use, until it and all its mappings are closed."""
    with contextlib.suppress(OSError):  # A file system without locks: there, nothing is removed by others.
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def remove_unused(paths: Iterable[pathlib.Path], grace_seconds: float | None = None) -> None:
    """Deletes those files and folders of this user that nobody holds.

    Args:
        paths: of files and folders.
        grace_seconds: what was changed less than this ago stays; None is `GRACE_SECONDS`.
    """
    grace_seconds = GRACE_SECONDS if grace_seconds is None else grace_seconds
    for path in paths:
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                status = os.fstat(descriptor)
                if status.st_uid == os.getuid() and time.time() - status.st_mtime > grace_seconds:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    _delete(path)
            finally:
                os.close(descriptor)


def _delete(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink()
