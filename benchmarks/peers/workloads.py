"""What `compare.py` measures, as data, and the job that a side is given. Standard library only."""

from __future__ import annotations

import dataclasses
from typing import Any

LEARNING_STARTS = 1_000
OFF_POLICY = {"n_step": 1, "updates_per_step": 1.0}


@dataclasses.dataclass(frozen=True)
class Variant:
    """One way to run agentkit.

    Attributes:
        settings: of the agent, beside the workload's.
        environment: agentkit's name of it, None for gymnasium's, in a `BatchedEnvironment` where there are several.
        replay: "in_process" or "reverb".
        only: the peer that it is compared with; None for all.
    """

    settings: dict[str, Any] = dataclasses.field(default_factory=dict)
    environment: str | None = None
    replay: str = "in_process"
    only: str | None = None


@dataclasses.dataclass(frozen=True)
class Workload:
    """What all sides do.

    Attributes:
        algorithm: agentkit's name of it.
        environment: gymnasium's name.
        rates: steps a second to expect of agentkit ("agentkit") and of each peer that has this workload. They say how
            many steps a run's window has, so that it takes about as long for all, and how long everything takes.
        settings: what all sides are set to, under agentkit's names.
        agentkit_only: settings that peers have by other means, or lack.
        variants: agentkit's, by the names that the tables have.
        targets: for a peer, how many times its steps per second agentkit's must be.
        num_envs: environments stepped together.
        updates_per_step: gradient updates for each environment step; on-policy it follows from the settings.
        warmup: steps with learning before the window; on-policy, iterations.
        episode_length: steps of every episode, where learning from sequences must know it; None elsewhere.
    """

    algorithm: str
    environment: str
    rates: dict[str, float]
    settings: dict[str, Any]
    agentkit_only: dict[str, Any]
    variants: dict[str, Variant]
    targets: dict[str, float] = dataclasses.field(default_factory=dict)
    num_envs: int = 1
    updates_per_step: float = 1.0
    warmup: int = 150
    episode_length: int | None = None

    @property
    def rows_per_iteration(self) -> int:
        """Steps of all environments between two turns of on-policy learning; 0 where learning is off-policy."""
        return self.num_envs * self.settings.get("segment_length", 0)


def _continuous(n_step: int = 1) -> dict[str, Any]:
    return {
        "min_replay_size": LEARNING_STARTS,
        "num_random_steps": LEARNING_STARTS,
        "n_step": n_step,
        "updates_per_step": 1.0,
    }


_HALF_CHEETAH = {
    "hidden_sizes": [256, 256],
    "batch_size": 256,
    "replay_size": 1_000_000,
    "learning_rate": 3e-4,
    "discount": 0.99,
    "tau": 0.005,
}
_PPO = {
    "hidden_sizes": [64, 64],
    "segment_length": 32,
    "clip_epsilon": 0.2,
    "entropy_cost": 0.0,
    "value_cost": 0.5,
    "max_grad_norm": 0.5,
}
_NO_NORMALIZATION = {"normalize_observations": False, "normalize_values": False}
_REVERB = Variant(replay="reverb", only="acme_like")
_ONE = "one update a call"

WORKLOADS = {
    "sac": Workload(
        algorithm="sac",
        environment="HalfCheetah-v5",
        rates={"agentkit": 180, "sb3": 90, "sbx": 120, "tianshou": 60, "rllib": 10, "acme_like": 80},
        settings=_HALF_CHEETAH,
        agentkit_only=_continuous(),
        variants={_ONE: Variant(), "Reverb replay": _REVERB},
        targets={"sbx": 1.6, "sb3": 2.0, "acme_like": 1.3},
    ),
    "td3": Workload(
        algorithm="td3",
        environment="HalfCheetah-v5",
        rates={"agentkit": 250, "sb3": 120, "sbx": 170, "tianshou": 100, "acme_like": 70},
        settings=_HALF_CHEETAH
        | {"policy_delay": 2, "target_policy_noise": 0.2, "target_noise_clip": 0.5, "exploration_noise": 0.1},
        agentkit_only={k: v for k, v in _continuous().items() if k != "n_step"},  # TD3 has one step only.
        variants={_ONE: Variant(), "Reverb replay": _REVERB},
        targets={"sbx": 1.4, "sb3": 2.0},
    ),
    "d4pg": Workload(
        algorithm="d4pg",
        environment="HalfCheetah-v5",
        rates={"agentkit": 170, "acme_like": 40},
        settings={
            "hidden_sizes": [256, 256],
            "batch_size": 256,
            "replay_size": 1_000_000,
            "policy_learning_rate": 3e-4,
            "critic_learning_rate": 3e-4,
            "discount": 0.99,
            "n_step": 5,
            "num_atoms": 51,
            "vmin": -150.0,
            "vmax": 150.0,
            "target_update_period": 100,
            "exploration_noise": 0.3,
        },
        agentkit_only=_continuous(n_step=5),
        variants={_ONE: Variant(), "Reverb replay": _REVERB},
        targets={"acme_like": 3.0},
    ),
    "dqn": Workload(
        algorithm="dqn",
        environment="CartPole-v1",
        rates={"agentkit": 3_000, "sb3": 700, "sbx": 600, "tianshou": 400, "rllib": 40, "acme_like": 130},
        settings={
            "hidden_sizes": [64, 64],
            "batch_size": 64,
            "replay_size": 100_000,
            "learning_rate": 5e-4,
            "discount": 0.99,
            "target_update_period": 500,
            "epsilon_start": 1.0,
            "epsilon_end": 0.05,
            "epsilon_steps": 5_000,
            "max_grad_norm": 10.0,
        },
        agentkit_only=OFF_POLICY
        | {"min_replay_size": LEARNING_STARTS, "double": False, "duelling": False, "prioritized": False},
        variants={
            _ONE: Variant(),
            "8 updates a call": Variant({"updates_per_call": 8}),
            "Reverb replay": _REVERB,
        },
        targets={"sbx": 6.0, "sb3": 6.0, "acme_like": 3.0},
    ),
    # Schulman et al. 2017, table 3: 2,048 steps, 10 epochs, minibatches of 64.
    "ppo-halfcheetah": Workload(
        algorithm="ppo",
        environment="HalfCheetah-v5",
        rates={
            "agentkit": 8_000,
            "sb3": 4_000,
            "sbx": 5_000,
            "tianshou": 2_500,
            "tianshou_envpool": 3_000,
            "rllib": 2_000,
        },
        settings=_PPO
        | {"num_epochs": 10, "num_minibatches": 32, "learning_rate": 3e-4, "discount": 0.99, "gae_lambda": 0.95},
        agentkit_only=_NO_NORMALIZATION,
        variants={"gymnasium": Variant(), "EnvPool": Variant(environment="envpool:HalfCheetah-v5")},
        targets={"sbx": 2.0},
        num_envs=64,
        warmup=1,
    ),
    # The settings of Stable-Baselines3's zoo.
    "ppo-cartpole": Workload(
        algorithm="ppo",
        environment="CartPole-v1",
        rates={
            "agentkit": 15_000,
            "sb3": 6_000,
            "sbx": 8_000,
            "tianshou": 4_000,
            "tianshou_envpool": 4_000,
            "rllib": 3_000,
        },
        settings=_PPO
        | {"num_epochs": 20, "num_minibatches": 1, "learning_rate": 1e-3, "discount": 0.98, "gae_lambda": 0.8},
        agentkit_only=_NO_NORMALIZATION,
        variants={"gymnasium": Variant(), "EnvPool": Variant(environment="envpool:CartPole-v1")},
        targets={"sbx": 3.5},
        num_envs=8,
        warmup=4,
    ),
    "sac-16": Workload(
        algorithm="sac",
        environment="HalfCheetah-v5",
        rates={"agentkit": 220, "sb3": 100, "sbx": 150, "tianshou": 80},
        settings=_HALF_CHEETAH,
        agentkit_only=_continuous(),
        variants={_ONE: Variant(), "16 updates a call": Variant({"updates_per_call": 16})},
        num_envs=16,
        warmup=160,
    ),
    # Mnih et al. 2015 in all but replay's size; both step EnvPool's Pong, 84 x 84 pixels, 4 frames.
    "dqn-pong": Workload(
        algorithm="dqn",
        environment="Pong-v5",
        rates={"agentkit": 150, "sb3": 120, "tianshou_envpool": 100},
        settings={
            "hidden_sizes": [512],
            "batch_size": 32,
            "replay_size": 10_000,
            "learning_rate": 1e-4,
            "discount": 0.99,
            "target_update_period": 2_500,
            "epsilon_start": 1.0,
            "epsilon_end": 0.05,
            "epsilon_steps": 5_000,
            "max_grad_norm": 10.0,
        },
        agentkit_only={
            "n_step": 1,
            "updates_per_step": 0.25,
            "min_replay_size": LEARNING_STARTS,
            "double": False,
            "duelling": False,
            "prioritized": False,
        },
        variants={"EnvPool": Variant(environment="envpool:Pong-v5")},
        updates_per_step=0.25,
    ),
    # Kapturowski et al. 2019, smaller. No other peer learns from stored sequences with a memory.
    "r2d2": Workload(
        algorithm="r2d2",
        environment="MountainCar-v0",
        rates={"agentkit": 350, "acme_like": 90},
        settings={
            "hidden_sizes": [64],
            "core_size": 64,
            "batch_size": 32,
            "sequence_length": 40,
            "sequence_period": 20,
            "burn_in": 10,
            "n_step": 5,
            "replay_size": 10_000,
            "learning_rate": 1e-3,
            "discount": 0.99,
            "target_update_period": 500,
            "epsilon_start": 1.0,
            "epsilon_end": 0.05,
            "epsilon_steps": 5_000,
            "max_grad_norm": 40.0,
            "priority_exponent": 0.9,
            "importance_exponent": 0.6,
            "max_priority_weight": 0.9,
        },
        agentkit_only={"updates_per_step": 0.25, "prioritized": True},
        variants={_ONE: Variant(), "Reverb replay": _REVERB},
        updates_per_step=0.25,
        warmup=400,
        episode_length=200,
    ),
}

PONG = {"frame_skip": 4, "stack_num": 4, "noop_max": 30, "episodic_life": True, "reward_clip": True}
"""EnvPool's settings of dqn-pong; 84 x 84 pixels and grey are its defaults."""


def make_job(
    name: str, side: str, *, variant: str | None = None, stored: int | None = None, seconds: float = 10.0, seed: int = 0
) -> dict[str, Any]:
    """What one run is to do; see step_clock.py.

    Args:
        name: of the workload.
        side: "agentkit" or a peer of the workload's `rates`.
        variant: agentkit's; None for a peer.
        stored: steps stored by random actions before learning begins; None for the usual number.
        seconds: about how long the window takes.
        seed: of everything.
    """
    workload = WORKLOADS[name]
    settings = dict(workload.settings)
    learning_starts = LEARNING_STARTS if stored is None else stored
    steps = max(1, round(workload.rates[side] * seconds))
    updates_per_step = workload.updates_per_step
    rows = workload.rows_per_iteration
    if rows:
        learning_starts = 0
        updates_per_step = settings["num_epochs"] * settings["num_minibatches"] / rows
        first = (1 + workload.warmup) * rows + 1  # The first iteration compiles.
        last = first + max(1, round(steps / rows)) * rows
    else:
        first = learning_starts + workload.warmup
        last = first + steps
    job = {
        "workload": name,
        "algorithm": workload.algorithm,
        "environment": workload.environment,
        "num_envs": workload.num_envs,
        "learning_starts": learning_starts,
        "updates_per_step": updates_per_step,
        "rows_per_iteration": rows,
        "first": first,
        "last": last,
        "settings": settings,
        "seed": seed,
        "episode_length": workload.episode_length,
        "pool_settings": PONG if workload.environment == "Pong-v5" else {},
    }
    if variant is None:
        return job
    chosen = workload.variants[variant]
    settings |= workload.agentkit_only | chosen.settings
    if not rows:
        settings["min_replay_size"] = learning_starts // settings.get("sequence_period", 1)
    if "num_random_steps" in settings:  # Each environment counts its own.
        settings["num_random_steps"] = learning_starts // workload.num_envs
    return job | {
        "agentkit_environment": chosen.environment or f"gymnasium:{workload.environment}",
        "replay": chosen.replay,
    }
