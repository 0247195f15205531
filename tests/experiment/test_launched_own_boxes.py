"""Actors and a learner of a user's own in processes of their own: killed, started again, resumed, evaluated."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pty
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest
import tree
from jax._src.xla_bridge import backends_are_initialized

import agentkit
from agentkit.distributed import ProgramError
from agentkit.errors import ConfigError
from agentkit.loggers import read_csv
from tests.experiment.own_box_examples import human_at_the_keyboard, planner, tabular_q_learning


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
        checkpoint_period=500, step_timeout=0,
    )  # fmt: skip
    return agentkit.launch(plan, num_actors=2, num_evaluators=0, engine=engine, on_status=kill)


def survives(agent: Any, steps: tuple[int, int], directory: Any, killed: set[str], engine: str = "processes") -> float:
    """Launches, kills, resumes and evaluates an agent; returns its mean return."""
    result = launch(agent, steps[0], directory, killed, engine)
    assert not killed and result.steps >= steps[0] and result.updates > 0
    assert result.reason == f"reached {steps[0]:,} steps"
    before = [array.copy() for array in tree.flatten(agentkit.load(directory).arrays)]
    again = agentkit.resume_launch(directory, num_steps=steps[1])
    assert again.steps >= steps[1] and again.updates > result.updates
    after = tree.flatten(agentkit.load(directory).arrays)
    assert all((one != other).any() for one, other in zip(before, after, strict=True))
    return float(np.mean(agentkit.evaluate(directory, num_episodes=20)["episode_return"]))


def returns_of(directory: Any, log: str) -> list[float]:
    """Returns those of an actor's episodes."""
    return [float(row["episode_return"]) for row in read_csv(directory / "logs" / f"{log}.csv")[1]]


class Telling(tabular_q_learning.QLearner):
    """Logs what of JAX's is in use in its process."""

    def metrics(self) -> dict[str, float]:
        return {"jax_devices_taken": float(backends_are_initialized()), "rlax_loaded": float("rlax" in sys.modules)}


@pytest.mark.full
@pytest.mark.parametrize("engine", ["processes", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_launched_table_survives_kills_is_resumed_and_evaluated(engine: str, tmp_path: Any) -> None:
    killed = {"actor-0", "learner-0"} if engine == "processes" else set()
    agent = dataclasses.replace(tabular_q_learning.make_agent(), make_learner=Telling)
    assert survives(agent, (4_000, 6_000), tmp_path / "run", killed, engine) > 0.5
    assert agentkit.load(tmp_path / "run").arrays.shape == (225, 3)
    rows = read_csv(tmp_path / "run" / "logs" / "learner.csv")[1]
    assert {row["jax_devices_taken"] + row["rlax_loaded"] for row in rows} == {"0.00.0"}, "others have the accelerator"


@pytest.mark.full
def test_a_planner_is_launched_killed_resumed_and_evaluated(tmp_path: Any) -> None:
    assert survives(planner.make_agent(), (2_000, 2_500), tmp_path / "run", {"actor-1", "learner-0"}) > 0.0


@pytest.mark.full
def test_torch_is_launched_killed_resumed_and_evaluated(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    import torch_actor_critic

    agent = torch_actor_critic.make_agent()
    survives(agent, (3_000, 4_500), tmp_path / "run", {"actor-0", "learner-0"})
    for name in ("train", "train-1"):  # A random policy returns -0.6; the likeliest actions of one moment say little.
        assert np.mean(returns_of(tmp_path / "run", name)[-80:]) > 0.0


class Player(threading.Thread):
    """Sits at a terminal of its own, and catches each ball that it is shown."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._person, self._terminal = pty.openpty()
        self.name_of_terminal, self.num_keys = os.ttyname(self._terminal), 0
        self.start()

    def run(self) -> None:
        shown = ""
        with contextlib.suppress(OSError):
            while text := os.read(self._person, 4_096).decode():
                shown += text.replace("\r", "")
                if shown.endswith("> "):
                    *balls, paddle = shown.rsplit("\n", 11)[-11:-1]
                    distance = next(row.index("#") for row in balls if "#" in row) - paddle.index("#")
                    os.write(self._person, b"asd"[1 + np.sign(distance) :][:1] + b"\n")
                    shown, self.num_keys = "", self.num_keys + 1

    def leave(self) -> None:
        """Closes the terminal."""
        os.close(self._terminal)
        os.close(self._person)


@pytest.mark.full
def test_a_person_plays_beside_another_actor_and_the_launched_agent_learns(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = Player()
    monkeypatch.setenv("KEYBOARD", player.name_of_terminal)
    try:
        survives(human_at_the_keyboard.make_agent(), (1_200, 1_500), tmp_path / "run", {"actor-0", "learner-0"})
    finally:
        player.leave()
    persons, others = (returns_of(tmp_path / "run", name) for name in ("train", "train-1"))
    assert player.num_keys > 100 and np.mean(persons) > 0.8  # Who was killed has lost sight of a key.
    assert len(others) > 10 and min(others) == -1.0


@pytest.mark.full
def test_a_launched_person_without_a_keyboard_is_told_at_once(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KEYBOARD", raising=False)
    with pytest.raises(ProgramError, match=r"Nobody is at the keyboard .*Set KEYBOARD=\$\(tty\)"):
        launch(human_at_the_keyboard.make_agent(), 100, tmp_path / "run", set(), "processes")


def test_inference_nodes_are_refused_for_an_actor_of_ones_own() -> None:
    plan = agentkit.ExperimentConfig(tabular_q_learning.make_agent(), "agentkit:catch", 100)
    with pytest.raises(ConfigError, match=r"num_inference=1 \(--inference\): the agent's own actor"):
        agentkit.launch(plan, num_inference=1)
