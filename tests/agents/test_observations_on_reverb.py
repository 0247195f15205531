"""Observations of several parts come back from a Reverb server as they were: the items are those of the own replay."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
import tree

pytest.importorskip("reverb")

from agentkit import specs
from agentkit.replay import InProcessReplay, MinSize, Uniform
from agentkit.replay.reverb.single_process import SingleProcessReverbReplay
from agentkit.specs import make_environment_spec
from tests.agents.observations import EPISODE
from tests.agents.test_observations_matrix import make_agent, task

# TensorFlow Probability, which rlax imports, where TensorFlow is there already: it compares versions with distutils.
pytestmark = [
    pytest.mark.reverb,
    pytest.mark.filterwarnings("ignore:distutils Version classes are deprecated:DeprecationWarning"),
]
NUM_EPISODES, BATCH = 4, 32


def stored_items(make_replay: Any, kind: str, agent_name: str) -> set[Any]:
    """All items of a few episodes, as the replay gives them back, each as names, shapes, dtypes and bytes."""
    agent, environment = make_agent(agent_name, kind), task(kind, agent_name)(0)
    spec = make_environment_spec(environment)
    tables = [
        dataclasses.replace(table, rate_limiter=MinSize(1), sampler=Uniform()) for table in agent.make_tables(spec)
    ]
    extras = specs.zeros(agent.make_policy(agent.make_networks(spec)).extras_spec)
    extras = jax.tree.map(np.asarray, extras)
    with make_replay(tables) as replay:
        adder = agent.make_adder(replay, spec)
        for _ in range(NUM_EPISODES):
            adder.add_first(environment.reset())
            for _ in range(EPISODE):
                adder.add(specs.zeros(spec.actions), environment.step(specs.zeros(spec.actions)), extras)
        adder.close()
        sampler = replay.sampler(tables[0].name, BATCH, timeout=60.0)
        drawn = [next(sampler).sample.data for _ in range(12)]
    rows = [tree.map_structure(lambda x, i=i: x[i], data) for data in drawn for i in range(BATCH)]
    return {
        tuple((path, x.shape, str(x.dtype), x.tobytes()) for path, x in tree.flatten_with_path(row)) for row in rows
    }


@pytest.mark.parametrize("kind", ["dictionary", "image CHW, uint8, 10x10", "nested"])
@pytest.mark.parametrize("agent", ["DQN", "R2D2", "SAC"])
def test_items_are_those_of_the_own_replay(agent: str, kind: str) -> None:
    own = stored_items(lambda tables: InProcessReplay(tables, seed=0), kind, agent)
    assert stored_items(SingleProcessReverbReplay, kind, agent) == own
    assert len(own) >= 2
