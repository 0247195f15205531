"""Calls the callbacks of a run at its events, and keeps what they answer until the run can end between two steps."""

from __future__ import annotations

import dataclasses
import pathlib
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar, final

import dm_env

from agentkit.callbacks import EVENTS, Callback, Episode, RunView, Step, Stop, check_callbacks
from agentkit.callbacks.base import each_environment, has
from agentkit.environment_loop import Observer
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.loggers import Logger
from agentkit.types import Nest

_Experiment = TypeVar("_Experiment", bound=Any)


def with_callbacks(experiment: _Experiment, callbacks: Iterable[Callback]) -> _Experiment:
    """Returns an `ExperimentConfig` or `OfflineConfig` with callbacks beside its own."""
    given = check_callbacks(callbacks)
    return dataclasses.replace(experiment, callbacks=(*experiment.callbacks, *given)) if given else experiment


@final
class Hooks:
    """Calls callbacks. What one returns or raises ends the run at the next moment at which it can be saved.

    Attributes:
        callbacks: all of them.
        run: what they are shown.
        requested: set when the run is to end.
        on_request: called then.
        stopped_by: the reason of the first `Stop`; None so far.
        failure: what a callback has raised; no callback is called afterwards.
    """

    def __init__(self, experiment: RunConfig, role: str = "run"):
        """Makes the `Hooks` of a process.

        Args:
            experiment: that is run, with its callbacks.
            role: of this process, see `RunView`.

        Raises:
            ConfigError: a callback is of no use to the experiment.
        """
        self.callbacks = tuple(experiment.callbacks)
        for each in self.callbacks:
            each.check(experiment)
            if experiment.ready is not None and has(each, "on_step"):
                raise ConfigError(
                    f"The callback {type(each).__name__} has on_step, which sees a step of all environments "
                    f"together, and with ready={experiment.ready} (--ready) there is none. Leave out one of the two."
                )
        directory = experiment.run_directory
        self.run = RunView(experiment, role, None if directory is None else pathlib.Path(directory))
        self.requested = threading.Event()
        self.on_request: Callable[[], None] = lambda: None
        self.stopped_by: str | None = None
        self.failure: Exception | None = None
        self._calls: dict[str, list[tuple[Callback, Callable[..., Any]]]] = {
            event: [(each, getattr(each, event)) for each in self.callbacks if has(each, event)] for event in EVENTS
        }

    def log_learner(self, logger: Logger, row: dict[str, Any]) -> None:
        """Shows callbacks a row of the learner's log, and writes it."""
        self.emit("on_learner_log", row)
        logger.write(row)

    def watch(
        self,
        count_steps: Callable[[], int] | None = None,
        count_updates: Callable[[], int] | None = None,
        get_params: Callable[[], Nest] | None = None,
    ) -> None:
        """Takes functions that `RunView` asks; None leaves the one that it has."""
        run = self.run
        run.count_steps = count_steps or run.count_steps
        run.count_updates = count_updates or run.count_updates
        run.get_params = get_params or run.get_params

    def wants(self, *events: str) -> bool:
        """Returns whether a callback has a method for one of the events."""
        return any(self._calls[event] for event in events)

    def emit(self, event: str, *told: Any) -> None:
        """Calls the callbacks that have a method for an event, in their order."""
        for callback, call in self._calls[event]:
            if self.failure is not None:
                return
            try:
                answer = call(self.run, *told)
                if answer is not None and not isinstance(answer, Stop):
                    raise ConfigError(
                        f"{type(callback).__name__}.{event} returned {answer!r:.100}; expected None, or "
                        'Stop("why") to end the run.'
                    )
            except Exception as error:
                self.fail(error, f"{type(callback).__name__}.{event}")
                return
            if answer is not None:
                self.stopped_by = self.stopped_by or answer.reason
                self._request()

    def fail(self, error: Exception, where: str) -> None:
        """Takes what a callback has raised; the run ends."""
        error.add_note(f"Raised by the callback {where} at step {self.run.steps:,}, which ends the run.")
        self.failure = error
        self._request()

    def _request(self) -> None:
        """Asks for the end of the run; a failure after a stop asks again."""
        first = self.failure is not None or not self.requested.is_set()
        self.requested.set()
        if first:
            self.on_request()

    def wrap(self, experiment: ExperimentConfig) -> ExperimentConfig:
        """Returns the experiment whose environments are wrapped as the callbacks want those of training."""
        wrapping = [each for each in self.callbacks if has(each, "wrap")]
        if not wrapping:
            return experiment
        if experiment.workers:
            raise ConfigError(
                f"The callback {type(wrapping[0]).__name__} wraps the environments of training and keeps hold of them; "
                "those in workers are out of its reach. Leave --workers out."
            )
        wrappers = tuple(each.wrap for each in wrapping)
        return dataclasses.replace(experiment, wrappers=(*experiment.wrappers, *wrappers))

    def observers(self) -> tuple[Observer, ...]:
        """Returns what tells of the steps and episodes of a loop of training; nothing, where no callback wants them."""
        if not self.wants("on_step", "on_episode"):
            return ()
        return (LoopObserver(self, "on_episode", self.wants("on_step")),)

    def evaluation_observers(self) -> tuple[Observer, ...]:
        """Returns what tells of the episodes of evaluations; nothing, where no callback wants them."""
        return (LoopObserver(self, "on_evaluation_episode", False),) if self.wants("on_evaluation_episode") else ()

    def save(self) -> dict[str, Any]:
        """Returns the state of each callback, by its name; of one that fails, what `Callback.save` returns: nothing."""
        states = {}
        for name, each in self.named():
            try:
                states[name] = each.save()
            except Exception as error:
                states[name] = {}
                self.fail(error, f"{name}.save")
        return states

    def restore(self, states: Mapping[str, Any]) -> None:
        """Gives each callback its state; one without a state begins anew.

        Raises:
            CheckpointError: a state is not its callback's.
        """
        for name, each in self.named():
            if name in states:
                try:
                    each.restore(states[name])
                except (KeyError, TypeError, ValueError) as error:
                    raise CheckpointError(f"The saved state of the callback {name} does not fit: {error!r}.") from error

    def named(self) -> list[tuple[str, Callback]]:
        """Returns the callbacks by the names of their classes, numbered where one has several."""
        found: dict[str, Callback] = {}
        for each in self.callbacks:
            name, number = type(each).__qualname__, 2
            while name in found:
                name, number = f"{type(each).__qualname__}-{number}", number + 1
            found[name] = each
        return list(found.items())


@final
class LoopObserver(Observer):
    """Tells callbacks of a loop's steps and episodes."""

    def __init__(self, hooks: Hooks, episode_event: str, steps: bool):
        """Takes the event of an ended episode, and whether somebody wants each step."""
        self._hooks, self._episode_event, self._steps = hooks, episode_event, steps

    def observe_first(self, environment: Any, timestep: dm_env.TimeStep) -> None:
        """Does nothing: no callback asks for it."""

    def observe(self, environment: Any, action: Nest, timestep: dm_env.TimeStep) -> None:
        """Tells of a step."""
        if self._steps:
            self._hooks.emit("on_step", Step(environment, timestep, action))

    def metrics(self) -> dict[str, float]:
        """Returns nothing: `end_episode` has the record."""
        return {}

    def end_episode(self, environment: Any, record: dict[str, float], index: int | None = None) -> None:
        """Tells of an episode."""
        each, number = each_environment(environment), index or 0
        single = each[number] if number < len(each) else environment  # A simulator's own batch is one.
        self._hooks.emit(self._episode_event, Episode(single, record, getattr(single, "last_info", None) or {}))
