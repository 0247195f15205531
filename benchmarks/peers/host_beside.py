"""agentkit on the device beside agentkit on the host with EnvPool: PPO in CartPole, segments of 128 steps.

    python benchmarks/peers/host_beside.py

Run it alone on the machine, in an environment that has agentkit with its extra envpool. On the host, environments are
EnvPool's, in C, and acting and learning take turns in Python; on the device, all is one compiled loop.
"""

from __future__ import annotations

import pathlib
from typing import Any

import beside

# Workloads: environments of each side, and steps. What is compiled, in the first two segments, is not timed.
WORKLOADS: dict[str, dict[str, Any]] = {
    "ppo-64-beside-8": {"device": 64, "host": 8, "device_steps": 1_500_000, "host_steps": 100_000},
    "ppo-64": {"device": 64, "host": 64, "device_steps": 1_500_000, "host_steps": 250_000},
}


def run_device(work: dict[str, Any]) -> dict[str, float]:
    """Trains in one compiled loop."""
    return _run("jax:cartpole", work["device"], work["device_steps"], on_device=True)


def run_host(work: dict[str, Any]) -> dict[str, float]:
    """Trains in a loop of the host."""
    return _run("envpool:CartPole-v1", work["host"], work["host_steps"], on_device=False)


def _run(environment: str, num_envs: int, num_steps: int, on_device: bool) -> dict[str, float]:
    import agentkit
    from agentkit.agents import ppo

    agent = ppo.make_agent(ppo.Config(segment_length=128))

    def make_experiment(folder: pathlib.Path) -> agentkit.ExperimentConfig:
        return agentkit.ExperimentConfig(
            agent, environment, num_steps, num_envs=num_envs, on_device=on_device, evaluation_period=0,
            checkpoint_period=0, run_directory=folder, progress=False,
        )  # fmt: skip

    return beside.time_agentkit(make_experiment, untimed_steps=2 * agent.config.segment_length * num_envs)


if __name__ == "__main__":
    beside.main(__file__, WORKLOADS, {"agentkit": run_device, "host": run_host})
