"""Makes the callbacks that a command's words ask for: --keep-best, --best-score, --stop-at-return."""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Sequence
from typing import Any

from agentkit.errors import ConfigError


def callbacks_for_new_run(arguments: argparse.Namespace, evaluates: bool) -> list[Any]:
    """Returns the callbacks of a new run, which keeps its best policy unless it is told not to.

    Args:
        arguments: what `parser.parse` made of the command.
        evaluates: whether the run does; without evaluations, no policy is the best.

    Raises:
        ConfigError: they look at evaluations, and there are to be none.
    """
    if not evaluates and (arguments.keep_best or arguments.stop_at_return is not None):
        word = "--keep-best" if arguments.keep_best else "--stop-at-return"
        raise ConfigError(f"{word} looks at evaluations, and --eval-every 0 makes none. Leave one of them out.")
    return _changed([], arguments, keep_best=evaluates)


def callbacks_for_resumed_run(
    arguments: argparse.Namespace, run: str | pathlib.Path, imports: tuple[str, ...]
) -> list[Any]:
    """Returns the callbacks of the run in a folder, changed as the words say.

    Raises:
        ConfigError: they cannot be made again.
    """
    from agentkit import experiment
    from agentkit.experiment.config import callback_record

    own = callback_record.rebuild(experiment.read_record(run), run, imports)
    return changed_callbacks(own, arguments)


def changed_callbacks(own: Sequence[Any], arguments: argparse.Namespace) -> list[Any]:
    """Returns a resumed run's own callbacks, changed as the words say."""
    return _changed(list(own), arguments, keep_best=False)


def _changed(own: list[Any], arguments: argparse.Namespace, keep_best: bool) -> list[Any]:
    from agentkit import callbacks
    from agentkit.callbacks.best import KeepBest
    from agentkit.callbacks.stopping import StopAt

    kept, score = arguments.keep_best, arguments.best_score
    if score is not None:
        if kept is False or not (keep_best or kept or any(isinstance(each, KeepBest) for each in own)):
            raise ConfigError("--best-score says which policy is kept as the best, and none is. Leave one of them out.")
        old = next((each for each in own if isinstance(each, KeepBest)), callbacks.keep_best())
        others = [each for each in own if not isinstance(each, KeepBest)]
        # Behind those that may add what it judges by.
        own = [*others, callbacks.keep_best(score, old.min_episodes)]
    if kept is False:
        own = [each for each in own if not isinstance(each, KeepBest)]
    elif (kept or keep_best) and not any(isinstance(each, KeepBest) for each in own):
        own = [callbacks.keep_best(), *own]
    if arguments.stop_at_return is not None:
        return_of = next((each.return_of for each in own if isinstance(each, StopAt)), None)
        own = [each for each in own if not isinstance(each, StopAt)]
        own.append(callbacks.stop_at(arguments.stop_at_return, return_of))
    return own
