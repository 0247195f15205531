"""Losses: pure functions over rlax, the source beside each formula."""

from agentkit.losses.continuous import (
    action_value_error,
    categorical_target,
    categorical_td_loss,
    smoothed_action,
)
from agentkit.losses.distributional import categorical_q_learning_loss, quantile_q_learning_loss
from agentkit.losses.policy_gradient import (
    approximate_kl,
    clipped_policy_loss,
    clipped_value_loss,
    explained_variance,
    generalized_advantages,
    has_action,
    masked_mean,
    standardize,
)
from agentkit.losses.value import (
    double_q_learning_error,
    huber,
    importance_weights,
    munchausen_error,
    q_learning_error,
)

__all__ = [
    "action_value_error",
    "approximate_kl",
    "categorical_q_learning_loss",
    "categorical_target",
    "categorical_td_loss",
    "clipped_policy_loss",
    "clipped_value_loss",
    "double_q_learning_error",
    "explained_variance",
    "generalized_advantages",
    "has_action",
    "huber",
    "importance_weights",
    "masked_mean",
    "munchausen_error",
    "q_learning_error",
    "quantile_q_learning_loss",
    "smoothed_action",
    "standardize",
]
