"""A user's script that gives each box, with the types that it declares: mypy --strict passes on it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import dm_env
import numpy as np

import agentkit
from agentkit.adders import NStepAdder
from agentkit.core import Actor, ActorParts, Adder, BatchPlan, Learner, LearnerParts
from agentkit.learning import rate_limit
from agentkit.replay import InProcessReplay, Replay, Table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

PLAN = BatchPlan("steps", batch_size=16)


class Walker(Actor):
    """Takes the action that the learner counts most often."""

    def __init__(self, parts: ActorParts) -> None:
        self.parts = parts
        self.random = np.random.default_rng(parts.seed)

    def select_action(self, observation: Nest) -> Nest:
        counts: Mapping[str, np.ndarray] = self.parts.variables.params
        return np.int32(counts["taken"].argmax() if self.parts.evaluation else self.random.integers(3))

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        self.parts.adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        self.parts.adder.add(action, next_timestep)

    def update(self, wait: bool = False) -> None:
        self.parts.variables.update(wait)


class Counter:
    """Counts actions."""

    def __init__(self, parts: LearnerParts) -> None:
        self.dataset = parts.dataset
        self.taken = np.zeros(3)

    def step(self) -> None:
        _, sample = next(self.dataset)
        self.taken += np.bincount(sample.data.action, minlength=3)

    def variables(self) -> Mapping[str, Nest]:
        return {"policy": {"taken": self.taken}}

    def save(self) -> dict[str, np.ndarray]:
        return {"taken": self.taken.copy()}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self.taken = state["taken"].copy()


def make_actor(parts: ActorParts) -> Actor:
    return Walker(parts)


def make_learner(parts: LearnerParts) -> Learner:
    return Counter(parts)


def make_tables(spec: EnvironmentSpec) -> Sequence[Table]:
    limit = rate_limit(PLAN, updates_per_insert=0.5, min_replay_size=20)
    return [Table("steps", NStepAdder.layout(spec), max_size=100, rate_limiter=limit)]


def make_adder(replay: Replay, spec: EnvironmentSpec) -> Adder:
    return NStepAdder(replay.writer(NStepAdder.history(1)), spec, tables="steps", n=1, discount=0.99)


def make_replay(tables: Sequence[Table]) -> Replay:
    return InProcessReplay(tables, seed=0)


agent = agentkit.compose(
    make_actor=make_actor, make_learner=make_learner, make_tables=make_tables, make_adder=make_adder, batch_plan=PLAN
)
experiment = agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps=60, replay=make_replay, evaluation_period=0)
