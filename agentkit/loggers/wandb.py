"""Weights & Biases: a run there for the run here. The one file that imports wandb."""

from __future__ import annotations

import inspect
import math
import os
import sys
from collections.abc import Mapping
from typing import Any, final

from agentkit.errors import ConfigError, missing_extra
from agentkit.loggers.base import Logger, RunInfo, to_numbers
from agentkit.loggers.claims import claim, new_id

_ADVICE = "Run 'wandb login', or set WANDB_MODE=offline and send the run later with 'wandb sync'."


def check_login() -> None:
    """Looks for W&B's key where one will be needed, and asks for none.

    Raises:
        ConfigError: nobody is logged in.
    """
    try:
        import wandb
    except ImportError as error:
        raise missing_extra("wandb", "wandb") from error
    mode = os.environ.get("WANDB_MODE") or wandb.setup().settings.mode
    if wandb.run is not None or mode != "online":
        return
    try:
        # Older ones, which the Reverb stack's protobuf needs, would ask on a terminal.
        asks = "prompt" not in inspect.signature(wandb.login).parameters
        known = wandb.api.api_key if asks else wandb.login(prompt=False)
    except wandb.errors.Error as error:
        raise ConfigError(f"W&B: {str(error).rstrip('.')}. {_ADVICE}") from error
    if not known:
        raise ConfigError(f"W&B: nobody is logged in. {_ADVICE}")


@final
class WandbLogger(Logger):
    """Sends rows to Weights & Biases, with hyperparameters. Extra: ``wandb``.

    A run that goes on after a stop goes on in the same W&B run, whose id is in ``logs/wandb.json``. In a program of
    many processes each node has a W&B run, and all are one group: two processes cannot write one run without W&B's
    server, and offline has to work. Where your program has called ``wandb.init`` itself,
    rows go into that run, which is yours to finish. W&B reads WANDB_PROJECT (here "agentkit" without it),
    WANDB_MODE=offline, WANDB_ENTITY and the rest as always.

    Args:
        run: the run that is logged.
        step_key: the name of the step, which W&B draws all else against.

    Raises:
        ConfigError: W&B refuses: nobody is logged in, or a setting is wrong.
        MissingExtraError: wandb is not installed.
        OSError: W&B cannot be reached.
    """

    def __init__(self, run: RunInfo, step_key: str = "steps"):
        try:
            import wandb
        except ImportError as error:
            raise missing_extra("wandb", "wandb") from error
        self._errors: tuple[type[Exception], ...] = (wandb.errors.CommError,)
        self._owned = wandb.run is None
        try:
            self._run: Any = self._begin(wandb, run)
        except wandb.errors.CommError as error:
            raise OSError(str(error)) from error
        except wandb.errors.Error as error:
            raise ConfigError(f"W&B: {str(error).rstrip('.')}. {_ADVICE}") from error
        self._run.config.update(dict(run.config), allow_val_change=True)
        self._run.define_metric(step_key, hidden=True)
        self._run.define_metric("*", step_metric=step_key)

    def write(self, values: Mapping[str, Any]) -> None:
        """Sends one row; None is left out, and so is what is not finite.

        Raises:
            OSError: W&B cannot be reached.
            SpecError: for a value that is not one number.
            ValueError: after `close`.
        """
        if self._run is None:
            raise ValueError("This W&B log is closed.")
        row = to_numbers(values)
        try:
            self._run.log({name: value for name, value in row.items() if value is not None and math.isfinite(value)})
        except self._errors as error:
            raise OSError(str(error)) from error

    def close(self) -> None:
        """Finishes the W&B run, as failed where an exception passes; one that is not this logger's stays open."""
        if self._run is not None and self._owned:
            self._run.finish(exit_code=0 if sys.exception() is None else 1)
        self._run = None

    def _begin(self, wandb: Any, run: RunInfo) -> Any:
        if not self._owned:
            return wandb.run
        directory = None if run.directory is None else run.directory / "logs"
        own = new_id()
        known = own if directory is None else claim(directory / "wandb.json", own)
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
        return wandb.init(
            project=os.environ.get("WANDB_PROJECT", "agentkit"),
            id=known if run.node is None else f"{known}-{run.node}",
            name=run.name if run.node is None else f"{run.name} {run.node}",
            group=None if run.node is None else run.name,
            job_type=run.node,
            dir=None if "WANDB_DIR" in os.environ or directory is None else str(directory),
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off"),
        )
