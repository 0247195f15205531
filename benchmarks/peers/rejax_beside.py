"""agentkit on the device beside rejax: the same agent, environment and settings, one process at a time, in turns.

    python benchmarks/peers/rejax_beside.py --rejax-python ~/peers/rejax/bin/python

Run it alone on the machine, with agentkit's interpreter. rejax 0.1.3 and gymnax 0.0.9 have a virtual environment of
their own. Both sides compile first, and that is timed apart; neither evaluates. A round runs each side once, every
other round in reverse order; a ratio is of runs of the same round, and the table has their medians. Rates are of
processor time and of time.

What is not the same: agentkit's steps count no resets, keep final observations, look for numbers that are not
finite, and are logged; rejax computes a reset at every step. rejax's PPO takes two optimiser steps a minibatch
(policy and values), agentkit's one for both.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Workloads: environments, steps in all, and what else both sides share.
WORKLOADS: dict[str, dict[str, Any]] = {
    "ppo-64": {"agent": "ppo", "num_envs": 64, "steps": 400_000, "length": 32},
    "ppo-1024": {"agent": "ppo", "num_envs": 1_024, "steps": 1_300_000, "length": 32},
    "dqn": {"agent": "dqn", "num_envs": 4, "steps": 40_000, "updates": 2, "batch_size": 128},
    "sac": {"agent": "sac", "num_envs": 4, "steps": 8_000, "updates": 4, "batch_size": 64},
}


def run_rejax(work: dict[str, Any]) -> dict[str, float]:
    """Compiles and runs `train` of rejax, without evaluations."""
    import jax
    import rejax

    settings = {"num_envs": work["num_envs"], "total_timesteps": work["steps"], "eval_freq": work["steps"]}
    settings |= {"skip_initial_evaluation": True, "learning_rate": 1e-3, "max_grad_norm": 10.0}
    if work["agent"] == "ppo":
        settings |= {"env": "CartPole-v1", "num_steps": work["length"], "num_epochs": 10, "num_minibatches": 4}
        settings |= {"agent_kwargs": {"activation": "tanh"}}
    else:
        settings |= {"buffer_size": 100_000, "fill_buffer": 1_000, "batch_size": work["batch_size"]}
        settings |= {"num_epochs": work["updates"]}
        settings |= {"env": "CartPole-v1" if work["agent"] == "dqn" else "Pendulum-v1"}
    algorithm = rejax.get_algo(work["agent"]).create(**settings)
    algorithm = algorithm.replace(eval_callback=lambda *_: jax.numpy.zeros(()))
    begun = time.monotonic(), time.process_time()
    compiled = jax.jit(algorithm.train).lower(jax.random.PRNGKey(0)).compile()
    ready = time.monotonic(), time.process_time()
    state, _ = jax.block_until_ready(compiled(jax.random.PRNGKey(0)))
    return _figures(begun, ready, int(state.global_step))


def run_agentkit(work: dict[str, Any]) -> dict[str, float]:
    """Runs a training as `agentkit.run` does, whose first chunk compiles."""
    import agentkit
    from agentkit.agents import registry
    from agentkit.experiment.local import started

    settings: dict[str, Any] = {"learning_rate": 1e-3, "max_grad_norm": 10.0, "hidden_sizes": (64, 64)}
    if work["agent"] == "ppo":
        settings |= {"segment_length": work["length"], "num_epochs": 10, "num_minibatches": 4}
        settings |= {"normalize_observations": False, "normalize_values": False}
    else:
        settings |= {"replay_size": 100_000, "min_replay_size": 1_000, "batch_size": work["batch_size"]}
        settings |= {"updates_per_step": work["updates"] / work["num_envs"], "n_step": 1}
    if work["agent"] == "sac":
        settings |= {"num_random_steps": 0}
    environment = pendulum() if work["agent"] == "sac" else "jax:cartpole"
    experiment = agentkit.ExperimentConfig(
        registry.make(work["agent"], settings), environment, work["steps"], num_envs=work["num_envs"], on_device=True,
        evaluation_period=0, checkpoint_period=0,
    )  # fmt: skip
    begun = time.monotonic(), time.process_time()
    with started(experiment, False) as (training, stop):
        training.begin(stop)
        training.advance(stop)
        ready, first = (time.monotonic(), time.process_time()), training.work.num_steps
        while training.goes_on:
            training.advance(stop)
        return _figures(begun, ready, training.work.num_steps - first)


def pendulum() -> Any:
    """Returns gymnasium's Pendulum-v1 as an environment in JAX, as gymnax has it."""
    import dataclasses

    import jax
    import jax.numpy as jnp
    import numpy as np

    from agentkit import specs
    from agentkit.envs.jax.base import JaxEnvironment
    from agentkit.envs.jax.time_steps import first_step, next_step

    @dataclasses.dataclass(frozen=True)
    class Pendulum(JaxEnvironment):
        def observation_spec(self) -> Any:
            return specs.Array((3,), np.float32)

        def action_spec(self) -> Any:
            return specs.BoundedArray((1,), np.float32, -1.0, 1.0)

        def reset(self, key: Any) -> Any:
            angle, speed = jax.random.uniform(key, (2,), minval=-1.0) * jnp.array([jnp.pi, 1.0])
            return (angle, speed, jnp.int32(0)), first_step(self._observe(angle, speed))

        def step(self, state: Any, action: Any, key: Any) -> Any:
            angle, speed, count = state
            force = 2.0 * action[0]
            reward = -(((angle + jnp.pi) % (2 * jnp.pi) - jnp.pi) ** 2 + 0.1 * speed**2 + 0.001 * force**2)
            speed = jnp.clip(speed + (15.0 * jnp.sin(angle) + 3.0 * force) * 0.05, -8.0, 8.0)
            angle = angle + speed * 0.05
            return (angle, speed, count + 1), next_step(self._observe(angle, speed), reward, truncated=count + 1 == 200)

        def _observe(self, angle: Any, speed: Any) -> Any:
            return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed])

    return Pendulum()


def _figures(begun: tuple[float, float], ready: tuple[float, float], steps: int) -> dict[str, float]:
    seconds, processor = time.monotonic() - ready[0], time.process_time() - ready[1]
    return {
        "compile_seconds": ready[0] - begun[0],
        "compile_processor": ready[1] - begun[1],
        "per_second": steps / seconds,
        "per_processor_second": steps / processor,
    }


def _run_side(side: str, name: str, python: str) -> dict[str, float]:
    command = [python, __file__, "--side", side, "--workloads", name]
    environment = os.environ | {"PYTHONPATH": str(ROOT) if side == "agentkit" else "", "JAX_PLATFORMS": "cpu"}
    # What one run has compiled must not be there for the next one.
    environment |= {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    found = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    figures: dict[str, float] = json.loads(found.splitlines()[-1])
    return figures


def main() -> None:
    """Runs both sides in turns, and prints each run, and a table of medians in Markdown."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rejax-python", default=sys.executable)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--side", choices=("agentkit", "rejax"), help="run one side in this process")
    arguments = parser.parse_args()
    if arguments.side is not None:
        run = run_agentkit if arguments.side == "agentkit" else run_rejax
        print(json.dumps(run(WORKLOADS[arguments.workloads[0]])))
        return
    pythons = {"agentkit": sys.executable, "rejax": arguments.rejax_python}
    rows = ["| workload | agentkit | rejax | ratio | ratio of time | compiled: agentkit | rejax |", "|---" * 7 + "|"]
    for name in arguments.workloads:
        runs: dict[str, list[dict[str, float]]] = {"agentkit": [], "rejax": []}
        for number in range(arguments.rounds):
            for side in list(pythons)[:: 1 if number % 2 == 0 else -1]:
                runs[side].append(_run_side(side, name, pythons[side]))
                print(name, side, json.dumps(runs[side][-1]), flush=True)
        rows.append(f"| {name} | {_row(runs)} |")
    print("\n".join(rows))


def _row(runs: dict[str, list[dict[str, float]]]) -> str:
    def median(side: str, name: str) -> float:
        return statistics.median(run[name] for run in runs[side])

    def ratio(name: str) -> float:
        pairs = zip(runs["agentkit"], runs["rejax"], strict=True)
        return statistics.median(ours[name] / theirs[name] for ours, theirs in pairs)

    rates = [f"{median(side, 'per_processor_second'):,.0f}" for side in runs]
    compiled = [f"{median(side, 'compile_processor'):.1f} s" for side in runs]
    return " | ".join([*rates, f"{ratio('per_processor_second'):.2f}", f"{ratio('per_second'):.2f}", *compiled])


if __name__ == "__main__":
    main()
