"""Settings that are known to work: which agent, in which environments, from which source.

`agentkit.presets` reads this table. A row with an environment's very name goes before one with a pattern; among those
the first counts. To add a row, train with it, write down what it reached, and name that page as the source.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from agentkit.learning import Linear
from agentkit.wrappers.atari import AtariPreprocessing
from agentkit.wrappers.clip_reward import ClipReward

_MUJOCO = "docs/results/mujoco.md"
_CARTPOLE = "docs/results/cartpole.md"
_TABLE = "docs/results/table.md"
_BSUITE = "docs/results/bsuite.md"
_GAMES = "docs/results/games.md"
_SEVERAL = "docs/results/several_agents.md"
_ZOO = "RL Baselines3 Zoo 22e3ff2, hyperparams/{}.yml"
_CLEANRL = "CleanRL, ppo_continuous_action.py and its table for dm_control"
_DRQ = "github.com/denisyarats/drq, config.yaml"
_PYTORCH_SAC = "github.com/denisyarats/pytorch_sac, config/agent/sac.yaml"


@dataclasses.dataclass(frozen=True)
class Falling:
    """Stands for a schedule that falls linearly to 0 over the run, however long that is.

    Attributes:
        start: the value at first.
    """

    start: float

    def over(self, num_steps: int) -> Linear:
        """Returns the schedule of a run of `num_steps` environment steps."""
        return Linear(self.start, 0.0, num_steps)


@dataclasses.dataclass(frozen=True)
class Preset:
    """Holds settings that are known to work for an agent in some environments.

    Attributes:
        agent: its registered name.
        environments: their names, or patterns with ``*``.
        source: where the settings are from: a page of ours with returns, or somebody else's hyperparameters.
        num_steps: environment steps to take where the user does not say: the source's, or those of the published
            returns beside it; None where that depends on the environment.
        settings: fields of the agent's `Config`; a `Falling` becomes a schedule of the run's length.
        num_envs: environments that an actor steps together; None for one.
        environment_settings: arguments of the environment.
        wrappers: functions ``environment -> environment``; none where there are several agents.
    """

    agent: str
    environments: tuple[str, ...]
    source: str
    num_steps: int | None
    settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_envs: int | None = None
    environment_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    wrappers: tuple[Callable[[Any], Any], ...] = ()

    def settings_for(self, num_steps: int) -> dict[str, Any]:
        """Returns the agent's settings for a run of `num_steps` environment steps."""
        values = self.settings.items()
        return {name: value.over(num_steps) if isinstance(value, Falling) else value for name, value in values}


def _both(*names: str) -> tuple[str, ...]:
    """Returns patterns for these environments' versions in gymnasium and in EnvPool."""
    return tuple(f"{prefix}:{name}-v*" for prefix in ("gymnasium", "envpool") for name in names)


_CLASSIC = {name: _both(name) for name in ("CartPole", "Acrobot", "MountainCar", "Pendulum", "LunarLander")}
_LANDER = _both("LunarLanderContinuous")  # In gymnasium 1.x also LunarLander-v3 with continuous=True.
_ROBOTS = _both(
    "Ant", "HalfCheetah", "Hopper", "Humanoid", "HumanoidStandup", "InvertedDoublePendulum", "InvertedPendulum",
    "Pusher", "Reacher", "Swimmer", "Walker2d",
)  # fmt: skip
_GAME_SETTINGS = {"frameskip": 1, "repeat_action_probability": 0.0}
_ATARI: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("atari:*",), {}),  # The recipe has all of the protocol.
    (("gymnasium:ALE/*",), {"environment_settings": _GAME_SETTINGS, "wrappers": (AtariPreprocessing, ClipReward)}),
    (("envpool:Pong-v5", "envpool:Breakout-v5"), {"wrappers": (ClipReward,)}),
)

_PPO_LANDER = {
    "segment_length": 1024,
    "num_minibatches": 256,
    "num_epochs": 4,
    "learning_rate": 3e-4,
    "gae_lambda": 0.98,
    "discount": 0.999,
    "entropy_cost": 0.01,
}
_DQN_LANDER = {
    "hidden_sizes": (256, 256),
    "learning_rate": 6.3e-4,
    "n_step": 1,
    "updates_per_step": 1.0,
    "replay_size": 50_000,
    "target_update_period": 250,
    "epsilon": Linear(1.0, 0.1, 12_000),
}
_TD3_SMALL = {
    "hidden_sizes": (400, 300),
    "learning_rate": 1e-3,
    "batch_size": 256,
    "discount": 0.98,
    "replay_size": 200_000,
    "num_random_steps": 10_000,
    "min_replay_size": 10_000,
}
_DQN_ATARI = {
    "hidden_sizes": (512,),
    "double": False,
    "learning_rate": 1e-4,
    "n_step": 1,
    "batch_size": 32,
    "updates_per_step": 0.25,
    "min_replay_size": 100_000,
    "replay_size": 100_000,
    "target_update_period": 250,
    "epsilon": Linear(1.0, 0.01, 1_000_000),
}
_PPO_ATARI = {
    "hidden_sizes": (512,),
    "segment_length": 128,
    "num_epochs": 4,
    "learning_rate": Falling(2.5e-4),
    "clip_epsilon": Falling(0.1),
    "entropy_cost": 0.01,
}
_LATER_START = {"num_random_steps": 10_000, "min_replay_size": 10_000}

PRESETS = (
    # DQN
    Preset("dqn", _CLASSIC["CartPole"], _CARTPOLE, 50_000, {"n_step": 20, "discount": 0.995}),
    Preset("dqn", _CLASSIC["LunarLander"], _ZOO.format("dqn"), 100_000, _DQN_LANDER),
    Preset("dqn", _CLASSIC["Acrobot"], _ZOO.format("dqn"), 100_000, _DQN_LANDER),
    Preset(
        "dqn",
        _CLASSIC["MountainCar"],
        _ZOO.format("dqn"),
        120_000,
        {
            "hidden_sizes": (256, 256),
            "learning_rate": 4e-3,
            "n_step": 1,
            "discount": 0.98,
            "replay_size": 10_000,
            "target_update_period": 300,
            "epsilon": Linear(1.0, 0.07, 24_000),
        },
    ),
    Preset("dqn", ("bsuite:*",), _BSUITE, None, {"n_step": 1, "epsilon": Linear(1.0, 0.05, 1_000)}),
    *(Preset("dqn", names, _ZOO.format("dqn"), 10_000_000, _DQN_ATARI, **around) for names, around in _ATARI),
    # PPO
    Preset("ppo", _CLASSIC["CartPole"], _CARTPOLE, 200_000, {"segment_length": 128}, num_envs=8),
    Preset("ppo", _CLASSIC["LunarLander"] + _LANDER, _ZOO.format("ppo"), 1_000_000, _PPO_LANDER, num_envs=16),
    Preset(
        "ppo",
        _CLASSIC["Acrobot"],
        _ZOO.format("ppo"),
        1_000_000,
        {"segment_length": 256, "num_minibatches": 64, "num_epochs": 4, "learning_rate": 3e-4, "gae_lambda": 0.94},
        num_envs=16,
    ),
    Preset(
        "ppo",
        _CLASSIC["MountainCar"],
        _ZOO.format("ppo"),
        1_000_000,
        {"segment_length": 16, "num_epochs": 4, "learning_rate": 3e-4, "gae_lambda": 0.98},
        num_envs=16,
    ),
    Preset(
        "ppo",
        _CLASSIC["Pendulum"],
        _ZOO.format("ppo"),
        100_000,
        {"segment_length": 1024, "num_minibatches": 64, "discount": 0.9},
        num_envs=4,
    ),
    Preset(
        "ppo",
        _ROBOTS,
        _MUJOCO,
        1_000_000,
        {
            "segment_length": 32,
            "num_minibatches": 32,
            "learning_rate": Falling(5e-4),
            "target_kl": 0.05,
            "initial_std": 0.6,
        },
        num_envs=64,
    ),
    Preset(
        "ppo",
        ("dm_control:*",),
        _CLEANRL,
        8_000_000,
        {"segment_length": 2048, "num_minibatches": 32, "learning_rate": Falling(3e-4), "adam_epsilon": 1e-5},
    ),
    Preset("ppo", ("bsuite:*",), _BSUITE, None, {"segment_length": 64, "entropy_cost": 0.01}),
    *(
        Preset("ppo", names, _ZOO.format("ppo"), 10_000_000, _PPO_ATARI, num_envs=8, **around)
        for names, around in _ATARI
    ),
    Preset(
        "ppo",
        tuple(f"gymnax:{game}-MinAtar" for game in ("Breakout", "Asterix", "SpaceInvaders", "Freeway")),
        _GAMES,
        3_000_000,
        {
            "segment_length": 32,
            "num_minibatches": 8,
            "num_epochs": 4,
            "learning_rate": Falling(1e-3),
            "entropy_cost": 0.01,
        },
        num_envs=64,
    ),
    # SAC
    Preset("sac", _CLASSIC["Pendulum"], _TABLE, 20_000),
    Preset(
        "sac",
        _LANDER,
        _ZOO.format("sac"),
        500_000,
        {"hidden_sizes": (400, 300), "learning_rate": Falling(7.3e-4), "tau": 0.01, **_LATER_START},
    ),
    Preset("sac", _ROBOTS, _MUJOCO, 1_000_000),
    Preset(
        "sac",
        ("dm_control:*",),
        _PYTORCH_SAC,
        1_000_000,
        {
            "hidden_sizes": (1024, 1024),
            "learning_rate": 1e-4,
            "batch_size": 1024,
            "initial_temperature": 0.1,
            "tau": 0.0025,  # Theirs moves by 0.005 at every second update.
            "min_log_std": -5.0,
        },
    ),
    Preset(
        "sac",
        ("dm_control_pixels:*",),
        _DRQ,
        500_000,
        {
            "hidden_sizes": (1024, 1024),
            "learning_rate": 1e-3,
            "batch_size": 512,  # The paper's; config.yaml has 128.
            "initial_temperature": 0.1,
            # Theirs updates the policy at every second update only (actor_update_frequency); here at each.
            "tau": 0.005,  # Theirs moves by 0.01 at every second update.
            "num_random_steps": 1_000,
            "replay_size": 100_000,
        },
    ),
    # TD3
    Preset("td3", _CLASSIC["Pendulum"], _ZOO.format("td3"), 20_000, _TD3_SMALL),
    Preset("td3", _LANDER, _ZOO.format("td3"), 300_000, _TD3_SMALL),
    Preset("td3", _ROBOTS, _MUJOCO, 1_000_000, _LATER_START),
    # Others that docs/results has
    Preset(
        "a2c",
        _ROBOTS,
        _MUJOCO,
        1_000_000,
        {
            "segment_length": 16,
            "initial_std": 0.6,
            "normalize_advantages": True,
            "entropy_cost": 0.0,
            "learning_rate": Falling(1e-3),
            "rms_decay": 0.9,
        },
        num_envs=32,
    ),
    Preset("ddpg", _ROBOTS, _MUJOCO, 200_000, _LATER_START),
    Preset("mpo", _ROBOTS, _MUJOCO, 200_000, {"updates_per_step": 0.125}),
    Preset("trpo", _ROBOTS, _MUJOCO, 1_000_000, {"segment_length": 16, "initial_std": 0.6}, num_envs=64),
    # Several agents, and teams
    Preset(
        "ppo",
        ("jaxmarl:MPE_simple_spread_v3",),
        _SEVERAL,
        2_000_000,
        {
            "segment_length": 128,
            "num_epochs": 4,
            "num_minibatches": 4,
            "hidden_sizes": (64, 64),
            "learning_rate": 7e-4,
        },
        num_envs=16,
    ),
    Preset(
        "mappo",
        ("team:jaxmarl:MPE_simple_spread_v3",),
        _SEVERAL,
        2_000_000,
        {"discount": 0.95, "segment_length": 128},
        num_envs=16,
    ),
)
