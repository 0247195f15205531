"""What a run asks of what it runs, be that of one agent or of several."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from agentkit.callbacks import Callback
from agentkit.loggers import Logger, RunInfo

# ruff: noqa: D102


class RunConfig(Protocol):
    """Has the settings that run folders, logs, callbacks, evaluations and checkpoints are made by.

    `ExperimentConfig` and `MultiAgentConfig` both have them; the former says what each is.
    """

    def describe(self) -> dict[str, Any]: ...

    @property
    def environment(self) -> Any: ...

    @property
    def num_steps(self) -> int: ...

    @property
    def seed(self) -> int: ...

    @property
    def run_directory(self) -> str | pathlib.Path | None: ...

    @property
    def num_envs(self) -> int | None: ...

    @property
    def evaluation_period(self) -> int | None: ...

    @property
    def evaluation_episodes(self) -> int | None: ...

    @property
    def evaluation_max_steps(self) -> int | None: ...

    @property
    def checkpoint_period(self) -> int: ...

    @property
    def keep_checkpoints(self) -> int: ...

    @property
    def log_seconds(self) -> float: ...

    @property
    def tensorboard(self) -> bool: ...

    @property
    def loggers(self) -> Sequence[str | Logger | Callable[[RunInfo], Logger]]: ...

    @property
    def progress(self) -> bool | None: ...

    @property
    def step_timeout(self) -> float: ...

    @property
    def callbacks(self) -> Sequence[Callback]: ...

    @property
    def ready(self) -> int | None: ...

    @property
    def video_period(self) -> int: ...
