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
from agentkit.counting import Counter
from agentkit.errors import ConfigError
from agentkit.types import FIRST, LAST, MID, Nest

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


class _RawReturns:
    """Tells the returns of unfinished episodes as they are without what wrappers make of rewards, where some do."""

    def __init__(self, environment: Any):
        self._environment = environment
        found = getattr(environment, "raw_return", None)
        self._start = None if found is None else np.zeros(np.shape(found))

    def begin(self, where: Any = True) -> None:
        """Takes the start of an episode; of a batch, `where` says of which environments, bool ``[N]``."""
        # Not 0 where only the loop's episode ends: at the loss of a life, or at a soft horizon.
        if self._start is not None:
            np.copyto(self._start, self._environment.raw_return, where=where)

    def metrics(self, index: Any = ()) -> dict[str, float]:
        """Returns what to add to the record of an episode that has ended."""
        return {} if self._start is None else {"episode_raw_return": float(self._so_far()[index])}

    def save(self) -> dict[str, Any]:
        """Returns the state, to be merged into that of the loop."""
        return {} if self._start is None else {"raw_return": self._so_far()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores what `save` returned, once the environment stands where it stood; earlier versions had none."""
        if self._start is not None:
            now = np.asarray(self._environment.raw_return)
            self._start = np.array(now - state.get("raw_return", now))

    def _so_far(self) -> np.ndarray:
        return np.array(self._environment.raw_return - self._start)


def _total(reward: Nest) -> float:
    return float(reward) if not tree.is_nested(reward) else float(sum(np.sum(r) for r in tree.flatten(reward)))


class _Loop(abc.ABC):
    """Holds what every loop has: an environment and its actor, and who counts, logs and watches."""

    def __init__(
        self,
        environment: Any,
        actor: Any,
        *,
        counter: Counter | None = None,
        log: Log | None = None,
        observers: Sequence[Observer] = (),
        check: Check | None = None,
        max_episode_steps: int | None = None,
    ):
        """Makes a loop.

        Args:
            environment: as the class says.
            actor: chooses actions and records.
            counter: incremented by ``steps`` and ``episodes`` when an episode ends.
            log: called with each finished episode's record: the counts, ``episode_return``,
                ``episode_length``, ``steps_per_second`` (of one environment), ``episode_raw_return`` where wrappers
                change the rewards (`wrappers.base.RewardWrapper`), and what the observers add.
            observers: watch every step.
            check: refuses time steps, before anyone else sees them; None takes them as they come.
            max_episode_steps: ends an episode after so many steps, as truncated; None for no limit. Environments of a
                batch are not reset for that: what follows counts as the next episode.
        """
        self._environment = environment
        self.resumable = bool(getattr(environment, "resumable", False))
        self._actor = actor
        self._counter = counter or Counter()
        self._log = log
        self._observers = observers
        self._check = check
        self._max_episode_steps = max_episode_steps
        self.num_cut = 0
        self.num_steps = 0
        self._raw_returns = _RawReturns(environment)
        self._begin_counts()

    @abc.abstractmethod
    def _begin_counts(self) -> None:
        """Sets what the loop keeps of unfinished episodes, of which there are none yet."""

    @abc.abstractmethod
    def step(self) -> dict[str, float] | list[dict[str, float]] | None:
        """Takes a step; returns the record of the episode that ended, or of those that did, or None."""

    def run(self, *, num_episodes: int | None = None, num_steps: int | None = None) -> list[dict[str, float]]:
        """Acts until so many episodes have ended or steps were taken, or more, updating the actor after each step.

        Returns:
            The episodes' records.
        """
        if (num_episodes is None) == (num_steps is None):
            raise ConfigError(f"Give either num_episodes or num_steps, found {num_episodes=} and {num_steps=}.")
        records: list[dict[str, float]] = []
        start = self.num_steps

        def unfinished() -> bool:
            if num_steps is not None:
                return self.num_steps - start < num_steps
            return len(records) < num_episodes  # type: ignore[operator]  # One of the two is given.

        while unfinished():
            found = self.step()
            self._actor.update()
            if found is not None:
                records.extend(found if isinstance(found, list) else [found])
        return records


class _LoopOfMany(_Loop):
    """Adds the returns and lengths of the unfinished episodes of N environments."""

    def _begin_counts(self) -> None:
        self._returns = np.zeros(self._environment.num_envs)
        self._lengths = np.zeros(self._environment.num_envs, np.int64)

    def _end_episode(self, i: int) -> dict[str, float]:
        """Tells observers and log of the episode that environment `i` has ended; returns its record."""
        record: dict[str, float] = {
            **self._counter.increment(steps=int(self._lengths[i]), episodes=1),
            "steps": self.num_steps,  # Not of the finished episodes alone: a resumed run cuts its log by these.
            "episode_return": float(self._returns[i]),
            **self._raw_returns.metrics(i),
            "episode_length": int(self._lengths[i]),
        }
        self._returns[i], self._lengths[i] = 0.0, 0
        for observer in self._observers:
            observer.end_episode(self._environment, record, i)
        if self._log is not None:
            self._log(record)
        return record


class EnvironmentLoop(_Loop):
    """Runs one dm_env environment with one actor.

    Attributes:
        resumable: True if `save` and `restore` put the environment back in mid-episode.
        num_steps: steps taken so far, those of the unfinished episode included.
        num_cut: episodes that `max_episode_steps` has ended.
    """

    def _begin_counts(self) -> None:
        self._timestep: dm_env.TimeStep | None = None
        self._return = 0.0
        self._length = 0
        self._timed_from = time.monotonic(), self._length

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
        self._length += 1
        if self._length == self._max_episode_steps and not timestep.last():
            timestep = timestep._replace(step_type=dm_env.StepType.LAST)
            self.num_cut += 1
        self._actor.observe(action, timestep)
        self._return += _total(timestep.reward)
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
        self._raw_returns.begin()
        self._timed_from = time.monotonic(), self._length
        self._actor.observe_first(timestep)
        for observer in self._observers:
            observer.observe_first(self._environment, timestep)

    def _finish(self) -> dict[str, float]:
        counts = self._counter.increment(steps=self._length, episodes=1)
        start, before = self._timed_from
        seconds = max(time.monotonic() - start, 1e-9)
        record: dict[str, float] = {
            **counts,
            "episode_return": self._return,
            **self._raw_returns.metrics(),
            "episode_length": self._length,
            "steps_per_second": (self._length - before) / seconds,
        }
        for observer in self._observers:
            observer.end_episode(self._environment, record)
        self._timestep, self._length = None, 0
        if self._log is not None:
            self._log(record)
        return record

    def save(self) -> dict[str, Any]:
        """Returns the state of the loop and its environment, in mid-episode too; not the actor's."""
        return {
            "num_steps": self.num_steps,
            "unfinished": self._timestep is not None,
            "return": self._return,
            **self._raw_returns.save(),
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
        self._raw_returns.restore(state)
        if not mid_episode:
            self._counter.increment(steps=self._length)
            self._return, self._length = 0.0, 0
        self._timed_from = time.monotonic(), self._length  # Earlier steps took time elsewhere.


class BatchedEnvironmentLoop(_LoopOfMany):
    """Runs N environments together, with one policy call for all; each counts its own episodes.

    An environment that ended is reset by the next call, which counts no step for it, nor for one that waits meanwhile
    (`types.WAIT`).

    Attributes:
        resumable: True if `save` and `restore` put the environment back in mid-episode.
        num_steps: steps taken so far in all environments, those of unfinished episodes included.
        num_cut: episodes that `max_episode_steps` has ended.
    """

    def _begin_counts(self) -> None:
        super()._begin_counts()
        self._timestep: dm_env.TimeStep | None = None
        self._begins_apart: bool = getattr(self._environment, "begins_apart", False)
        self._action: Nest = None  # The newest; a step that only begins episodes takes any, after a restore as well.
        if self._begins_apart:
            self._action = specs.zeros(specs.add_leading(self._environment.action_spec(), self._environment.num_envs))

    def step(self) -> list[dict[str, float]] | None:
        """Takes one step in every environment; returns the records of the episodes that ended, or None."""
        if self._timestep is None:
            self._timestep = self._environment.reset()
            self._raw_returns.begin()
            if self._check is not None:
                self._check(self._timestep, None, self.num_steps)
            self._actor.observe_first(self._timestep)
            for observer in self._observers:
                observer.observe_first(self._environment, self._timestep)
        # Where the next step only begins episodes, nobody acts: an action would count in a policy's schedule or memory.
        only_begins = self._begins_apart and bool((self._timestep.step_type == LAST).any())
        action = self._action if only_begins else self._actor.select_action(self._timestep.observation)
        timestep = self._environment.step(action)
        if self._check is not None:
            self._check(timestep, action, self.num_steps + len(self._lengths))
        self._actor.observe(action, timestep)
        self._timestep, self._action = timestep, action
        moved = (timestep.step_type == MID) | (timestep.step_type == LAST)  # [N]
        np.add(self._returns, timestep.reward, out=self._returns, where=moved)
        self._lengths += moved
        self.num_steps += int(np.count_nonzero(moved))
        begins = timestep.step_type == FIRST  # Not where one waits for others to begin: it is in mid-episode.
        if begins.any():
            self._raw_returns.begin(begins)
        for observer in self._observers:
            observer.observe(self._environment, action, timestep)
        ended = (timestep.step_type == LAST).nonzero()[0]
        if self._max_episode_steps is not None:
            too_long = ((self._lengths >= self._max_episode_steps) & (timestep.step_type != LAST)).nonzero()[0]
            self.num_cut += too_long.size
            ended = np.concatenate([ended, too_long])
        records = [self._end_episode(int(i)) for i in ended] if ended.size else None
        if ended.size:  # Where an episode was cut no FIRST follows.
            self._raw_returns.begin(np.isin(np.arange(len(moved)), ended))
        return records

    def save(self) -> dict[str, Any]:
        """Returns the state of loop and environments, as `EnvironmentLoop.save` does."""
        return {
            "num_steps": self.num_steps,
            "unfinished": self._timestep is not None,
            "returns": self._returns.copy(),
            **self._raw_returns.save(),
            "lengths": self._lengths.copy(),
            "environment": self._environment.save(),
        }

    def restore(self, state: dict[str, Any], mid_episode: bool = True) -> None:
        """Restores the state that `save` returned, as `EnvironmentLoop.restore` does."""
        self.num_steps = int(state["num_steps"])
        timestep = self._environment.restore(state["environment"])
        self._timestep = timestep if mid_episode and state["unfinished"] else None
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()
        self._raw_returns.restore(state)
        if not mid_episode:
            self._counter.increment(steps=int(self._lengths.sum()))
            self._returns[:], self._lengths[:] = 0.0, 0


class ReadyEnvironmentLoop(_LoopOfMany):
    """Runs N environments in workers, of which an `actors.ReadyPolicyActor` acts for the M that are ready first.

    The environment is one that was made with ``ready=M``, such as an `envs.workers.WorkerBatchedEnvironment`.

    A step waits for M time steps, records them, and sends these environments their next actions; they work on while
    the caller learns. An environment that ended is reset by its next action, which counts no step for it.

    Attributes:
        resumable: False: which environments are ready when depends on the machine.
        num_steps: steps taken so far in all environments, those of unfinished episodes included.
    """

    def _begin_counts(self) -> None:
        super()._begin_counts()
        self.resumable = False
        self._started = False
        # The newest actions of all, [N, ...], for observers.
        self._actions = specs.zeros(specs.add_leading(self._environment.action_spec(), self._environment.num_envs))

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
        if not moved.all():
            self._raw_returns.begin(np.isin(np.arange(len(self._lengths)), numbers[~moved]))
        for observer in self._observers:
            observer.observe(self._environment, action, timestep)
        ended = numbers[timestep.step_type == LAST]
        records = [self._end_episode(int(i)) for i in ended] if ended.size else None
        new = self._actor.select_action(timestep.observation, numbers)
        self._environment.send(new, numbers)
        for column, leaf in zip(tree.flatten(self._actions), tree.flatten(new), strict=True):
            column[numbers] = leaf
        return records
