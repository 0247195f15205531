"""Finds the data sets of Farama's Minari by name. The one file that imports minari."""

from __future__ import annotations

import os
import pathlib

from agentkit.errors import ConfigError, missing_extra

PREFIX = "minari:"


def find_minari(name: str) -> pathlib.Path:
    """Returns the folder of a data set such as ``mujoco/hopper/expert-v0``; downloads it where it is not there.

    One that is there is read without the package minari.

    Args:
        name: Minari's.

    Raises:
        ConfigError: it is no name of a data set, or cannot be downloaded.
        MissingExtraError: it is not there, and minari is not installed.
    """
    parts = pathlib.PurePosixPath(name).parts
    if not parts or ".." in parts or name.startswith("/") or ":" in name:
        raise ConfigError(f"{PREFIX}{name}: expected a data set's name, such as {PREFIX}mujoco/hopper/expert-v0.")
    folder = _root() / pathlib.Path(*parts)
    if not (folder / "data").is_dir():
        _download(name)
    return folder


def _root() -> pathlib.Path:
    """Returns the folder in which Minari keeps data sets."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return pathlib.Path.home() / ".minari" / "datasets" if given is None else pathlib.Path(given)


def _download(name: str) -> None:
    try:
        import minari
    except ImportError as error:
        raise missing_extra("minari", "minari") from error
    try:
        minari.download_dataset(name)
    except Exception as error:  # Of its hosts' libraries, of many kinds.
        raise ConfigError(
            f"{PREFIX}{name} is not in {_root()}, and Minari cannot download it: {error}. See: minari list remote"
        ) from error
