"""Launched programs in their steady state, on the served replay beside Reverb: their actors, and their learners.

``python benchmarks/parts/launched.py [sleeping] [learners] [--actors 1,2,4] [--replays served,reverb]``, alone on the
machine; Reverb needs the extra ``reverb``. Both backends take turns, and only the ratios mean anything.

``sleeping``: steps a second of actors in an environment that sleeps 5 ms a step, so that cores are not the limit: what
is lost against N times one actor is agentkit's. Beside it the memory of an actor and the time to the first update.
``learners``: updates a second of SAC, D4PG and R2D2 in environments that cost nothing, beside the same agent in one
process. An update a step, so that whoever is slower sets the pace.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import dm_env
import psutil
from data import IdleEnvironment, environment_spec

import agentkit
from agentkit import envs
from agentkit.agents import d4pg, dqn, r2d2, sac
from agentkit.callbacks import Callback, Stop
from agentkit.experiment import ExperimentConfig

SLEEP_SECONDS = 0.005
_WARM_UPDATES = 200


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


def make_idle(seed: int) -> IdleEnvironment:
    """HalfCheetah's shapes."""
    del seed
    return IdleEnvironment(environment_spec())


def make_idle_choices(seed: int) -> IdleEnvironment:
    del seed
    return IdleEnvironment(environment_spec(discrete=True))


SMALL = dqn.Config(hidden_sizes=(16,), min_replay_size=200, updates_per_step=0.05, replay_size=20_000)
SLEEPING = dqn.make_agent(SMALL), make_sleepy
LEARNERS: dict[str, tuple[Any, Any]] = {
    "sac": (sac.make_agent(sac.Config(min_replay_size=1_000, num_random_steps=0)), make_idle),
    "d4pg": (d4pg.make_agent(d4pg.Config(min_replay_size=1_000)), make_idle),
    "r2d2": (r2d2.make_agent(r2d2.Config(min_replay_size=100, updates_per_step=1.0)), make_idle_choices),
}


def experiment_of(agent_and_environment: tuple[Any, Any], replay: str) -> ExperimentConfig:
    agent, environment = agent_and_environment
    return ExperimentConfig(agent, environment, num_steps=10**9, evaluation_period=0, replay=replay)


def launched(experiment: ExperimentConfig, num_actors: int, seconds: float, warm: int) -> dict[str, Any]:
    """Returns what a program does in `seconds`, once it has made `warm` updates and all its actors act."""
    began = time.monotonic()
    first: dict[str, float] = {}
    start: list[Any] = []
    row: dict[str, Any] = {}

    def on_status(status: dict[str, Any]) -> None:
        now, totals = time.monotonic(), status["totals"]
        if totals.get("updates", 0) > 0:
            first.setdefault("update", now - began)
        actors = [node for node in status["nodes"].values() if node["role"] == "actor"]
        if not start:
            if totals.get("updates", 0) > warm and all(node["counts"].get("steps", 0) > 200 for node in actors):
                start[:] = now, totals["steps"], totals["updates"]
        elif now - start[0] >= seconds and not row:
            memory = [psutil.Process(node["pid"]).memory_full_info().uss / 2**20 for node in actors]
            row.update(
                steps_per_second=(totals["steps"] - start[1]) / (now - start[0]),
                updates_per_second=(totals["updates"] - start[2]) / (now - start[0]),
                mebibytes_per_actor=statistics.median(memory),
                seconds_to_first_update=first["update"],
            )
            raise KeyboardInterrupt

    try:
        agentkit.launch(experiment, num_actors=num_actors, num_evaluators=0, on_status=on_status)
    except KeyboardInterrupt:
        if not row:
            raise
    return row


class Measured(Callback):
    """Ends a run of one process some seconds after its first updates."""

    def __init__(self, seconds: float, warm: int):
        self._seconds, self._warm = seconds, warm
        self._start: tuple[float, int] | None = None
        self.updates_per_second = 0.0

    def on_step(self, run: Any, step: Any) -> Stop | None:
        now = time.monotonic()
        if self._start is None:
            self._start = (now, run.updates) if run.updates > self._warm else None
        elif now - self._start[0] >= self._seconds:
            self.updates_per_second = (run.updates - self._start[1]) / (now - self._start[0])
            return Stop("measured")
        return None


def in_one_process(agent_and_environment: tuple[Any, Any], seconds: float, warm: int) -> float:
    """Returns the updates a second of the same agent in one process."""
    measured = Measured(seconds, warm)
    agentkit.run(experiment_of(agent_and_environment, "in_process"), callbacks=[measured])
    return measured.updates_per_second


def tell(**values: Any) -> None:
    print(json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in values.items()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=["sleeping", "learners"])
    parser.add_argument("--actors", default="1,2,4")
    parser.add_argument("--replays", default="served,reverb")
    parser.add_argument("--seconds", type=float, default=15.0)
    options = parser.parse_args()
    replays, counts = options.replays.split(","), [int(count) for count in options.actors.split(",")]
    one: dict[str, float] = {}
    for num_actors in counts if "sleeping" in options.parts else ():
        for replay in replays:
            row = launched(experiment_of(SLEEPING, replay), num_actors, options.seconds, warm=20)
            each = row["steps_per_second"] / num_actors
            row["of_linear"] = each / one.setdefault(replay, each)
            tell(part="sleeping", replay=replay, actors=num_actors, **row)
    for name, made in LEARNERS.items() if "learners" in options.parts else ():
        alone = in_one_process(made, options.seconds, _WARM_UPDATES)
        tell(part="learners", agent=name, replay="in one process", updates_per_second=alone)
        for num_actors in counts:
            for replay in replays:
                row = launched(experiment_of(made, replay), num_actors, options.seconds, _WARM_UPDATES)
                of_one = row["updates_per_second"] / alone
                tell(part="learners", agent=name, replay=replay, actors=num_actors, of_one_process=of_one, **row)


if __name__ == "__main__":
    main()
