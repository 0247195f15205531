"""Atomic checkpoints: after kill -9 at any instant the newest complete one is whole.

A checkpoint is a folder ``step_000000050000`` (``.1`` and so on if the step is written again). It appears
by one rename, after everything in it has reached the disk, and its ``manifest.json`` holds the size and
CRC-32 of each file:

    state.json    the nest of plain values, with each array replaced by its name
    arrays.npz    the arrays
    <name>/...    folders that components (replay) wrote themselves

No pickle is read or written.
"""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import sys
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from agentkit import nests
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.files import open_to_read, read_json, read_npz, why_refused, write_whole
from agentkit.types import Nest

_WINDOWS = sys.platform == "win32"
_NAME = re.compile(r"step_(\d+)(?:\.(\d+))?$")  # The second number tells writings of one step apart.
_ARRAY = "__array__"
_MOST_STATE = 2**28
_MOST_LOOKS = 10
_DTYPE = "dtype"
_KINDS = "biufcSUmM"  # Not objects. Of jax's own, bfloat16 and its kind, some have these letters, too: see `_encode`.


class CheckpointWarning(UserWarning):
    """Says that a checkpoint could not be written, and that training goes on without it."""


class Checkpoint(NamedTuple):
    """Holds a checkpoint that was read.

    Attributes:
        step: the step it was written at.
        path: its folder; folders of components are below it.
        state: the nest that was saved.
    """

    step: int
    path: pathlib.Path
    state: dict[str, Any]


def write(
    directory: pathlib.Path,
    step: int,
    state: Mapping[str, Any],
    folders: Mapping[str, Callable[[pathlib.Path], None]] | None = None,
    *,
    max_to_keep: int = 2,
) -> pathlib.Path:
    """Writes a checkpoint and then deletes all but the newest `max_to_keep` whole ones.

    One more stays where it alone has a component's folder: a checkpoint without replay's contents evicts none.

    Args:
        directory: holds the checkpoints of one run; made if missing.
        step: numbers it, >= 0; a checkpoint of the same step is replaced (and stays where it has a folder more).
        state: nest of dicts with string keys; leaves are arrays, numbers, strings, bools, None.
        folders: by name, functions that write into the empty folder they are given.
        max_to_keep: at least 1.

    Returns:
        The checkpoint's folder.

    Raises:
        ConfigError: `max_to_keep` is less than 1, or `step` is negative.
        CheckpointError: a leaf that cannot be saved, or the disk refused; the older ones stay whole.
    """
    if max_to_keep < 1 or step < 0:
        raise ConfigError(f"Expected step >= 0 and max_to_keep >= 1, found {step=} and {max_to_keep=}.")
    final = directory / f"step_{step:012d}"
    partial = directory / f".partial-{os.getpid()}-{final.name}"
    try:
        final = _unused_name(final)
        directory.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(directory)
        partial.mkdir()
        arrays: dict[str, np.ndarray] = {}
        (partial / "state.json").write_text(json.dumps(_encode(state, "", arrays)))
        with open(partial / "arrays.npz", "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
        for name, write_folder in (folders or {}).items():
            (partial / name).mkdir()
            try:
                write_folder(partial / name)
            except CheckpointError as error:  # A server's says itself that the disk is full.
                raise _refused(final, str(error)) from error
        _write_manifest(partial)
        os.rename(partial, final)
        sync(directory)
        _remove_old(directory, final, max_to_keep)
    except OSError as error:
        shutil.rmtree(partial, ignore_errors=True)
        raise _refused(final, why_refused(error)) from error
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return final


def _refused(path: pathlib.Path, why: str) -> CheckpointError:
    """Returns the error for a checkpoint that could not be written, with the newest one that there is."""
    good = "Older checkpoints are untouched"
    with contextlib.suppress(OSError):  # Such as without a free descriptor to list them.
        older = _list(path.parent)
        good = f"{good}; the last good one is {older[-1][2]}" if older else "There is no older one"
    return CheckpointError(f"Could not write the checkpoint {path}: {why.removesuffix('.')}. {good}.")


def structure_of(nest: Nest) -> str:
    """Returns the containers, dtypes and shapes of a nest of numpy arrays as text; `nest_like` makes a nest of it.

    Raises:
        SpecError: something is in there that is neither a plain container nor an array.
    """

    def describe_leaf(leaf: Any, path: str) -> dict[str, Any]:
        if not isinstance(leaf, np.ndarray | np.generic):
            raise SpecError(f"{path}: expected an array, found {leaf!r:.80}.")
        return {"array": [leaf.dtype.name, list(leaf.shape)]}

    return json.dumps(nests.describe(nest, describe_leaf, "variables"))


def nest_like(structure: str) -> Nest:
    """Returns a nest of what `structure_of` wrote, to be compared with: its arrays have one number each in memory."""

    def build_leaf(leaf: dict[str, Any]) -> np.ndarray:
        return np.broadcast_to(np.zeros((), nests.numeric_dtype(leaf["array"][0])), leaf["array"][1])

    return nests.build(json.loads(structure), build_leaf)


def read_latest(directory: pathlib.Path, holding: str | None = None) -> Checkpoint | None:
    """Reads the newest checkpoint whose files are all whole; None if there is none at all.

    A damaged one is passed over with a warning.

    Args:
        directory: as given to `write`.
        holding: only checkpoints with this folder in them; None for any.

    Raises:
        CheckpointError: there are checkpoints and every one is damaged.
    """
    wanted = _read_whole(directory, lambda _, path: holding is None or (path / holding).is_dir())
    return next(wanted, None)


def read_all(directory: pathlib.Path, step: int | None = None) -> list[Checkpoint]:
    """Reads every checkpoint whose files are all whole, the newest first; of one step only, if it is given.

    A damaged one is passed over with a warning.

    Raises:
        CheckpointError: there are some and every one is damaged.
    """
    return list(_read_whole(directory, lambda number, _: step in (None, number)))


def _read_whole(directory: pathlib.Path, wanted: Callable[[int, pathlib.Path], bool]) -> Iterator[Checkpoint]:
    """Yields the checkpoints that are whole, the newest first; raises if there are some and none is.

    One that is gone by then is no damage: a writer that keeps few replaces it. If nothing else is there, we look again.
    Where a disk that does not answer is why none can be read, the error says so by its cause.
    """
    for _ in range(_MOST_LOOKS):
        problems, num_whole, is_replaced, no_answer = [], 0, False, None
        for step, _, path in reversed(_list(directory)):
            if not wanted(step, path):
                is_replaced |= not os.path.exists(path)
                continue
            try:
                _check_whole(path)
                found = Checkpoint(step, path, _read_state(path))
            except _DAMAGE as error:
                problems.append(f"{path}: {error}")
                if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                    no_answer = error
                if os.path.exists(path):
                    warnings.warn(f"Passing over a damaged checkpoint: {path}: {error}", stacklevel=3)
                else:
                    is_replaced = True
                continue
            num_whole += 1
            yield found
        if num_whole or not is_replaced:
            break
    if problems and not num_whole:
        raise CheckpointError("No checkpoint can be read. " + "; ".join(problems)) from no_answer


def steps(directory: pathlib.Path, holding: str | None = None) -> list[int]:
    """Returns the steps of the checkpoints in a folder, read or not, in order; `holding` as in `read_latest`."""
    return [step for step, _, path in _list(directory) if holding is None or (path / holding).is_dir()]


_DAMAGE = (OSError, ValueError, LookupError, TypeError, AttributeError, zipfile.BadZipFile, CheckpointError)
"""What reading a damaged file can raise: a manifest with a flipped bit may be JSON of another structure."""


def _list(directory: pathlib.Path) -> list[tuple[int, int, pathlib.Path]]:
    """Returns step, number of the writing and folder of every checkpoint, oldest first."""
    if not directory.is_dir():
        return []
    matches = ((_NAME.match(path.name), path) for path in directory.iterdir())
    return sorted((int(match[1]), int(match[2] or 0), path) for match, path in matches if match)


def _unused_name(path: pathlib.Path) -> pathlib.Path:
    """Returns a name of its own for each writing of a step: a folder cannot replace another in one rename."""
    writings = [writing for _, writing, found in _list(path.parent) if found.stem == path.name]
    return path.with_name(f"{path.name}.{max(writings) + 1}") if writings else path


def _remove_old(directory: pathlib.Path, written: pathlib.Path, max_to_keep: int) -> None:
    """Deletes all but `written`, the newest whole ones of other steps, and the newest one with each component's folder.

    One that is damaged does not count; one that cannot be read now stays, since it may be whole.
    """
    found = _list(directory)
    step = next(step for step, _, path in found if path == written)
    _seen_whole[written] = _signature(written)
    missing = set().union(*(_folders(path) for _, _, path in found)) - _folders(written)
    kept, count = {written}, 1
    for number, _, path in reversed(found):
        counts, holds = number != step and count < max_to_keep, missing & _folders(path)
        if path == written or not (counts or holds):
            continue
        try:
            _check_whole(path)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):
                kept.add(path)
        except _DAMAGE:
            pass
        else:
            kept.add(path)
            count += counts
            missing -= holds
    for _, _, path in found:
        if path not in kept:
            _discard(path)


def _folders(path: pathlib.Path) -> set[str]:
    """Returns the names of the components that have a folder in a checkpoint."""
    with contextlib.suppress(OSError):
        return {child.name for child in path.iterdir() if child.is_dir()}
    return set()


def _encode(value: Any, path: str, arrays: dict[str, np.ndarray]) -> Any:
    """Returns plain values as they are, and for an array, which goes into `arrays`, ``{"__array__": name}``.

    One of a dtype that numpy lacks goes there as bytes, and its dtype stands beside the name.
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str) or key == _ARRAY:
                raise CheckpointError(
                    f"Checkpoint state at {path!r}: expected string keys other than {_ARRAY!r}, found {key!r}."
                )
        return {key: _encode(child, f"{path}/{key}", arrays) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(child, f"{path}/{i}", arrays) for i, child in enumerate(value)]
    if isinstance(value, (np.ndarray, np.generic)):
        name = f"a{len(arrays)}"
        if value.dtype.kind in _KINDS and value.dtype.type.__module__ == "numpy":
            arrays[name] = np.asarray(value)
            return {_ARRAY: name}
        if not nests.is_numeric(value.dtype):
            raise CheckpointError(
                f"Checkpoint state at {path!r}: expected an array of bools, numbers, strings or times, found "
                f"{value.dtype}, which a .npz file cannot hold without pickle. Convert it in save()."
            )
        arrays[name] = np.array(value, order="C")[..., None].view(np.uint8)
        return {_ARRAY: name, _DTYPE: value.dtype.name}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise CheckpointError(
        f"Checkpoint state at {path!r}: expected arrays, numbers, strings, bools or None, found "
        f"{type(value).__name__}. Convert it in save()."
    )


def _decode(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            return arrays[value[_ARRAY]]
        if value.keys() == {_ARRAY, _DTYPE}:
            return arrays[value[_ARRAY]].view(nests.numeric_dtype(value[_DTYPE]))[..., 0]
        return {key: _decode(child, arrays) for key, child in value.items()}
    if isinstance(value, list):
        return [_decode(child, arrays) for child in value]
    return value


def _read_state(path: pathlib.Path) -> dict[str, Any]:
    arrays = read_npz(path / "arrays.npz")
    state: dict[str, Any] = _decode(read_json(path / "state.json", _MOST_STATE), arrays)
    return state


def _crc(path: pathlib.Path) -> int:
    crc = 0
    with open_to_read(path) as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
    return crc


def _files(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "manifest.json")


def _write_manifest(folder: pathlib.Path) -> None:
    """Records and syncs every file, then the folders, so that the rename publishes data on disk."""
    entries = {}
    for path in _files(folder):
        sync(path)
        entries[path.relative_to(folder).as_posix()] = {"bytes": path.stat().st_size, "crc32": _crc(path)}
    manifest = folder / "manifest.json"
    manifest.write_text(json.dumps(entries, indent=1))
    sync(manifest)
    for path in [*(p for p in folder.rglob("*") if p.is_dir()), folder]:
        sync(path)


_seen_whole: dict[pathlib.Path, tuple[Any, ...]] = {}
"""Which checkpoints this process has written or verified: gigabytes are not read again at each write."""


def _signature(folder: pathlib.Path) -> tuple[Any, ...]:
    """Returns names, sizes and times of a checkpoint's files."""
    stats = ((path, path.stat()) for path in (*_files(folder), folder / "manifest.json"))
    return tuple((path.name, stat.st_size, stat.st_mtime_ns) for path, stat in stats)


def _check_whole(folder: pathlib.Path) -> None:
    """Verifies a checkpoint, unless this process has; raises as `_verify` does."""
    signature = _signature(folder)
    if _seen_whole.get(folder) != signature:
        _verify(folder)
        _seen_whole[folder] = signature


def _verify(folder: pathlib.Path) -> None:
    entries = read_json(folder / "manifest.json", _MOST_STATE)
    found = {path.relative_to(folder).as_posix() for path in _files(folder)}
    if found != entries.keys():
        raise CheckpointError(f"expected the files {sorted(entries)}, found {sorted(found)}")
    for name, entry in entries.items():
        path = folder / name
        size, crc = path.stat().st_size, _crc(path)
        if (size, crc) != (entry["bytes"], entry["crc32"]):
            raise CheckpointError(
                f"{name}: expected {entry['bytes']} bytes with CRC {entry['crc32']}, found {size} with {crc}"
            )


def write_json(path: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Writes a file that a kill leaves as it was or as it is to be."""
    write_whole(path, json.dumps(record, indent=1) + "\n")


def sync(path: pathlib.Path) -> None:
    """Waits until a file, or the names in a folder, have reached the disk.

    On Windows a folder's names are not waited for: the system opens no folder, and keeps a journal of names.
    """
    if _WINDOWS and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if _WINDOWS else os.O_RDONLY)  # There, a reader may not ask for it.
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _discard(path: pathlib.Path) -> None:
    """Deletes a checkpoint so that a kill in the middle leaves none that looks complete."""
    trash = path.with_name(f".trash-{os.getpid()}-{path.name}")
    os.rename(path, trash)
    _seen_whole.pop(path, None)
    shutil.rmtree(trash, ignore_errors=True)


def _remove_leftovers(directory: pathlib.Path) -> None:
    for path in directory.iterdir():
        if path.name.startswith((".partial-", ".trash-")):
            shutil.rmtree(path, ignore_errors=True)
