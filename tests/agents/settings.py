"""Settings that agents share, in the terms of `agentkit.testing.agent.AgentContract`."""

from typing import Any

from agentkit.learning import Linear
from agentkit.testing.agent import Change

PRIORITIZED = {"prioritized": True}
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "batch_size": 8, "replay_size": 1_000, "min_replay_size": 20}

OFF_POLICY_REFUSED: dict[str, Any] = {
    "discount": 1.5,
    "n_step": 0,
    "batch_size": 0,
    "updates_per_step": 0.0,
    "replay_size": 10,
    "min_replay_size": 0,
    "priority_exponent": Change(-1.0, PRIORITIZED),
    "max_grad_norm": 0.0,
    "adam_epsilon": 0.0,
}
OFF_POLICY_CHANGES: dict[str, Any] = {
    "discount": 0.5,
    "n_step": 2,
    "batch_size": 4,
    "updates_per_step": 0.5,
    "updates_per_call": 2,
    "replay_size": 500,
    "min_replay_size": 30,
    "prioritized": True,
    "priority_exponent": Change(0.9, PRIORITIZED),
    "importance_exponent": Change(0.9, PRIORITIZED),
    "hidden_sizes": (8, 8),
    "max_grad_norm": 1e-3,
    "adam_epsilon": 1e-2,
}

SMALL_VALUES = {
    **SMALL,
    "n_step": 3,
    "updates_per_step": 1.0,
    "target_update_period": 10,
    "epsilon": Linear(1.0, 0.05, 40),
}
VALUE_REFUSED = {
    **OFF_POLICY_REFUSED,
    "updates_per_call": 0,
    "importance_exponent": 1.5,
    "hidden_sizes": (0,),
    "learning_rate": -1.0,
    "target_update_period": 0,
    "epsilon": Linear(1.0, -0.1, 40),
    "epsilon_evaluation": 1.1,
}
VALUE_CHANGES = {
    **OFF_POLICY_CHANGES,
    "learning_rate": 1e-2,
    "target_update_period": 1,
    "epsilon": 0.1,
    "epsilon_evaluation": 0.9,
    "epsilon_ladder": True,
}

SOFT_REFUSED = {**OFF_POLICY_REFUSED, "tau": 1.5, "initial_temperature": 0.0}
SOFT_CHANGES = {
    **OFF_POLICY_CHANGES,
    "learning_rate": 1e-2,
    "tau": 0.5,
    "initial_temperature": 0.1,
    "learn_temperature": False,
    "num_random_steps": Change(0, {"num_random_steps": 10}),
}

SOFT_CONTINUOUS_CHANGES = {**SOFT_CHANGES, "target_entropy": -7.0, "min_log_std": 1.5, "max_log_std": -5.0}

TD3_REFUSED = {
    **OFF_POLICY_REFUSED,
    "tau": 1.5,
    "policy_delay": 0,
    "target_policy_noise": -0.1,
    "target_noise_clip": -0.5,
    "exploration_noise": -0.1,
}
TD3_CHANGES = {
    **OFF_POLICY_CHANGES,
    "learning_rate": 1e-2,
    "tau": 0.5,
    "policy_delay": 1,
    "target_policy_noise": 0.0,
    "target_noise_clip": 0.01,
    "exploration_noise": 0.5,
    "num_random_steps": 5,
}
