"""Keeps what a Reverb server wrote in a directory of ours, with what is needed to trust it later.

Reverb loads a checkpoint made by other tables without a word (its settings win over the code's), and
reads a damaged one as far as it goes. So we store the tables' fingerprints and every file's checksum.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import zlib
from collections.abc import Mapping
from typing import Any

from agentkit.errors import CheckpointError
from agentkit.files import why_refused
from agentkit.replay.reverb import packing
from agentkit.replay.table import Table

INDEX = "replay.json"
FORMAT = f"agentkit-reverb-2, {packing.FORMAT}"


def write(
    source: pathlib.Path,
    directory: pathlib.Path,
    tables: Mapping[str, Table],
    handed_out: Mapping[str, int],
    largest_priorities: Mapping[str, float],
) -> None:
    """Links (or copies) the server's checkpoint folder `source` into `directory`, with an index.

    `handed_out` counts samples by table, where that is not the server's business (`SingleProcessReverbReplay`);
    `largest_priorities` are those that new items would get.

    Raises:
        CheckpointError: `source` is not on this machine, or `directory` cannot be written.
    """
    if not source.is_dir():
        raise CheckpointError(
            f"The server wrote its contents to {source}, which is not on this machine. Save in the process "
            "that runs the server."
        )
    files: dict[str, Any] = {}
    try:
        target = directory / source.name
        target.mkdir()
        for file in sorted(source.iterdir()):
            _link_or_copy(file, target / file.name)
            files[file.name] = _checksum(target / file.name)
        index = {
            "format": FORMAT,
            "checkpoint": source.name,
            "files": files,
            "tables": {name: table.fingerprint() for name, table in tables.items()},
            "handed_out": dict(handed_out),
            "largest_priorities": dict(largest_priorities),
        }
        (directory / INDEX).write_text(json.dumps(index, indent=1))
    except OSError as error:
        raise CheckpointError(f"Replay's contents cannot be written to {directory}: {why_refused(error)}") from error


def check(directory: pathlib.Path, tables: Mapping[str, Table], server_limits: bool) -> None:
    """Refuses a directory that is damaged or was saved by other tables.

    Args:
        directory: what `write` wrote into.
        tables: of the replay that is to take it.
        server_limits: whether that relies on its server for rate limits, which a server takes from what it loads.

    Raises:
        CheckpointError: says where.
    """
    index = _read_index(directory)
    _compare(index["tables"], {name: table.fingerprint() for name, table in tables.items()})
    if server_limits and index.get("handed_out"):
        raise CheckpointError(
            f"The replay saved in {directory} is of a run in one process, whose server has no rate limits. Go on in "
            "one process (agentkit train --resume)."
        )
    for name, expected in index["files"].items():
        path = directory / index["checkpoint"] / name
        try:
            found = _checksum(path)
        except OSError as error:
            raise CheckpointError(f"Replay's saved file {path} cannot be read: {error}") from error
        if found != expected:
            raise CheckpointError(
                f"Replay's saved file {path} is damaged: expected (bytes, crc32) {expected}, found {found}. "
                "Restore an older checkpoint."
            )


def read(directory: pathlib.Path, root: pathlib.Path) -> None:
    """Puts the checkpoint where a server with checkpoint root `root` finds it when it starts."""
    name = _read_index(directory)["checkpoint"]
    shutil.copytree(directory / name, root / name, copy_function=_link_or_copy)


def handed_out(directory: pathlib.Path) -> dict[str, int]:
    """Returns the object that `write` was given under this name."""
    return dict(_read_index(directory).get("handed_out", {}))


def largest_priorities(directory: pathlib.Path) -> dict[str, float]:
    """Returns the object that `write` was given under this name; an older checkpoint has none."""
    return dict(_read_index(directory).get("largest_priorities", {}))


def _link_or_copy(source: os.PathLike[str] | str, target: os.PathLike[str] | str) -> None:
    """Links a file, which needs no room, and is enough: Reverb deletes its files and never changes them."""
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)


def _read_index(directory: pathlib.Path) -> dict[str, Any]:
    path = directory / INDEX
    try:
        index = json.loads(path.read_text())
        if isinstance(index["format"], int):
            raise ValueError(
                "it was saved by agentkit's own replay, which alone reads it: leave replay='reverb' (--replay reverb) "
                "out, without which its run began"
            )
        if index["format"] != FORMAT:
            raise ValueError(
                f"its format is {index['format']!r}, and this version of agentkit reads {FORMAT!r}: items are laid out "
                "in another way. Go on with the version that wrote it, or start replay empty"
            )
        if not (isinstance(index["files"], dict) and isinstance(index["tables"], dict)):
            raise TypeError("files and tables must be objects")
        if not isinstance(index["checkpoint"], str) or pathlib.Path(index["checkpoint"]).name != index["checkpoint"]:
            raise ValueError(f"checkpoint {index['checkpoint']!r}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} is no index of a saved Reverb replay: {error!r}") from error
    return index


def _compare(saved: dict[str, Any], ours: dict[str, Any]) -> None:
    if set(saved) != set(ours):
        raise CheckpointError(f"The checkpoint holds the replay tables {sorted(saved)}, expected {sorted(ours)}.")
    for name, fingerprint in ours.items():
        found = saved[name]
        changed = [key for key in fingerprint if found.get(key) != fingerprint[key]]
        if changed:
            listing = "; ".join(f"{key}: saved {found.get(key)!r}, now {fingerprint[key]!r}" for key in changed)
            raise CheckpointError(f"Table {name!r} was saved by other settings. {listing}. Use those, or start empty.")


def _checksum(path: pathlib.Path) -> list[int]:
    size = crc = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            crc = zlib.crc32(block, crc)
    return [size, crc]
