"""Reaches the Hugging Face hub, and loads policies from there. The one file that imports huggingface_hub."""

from __future__ import annotations

import pathlib
from typing import Any

from agentkit.errors import ConfigError, missing_extra
from agentkit.experiment.policies.policy_file import POLICY_FILE
from agentkit.version import __version__

SCHEME = "hf:"


def download(address: str) -> pathlib.Path:
    """Returns the policy file of ``hf:owner/name`` or ``hf:owner/name@revision``, fetched or in the hub's cache.

    Raises:
        ConfigError: there is no such repository, or no policy in it.
        MissingExtraError: huggingface_hub is not installed.
    """
    repository, _, revision = address.removeprefix(SCHEME).partition("@")
    hub = library()
    try:
        return pathlib.Path(
            hub.hf_hub_download(
                repository, POLICY_FILE, revision=revision or None, library_name="agentkit", library_version=__version__
            )
        )
    except (hub.errors.HFValidationError, OSError) as error:  # Its other errors are of the network or the disk.
        said = str(error).strip().splitlines()[0]
        raise ConfigError(
            f"Cannot load {address}: {said} Expected hf:OWNER/NAME with a {POLICY_FILE} in it."
        ) from error


def library() -> Any:
    """Imports huggingface_hub.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError as error:
        raise missing_extra("huggingface-hub", "hub") from error
    return huggingface_hub
