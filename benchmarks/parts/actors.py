"""How many steps a second 1, 2, 4, 8 actors take together in an environment that sleeps, and what each costs.

Run alone on the machine, with the extra ``reverb``: ``python benchmarks/parts/actors.py``. The environment sleeps 5 ms
a step, so that cores are not the limit: what is lost against N times one actor is agentkit's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import dm_env
import psutil

import agentkit
from agentkit import envs
from agentkit.agents import dqn
from agentkit.experiment import ExperimentConfig

SLEEP_SECONDS = 0.005
ENVIRONMENT_WORDS = "catch whose every step sleeps 5 ms"


class Sleepy(dm_env.Environment):
    """Another environment, slower."""

    def __init__(self, environment: Any):
        self._environment = environment

    def reset(self) -> dm_env.TimeStep:
        return self._environment.reset()

    def step(self, action: Any) -> dm_env.TimeStep:
        time.sleep(SLEEP_SECONDS)
        return self._environment.step(action)

    def observation_spec(self) -> Any:
        return self._environment.observation_spec()

    def action_spec(self) -> Any:
        return self._environment.action_spec()


def make_sleepy(seed: int) -> Sleepy:
    return Sleepy(envs.make("agentkit:catch", seed=seed))


def measure(num_actors: int, seconds: float) -> dict[str, Any]:
    """Steps a second of a program in its steady state, its memory per actor, and the learner's wait."""
    config = dqn.Config(hidden_sizes=(16,), min_replay_size=200, updates_per_step=0.05, replay_size=20_000)
    experiment = ExperimentConfig(dqn.make_agent(config), make_sleepy, num_steps=10**9, evaluation_period=0)
    began = time.monotonic()
    seen: dict[str, Any] = {"start": None, "first_update": None, "row": None}

    def on_status(status: dict[str, Any]) -> None:
        now, totals = time.monotonic(), status["totals"]
        if seen["first_update"] is None and totals.get("updates", 0) > 0:
            seen["first_update"] = now - began
        actors = [node for node in status["nodes"].values() if node["role"] == "actor"]
        if seen["start"] is None:
            if totals.get("updates", 0) > 20 and all(node["counts"].get("steps", 0) > 200 for node in actors):
                seen["start"] = now, totals["steps"], waited(status)
            return
        start, steps, waiting = seen["start"]
        if now - start >= seconds and seen["row"] is None:
            memory = [psutil.Process(node["pid"]).memory_full_info().uss / 2**20 for node in actors]
            seen["row"] = {
                "actors": num_actors,
                "steps_per_second": (totals["steps"] - steps) / (now - start),
                "mebibytes_per_actor": statistics.median(memory),
                "learner_waits": (waited(status) - waiting) / (now - start),
                "parameter_age_seconds": max(node["gauges"]["parameter_age_seconds"] for node in actors),
                "seconds_to_first_update": seen["first_update"],
            }
            raise KeyboardInterrupt

    try:
        agentkit.launch(experiment, num_actors=num_actors, num_evaluators=0, on_status=on_status)
    except KeyboardInterrupt:
        assert seen["row"] is not None
    return seen["row"]


def waited(status: dict[str, Any]) -> float:
    return float(status["nodes"]["learner-0"]["gauges"].get("waited_for_data_seconds", 0.0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    one = None
    for num_actors in options.actors:
        row = measure(num_actors, options.seconds)
        one = one or row["steps_per_second"] / num_actors
        row["of_linear"] = row["steps_per_second"] / (num_actors * one)
        print(json.dumps({name: round(value, 3) for name, value in row.items()}), flush=True)


if __name__ == "__main__":
    main()
