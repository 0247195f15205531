"""Keeps what XLA compiled from one session of pytest to the next: used if there, never needed.

JAX writes its cache's entries in place, so a process that a test kills leaves half an entry, and JAX then never writes
that one again. Therefore a session has a folder of its own, filled with links to what earlier ones kept, and at its end
only those entries are kept that can be read.
"""

import hashlib
import importlib.metadata
import os
import pathlib
import platform
import shutil
import zlib

_MOST_BYTES = 3 * 2**30
_MOST_ENTRIES = 20_000
"""Of all: with 81,000, after a day of sessions, a test took 20 s of processor time that takes 11 without any."""


def kept_folder() -> pathlib.Path:
    """Returns where entries for this machine's jaxlib and processor are kept, in the user's folder of caches."""
    caches = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    processor = platform.machine() + platform.processor()
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("flags", "Features")):
            processor += line
            break
    name = f"jaxlib-{importlib.metadata.version('jaxlib')}-{hashlib.sha256(processor.encode()).hexdigest()[:12]}"
    return caches / "agentkit-tests" / name


def fill(session: pathlib.Path, kept: pathlib.Path) -> None:
    """Links kept entries into a session's folder; where links cannot be made, the session compiles anew."""
    for entry in kept.glob("*-cache"):
        try:
            os.link(entry, session / entry.name)
        except OSError:
            return


def keep(session: pathlib.Path, kept: pathlib.Path) -> None:
    """Keeps a session's new entries that are whole, and starts anew where there are too many."""
    try:
        kept.mkdir(parents=True, exist_ok=True)
        sizes = [entry.stat().st_size for entry in kept.iterdir()]
        if sum(sizes) > _MOST_BYTES or len(sizes) > _MOST_ENTRIES:
            shutil.rmtree(kept)
            kept.mkdir(parents=True)
        for entry in session.glob("*-cache"):
            if not (kept / entry.name).exists() and _whole(entry):
                os.replace(entry, kept / entry.name)
    except OSError:
        return  # A full disk, another session that removes them: the next one compiles.


def _whole(entry: pathlib.Path) -> bool:
    """Returns whether an entry can be read to its end, as JAX writes it without the package zstandard."""
    try:
        zlib.decompress(entry.read_bytes())
    except (OSError, zlib.error):
        return False
    return True


def _lines(path: str) -> list[str]:
    try:
        return pathlib.Path(path).read_text().splitlines()
    except OSError:
        return []
