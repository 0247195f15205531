"""Actors and a learner of a user's own in processes of their own: killed, started again, resumed, evaluated."""

from __future__ import annotations

import os
import signal
from typing import Any

import numpy as np
import pytest

import agentkit
from agentkit.errors import ConfigError
from tests.experiment.own_box_examples import planner, tabular_q_learning


def launch(agent: Any, num_steps: int, directory: Any, killed: set[str], engine: str) -> Any:
    """Launches an agent with two actors; kills each of `killed` once, in the middle."""

    def kill(status: dict[str, Any]) -> None:
        for name in sorted(killed):
            node = status["nodes"].get(name, {})
            if status["totals"].get("steps", 0) > num_steps / 4 and node.get("pid"):
                os.kill(node["pid"], signal.SIGKILL)
                killed.remove(name)

    plan = agentkit.ExperimentConfig(
        agent, "agentkit:catch", num_steps, run_directory=directory, evaluation_period=0,
        checkpoint_period=500,
    )  # fmt: skip
    return agentkit.launch(plan, num_actors=2, num_evaluators=0, engine=engine, on_status=kill)


@pytest.mark.reverb
@pytest.mark.full
@pytest.mark.parametrize("engine", ["processes", "ray"])
def test_a_launched_table_survives_kills_is_resumed_and_evaluated(engine: str, tmp_path: Any) -> None:
    killed = {"actor-0", "learner-0"} if engine == "processes" else set()
    result = launch(tabular_q_learning.make_agent(), 4_000, tmp_path / "run", killed, engine)
    assert not killed and result.steps >= 4_000 and result.updates > 0
    assert result.reason == "reached 4,000 steps"
    before = agentkit.load(tmp_path / "run").arrays
    assert before.shape == (225, 3) and before.any()
    again = agentkit.resume_launch(tmp_path / "run", num_steps=6_000)
    assert again.steps >= 6_000 and again.updates > result.updates
    assert (agentkit.load(tmp_path / "run").arrays != before).any()
    assert np.mean(agentkit.evaluate(tmp_path / "run", num_episodes=20)["episode_return"]) > 0.5


@pytest.mark.reverb
@pytest.mark.full
def test_a_planner_is_launched_resumed_and_evaluated(tmp_path: Any) -> None:
    result = launch(planner.make_agent(), 600, tmp_path / "run", {"actor-1"}, "processes")
    assert result.steps >= 600 and result.updates > 0
    assert agentkit.resume_launch(tmp_path / "run", num_steps=900).updates > result.updates
    assert np.mean(agentkit.evaluate(tmp_path / "run", num_episodes=10)["episode_return"]) > 0.0


@pytest.mark.reverb
def test_inference_nodes_are_refused_for_an_actor_of_ones_own() -> None:
    plan = agentkit.ExperimentConfig(tabular_q_learning.make_agent(), "agentkit:catch", 100)
    with pytest.raises(ConfigError, match=r"num_inference=1 \(--inference\): the agent's own actor"):
        agentkit.launch(plan, num_inference=1)
