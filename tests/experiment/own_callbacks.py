"""Callbacks and environments of a user's own, as tests of callbacks use them."""

import dataclasses
import json
from typing import Any

import dm_env
import numpy as np

from agentkit.callbacks import EVENTS, Callback, Stop
from agentkit.envs.catch import Catch
from agentkit.wrappers.base import EnvironmentWrapper


class Scaled(EnvironmentWrapper):
    """Multiplies rewards by a level, and has gymnasium's ``info``: whether the ball was caught."""

    def __init__(self, environment: Any):
        super().__init__(environment)
        self.level = 1
        self.last_info: dict[str, Any] = {}

    def step(self, action: Any) -> dm_env.TimeStep:
        timestep = super().step(action)
        self.last_info = {"is_success": np.bool_(timestep.reward == 1)} if timestep.last() else {}
        return timestep if timestep.reward is None else timestep._replace(reward=self.level * timestep.reward)


def make_scaled(seed: int) -> Any:
    return Scaled(Catch(rows=4, columns=3, seed=seed))


def grow(steps: int, environment: Any) -> int:
    """A curriculum: every 9 steps, rewards grow."""
    environment.level = 1 + steps // 9
    return int(environment.level)


@dataclasses.dataclass
class Margin(Callback):
    """Adds a column to evaluations."""

    def on_evaluation(self, run, record):
        record["margin"] = record["episode_return"] + 2.0


@dataclasses.dataclass
class Count(Callback):
    """Counts events, and sums returns: both are its state."""

    start: int = 0
    counts: dict[str, int] = dataclasses.field(default_factory=dict, init=False)
    total: float = dataclasses.field(default=0.0, init=False)

    def _count(self, event: str) -> None:
        self.counts[event] = self.counts.get(event, self.start) + 1

    def on_start(self, run, environment):
        self._count("start")

    def on_step(self, run, step):
        assert step.timestep.reward is not None and step.environment.action_spec() is not None
        self._count("step")

    def on_episode(self, run, episode):
        self._count("episode")
        self.total += episode.record["episode_return"] * run.steps
        episode.record["total"] = self.total

    def on_evaluation(self, run, record):
        self._count("evaluation")
        record["evaluations"] = self.counts["evaluation"]

    def on_checkpoint(self, run, path):
        assert (path / "manifest.json").is_file()

    def save(self):
        counts = {name: count for name, count in self.counts.items() if name != "start"}
        return {"counts": counts, "total": self.total}

    def restore(self, state):
        self.counts = {name: int(count) for name, count in state["counts"].items()}
        self.total = float(state["total"])


def at(event: str, action: Any, after: int = 1) -> Callback:
    """Returns a callback that does ``action()`` at an event, the `after`-th time."""
    calls = []

    def call(self: Any, run: Any, *told: Any) -> Any:
        calls.append(run.steps)
        return action() if len(calls) == after else None

    return type("At", (Callback,), {event: call})()


def stop_on(event: str, after: int = 1) -> Callback:
    return at(event, lambda: Stop(f"enough of {event}"), after)


class OwnError(Exception):
    """What a callback of a user's raises."""


def fail_on(event: str, after: int = 1) -> Callback:
    def fail() -> None:
        raise OwnError("on purpose")

    return at(event, fail, after)


@dataclasses.dataclass
class Where(Callback):
    """Notes in a file which events are called in which roles; may fail at one of them."""

    path: str
    fail_on: str = ""

    def _note(self, event: str, run: Any) -> None:
        with open(self.path, "a") as file:
            file.write(json.dumps([event, run.role, run.steps]) + "\n")
        if event == self.fail_on:
            raise OwnError(event)


def _noting(event: str) -> Any:
    return lambda self, run, *told: self._note(event, run)


for _event in EVENTS:
    setattr(Where, _event, _noting(_event))
