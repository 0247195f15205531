"""Which run of a tracking service belongs to a run folder: a small file, written once, by whoever is first."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from pathlib import Path

from agentkit.errors import ConfigError
from agentkit.files import read_json


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
                os.link(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    try:
        return str(read_json(path)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged: {error!r}. Delete it to begin a new run there.") from error
