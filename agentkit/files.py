"""Opens files of folders that may be a stranger's: none that is a pipe or too large, and none through a link to write.

A reader does not wait for ever, nor take more memory than its limit says. A writer changes no file but the one of this
name in this folder.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import pathlib
import stat
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any, BinaryIO, cast, final

import numpy as np

from agentkit.errors import AgentkitError, ConfigError

try:
    import fcntl
except ImportError:  # Windows.
    fcntl = None  # type: ignore[assignment]

MOST_JSON = 16 * 2**20
"""Bytes of a file of settings: agentkit's own have some thousands."""
MOST_TEXT = 2**30
"""Bytes of a log."""
_MOST_LINE = 2**24
"""Characters of a line: one of a log has some hundreds."""
_MOST_ARRAYS, _MOST_RATIO = 2**30, 100

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""What a file system answers that has no locks."""

_NO_LINK = getattr(os, "O_NOFOLLOW", 0)  # Windows has none of these, and opens in text mode.
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_BINARY = getattr(os, "O_BINARY", 0)


def check_path(name: str, path: Any, advice: str = "Give a string or a pathlib.Path.") -> None:
    """Refuses what names no file or folder, such as the empty string of a variable that is not set.

    Args:
        name: of the setting or argument, for the error.
        path: what was found.
        advice: what to do where it is of another type.

    Raises:
        ConfigError: it is of another type, or empty.
    """
    if not isinstance(path, str | os.PathLike):
        raise ConfigError(f"{name}: expected a path, found a {type(path).__name__}. {advice}")
    if path == "":
        raise ConfigError(f"{name}: expected a path, found an empty string. The working directory is '.'.")


def as_typed(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns a path as one would type it here: relative where it is in the working directory."""
    found = pathlib.Path(path)
    with contextlib.suppress(OSError):  # The working directory may be gone.
        here = pathlib.Path.cwd()
        return found.relative_to(here) if found.is_relative_to(here) else found
    return found


def open_to_read(path: str | os.PathLike[str], most: int | None = None) -> BinaryIO:
    """Opens a regular file to read; a pipe or device would be waited for, or never end.

    Args:
        path: the file, or a link to it.
        most: bytes that it may have; None for any number.

    Raises:
        ConfigError: it is no regular file, or larger.
        OSError: it is not there, or cannot be read.
    """
    file = os.fdopen(_open_regular(path, os.O_RDONLY), "rb")
    if most is not None and (size := os.fstat(file.fileno()).st_size) > most:
        file.close()
        raise ConfigError(f"{path} has {size_in_words(size)}, and at most {size_in_words(most)} are read.")
    return file


def read_text(path: str | os.PathLike[str], most: int = MOST_TEXT) -> str:
    """Returns the text of a regular file; see `open_to_read`."""
    with open_to_read(path, most) as file:
        return file.read().decode("utf-8")


def read_lines(path: str | os.PathLike[str], most: int | None = None) -> Iterator[str]:
    """Yields the lines of a regular file of text, in the memory of one; a last one without its newline is left out.

    Args:
        path: the file, or a link to it.
        most: bytes that it may have; None for any number.

    Raises:
        ValueError: it is no text, or has a line of more characters than any log's.
        OSError: see `open_to_read`.
    """
    with open_to_read(path, most) as file, io.TextIOWrapper(file, "utf-8", newline="\n") as text:
        while (line := text.readline(_MOST_LINE)).endswith("\n"):
            yield line
        if len(line) == _MOST_LINE:
            raise ValueError(f"a line has more than {_MOST_LINE:,} characters")


def read_json(path: str | os.PathLike[str], most: int = MOST_JSON) -> Any:
    """Returns the content of a regular file of JSON; see `open_to_read`.

    Raises:
        ValueError: it is no JSON, or nested too deep.
        OSError: see `open_to_read`.
    """
    try:
        return json.loads(read_text(path, most))
    except RecursionError as error:
        raise ConfigError(f"{path} has lists or objects too deep inside of one another.") from error


def open_new(path: str | os.PathLike[str], mode: int = 0o666) -> BinaryIO:
    """Opens a new file to write; what has its name, a link perhaps, is removed and not written to."""
    pathlib.Path(path).unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _BINARY, mode), "wb")


def write_new(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Writes a file in the place of what has its name; see `open_new`."""
    with open_new(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_whole(path: str | os.PathLike[str], content: str, mode: int = 0o666) -> None:
    """Writes a file that a reader, and a kill in the middle, find as it was or as it is to be.

    Args:
        path: the file; a link that has its name is replaced.
        content: its text.
        mode: who may read and write it, less what the process's umask takes.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    temporary = pathlib.Path(f"{os.fspath(path)}.{os.getpid()}.tmp")
    try:
        with open_new(temporary, mode) as file:
            file.write(content.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def why_refused(error: OSError) -> str:
    """Returns why the disk refused to write, and what to do."""
    # numpy says of a full disk how many bytes it was to write, and how many it could, and has no number of an error.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or (error.errno is None and "written" in str(error)):
        return f"the disk is full, or a quota is used up ({error}). Free some space."
    return f"{error}. Free some space, or check the folder's permissions."


@contextlib.contextmanager
def refusing_unwritable(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns the disk's refusal of what is written in this context into an error that names the file.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        yield
    except AgentkitError:  # Its own timeouts are OSErrors, and none of the disk's.
        raise
    except OSError as error:
        raise ConfigError(
            f"{os.fspath(path)} cannot be written: {error.strerror or error}. Free some space, check the permissions, "
            "or name another place."
        ) from error


def open_to_append(path: str | os.PathLike[str]) -> BinaryIO:
    """Opens a regular file to append to, unbuffered; it is made if it is not there.

    Raises:
        ConfigError: it is a link, or no regular file.
        OSError: it cannot be written to.
    """
    descriptor = _open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _NO_LINK)
    return cast(BinaryIO, os.fdopen(descriptor, "ab", buffering=0))


def open_lock(path: str | os.PathLike[str]) -> IO[str]:
    """Opens a regular file to lock, to read and to write, as it is: it is emptied by nobody but who holds the lock.

    Raises:
        ConfigError: it is a link, or no regular file.
        OSError: it cannot be written to.
    """
    return os.fdopen(_open_regular(path, os.O_RDWR | os.O_CREAT | _NO_LINK), "r+", encoding="utf-8", errors="replace")


def lock(file: IO[str], wait: bool) -> None:
    """Locks a file of `open_lock` for this process until it is closed.

    On Windows, and on a file system without locks, nobody is kept out.

    The lock is the system's (`fcntl.lockf`): it ends with its process, and a forked child does not keep it. It ends,
    too, where anything in this process opens the same file and closes it, such as `shutil.copytree` of its folder.
    (Linux's locks of open files do not; but a child that the process forks would keep those, and outlive it.)

    Raises:
        OSError: another process holds it, and this one does not wait.
    """
    if fcntl is not None:
        with allowing_no_locks():
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))


@contextlib.contextmanager
def allowing_no_locks() -> Iterator[None]:
    """Goes on where the file system of what is locked in this context has no locks: there, nobody is kept out."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise


def _open_regular(path: str | os.PathLike[str], flags: int) -> int:
    if flags & _NO_LINK and os.path.islink(path):
        raise ConfigError(
            f"{path} is a symbolic link to {os.readlink(path)}, and nothing is written through one: the folder may "
            "come from a stranger. Delete the link, or move the file to where it is."
        )
    descriptor = os.open(path, flags | _NO_WAIT | _BINARY, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ConfigError(f"{path}: expected a regular file, found a pipe, a device or a folder.")
    return descriptor


def check_links(folder: pathlib.Path) -> None:
    """Refuses a folder with a symbolic link in it that leads out of it, to files that writing would change.

    Raises:
        ConfigError: it names the link.
    """
    home = folder.resolve()
    for parent, folders, names in os.walk(home):
        for path in (pathlib.Path(parent, name) for name in (*folders, *names)):
            if path.is_symlink() and not path.resolve().is_relative_to(home):
                raise ConfigError(
                    f"{path} is a symbolic link to {os.readlink(path)}, and nothing is written out of a run folder, "
                    "which may come from a stranger. Delete the link, or move what it leads to here."
                )


@final
class ArrayLimit:
    """Counts the bytes of the arrays of a file, which may be compressed, and refuses more than a limit.

    Args:
        path: the file, for messages.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self._path, self._size = path, os.stat(path).st_size
        self._most = self._left = max(_MOST_ARRAYS, _MOST_RATIO * self._size)

    def take(self, nbytes: int) -> None:
        """Counts an array, before there is memory for it.

        Raises:
            ConfigError: all together are more than the limit.
        """
        self._left -= nbytes
        if self._left < 0:
            raise ConfigError(
                f"{self._path} has {size_in_words(self._size)}, which say that they hold more than "
                f"{size_in_words(self._most)} of arrays; at most {_MOST_RATIO} times the file, or "
                f"{size_in_words(_MOST_ARRAYS)}, are read. Write it with less compression, or in several files."
            )


def read_npz(path: str | os.PathLike[str], wanted: Callable[[str], bool] = bool) -> dict[str, np.ndarray]:
    """Returns the arrays of a ``.npz`` file. No pickle is read, and no memory taken that the file does not fill.

    Args:
        path: the file.
        wanted: of which names; all as a rule.

    Raises:
        ValueError: it is no such file, is damaged, or says that it holds more than it has or than `ArrayLimit` allows.
        OSError: it cannot be read.
    """
    found: dict[str, np.ndarray] = {}
    try:
        with open_to_read(path) as file, zipfile.ZipFile(file) as archive:
            limit = ArrayLimit(path)
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            for name, info in members.items():
                if wanted(name) and info.filename.endswith(".npy"):
                    limit.take(info.file_size)
                    _check_header(archive, info)
                    with archive.open(info) as member:
                        found[name] = np.lib.format.read_array(member, allow_pickle=False)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, MemoryError) as error:
        raise ValueError(f"{path} is no .npz file, or is damaged: {error!s:.200}") from error
    return found


def _check_header(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Refuses an array that says it is larger than its place in the file: memory is taken for what it says."""
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"{info.filename}: expected version 1 or 2 of the .npy format, found {version}.")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if any(length < 0 for length in shape) or math.prod(shape) * dtype.itemsize > info.file_size:
        raise ValueError(f"{info.filename} is damaged: it says {dtype}{list(shape)}, and has {info.file_size} bytes.")


def size_in_words(nbytes: int) -> str:
    """Returns a number of bytes as one reads it: "16.0 MiB"."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"
