"""Settings that on-policy agents share, in the terms of `agentkit.testing.agent.AgentContract`."""

from typing import Any

import dm_env
import numpy as np

from agentkit import envs, specs
from agentkit.testing.agent import Change

SMALL: dict[str, Any] = {"hidden_sizes": (8,), "segment_length": 16}
REFUSED: dict[str, Any] = {
    "segment_length": 0,
    "batch_size": 0,
    "batch_mode": "whole",
    "discount": 1.5,
    "gae_lambda": -0.5,
    "learning_rate": 0.0,
    "max_grad_norm": 0.0,
    "initial_std": 0.0,
}
COMPLETE = Change("complete_episodes", {"segment_length": 24})
CHANGES: dict[str, Any] = {
    "hidden_sizes": (8, 8),
    "segment_length": 8,
    "batch_size": 2,
    "batch_mode": COMPLETE,
    "discount": 0.5,
    "gae_lambda": 0.5,
    "learning_rate": 1e-2,
    "max_grad_norm": 1e-3,
    "normalize_observations": False,
    "normalize_values": False,
    "normalize_advantages": False,
    "initial_std": 0.5,
}

SMALL_FITTED = {**SMALL, "num_value_epochs": 2, "num_minibatches": 2}
FITTED_REFUSED = {**REFUSED, "adam_epsilon": 0.0, "num_value_epochs": 0, "num_minibatches": 3}
FITTED_CHANGES = {**CHANGES, "adam_epsilon": 1e-2, "num_value_epochs": 3, "num_minibatches": 4}


class _Unbounded(dm_env.Environment):
    """Takes two numbers of any size."""

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(np.zeros((), np.float32))

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.transition(np.float32(0), np.zeros((), np.float32))

    def observation_spec(self) -> specs.Array:
        return specs.Array((), np.float32)

    def action_spec(self) -> specs.Array:
        return specs.Array((2,), np.float32, "two numbers")


envs.register("unbounded", lambda name, seed: _Unbounded())
UNSUITABLE = "unbounded:pair"
