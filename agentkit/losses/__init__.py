"""Losses: pure functions over rlax, the source beside each formula.

They are loaded when one is first asked for: rlax takes longer to import than JAX does.
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

_FILES = ("continuous", "distributional", "policy_gradient", "value")

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
    """Loads the losses when one is first asked for: all of them need rlax, so one costs what they all do."""
    for file in _FILES if name in __all__ else ():
        module = importlib.import_module(f"agentkit.losses.{file}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
