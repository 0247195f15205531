"""Writes and reads ``board.json`` in a run folder: where the store of its program is, and the run's secret."""

from __future__ import annotations

import json
import pathlib
import shlex
import socket
from typing import Any

from agentkit.distributed.run_store_client import RunStoreClient, RunStoreError
from agentkit.errors import ConfigError
from agentkit.files import read_json, refusing_unwritable, write_whole
from agentkit.ports import is_own_address


class ElsewhereError(RunStoreError):
    """Says that a run store is on another machine, and was not asked on the folder's word."""


def write_address_file(directory: pathlib.Path, address: str, run_id: str) -> None:
    """Writes ``board.json``, which lets the owner's other processes find the run store; raises as `write_secret`.

    It says which folder it is in, so that one that was copied with its folder speaks for no program.
    """
    path = directory / "board.json"
    with refusing_unwritable(path):
        directory.mkdir(parents=True, exist_ok=True)
        place = _place(directory)
    write_secret(path, json.dumps({"address": address, "run_id": run_id, **place}))


def _place(directory: pathlib.Path) -> dict[str, Any]:
    """Returns which folder it is, to this host: others, and their containers, may have other numbers for it."""
    found = directory.stat()
    return {"host": socket.gethostname(), "folder": [found.st_dev, found.st_ino]}


def write_secret(path: pathlib.Path, text: str) -> None:
    """Writes a line that its owner alone can read.

    Raises:
        ConfigError: the disk or its permissions refuse it.
    """
    with refusing_unwritable(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text + "\n", mode=0o600)


def read_address_file(run_directory: pathlib.Path) -> tuple[str, str] | None:
    """Returns the address and the run id of the program that runs in a folder, or was killed; None for no such.

    Raises:
        RunStoreError: ``board.json`` is damaged.
    """
    path = pathlib.Path(run_directory) / "board.json"
    if not path.is_file():
        return None
    try:
        record = read_json(path)
    except ConfigError:  # It says why by itself.
        raise
    except ValueError:  # Also of a number with too many digits.
        record = None
    found = [record.get(name) for name in ("address", "run_id")] if isinstance(record, dict) else []
    match found:
        case [str(address), str(run_id)] if address.isascii() and run_id.isascii():
            place = _place(path.parent)  # Files of earlier versions say nothing of theirs.
            is_copy = record.get("host") == place["host"] and record.get("folder") != place["folder"]
            return None if is_copy else (address, run_id)
    raise RunStoreError(f"{path} is damaged: expected an object with a text 'address' and a text 'run_id'.")


def connect_to_run(run_directory: pathlib.Path, timeout: float = 5.0, *, anywhere: bool = True) -> RunStoreClient:
    """Connects to the store of the program that runs in a folder.

    Args:
        run_directory: the folder.
        timeout: seconds that the store may take to answer.
        anywhere: also to another machine; else only to this one, since the folder may come from a stranger.

    Raises:
        ConfigError: no program runs there.
        ElsewhereError: it is on another machine, which is not to be asked.
        RunStoreError: it does not answer, or its file is damaged.
    """
    if (found := read_address_file(run_directory)) is None:
        raise _nothing_runs(pathlib.Path(run_directory))
    if not anywhere and not is_own_address(found[0].rpartition(":")[0]):
        raise ElsewhereError(f"The program in {run_directory} is at {found[0]}, which is not this machine.")
    return RunStoreClient(*found, timeout=timeout)


def _nothing_runs(run_directory: pathlib.Path) -> ConfigError:
    """Returns the error for a folder in which no program runs: one that has ended, or none that was launched."""
    label = f"No launched program runs in {run_directory}"
    record = _read_record(run_directory)
    launch = record.get("launch")
    if "learners" in record or list(run_directory.glob("learners/*/config.json")):
        return ConfigError(
            f"{label}: it is of a program of several learners, which has ended. Run the code that made it again, with "
            "resume=True."
        )
    if launch is None:
        return ConfigError(
            f"{label}: it has no board.json. Only 'agentkit launch' and 'agentkit node' make one; for a run of "
            "'agentkit train', see 'agentkit plot'."
        )
    by_hand = "'agentkit node replay' with the words of its start"  # Such a run has no settings of `launch`.
    go_on = shlex.join(["agentkit", "launch", "--resume", str(run_directory)]) if launch else by_hand
    return ConfigError(f"{label}: it has ended, or has not begun. Go on with: {go_on}")


def _read_record(run_directory: pathlib.Path) -> dict[str, Any]:
    """Returns what ``config.json`` says, for a message; nothing where it cannot be read."""
    try:
        record = read_json(run_directory / "config.json")
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
