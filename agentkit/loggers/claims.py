"""Which run of a tracking service belongs to a run folder: a small file, written once, by whoever is first."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import time
from pathlib import Path

from agentkit.errors import ConfigError
from agentkit.files import read_json

_WRITING_SECONDS = 1.0


def new_id() -> str:
    """Returns a random id of eight letters and digits."""
    return secrets.token_hex(4)


def claim(path: Path, own: str) -> str:
    """Returns the id that a file holds; writes `own` there if there is no file. Of several processes one is first.

    Raises:
        ConfigError: the file is damaged.
        OSError: it cannot be written.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}-{new_id()}.tmp")
        try:
            temporary.write_text(json.dumps({"id": own}) + "\n")
            with contextlib.suppress(FileExistsError):  # Another process was first.
                _give_name(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    deadline = time.monotonic() + _WRITING_SECONDS
    while not path.stat().st_size and time.monotonic() < deadline:  # On a disk without links, who was first writes now.
        time.sleep(0.01)
    try:
        return str(read_json(path)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}. Delete it to begin a new run there.") from error


def _give_name(temporary: Path, path: Path) -> None:
    """Gives a whole file its name, unless another has it.

    Raises:
        FileExistsError: another has it.
        OSError: it cannot be written.
    """
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # A disk without links.
        with open(path, "xb") as file:
            try:
                file.write(temporary.read_bytes())
                file.flush()
            except OSError:
                path.unlink()
                raise
