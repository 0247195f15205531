"""Callbacks that end a run: when it is good enough, or gets no better."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, final

from agentkit.callbacks.base import Callback, RunView, Stop, check_evaluates_before_its_end
from agentkit.errors import ConfigError, unknown_name

_RETURN_OF = "episode_return/"
"""Of a record of several agents: before an agent's id, the name of its return."""


@final
@dataclasses.dataclass
class StopAt(Callback):
    """Ends the run at an evaluation that is good enough; see `stop_at`."""

    return_above: float
    return_of: str | None = None

    def __post_init__(self) -> None:
        """Refuses a bound that no return reaches or misses."""
        if not math.isfinite(self.return_above):
            raise ConfigError(f"stop_at: expected a finite return_above, found {self.return_above}.")

    def check(self, experiment: Any) -> None:
        """Refuses an experiment without evaluations, or without such an agent, as far as it says who plays."""
        check_evaluates_before_its_end(experiment, "stop_at")
        _check_return_of(experiment, self.return_of)

    def on_evaluation(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Stops where the mean return is at least the bound."""
        found = _find_return(record, self.return_of)
        if found >= self.return_above:
            return Stop(f"evaluation return {found:.6g} reached {self.return_above:.6g}")
        return None


def stop_at(return_above: float, return_of: str | None = None) -> StopAt:
    """Ends the run at the first evaluation whose mean return is at least `return_above`.

    Args:
        return_above: the bound.
        return_of: of several agents, the one whose return counts; None for the sum of all, which says nothing where one
            wins what another loses.
    """
    return StopAt(float(return_above), return_of)


def _check_return_of(experiment: Any, agent_id: str | None) -> None:
    policy_of = getattr(experiment, "policy_of", None)  # A learner's node of several agents has an experiment of one.
    if agent_id is not None and isinstance(policy_of, Mapping) and agent_id not in policy_of:
        raise unknown_name("agent in return_of", agent_id, list(policy_of))


def _find_return(record: dict[str, Any], agent_id: str | None) -> float:
    """Returns an evaluation's mean return, or that of one of its agents.

    Raises:
        ConfigError: there is one agent alone.
        UnknownNameError: there is no such agent.
    """
    if agent_id is None:
        return float(record["episode_return"])
    agents = [name.removeprefix(_RETURN_OF) for name in record if name.startswith(_RETURN_OF)]
    if not agents:
        raise ConfigError(f"return_of: {agent_id!r} is one of several agents, and this run has one. Leave it out.")
    if agent_id not in agents:
        raise unknown_name("agent in return_of", agent_id, agents)
    return float(record[_RETURN_OF + agent_id])


@final
@dataclasses.dataclass
class StopWhenFlat(Callback):
    """Ends the run when evaluations get no better; see `stop_when_flat`."""

    evaluations: int
    min_delta: float = 0.0
    return_of: str | None = None
    best: float | None = dataclasses.field(default=None, init=False)
    without_progress: int = dataclasses.field(default=0, init=False)
    restored: bool = dataclasses.field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        if self.evaluations < 1 or not 0 <= self.min_delta < math.inf:
            raise ConfigError(
                f"stop_when_flat: expected evaluations >= 1 and a finite min_delta >= 0, found {self.evaluations} and "
                f"{self.min_delta}."
            )

    def check(self, experiment: Any) -> None:
        """Refuses what `StopAt.check` does."""
        check_evaluates_before_its_end(experiment, "stop_when_flat")
        _check_return_of(experiment, self.return_of)

    def on_start(self, run: RunView, environment: Any) -> Stop | None:
        """Forgets another run that it was given to."""
        if not self.restored:
            self.best, self.without_progress = None, 0
        self.restored = False
        return None

    def on_evaluation(self, run: RunView, record: dict[str, Any]) -> Stop | None:
        """Counts evaluations without progress."""
        found = _find_return(record, self.return_of)
        found = -math.inf if math.isnan(found) else found  # Else nothing would be better than it.
        if self.best is None or found > self.best + self.min_delta:
            self.best, self.without_progress = found, 0
            return None
        self.without_progress += 1
        if self.without_progress < self.evaluations:
            return None
        self.without_progress = 0  # A run that goes on has as many again.
        return Stop(f"the last {self.evaluations} evaluations were no better than return {self.best:.6g}")

    def save(self) -> dict[str, Any]:
        """Returns the best return, and the count since."""
        return {"best": self.best, "without_progress": self.without_progress}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self.best = None if state["best"] is None else float(state["best"])
        self.without_progress = int(state["without_progress"])
        self.restored = True


def stop_when_flat(evaluations: int = 10, min_delta: float = 0.0, return_of: str | None = None) -> StopWhenFlat:
    """Ends the run after so many evaluations in a row that beat the best return so far by no more than `min_delta`.

    A run that is resumed after that is given as many again.

    Args:
        evaluations: at least 1. Where a launched program has several evaluators, each counts its own.
        min_delta: in units of return, at least 0.
        return_of: see `stop_at`.
    """
    return StopWhenFlat(evaluations, float(min_delta), return_of)
