"""The loops in which an actor meets one environment, N that step together, or those of N that are ready.

A loop advances one step at a time (`step`), so that its owner decides what happens in between: learn,
evaluate, save. It can be saved and restored between any two steps.
"""

from __future__ import annotations

import abc
import time
from collections.abc import Callable, Sequence
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.core import Actor
from agentkit.counting import Counter
from agentkit.errors import ConfigError
from agentkit.types import FIRST, LAST, Nest

Log = Callable[[dict[str, float]], None]
Check = Callable[[dm_env.TimeStep, Nest, int], None]
"""``(time step, the action before it or None, number of the step)``, as `envs.step_check.StepCheck`."""


class Observer(abc.ABC):
    """Watches a loop and adds metrics to each episode's record; of a batch, all fields of a time step are ``[N]``."""

    @abc.abstractmethod
    def observe_first(self, environment: Any, timestep: dm_env.TimeStep) -> None:
        """Takes the first time step of an episode."""

    @abc.abstractmethod
    def observe(self, environment: Any, action: Nest, timestep: dm_env.TimeStep) -> None:
        """Takes an action and the time step that followed."""

    @abc.abstractmethod
    def metrics(self) -> dict[str, float]:
        """Returns metrics to add to the record of the episode that has just ended."""

    def end_episode(self, environment: Any, record: dict[str, float], index: int | None = None) -> None:
        """Takes the record of the episode that has just ended, before it is logged, and adds `metrics` to it.

        Args:
            environment: the loop's.
            record: of the episode.
            index: which of a batch's environments has ended it; None where there is no batch.
        """
        record.update(self.metrics())


def _total(reward: Nest) -> float:
    return float(reward) if not tree.is_nested(reward) else float(sum(np.sum(r) for r in tree.flatten(reward)))


class EnvironmentLoop:
    """Runs one dm_env environment with one actor.

    Attributes:
        resumable: True if `save` and `restore` put the environment back in mid-episode.
        num_steps: steps taken so far, those of the unfinished episode included.
    """

    def __init__(
        self,
        environment: Any,
        actor: Actor,
        *,
        counter: Counter | None = None,
        log: Log | None = None,
        observers: Sequence[Observer] = (),
        check: Check | None = None,
    ):
        """Makes an `EnvironmentLoop`.

        Args:
            environment: a dm_env environment.
            actor: chooses actions and records.
            counter: incremented by ``steps`` and ``episodes`` when an episode ends.
            log: called with each finished episode's record: the counts, ``episode_return``,
                ``episode_length``, ``steps_per_second``, and what the observers add.
            observers: watch every step.
            check: refuses time steps, before anyone else sees them; None takes them as they come.
        """
        self._environment = environment
        self.resumable = bool(getattr(environment, "resumable", False))
        self._actor = actor
        self._counter = counter or Counter()
        self._log = log
        self._observers = observers
        self._check = check
        self.num_steps = 0
        self._timestep: dm_env.TimeStep | None = None
        self._return = 0.0
        self._length = 0
        self._start_time = time.monotonic()

    @property
    def timestep(self) -> dm_env.TimeStep | None:
        """Returns the newest time step; None between episodes."""
        return self._timestep

    def step(self) -> dict[str, float] | None:
        """Takes one step, resetting first where needed; returns a finished episode's record, or None."""
        if self._timestep is None:
            self._begin(self._environment.reset())
        timestep = self._timestep
        action = self._actor.select_action(timestep.observation)  # type: ignore[union-attr]
        timestep = self._environment.step(action)
        if self._check is not None:
            self._check(timestep, action, self.num_steps + 1)
        self._actor.observe(action, timestep)
        self._return += _total(timestep.reward)
        self._length += 1
        self.num_steps += 1
        self._timestep = timestep
        for observer in self._observers:
            observer.observe(self._environment, action, timestep)
        return self._finish() if timestep.last() else None

    def _begin(self, timestep: dm_env.TimeStep) -> None:
        if self._check is not None:
            self._check(timestep, None, self.num_steps)
        self._timestep = timestep
        self._return, self._length = 0.0, 0
        self._start_time = time.monotonic()
        self._actor.observe_first(timestep)
        for observer in self._observers:
            observer.observe_first(self._environment, timestep)

    def _finish(self) -> dict[str, float]:
        counts = self._counter.increment(steps=self._length, episodes=1)
        seconds = max(time.monotonic() - self._start_time, 1e-9)
        record: dict[str, float] = {
            **counts,
            "episode_return": self._return,
            "episode_length": self._length,
            "steps_per_second": self._length / seconds,
        }
        for observer in self._observers:
            observer.end_episode(self._environment, record)
        self._timestep, self._length = None, 0
        if self._log is not None:
            self._log(record)
        return record

    def run(self, *, num_episodes: int | None = None, num_steps: int | None = None) -> list[dict[str, float]]:
        """Acts for so many episodes or steps, updating the actor after each; the episodes' records."""
        return _run(self, self._actor, num_episodes, num_steps)

    def save(self) -> dict[str, Any]:
        """Returns the state of the loop and its environment, in mid-episode too; not the actor's."""
        return {
            "num_steps": self.num_steps,
            "unfinished": self._timestep is not None,
            "return": self._return,
            "length": self._length,
            "environment": self._environment.save(),
        }

    def restore(self, state: dict[str, Any], mid_episode: bool = True) -> None:
        """Restores the state that `save` returned; the actor and its adder are restored beside it.

        With `mid_episode` False the unfinished episode is dropped, and the next step starts another one.
        """
        self.num_steps = int(state["num_steps"])
        timestep = self._environment.restore(state["environment"])
        self._timestep = timestep if mid_episode and state["unfinished"] else None
        self._return, self._length = float(state["return"]), int(state["length"])
        if not mid_episode:
            self._counter.increment(steps=self._length)
            self._return, self._length = 0.0, 0
        self._start_time = time.monotonic()


class BatchedEnvironmentLoop:
    """Runs N environments together, with one policy call for all; each counts its own episodes.

    An environment that ended is reset by the next call, which counts no step for it.

    Attributes:
        resumable: True if `save` and `restore` put the environment back in mid-episode.
        num_steps: steps taken so far in all environments, those of unfinished episodes included.
    """

    def __init__(
        self,
        environment: Any,
        actor: Actor,
        *,
        counter: Counter | None = None,
        log: Log | None = None,
        observers: Sequence[Observer] = (),
        check: Check | None = None,
    ):
        """Makes a `BatchedEnvironmentLoop` as `EnvironmentLoop` does, for an environment with `num_envs`."""
        self._environment = environment
        self.resumable = bool(getattr(environment, "resumable", False))
        self._actor = actor
        self._counter = counter or Counter()
        self._log = log
        self._observers = observers
        self._check = check
        self.num_steps = 0
        self._timestep: dm_env.TimeStep | None = None
        self._returns = np.zeros(environment.num_envs)
        self._lengths = np.zeros(environment.num_envs, np.int64)

    def step(self) -> list[dict[str, float]] | None:
        """Takes one step in every environment; returns the records of the episodes that ended, or None."""
        if self._timestep is None:
            self._timestep = self._environment.reset()
            if self._check is not None:
                self._check(self._timestep, None, self.num_steps)
            self._actor.observe_first(self._timestep)
            for observer in self._observers:
                observer.observe_first(self._environment, self._timestep)
        action = self._actor.select_action(self._timestep.observation)
        timestep = self._environment.step(action)
        if self._check is not None:
            self._check(timestep, action, self.num_steps + len(self._lengths))
        self._actor.observe(action, timestep)
        self._timestep = timestep
        moved = timestep.step_type != FIRST  # [N]
        np.add(self._returns, timestep.reward, out=self._returns, where=moved)
        self._lengths += moved
        self.num_steps += int(np.count_nonzero(moved))
        for observer in self._observers:
            observer.observe(self._environment, action, timestep)
        ended = (timestep.step_type == LAST).nonzero()[0]
        return [_end_episode(self, int(i)) for i in ended] if ended.size else None

    def run(self, *, num_episodes: int | None = None, num_steps: int | None = None) -> list[dict[str, float]]:
        """Acts as `EnvironmentLoop.run` does; stops at the first call after which the number is reached."""
        return _run(self, self._actor, num_episodes, num_steps)

    def save(self) -> dict[str, Any]:
        """Returns the state of loop and environments, as `EnvironmentLoop.save` does."""
        return {
            "num_steps": self.num_steps,
            "unfinished": self._timestep is not None,
            "returns": self._returns.copy(),
            "lengths": self._lengths.copy(),
            "environment": self._environment.save(),
        }

    def restore(self, state: dict[str, Any], mid_episode: bool = True) -> None:
        """Restores the state that `save` returned, as `EnvironmentLoop.restore` does."""
        self.num_steps = int(state["num_steps"])
        timestep = self._environment.restore(state["environment"])
        self._timestep = timestep if mid_episode and state["unfinished"] else None
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()
        if not mid_episode:
            self._counter.increment(steps=int(self._lengths.sum()))
            self._returns[:], self._lengths[:] = 0.0, 0


class ReadyEnvironmentLoop:
    """Runs N environments in workers, of which an actor acts for the M that are ready first.

    A step waits for M time steps, records them, and sends these environments their next actions; they work on while
    the caller learns. An environment that ended is reset by its next action, which counts no step for it.

    Attributes:
        resumable: False: which environments are ready when depends on the machine.
        num_steps: steps taken so far in all environments, those of unfinished episodes included.
    """

    resumable = False

    def __init__(
        self,
        environment: Any,
        actor: Any,
        *,
        counter: Counter | None = None,
        log: Log | None = None,
        observers: Sequence[Observer] = (),
        check: Check | None = None,
    ):
        """Makes a `ReadyEnvironmentLoop` as `EnvironmentLoop` does.

        Args:
            environment: an `envs.workers.WorkerBatchedEnvironment` that was made with ``ready=M``.
            actor: an `actors.ReadyPolicyActor`.
            counter: see `EnvironmentLoop`.
            log: see `EnvironmentLoop`.
            observers: watch every step; of the M environments that were ready.
            check: see `EnvironmentLoop`; of M time steps.
        """
        self._environment = environment
        self._actor = actor
        self._counter = counter or Counter()
        self._log = log
        self._observers = observers
        self._check = check
        self.num_steps = 0
        self._started = False
        # The newest actions of all, [N, ...], for observers.
        self._actions = specs.zeros(specs.add_leading(environment.action_spec(), environment.num_envs))
        self._returns = np.zeros(environment.num_envs)
        self._lengths = np.zeros(environment.num_envs, np.int64)

    def step(self) -> list[dict[str, float]] | None:
        """Takes the steps of M environments; returns the records of the episodes that ended, or None."""
        if not self._started:
            self._environment.async_reset()
            self._started = True
        numbers, timestep = self._environment.recv()
        action = tree.map_structure(lambda column: column[numbers], self._actions)
        if self._check is not None:
            self._check(timestep, action, self.num_steps + len(numbers))
        self._actor.observe(timestep, numbers)
        moved = timestep.step_type != FIRST  # [M]
        self._returns[numbers] += np.where(moved, timestep.reward, 0.0)
        self._lengths[numbers] += moved
        self.num_steps += int(np.count_nonzero(moved))
        for observer in self._observers:
            observer.observe(self._environment, action, timestep)
        ended = numbers[timestep.step_type == LAST]
        records = [_end_episode(self, int(i)) for i in ended] if ended.size else None
        new = self._actor.select_action(timestep.observation, numbers)
        self._environment.send(new, numbers)
        for column, leaf in zip(tree.flatten(self._actions), tree.flatten(new), strict=True):
            column[numbers] = leaf
        return records

    def run(self, *, num_episodes: int | None = None, num_steps: int | None = None) -> list[dict[str, float]]:
        """Acts as `BatchedEnvironmentLoop.run` does."""
        return _run(self, self._actor, num_episodes, num_steps)


def _end_episode(loop: Any, i: int) -> dict[str, float]:
    """Tells observers and log of the episode that environment `i` of a loop's batch has ended; returns its record."""
    record: dict[str, float] = {
        **loop._counter.increment(steps=int(loop._lengths[i]), episodes=1),
        "steps": loop.num_steps,  # Not of the finished episodes alone: a resumed run cuts its log by these.
        "episode_return": float(loop._returns[i]),
        "episode_length": int(loop._lengths[i]),
    }
    loop._returns[i], loop._lengths[i] = 0.0, 0
    for observer in loop._observers:
        observer.end_episode(loop._environment, record, i)
    if loop._log is not None:
        loop._log(record)
    return record


def _run(loop: Any, actor: Actor, num_episodes: int | None, num_steps: int | None) -> list[dict[str, float]]:
    if (num_episodes is None) == (num_steps is None):
        raise ConfigError(f"Give either num_episodes or num_steps, found {num_episodes=} and {num_steps=}.")
    records: list[dict[str, float]] = []
    start = loop.num_steps

    def unfinished() -> bool:
        if num_steps is not None:
            return loop.num_steps - start < num_steps
        return len(records) < num_episodes  # type: ignore[operator]  # One of the two is given.

    while unfinished():
        found = loop.step()
        actor.update()
        if found is not None:
            records.extend(found if isinstance(found, list) else [found])
    return records
