"""The interface of a callback: the events of a run, what each is told, and how it ends the run."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, final

from agentkit.errors import ConfigError, unknown_name
from agentkit.types import Nest


@final
@dataclasses.dataclass(frozen=True)
class Stop:
    """Ends the run well where a callback returns it: a checkpoint is written, and the command exits with 0.

    Attributes:
        reason: for people; it is shown, and is `Result.stopped_by`.
    """

    reason: str


@final
@dataclasses.dataclass
class RunView:
    """Shows a callback the run that it is called in.

    Attributes:
        experiment: the `ExperimentConfig`.
        role: "run" in one process; in a launched program "actor", "learner" or "evaluator".
        run_directory: the run folder; None if there is none.
        count_steps: returns `steps`.
        count_updates: returns `updates`.
        get_params: returns the parameters that the policy acts with, or was just evaluated with.
    """

    experiment: Any
    role: str
    run_directory: pathlib.Path | None
    count_steps: Callable[[], int] = lambda: 0
    count_updates: Callable[[], int] = lambda: 0
    get_params: Callable[[], Nest] = lambda: None

    @property
    def steps(self) -> int:
        """Returns the environment steps so far, of all actors together; updates, of a run from data alone."""
        return self.count_steps()

    @property
    def updates(self) -> int:
        """Returns the learner updates so far, as far as this process knows them."""
        return self.count_updates()


class Step(NamedTuple):
    """Holds an environment step.

    Attributes:
        environment: the one that the actor acts in, or the batch.
        timestep: that it returned; every field ``[N]`` of a batch.
        action: that it was given.
    """

    environment: Any
    timestep: Any
    action: Nest


class Episode(NamedTuple):
    """Holds an episode that has ended.

    Attributes:
        environment: that it was played in; of a batch, its single environment.
        record: ``episode_return``, ``episode_length``, counts. Numbers that a callback adds go into the logs; of an
            evaluation's episodes, their mean.
        info: gymnasium's ``info`` of the last step; empty where an environment has none.
    """

    environment: Any
    record: dict[str, Any]
    info: Mapping[str, Any]


class Callback:
    """Handles events of a run: a subclass has the methods of those that it wants.

    Each may return `Stop("why")`. One that raises ends the run with its traceback, after a checkpoint. In a launched
    program each is called on the node that owns the event. Settings are best the fields of a dataclass: then a run
    folder can make the callback again to resume. It is a class, and no set of functions, since a checkpoint holds what
    `save` returns, and cannot hold what is in closures.

    Attributes:
        changes_training: whether the run learns something else with it, so that no resume may go without it.
    """

    changes_training: ClassVar[bool] = False

    def check(self, experiment: Any) -> None:
        """Refuses an `ExperimentConfig` that it is of no use to, before anything starts, with a `ConfigError`."""

    def wrap(self, environment: Any) -> Any:
        """Wraps each single environment that is trained in, inside of what repeats its episodes on resume."""
        return environment

    def on_start(self, run: RunView, environment: Any) -> Stop | None:
        """Handles the start, after a restore and before the first step; `environment` is None where nobody acts."""

    def on_step(self, run: RunView, step: Step) -> Stop | None:
        """Handles each step of training."""

    def on_episode(self, run: RunView, episode: Episode) -> Stop | None:
        """Handles each ended episode of training, before its record is logged."""

    def on_learner_log(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Handles each row of the learner's log, before it is written."""

    def on_evaluation_episode(self, run: RunView, episode: Episode) -> Stop | None:
        """Handles each ended episode of an evaluation."""

    def on_evaluation(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Handles the record of each evaluation, before it is logged."""

    def on_checkpoint(self, run: RunView, path: pathlib.Path) -> Stop | None:
        """Handles the folder of each checkpoint that was written."""

    def on_end(self, run: RunView) -> Stop | None:
        """Handles the end, when the run is saved."""

    def save(self) -> dict[str, Any]:
        """Returns the state for a checkpoint: a nest of dicts of numbers, strings, bools and None."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, before `on_start`."""


def each_environment(environment: Any) -> list[Any]:
    """Returns the single environments of a batch, or the one that it is; a simulator's own batch is one."""
    return list(getattr(environment, "environments", None) or [environment])


EVENTS = tuple(name for name in vars(Callback) if name.startswith("on_"))


def has(callback: Callback, method: str) -> bool:
    """Returns whether a callback has a method of its own, other than `Callback`'s."""
    return getattr(type(callback), method) is not getattr(Callback, method) or method in getattr(
        callback, "__dict__", {}
    )


def check_callbacks(callbacks: Iterable[Any]) -> tuple[Callback, ...]:
    """Returns callbacks as a tuple, if they are some.

    Raises:
        ConfigError: one is something else, or has no method that would be called.
        UnknownNameError: one has a method ``on_...`` that no event calls.
    """
    if isinstance(callbacks, Callback) or not isinstance(callbacks, Iterable):
        raise ConfigError(f"callbacks: expected a list, found {callbacks!r}. Write callbacks=[...].")
    found = tuple(callbacks)
    for callback in found:
        if not isinstance(callback, Callback):
            hint = " Write a class with a method such as on_episode." if inspect.isroutine(callback) else ""
            module = getattr(callback, "__module__", None) or ""  # None of a built-in object's method.
            if isinstance(callback, type) or module.startswith("agentkit.callbacks"):
                hint = " Call it: keep_best()."
            raise ConfigError(
                f"callbacks: expected objects of subclasses of agentkit.callbacks.Callback, found {callback!r}.{hint}"
            )
        for name in dir(callback):
            if name.startswith("on_") and name not in EVENTS:
                raise unknown_name(f"event of {type(callback).__name__}", name, EVENTS)
        if not any(has(callback, method) for method in (*EVENTS, "wrap", "check", "save")):
            private = [name for name in dir(callback) if name.lstrip("_") in EVENTS and name not in EVENTS]
            instead = f" Write {private[0].lstrip('_')} in the place of {private[0]}." if private else ""
            raise ConfigError(
                f"callbacks: expected a method of {type(callback).__name__} for an event ({', '.join(EVENTS)}), or "
                f"wrap or check; found none, so that it would never be called.{instead}"
            )
    return found


def check_evaluates(experiment: Any, name: str) -> None:
    """Refuses an experiment that evaluates never.

    Raises:
        ConfigError: its `evaluation_period` is 0.
    """
    if experiment.evaluation_period == 0:
        raise ConfigError(
            f"{name} looks at evaluations, and evaluation_period=0 makes none. Give a period, such as "
            "evaluation_period=10_000 (--eval-every 10_000)."
        )


def check_evaluates_before_its_end(experiment: Any, name: str) -> None:
    """Refuses an experiment that evaluates never, or, in a launched program, only after its last step.

    Raises:
        ConfigError: its `evaluation_period` is 0, or longer than the run.
    """
    check_evaluates(experiment, name)
    period, total = experiment.evaluation_period, experiment.num_steps
    if period is not None and period > total:
        raise ConfigError(
            f"{name} looks at evaluations during the run, and with one every {period:,} the run ends, at {total:,}, "
            "before there is any. Give a shorter evaluation_period (--eval-every), or a longer run."
        )
