"""Losses: pure functions over rlax, the source beside each formula.

Each is loaded when it is first asked for: rlax takes longer to import than JAX does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.losses.continuous import action_value_error as action_value_error
    from agentkit.losses.continuous import categorical_target as categorical_target
    from agentkit.losses.continuous import categorical_td_loss as categorical_td_loss
    from agentkit.losses.continuous import smoothed_action as smoothed_action
    from agentkit.losses.distributional import categorical_q_learning_loss as categorical_q_learning_loss
    from agentkit.losses.distributional import quantile_q_learning_loss as quantile_q_learning_loss
    from agentkit.losses.policy_gradient import approximate_kl as approximate_kl
    from agentkit.losses.policy_gradient import clipped_policy_loss as clipped_policy_loss
    from agentkit.losses.policy_gradient import clipped_value_loss as clipped_value_loss
    from agentkit.losses.policy_gradient import explained_variance as explained_variance
    from agentkit.losses.policy_gradient import generalized_advantages as generalized_advantages
    from agentkit.losses.policy_gradient import has_action as has_action
    from agentkit.losses.policy_gradient import masked_mean as masked_mean
    from agentkit.losses.policy_gradient import standardize as standardize
    from agentkit.losses.value import double_q_learning_error as double_q_learning_error
    from agentkit.losses.value import huber as huber
    from agentkit.losses.value import importance_weights as importance_weights
    from agentkit.losses.value import munchausen_error as munchausen_error
    from agentkit.losses.value import q_learning_error as q_learning_error

_HOMES = {
    **dict.fromkeys(
        (
            "action_value_error",
            "categorical_target",
            "categorical_td_loss",
            "smoothed_action",
        ),
        "continuous",
    ),
    **dict.fromkeys(("categorical_q_learning_loss", "quantile_q_learning_loss"), "distributional"),
    **dict.fromkeys(
        (
            "approximate_kl",
            "clipped_policy_loss",
            "clipped_value_loss",
            "explained_variance",
            "generalized_advantages",
            "has_action",
            "masked_mean",
            "standardize",
        ),
        "policy_gradient",
    ),
    **dict.fromkeys(
        (
            "double_q_learning_error",
            "huber",
            "importance_weights",
            "munchausen_error",
            "q_learning_error",
        ),
        "value",
    ),
}

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


def __getattr__(name: str) -> Any:
    """Loads what needs rlax when it is first asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"agentkit.losses.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
