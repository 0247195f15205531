"""Makes the loggers that an experiment asks for, by name or of the user's own, and gives each of its logs to them.

A run has several logs (train, evaluation, learner). CSV, JSON lines and TensorBoard have a file for each; W&B, MLflow
and loggers of the user's own are made once in a process and get all, as ``learner/loss``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import pathlib
import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, final

from agentkit import loggers
from agentkit.errors import ConfigError, missing_extra
from agentkit.experiment.config.identity import MissingLogger
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.config.trust import check_logger_name
from agentkit.loggers.csv import csv_rows

_SERVICES: dict[str, Callable[[loggers.RunInfo], loggers.Logger]] = {
    "mlflow": loggers.MlflowLogger,
    "wandb": loggers.WandbLogger,
}
_PACKAGES = {"mlflow": "mlflow", "tensorboard": "tensorboardX", "wandb": "wandb"}
_RETRY_SECONDS = 300.0  # Of a service: to find that a network is away may take a minute each time.


def check_installed(experiment: RunConfig) -> None:
    """Looks for what the loggers of an experiment need, before anything is made.

    Raises:
        ConfigError: nobody is logged in at W&B.
        MissingExtraError: a package is not installed; it names the extra.
        UntrustedCodeError: a resumed run's folder, and nobody else, names a service that rows would be sent to.
    """
    given: Sequence[Any] = experiment.loggers
    for logger in given:
        if isinstance(logger, MissingLogger):
            check_logger_name(logger.code, (), experiment.run_directory)
    for name in _names(experiment):
        if name in _PACKAGES and importlib.util.find_spec(_PACKAGES[name]) is None:
            raise missing_extra(_PACKAGES[name], name)
        if name == "wandb":
            loggers.check_login()


def check_for_processes(experiment: RunConfig) -> None:
    """Refuses logger objects for a program of many processes, each of which would have a copy of its own.

    Raises:
        ConfigError: it says what to give instead.
    """
    for logger in experiment.loggers:
        if isinstance(logger, loggers.Logger):
            raise ConfigError(
                f"loggers: a program of many processes makes loggers in each, found an object, {logger!r}. Give a "
                "function RunInfo -> Logger, such as the class itself."
            )


@final
class RunLoggers:
    """Holds the loggers of a run in this process. A context manager."""

    def __init__(
        self,
        experiment: RunConfig,
        resume_step: int | None,
        node: str | None = None,
        on_drop: Callable[[int], None] | None = None,
    ):
        """Makes the loggers that are made once in a process.

        Args:
            experiment: says which loggers are wanted.
            resume_step: the step a resumed run goes on from; None for a new run.
            node: the log of this process, in a program of many; None in one process.
            on_drop: counts the rows that a full disk or a network refuses: see `loggers.BestEffortLogger`.

        Raises:
            ConfigError: a logger needs a run folder and there is none, or cannot be used as it is set up.
        """
        self._experiment = experiment
        self._resume_step = resume_step
        self._on_drop = on_drop
        self._info = _describe(experiment, node, resume_step)
        self._start = time.monotonic() - seconds_before(self._info.directory, resume_step, node)
        self._names = _names(experiment)
        for name in ("jsonl", "tensorboard"):
            if name in self._names and self._info.directory is None:
                raise ConfigError(f"loggers: {name} writes files and needs a run folder. Give run_directory.")
        self._shared: list[loggers.Logger] = []
        self._logs: dict[str, loggers.Logger] = {}
        self._stack = contextlib.ExitStack()
        with contextlib.ExitStack() as made:  # Closes those there are if another cannot be made.
            for name in self._names:
                if name in _SERVICES:
                    self._shared.append(self._service(made, name))
            for logger in experiment.loggers:
                if not isinstance(logger, str):
                    self._shared += self._own(made, logger)
            self._stack = made.pop_all()

    def log(self, label: str, last_step: int | None = None) -> loggers.Logger:
        """Returns the log of a name, made when it is first asked for.

        Args:
            label: its name.
            last_step: whose rows a resumed run keeps; None for the step that it goes on from.
        """
        if label not in self._logs:
            files = self._files(label, self._resume_step if last_step is None else last_step)
            targets: list[loggers.Logger] = [self._best_effort(make, name) for name, make in files.items()]
            targets += [loggers.Labelled(shared, label) for shared in self._shared]
            logger = loggers.Dispatcher(targets)
            self._stack.callback(logger.close)
            self._logs[label] = loggers.Timed(logger, time.monotonic() - self._start)
        return self._logs[label]

    def close(self) -> None:
        """Closes every logger but the user's own objects."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self._stack.__exit__(*exc_info)

    def _files(self, label: str, step: int | None) -> dict[str, Callable[[], loggers.Logger]]:
        """Returns what makes the files of a log, by path."""
        if self._info.directory is None:
            return {}
        logs = self._info.directory / "logs"
        path, lines, folder = logs / f"{label}.csv", logs / f"{label}.jsonl", logs / "tensorboard"
        makers: dict[str, Callable[[], loggers.Logger]] = {str(path): functools.partial(loggers.CsvLogger, path, step)}
        if "jsonl" in self._names:
            makers[str(lines)] = functools.partial(loggers.JsonLinesLogger, lines, step)
        if "tensorboard" in self._names:
            # One log has the hyperparameters: TensorBoard wants them once in a folder. Where each of several agents has
            # a learner's node, only the program's log knows of all.
            is_launched = self._info.node is not None and hasattr(self._experiment, "policies")
            settings = self._info.config if label == ("program" if is_launched else "learner") else None
            makers[f"{folder}/{label}"] = functools.partial(
                loggers.TensorboardLogger, folder, label, hyperparameters=settings
            )
        return makers

    def _service(self, stack: contextlib.ExitStack, name: str) -> loggers.Logger:
        make = functools.partial(_SERVICES[name], self._info)
        logger = loggers.BestEffortLogger(make, name, on_drop=self._on_drop, retry_seconds=_RETRY_SECONDS)
        return stack.enter_context(loggers.BackgroundLogger(logger, name))

    def _own(self, stack: contextlib.ExitStack, logger: Any) -> list[loggers.Logger]:
        """Returns the user's own logger, made if need be; none if it cannot be had again."""
        if isinstance(logger, MissingLogger):
            warnings.warn(
                f"A logger of the run's own gets nothing, since it cannot be made again: {logger.reason}. Resume from "
                "the code that made the run, or give loggers=.",
                UserWarning,
                stacklevel=2,
            )
            return []
        if isinstance(logger, loggers.Logger):  # Closed by whoever made it.
            return [self._best_effort(lambda: logger, type(logger).__name__)]
        name = getattr(logger, "__qualname__", repr(logger))
        made = stack.enter_context(self._best_effort(functools.partial(_make_own, logger, self._info), name))
        return [made]

    def _best_effort(self, make: Callable[[], loggers.Logger], name: str) -> loggers.BestEffortLogger:
        return loggers.BestEffortLogger(make, name, on_drop=self._on_drop)


def make_logger(
    experiment: RunConfig,
    label: str,
    resume_step: int | None,
    on_drop: Callable[[int], None] | None = None,
) -> loggers.Logger:
    """Makes the log of one process of a program, in which it is the only one; closing it closes all behind it."""
    return _OneLog(RunLoggers(experiment, resume_step, label, on_drop), label)


def seconds_before(directory: pathlib.Path | None, resume_step: int | None, node: str | None = None) -> float:
    """Returns the seconds that a resumed run has taken up to where it goes on, by the log that was written to last.

    Args:
        directory: the run folder; None for none.
        resume_step: the step that the run goes on from; None for a new run.
        node: the log of this process, in a program of many. Those of others' actors and evaluators, of which there may
            be hundreds, are not read: the first ones' and the program's tell as much.
    """
    if resume_step is None or directory is None:
        return 0.0
    others = re.compile(r"(train|evaluation)-\d+")
    paths = (directory / "logs").glob("*.csv")
    read = [path for path in paths if path.stem == node or not others.fullmatch(path.stem)]
    return max((_seconds_in(path, resume_step) for path in read), default=0.0)


def _seconds_in(path: pathlib.Path, until: int) -> float:
    found = 0.0
    try:
        rows = csv_rows(path)
        columns = next(rows, [])
        if {"seconds", "steps"} <= set(columns):
            step, second = columns.index("steps"), columns.index("seconds")
            for row in rows:
                value = float(row[second] or 0.0)
                if found < value < math.inf and float(row[step] or -1.0) <= until:
                    found = value
    except (OSError, ValueError):  # A damaged log, which its own logger refuses.
        return 0.0
    return found


@final
class _OneLog(loggers.Logger):
    def __init__(self, run_loggers: RunLoggers, label: str):
        self._loggers = run_loggers
        self._log = run_loggers.log(label)

    def write(self, values: Mapping[str, Any]) -> None:
        self._log.write(values)

    def close(self) -> None:
        self._loggers.close()


def _make_own(make: Callable[[loggers.RunInfo], Any], info: loggers.RunInfo) -> loggers.Logger:
    logger = make(info)
    if not isinstance(logger, loggers.Logger):
        raise ConfigError(f"loggers: {make!r} returned {logger!r}, which is no agentkit.loggers.Logger.")
    return logger


def _names(experiment: RunConfig) -> list[str]:
    named = [name for name in experiment.loggers if isinstance(name, str)]
    return list(dict.fromkeys([*named, *(["tensorboard"] if experiment.tensorboard else [])]))


def _describe(experiment: RunConfig, node: str | None, resume_step: int | None) -> loggers.RunInfo:
    record = experiment.describe()
    config = _flat(record["agent_config"])
    environment = record["environment"] or "own environment"
    agent = record["agent"] or "own agent"
    if learners := {name: each for name, each in record.get("policies", {}).items() if "agent_config" in each}:
        agent = ", ".join(dict.fromkeys(each["agent"] or "own agent" for each in learners.values()))
        for policy_id, each in learners.items():
            config |= _flat(each["agent_config"], f"{policy_id}.")
    config |= {"agent": agent, "environment": environment}
    config |= {name: record[name] for name in ("seed", "num_steps", "num_envs", "replay") if record[name] is not None}
    if experiment.run_directory is None:
        return loggers.RunInfo(f"{agent}-{environment}-seed{experiment.seed}", config, None, node, resume_step)
    directory = pathlib.Path(experiment.run_directory)
    return loggers.RunInfo(directory.resolve().name, config, directory, node, resume_step)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Returns settings as single values: those of a dataclass in them by ``name.field``, sequences as text."""
    found: dict[str, bool | int | float | str] = {}
    for name, value in settings.items():
        if isinstance(value, Mapping) and isinstance(value.get("fields"), Mapping):
            found |= _flat(value["fields"], f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            found[f"{prefix}{name}"] = value
        elif isinstance(value, Sequence):
            found[f"{prefix}{name}"] = ", ".join(map(str, value))
        elif value is not None:
            found[f"{prefix}{name}"] = str(value)
    return found
