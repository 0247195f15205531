"""Runs ``agentkit export-policy`` and ``agentkit push``: a trained policy for use elsewhere."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from agentkit.cli.interrupts import interruptible
from agentkit.cli.values.environments import import_packages
from agentkit.cli.values.runs import check_is_run
from agentkit.errors import CheckpointError, ConfigError
from agentkit.files import check_links, refusing_unwritable

if TYPE_CHECKING:
    from agentkit.experiment import LoadedPolicy


def export_policy(arguments: argparse.Namespace) -> int:
    """Writes the policy, compares it with the run's own, and writes its model card.

    Raises:
        ConfigError: no run or policy file, a format that cannot hold this policy, or a file that cannot be written.
        UnknownNameError: no such format.
        MissingExtraError: the format needs a package that is not installed.
    """
    is_file = arguments.run.endswith(".npz") and Path(arguments.run).is_file()
    if is_file and arguments.out is None:
        raise ConfigError("A policy file is in no run folder: say with -o FILE where the export goes.")
    if is_file and arguments.episodes is not None:
        raise ConfigError("--episodes: a policy file has no environment to play in. Give the run folder.")
    if not is_file:
        check_is_run(arguments.run)
    from agentkit.experiment.policies.export import formats
    from agentkit.experiment.publishing import card

    format = formats.check_format(arguments.out, arguments.format)
    imports = import_packages(arguments.imports)
    policy = _load(arguments.run, arguments.policy, imports)
    if arguments.out is None:
        check_links(Path(arguments.run))
        folder = Path(arguments.run) / "policy" / (arguments.policy or "")  # Several policies lie side by side.
        output = folder / f"policy{formats.SUFFIXES[format]}"
        made = [path for path in (folder, folder.parent) if not path.exists()]
        with refusing_unwritable(folder):
            folder.mkdir(parents=True, exist_ok=True)
    else:
        output, made = Path(arguments.out), []
    try:
        with interruptible():
            files = policy.export(output, format)
    except BaseException:
        with contextlib.suppress(OSError):  # Somebody else has put something there.
            for path in made:
                path.rmdir()
        raise
    for file in files:
        print(f"Wrote {file}{_size(file)}")
    if format != "policy":
        print("Read it back: its actions are the policy's, on 4 steps of 64 episodes.")
    if not is_file:
        path = card.card_path(output.parent)
        steps = None if policy.origin is None else policy.origin.counts[0]
        returns = card.returns_of(arguments.run, arguments.episodes, imports, arguments.policy, steps)
        inputs = formats.input_names(policy)
        with refusing_unwritable(path):
            card.write_card(path, arguments.run, returns, output.name, format, inputs, arguments.policy, steps)
        print(f"Wrote {path}: the model card.")
    return 0


def push(arguments: argparse.Namespace) -> int:
    """Publishes the policy and its model card.

    Raises:
        ConfigError: no run folder, or the target is neither a repository nor a folder that can be written to.
        MissingExtraError: huggingface_hub is not installed.
    """
    check_is_run(arguments.run)
    from agentkit.experiment import push as publish

    imports = import_packages(arguments.imports)
    try:
        with interruptible():
            place = publish(
                arguments.run,
                arguments.target,
                policy=arguments.policy,
                private=arguments.private,
                num_episodes=arguments.episodes,
                imports=imports,
            )
    except CheckpointError as error:
        raise ConfigError(str(error)) from error
    print(f"Published {place}")
    address = f"{place}/policy.npz" if not place.startswith("https://") else f"hf:{arguments.target}"
    print(f'Load it with: agentkit.load("{address}")')
    return 0


def _load(run: str, policy: str | None, imports: tuple[str, ...]) -> LoadedPolicy:
    from agentkit import experiment

    try:
        return experiment.load(run, policy=policy, imports=imports)
    except CheckpointError as error:
        raise ConfigError(str(error)) from error


def _size(path: Path) -> str:
    return f" ({path.stat().st_size / 1000:,.0f} kB)" if path.is_file() else ""
