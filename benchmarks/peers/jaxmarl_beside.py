"""agentkit's PPO for several agents on the device beside JaxMARL's own IPPO on MPE's simple_spread, in turns.

    JAXMARL_IPPO=~/JaxMARL/baselines/IPPO/ippo_ff_mpe.py python benchmarks/peers/jaxmarl_beside.py

Run it alone on the machine. agentkit's interpreter has JaxMARL, too (extra ``jaxmarl``), and ``hydra-core``,
``omegaconf`` and ``wandb``, which JaxMARL's script imports; the script is in its repository, and in no package.
Settings are those of its ``ippo_ff_mpe.yaml``: one policy for all agents, 16 environments, segments of 128 steps, 4
epochs of 4 minibatches; its step size does not fall here. Its reports to W&B go into a list.

What is not the same: agentkit keeps final observations and bootstraps from them where an episode is cut off, which
JaxMARL takes for a termination; it looks for numbers that are not finite, writes logs, and counts no resets. Returns
are those of episodes in training, of all agents in sum (JaxMARL's: each agent's, times their number).
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import types
from typing import Any

import beside

ENVIRONMENT = "MPE_simple_spread_v3"
WORKLOADS: dict[str, dict[str, Any]] = {
    "spread-16": {"num_envs": 16, "length": 128, "steps": 600_000, "rate": 2.5e-4},
    "spread-128": {"num_envs": 128, "length": 128, "steps": 1_200_000, "rate": 7e-4},
    "small": {"num_envs": 16, "length": 16, "steps": 8_000, "rate": 2.5e-4},  # To try the script.
}


def run_jaxmarl(work: dict[str, Any]) -> dict[str, float]:
    """Compiles and runs ``make_train`` of JaxMARL's script."""
    import jax

    place = importlib.util.spec_from_file_location("ippo_ff_mpe", os.environ["JAXMARL_IPPO"])
    assert place is not None and place.loader is not None
    script = importlib.util.module_from_spec(place)
    place.loader.exec_module(script)
    reports: list[dict[str, Any]] = []
    script.wandb = types.SimpleNamespace(log=reports.append)
    config = {
        "LR": work["rate"], "NUM_ENVS": work["num_envs"], "NUM_STEPS": work["length"], "TOTAL_TIMESTEPS": work["steps"],
        "UPDATE_EPOCHS": 4, "NUM_MINIBATCHES": 4, "GAMMA": 0.99, "GAE_LAMBDA": 0.95, "CLIP_EPS": 0.2, "ENT_COEF": 0.01,
        "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ACTIVATION": "tanh", "ENV_NAME": ENVIRONMENT, "ENV_KWARGS": {},
        "ANNEAL_LR": False,
    }  # fmt: skip
    train = script.make_train(config)
    begun = beside.clocks()
    compiled = jax.jit(train).lower(jax.random.PRNGKey(0)).compile()
    ready = beside.clocks()
    jax.block_until_ready(compiled(jax.random.PRNGKey(0)))
    found = beside.figures(begun, ready, config["NUM_UPDATES"] * work["num_envs"] * work["length"])
    return found | {"episode_return": float(reports[-1]["returned_episode_returns"])}


def run_agentkit(work: dict[str, Any]) -> dict[str, float]:
    """Runs a training as `agentkit.run` does, whose first chunk compiles."""
    import agentkit
    from agentkit.agents import ppo

    config = ppo.Config(
        segment_length=work["length"], num_epochs=4, num_minibatches=4, hidden_sizes=(64, 64), discount=0.99,
        gae_lambda=0.95, clip_epsilon=0.2, entropy_cost=0.01, value_cost=0.5, max_grad_norm=0.5, adam_epsilon=1e-5,
        learning_rate=work["rate"], normalize_observations=False, normalize_values=False,
    )  # fmt: skip

    def make_experiment(folder: pathlib.Path) -> agentkit.MultiAgentConfig:
        return agentkit.MultiAgentConfig(
            ppo.make_agent(config), f"jaxmarl:{ENVIRONMENT}", work["steps"], "shared", num_envs=work["num_envs"],
            on_device=True, evaluation_period=0, checkpoint_period=0, run_directory=folder, progress=False,
        )  # fmt: skip

    return beside.time_agentkit(make_experiment)


if __name__ == "__main__":
    beside.main(__file__, WORKLOADS, {"agentkit": run_agentkit, "jaxmarl": run_jaxmarl})
