"""agentkit on the device beside rejax: the same agent, environment and settings, one process at a time, in turns.

    python benchmarks/peers/rejax_beside.py --other-python ~/peers/rejax/bin/python

Run it alone on the machine, with agentkit's interpreter. rejax 0.1.3 and gymnax 0.0.9 have a virtual environment of
their own. Neither side evaluates. With workloads that end in "-gymnax", agentkit trains in gymnax 1.0's environments
(its interpreter must have them), else in its own, which are the same but for the package.

What is not the same: agentkit's steps count no resets, keep final observations, look for numbers that are not
finite, and are logged; rejax computes a reset at every step. rejax's PPO takes two optimiser steps a minibatch
(policy and values), agentkit's one for both.
"""

from __future__ import annotations

import pathlib
from typing import Any

import beside

# Workloads: environments, steps in all, and what else both sides share.
WORKLOADS: dict[str, dict[str, Any]] = {
    "ppo-64": {"agent": "ppo", "num_envs": 64, "steps": 400_000, "length": 32},
    "ppo-1024": {"agent": "ppo", "num_envs": 1_024, "steps": 1_300_000, "length": 32},
    "ppo-16384": {"agent": "ppo", "num_envs": 16_384, "steps": 21_000_000, "length": 32},
    "dqn": {"agent": "dqn", "num_envs": 4, "steps": 40_000, "updates": 2, "batch_size": 128},
    "sac": {"agent": "sac", "num_envs": 4, "steps": 8_000, "updates": 4, "batch_size": 64},
}
WORKLOADS |= {f"{name}-gymnax": work | {"gymnax": True} for name, work in WORKLOADS.items()}


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
    begun = beside.clocks()
    compiled = jax.jit(algorithm.train).lower(jax.random.PRNGKey(0)).compile()
    ready = beside.clocks()
    state, _ = jax.block_until_ready(compiled(jax.random.PRNGKey(0)))
    return beside.figures(begun, ready, int(state.global_step))


def run_agentkit(work: dict[str, Any]) -> dict[str, float]:
    """Runs a training as `agentkit.run` does, whose first chunk compiles."""
    import agentkit
    from agentkit.agents import registry

    settings: dict[str, Any] = {"learning_rate": 1e-3, "max_grad_norm": 10.0, "hidden_sizes": (64, 64)}
    if work["agent"] == "ppo":
        settings |= {"segment_length": work["length"], "num_epochs": 10, "num_minibatches": 4}
        settings |= {"normalize_observations": False, "normalize_values": False}
    else:
        settings |= {"replay_size": 100_000, "min_replay_size": 1_000, "batch_size": work["batch_size"]}
        settings |= {"updates_per_step": work["updates"] / work["num_envs"], "n_step": 1}
    if work["agent"] == "sac":
        settings |= {"num_random_steps": 0}
    environment: Any = pendulum() if work["agent"] == "sac" else "jax:cartpole"
    if work.get("gymnax"):
        environment = "gymnax:Pendulum-v1" if work["agent"] == "sac" else "gymnax:CartPole-v1"
    agent = registry.make(work["agent"], settings)

    def make_experiment(folder: pathlib.Path) -> agentkit.ExperimentConfig:
        return agentkit.ExperimentConfig(
            agent, environment, work["steps"], num_envs=work["num_envs"], on_device=True, evaluation_period=0,
            checkpoint_period=0, run_directory=folder, progress=False,
        )  # fmt: skip

    return beside.time_agentkit(make_experiment)


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


if __name__ == "__main__":
    beside.main(__file__, WORKLOADS, {"agentkit": run_agentkit, "rejax": run_rejax})
