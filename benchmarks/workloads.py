"""What `compare_sb3.py` measures, as data. Standard library only."""

from __future__ import annotations

import dataclasses
from typing import Any

LEARNING_STARTS = 1_000


@dataclasses.dataclass(frozen=True)
class Workload:
    """What both sides do.

    Attributes:
        environment: gymnasium's name.
        window: steps to measure.
        settings: what both sides are set to, under agentkit's names.
        agentkit_only: settings that the peer has by other means, or lacks.
        variants: agentkit's variants, each with the settings that make it.
    """

    environment: str
    window: int
    settings: dict[str, Any]
    agentkit_only: dict[str, Any]
    variants: dict[str, dict[str, Any]]


WORKLOADS = {
    "sac": Workload(
        environment="HalfCheetah-v5",
        window=4_000,
        settings={
            "hidden_sizes": [256, 256],
            "batch_size": 256,
            "replay_size": 1_000_000,
            "learning_rate": 3e-4,
            "discount": 0.99,
            "tau": 0.005,
        },
        agentkit_only={
            "min_replay_size": LEARNING_STARTS,
            "num_random_steps": LEARNING_STARTS,
            "n_step": 1,
            "updates_per_step": 1.0,
        },
        variants={"updates_per_call=1": {"updates_per_call": 1}},
    ),
    "dqn": Workload(
        environment="CartPole-v1",
        window=10_000,
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
        agentkit_only={
            "min_replay_size": LEARNING_STARTS,
            "n_step": 1,
            "updates_per_step": 1.0,
            "double": False,
            "duelling": False,
            "prioritized": False,
        },
        variants={
            "updates_per_call=1": {"updates_per_call": 1},
            "updates_per_call=8": {"updates_per_call": 8},
        },
    ),
}
