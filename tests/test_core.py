"""The loop that newcomers are sent to is the loop: the docstring's own lines run, over the ends of episodes."""

import textwrap
from typing import Any

import numpy as np
import pytest

import agentkit
from agentkit import core, specs
from agentkit.adders import NStepAdder
from agentkit.core import ActorParts, BatchPlan, LearnerParts
from agentkit.datasets import ReplayDataset
from agentkit.learning import rate_limit
from agentkit.replay import InProcessReplay, Table
from agentkit.variables import VariableClient, VariableStore


class StopError(Exception):
    pass


class Random(core.Actor):
    """Acts at random, records, and stops the loop in its third episode."""

    def __init__(self, parts: ActorParts):
        self.adder, self.variables = parts.adder, parts.variables
        self.rng, self.num_episodes = np.random.default_rng(parts.seed), 0

    def select_action(self, observation: Any) -> Any:
        return np.int32(self.rng.integers(3))

    def observe_first(self, timestep: Any) -> None:
        self.num_episodes += 1
        self.adder.add_first(timestep)

    def observe(self, action: Any, next_timestep: Any) -> None:
        self.adder.add(action, next_timestep)

    def update(self, wait: bool = False) -> None:
        self.variables.update(wait)
        if self.num_episodes == 3:
            raise StopError


class Counts:
    """Draws batches and counts them."""

    def __init__(self, parts: LearnerParts):
        self.dataset, self.count = parts.dataset, 0

    def step(self) -> None:
        assert len(next(self.dataset).keys) == 64
        self.count += 1

    def variables(self) -> Any:
        return {"policy": {"w": np.float32(self.count)}}


def test_the_loop_in_the_docstring_goes_from_episode_to_episode() -> None:
    def make_tables(spec: Any) -> list[Table]:
        limit = rate_limit(BatchPlan("transitions", 64), updates_per_insert=1.0, min_replay_size=10)
        return [Table("transitions", NStepAdder.layout(spec), 100, rate_limiter=limit)]

    names: dict[str, Any] = {
        "agentkit": agentkit,
        "make_environment_spec": specs.make_environment_spec,
        "InProcessReplay": InProcessReplay,
        "ReplayDataset": ReplayDataset,
        "BatchPlan": BatchPlan,
        "VariableStore": VariableStore,
        "VariableClient": VariableClient,
        "LearnerParts": LearnerParts,
        "ActorParts": ActorParts,
        "make_tables": make_tables,
        "make_adder": lambda replay, spec: NStepAdder(replay, spec, tables="transitions", n=1, discount=0.9),
        "make_learner": Counts,
        "make_actor": Random,
    }
    written = (core.__doc__ or "").split("saving):\n", 1)[1].split("\nIn a launched program", 1)[0]
    with pytest.raises(StopError):
        exec(textwrap.dedent(written), names)
    assert names["replay"].info("transitions").num_inserted == 18  # Two episodes of nine steps.
    assert names["learner"].count > 0
    assert names["variables"].get(["policy"]).version == names["learner"].count
