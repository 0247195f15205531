"""Parameters through shared memory: for processes of one user on one machine.

A file in /dev/shm, mapped by all. It has two slots and a counter of publications: the n-th goes into
slot n % 2, and the counter says n only when that is whole. So what a reader sees is whole, at every
instant, also where the publisher is killed in the middle of a publication. A reader that is overtaken
twice while it copies notices it by the slot's own number, and begins again (a seqlock).

A file never changes its layout. Other structures, shapes or dtypes, and a new publisher, come in a new
file that replaces the old one in one rename; readers notice by its inode.

multiprocessing.shared_memory is not used: its resource tracker deletes what other processes still read.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pathlib
import stat
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence

import numpy as np

from agentkit.core import VariableSource, Versioned
from agentkit.errors import ConfigError, SpecError, VariablesTimeoutError
from agentkit.scratch import hold, remove_unused
from agentkit.types import Nest
from agentkit.variables import layout

KEPT_SECONDS = 600.0
"""How long parameters stay that no process has mapped: readers may come, or look again, after their publisher's end."""

_PREFIX = "agentkit-parameters-"
_MAGIC = int.from_bytes(b"agentkv1", "little")
_ALIGNMENT = 64

# The header is int64 words, and so are its parts that say what is whole: one store each, never half done.
_MAGIC_WORD, _GENERATION, _LAYOUT_BYTES, _SLOT_BYTES, _COUNT = range(5)
_SLOT_WORDS = (8, 16)  # where the slots' own words begin
_NUMBER, _VERSION, _PUBLISHED = range(3)  # of a slot; 2 n when publication n is in it, odd while it is written
_HEADER_BYTES = 256


def shared_memory_path(name_or_path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the path of the parameters of this name: in memory where the system has /dev/shm, else a file.

    Args:
        name_or_path: a run's id, or a path with a "/" in it, which is taken as it is.

    Raises:
        ConfigError: an empty name.
    """
    name = os.fspath(name_or_path)
    if not name:
        raise ConfigError("Expected a run's id or a path for the shared parameters, found an empty name.")
    if "/" in name:
        return pathlib.Path(name)
    memory = pathlib.Path("/dev/shm")
    folder = memory if memory.is_dir() else pathlib.Path(tempfile.gettempdir())
    return folder / f"{_PREFIX}{os.getuid()}-{name}"


def remove_shared_memory(name_or_path: str | os.PathLike[str]) -> None:
    """Deletes the shared memory of a killed publisher. Readers keep their mappings."""
    path = shared_memory_path(name_or_path)
    for leftover in (path, *path.parent.glob(f"{path.name}.new-*")):
        with contextlib.suppress(OSError):
            leftover.unlink()


def remove_unused_shared_memory() -> None:
    """Deletes this user's shared memory of killed runs: what no process on this machine has mapped.

    What was published less than `KEPT_SECONDS` ago stays: a run's learner ends before the last evaluation, and an
    evaluator maps its parameters when it first needs them.
    """
    path = shared_memory_path("any")
    remove_unused(path.parent.glob(f"{_PREFIX}{os.getuid()}-*"), KEPT_SECONDS)


class SharedMemoryPublisher:
    """Publishes parameters to the processes of this machine. Thread-safe.

    The newest publisher of a name takes it over; an older one, such as a learner that hung and was
    replaced, is told so when it publishes again. The memory taken is twice the parameters; `close`
    gives it back, and so does `remove_shared_memory` after a kill.
    """

    def __init__(self, name_or_path: str | os.PathLike[str]):
        """Makes a `SharedMemoryPublisher`; the file appears, whole, with the first publication.

        Args:
            name_or_path: see `shared_memory_path`; readable and writable by this user alone.
        """
        self._path = shared_memory_path(name_or_path)
        self._generation = int.from_bytes(os.urandom(8), "little") >> 1
        self._lock = threading.Lock()
        self._text = b""
        self._segment: _Segment | None = None
        self._count = 0
        self._version = -1
        self._closed = False
        for leftover in self._path.parent.glob(f"{self._path.name}.new-*"):
            with contextlib.suppress(OSError):
                leftover.unlink()

    @property
    def version(self) -> int:
        """Returns the newest version, -1 before the first one."""
        return self._version

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Copies `variables` and makes them the newest; `version` is the number of updates behind them.

        Raises:
            ConfigError: the version goes down, there is no room, the name is another user's, another
                publisher has taken it over, or this one is closed.
            SpecError: what is no nest of arrays.
        """
        description, leaves = layout.describe(variables)
        text = json.dumps(description).encode()
        with self._lock:
            if self._closed:
                raise ConfigError(f"The publisher of {self._path} is closed. Make a new one.")
            if version < self._version:
                raise ConfigError(
                    f"Parameters of version {version} were published after version {self._version}. Versions count "
                    "learner updates and never go down; make a new publisher for a new learner."
                )
            self._check_mine()
            if self._segment is None or text != self._text:
                self._replace(text, version, leaves)
            else:
                self._count += 1
                self._segment.write(self._count, version, leaves)
                with contextlib.suppress(OSError):
                    os.utime(self._path)  # Writing to a mapping does not always say when.
            self._version = version

    def _check_mine(self) -> None:
        if self._segment is None:
            return
        with contextlib.suppress(FileNotFoundError):
            if self._segment.identity == _identity(os.stat(self._path)):
                return
            raise ConfigError(
                f"Another publisher has taken over {self._path}. Stop this learner, or give each run an id of its own."
            )
        self._segment = None  # Someone has cleaned up; readers of a new file will find it.

    def _replace(self, text: bytes, version: int, leaves: Sequence[np.ndarray]) -> None:
        """Puts a new file with the first publication in the place of the old one."""
        new = self._path.with_name(f"{self._path.name}.new-{os.getpid()}-{os.urandom(4).hex()}")
        try:
            segment = _Segment.create(new, self._generation, text)
            segment.write(1, version, leaves)
            os.rename(new, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                new.unlink()
            megabytes = 2 * sum(np.asarray(leaf).nbytes for leaf in leaves) / 1e6
            raise ConfigError(
                f"The parameters could not be shared at {self._path}: {error}. They take twice their size there, "
                f"{megabytes:.1f} MB: free some memory, enlarge it (docker run --shm-size), or name a path elsewhere."
            ) from error
        self._segment, self._text, self._count = segment, text, 1

    def close(self) -> None:
        """Deletes the file, unless it is another publisher's by now. May be called twice."""
        with self._lock:
            if self._segment is not None:
                with contextlib.suppress(OSError):
                    if self._segment.identity == _identity(os.stat(self._path)):
                        self._path.unlink()
            self._segment, self._closed = None, True


class SharedMemorySource(VariableSource):
    """Reads parameters, for one `VariableClient`. Thread-safe.

    What it hands out are copies of the reader's own. While there is no publisher, the last parameters
    stay readable; before the first, there are none.
    """

    def __init__(self, name_or_path: str | os.PathLike[str], *, timeout: float = 5.0):
        """Makes a `SharedMemorySource`; the publisher may come later.

        Args:
            name_or_path: as the publisher's.
            timeout: seconds for one copy, if the publisher overwrites it again and again.
        """
        self._path = os.fspath(shared_memory_path(name_or_path))
        self._timeout = timeout
        self._lock = threading.Lock()
        self._segment: _Segment | None = None
        self._handed_out: dict[tuple[str, ...], int] = {}  # the generation, by names

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Implements `core.VariableSource.get`. Asking costs microseconds where nothing is newer.

        Raises:
            UnknownNameError: if a name was never published.
            VariablesTimeoutError: the publisher was faster than the copy, for the whole timeout.
            ConfigError: the file is another user's, or none of ours.
            SpecError: see `layout.build`.
        """
        names = tuple(names)
        with self._lock:
            segment = self._open()
            if segment is None:
                return None
            if self._handed_out.get(names, segment.generation) != segment.generation:
                newer_than = -1
            if segment.version() <= newer_than:
                return None
            layout.check_names(names, segment.description)
            deadline = time.monotonic() + self._timeout
            while (found := segment.read(names)) is None:
                if time.monotonic() > deadline:
                    raise VariablesTimeoutError(
                        f"The parameters at {self._path} changed while they were copied, for {self._timeout:g} s. "
                        "Publish less often."
                    )
            self._handed_out[names] = segment.generation
            return found

    def close(self) -> None:
        """Frees the mapping; a later `get` opens it anew."""
        with self._lock:
            self._segment = None

    def _open(self) -> _Segment | None:
        try:
            status = os.stat(self._path)
        except FileNotFoundError:
            return self._segment
        if self._segment is None or _identity(status) != self._segment.identity:
            with contextlib.suppress(FileNotFoundError):
                self._segment = _Segment.open(self._path)
        return self._segment


class _Segment:
    """A mapped file: the header, the layout, and two slots of leaves."""

    def __init__(self, memory: mmap.mmap, identity: tuple[int, int], path: str | os.PathLike[str]):
        self.identity = identity
        self._words = np.ndarray(_HEADER_BYTES // 8, np.int64, memory)
        self._times = np.ndarray(_HEADER_BYTES // 8, np.float64, memory)
        start = _HEADER_BYTES + int(self._words[_LAYOUT_BYTES])
        try:
            if self._words[_MAGIC_WORD] != _MAGIC:
                raise ValueError("its first bytes are others")
            self.description: layout.Description = json.loads(memory[_HEADER_BYTES:start])
            slots = [_aligned(start), _aligned(start) + int(self._words[_SLOT_BYTES])]
            self._leaves = [_views(memory, offset, self.description) for offset in slots]
        except (ValueError, TypeError, AttributeError, SpecError) as error:
            raise ConfigError(f"{path} holds no shared parameters: {error}. Choose another name.") from error
        self.generation = int(self._words[_GENERATION])

    @classmethod
    def create(cls, path: pathlib.Path, generation: int, text: bytes) -> _Segment:
        """Makes a new file with no publication in it yet."""
        slot_bytes = sum(
            _aligned(layout.num_bytes(*leaf)) for node in json.loads(text).values() for leaf in layout.arrays_of(node)
        )
        size = _aligned(_HEADER_BYTES + len(text)) + 2 * slot_bytes
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        hold(file)  # The mapping goes on holding it.
        try:
            # Not ftruncate: where memory ends, that succeeds, and the first write kills the process (SIGBUS).
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file, 0, size)
            else:  # macOS
                os.ftruncate(file, size)
            memory, identity = mmap.mmap(file, size), _identity(os.fstat(file))
        finally:
            os.close(file)
        words = np.ndarray(_HEADER_BYTES // 8, np.int64, memory)
        words[[_MAGIC_WORD, _GENERATION, _LAYOUT_BYTES, _SLOT_BYTES]] = _MAGIC, generation, len(text), slot_bytes
        memory[_HEADER_BYTES : _HEADER_BYTES + len(text)] = text
        return cls(memory, identity, path)

    @classmethod
    def open(cls, path: str) -> _Segment:
        """Opens an existing file, to read."""
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise ConfigError(f"The shared parameters {path} cannot be read: {error}.") from error
        hold(file)
        try:
            status = os.fstat(file)
            if status.st_uid != os.geteuid() or not stat.S_ISREG(status.st_mode) or status.st_size < _HEADER_BYTES:
                raise ConfigError(f"{path} is not a file of this user's with shared parameters. Choose another name.")
            return cls(mmap.mmap(file, status.st_size, prot=mmap.PROT_READ), _identity(status), path)
        finally:
            os.close(file)

    def write(self, number: int, version: int, leaves: Sequence[np.ndarray]) -> None:
        """Makes the `number`-th publication the newest."""
        at, slot = _SLOT_WORDS[number % 2], self._leaves[number % 2]
        self._words[at + _NUMBER] = 2 * number - 1
        _fence()
        for view, leaf in zip((view for views in slot.values() for view in views), leaves, strict=True):
            view[...] = leaf
        self._words[at + _VERSION] = version
        self._times[at + _PUBLISHED] = time.time()
        _fence()
        self._words[at + _NUMBER] = 2 * number
        _fence()
        self._words[_COUNT] = number

    def version(self) -> int:
        """Returns the newest version, or a still newer one that is on its way."""
        return int(self._words[_SLOT_WORDS[int(self._words[_COUNT]) % 2] + _VERSION])

    def read(self, names: Sequence[str]) -> Versioned | None:
        """Returns a copy of the newest publication; None if it was overwritten meanwhile."""
        number = int(self._words[_COUNT])
        at, slot = _SLOT_WORDS[number % 2], self._leaves[number % 2]
        _fence()
        copies = {name: [view.copy() for view in slot[name]] for name in names}
        version, published = int(self._words[at + _VERSION]), float(self._times[at + _PUBLISHED])
        _fence()
        if int(self._words[at + _NUMBER]) != 2 * number:
            return None
        variables = {name: layout.build(self.description[name], iter(copies[name])) for name in names}
        return Versioned(version, variables, published)


def _views(memory: mmap.mmap, offset: int, description: layout.Description) -> dict[str, list[np.ndarray]]:
    """Returns the leaves of each variable in one slot."""
    views: dict[str, list[np.ndarray]] = {}
    for name, node in description.items():
        views[name] = []
        for dtype, shape in layout.arrays_of(node):
            views[name].append(np.ndarray(shape, dtype, memory, offset))
            offset += _aligned(layout.num_bytes(dtype, shape))
    return views


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


_fence_lock = threading.Lock()


def _fence() -> None:
    """Keeps stores in order where the processor does not (ARM): a lock taken twice is a barrier."""
    with _fence_lock:
        pass
    with _fence_lock:
        pass
