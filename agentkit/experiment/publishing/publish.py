"""Publishes policies on the Hugging Face hub, or into a folder, each with its card."""

from __future__ import annotations

import os
import pathlib
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any, Protocol

from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.loading import load
from agentkit.experiment.policies.hub import SCHEME, library
from agentkit.experiment.policies.policy_file import POLICY_FILE
from agentkit.experiment.publishing.card import NAME, card_path, returns_of, write_card
from agentkit.files import refusing_unwritable
from agentkit.version import __version__


class Api(Protocol):
    """Has the two methods of `huggingface_hub.HfApi` that `push` needs."""

    def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> Any:
        """Makes the repository, where it is not there."""
        ...

    def upload_folder(self, *, repo_id: str, folder_path: str, commit_message: str) -> Any:
        """Uploads the files of a folder as one commit."""
        ...


def push(
    run: str | pathlib.Path,
    target: str,
    *,
    policy: str | None = None,
    private: bool = False,
    num_episodes: int | None = None,
    imports: Sequence[str] = (),
    api: Api | None = None,
) -> str:
    """Publishes a run's policy as ``policy.npz`` with a model card; returns where it is.

    Args:
        run: the run folder.
        target: ``owner/name`` on the hub, or a folder that begins with ``.`` or ``/``.
        policy: of a run of several agents, the policy's id; None for the only one that learned.
        private: whether a new repository is seen by its owner alone.
        num_episodes: to play for the card; None takes the run's evaluation at the policy's step, or its newest.
        imports: see `agentkit.load`.
        api: instead of `huggingface_hub.HfApi`.

    Raises:
        ConfigError: no run folder, or the target is neither, or a folder that cannot be written to.
        MissingExtraError: huggingface_hub is not installed.
    """
    local = target.startswith((".", "/", "~"))
    if not local and (target.count("/") != 1 or not all(target.split("/"))):
        raise ConfigError(f"Expected OWNER/NAME, or a folder as ./NAME, found {target!r}.")
    if not local and api is None:
        api = library().HfApi(library_name="agentkit", library_version=__version__)
    loaded = load(run, policy=policy, imports=imports)
    steps = None if loaded.origin is None else loaded.origin.counts[0]
    returns = returns_of(run, num_episodes, imports, policy, steps)
    with tempfile.TemporaryDirectory(prefix="agentkit-push-", ignore_cleanup_errors=True) as name:
        folder = pathlib.Path(name)
        loaded.export(folder / POLICY_FILE)
        # Who loads it from the hub names the repository, not the file.
        file = POLICY_FILE if local else f"{SCHEME}{target}"
        write_card(folder / NAME, run, returns, file, "policy", (), policy, steps)
        if not local:
            assert api is not None
            api.create_repo(target, private=private, exist_ok=True)
            api.upload_folder(repo_id=target, folder_path=name, commit_message="Upload a policy of agentkit")
            return f"https://huggingface.co/{target}"
        place = pathlib.Path(target).expanduser()
        with refusing_unwritable(place):
            place.mkdir(parents=True, exist_ok=True)
            _copy(folder / NAME, card_path(place))
            _copy(folder / POLICY_FILE, place / POLICY_FILE)
        return str(place)


def _copy(file: pathlib.Path, place: pathlib.Path) -> None:
    """Copies a file; what is in its place is replaced in one step."""
    partial = place.with_name(f".{place.name}.{os.getpid()}")
    try:
        shutil.copyfile(file, partial)
        os.replace(partial, place)
    finally:
        partial.unlink(missing_ok=True)
