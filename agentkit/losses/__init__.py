"""Losses: pure functions over rlax, the source beside each formula.

They are loaded when one is first asked for: rlax takes longer to import than JAX does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.losses.continuous import smoothed_action as smoothed_action
    from agentkit.losses.distributional import categorical_q_learning_loss as categorical_q_learning_loss
    from agentkit.losses.distributional import categorical_target as categorical_target
    from agentkit.losses.distributional import categorical_td_loss as categorical_td_loss
    from agentkit.losses.distributional import quantile_huber_loss as quantile_huber_loss
    from agentkit.losses.distributional import quantile_q_learning_loss as quantile_q_learning_loss
    from agentkit.losses.mpo import MPOConstraints as MPOConstraints
    from agentkit.losses.mpo import MPODuals as MPODuals
    from agentkit.losses.mpo import MPOStats as MPOStats
    from agentkit.losses.mpo import mpo_loss as mpo_loss
    from agentkit.losses.planning import cross_entropy as cross_entropy
    from agentkit.losses.planning import n_step_targets as n_step_targets
    from agentkit.losses.planning import two_hot_cross_entropy as two_hot_cross_entropy
    from agentkit.losses.policy_gradient import approximate_kl as approximate_kl
    from agentkit.losses.policy_gradient import clipped_policy_loss as clipped_policy_loss
    from agentkit.losses.policy_gradient import clipped_value_loss as clipped_value_loss
    from agentkit.losses.policy_gradient import explained_variance as explained_variance
    from agentkit.losses.policy_gradient import generalized_advantages as generalized_advantages
    from agentkit.losses.policy_gradient import masked as masked
    from agentkit.losses.policy_gradient import masked_mean as masked_mean
    from agentkit.losses.policy_gradient import policy_gradient_loss as policy_gradient_loss
    from agentkit.losses.policy_gradient import standardize as standardize
    from agentkit.losses.recurrent import lambda_returns as lambda_returns
    from agentkit.losses.recurrent import loss_mask as loss_mask
    from agentkit.losses.recurrent import n_step_double_q_learning_error as n_step_double_q_learning_error
    from agentkit.losses.recurrent import n_step_returns as n_step_returns
    from agentkit.losses.recurrent import sequence_priorities as sequence_priorities
    from agentkit.losses.recurrent import signed_hyperbolic as signed_hyperbolic
    from agentkit.losses.recurrent import signed_parabolic as signed_parabolic
    from agentkit.losses.regression import binary_weights as binary_weights
    from agentkit.losses.regression import expectile_loss as expectile_loss
    from agentkit.losses.regression import exponential_weights as exponential_weights
    from agentkit.losses.v_trace import VTrace as VTrace
    from agentkit.losses.v_trace import vtrace as vtrace
    from agentkit.losses.value import action_cross_entropy as action_cross_entropy
    from agentkit.losses.value import bcq_action_mask as bcq_action_mask
    from agentkit.losses.value import cql_penalty as cql_penalty
    from agentkit.losses.value import double_q_learning_error as double_q_learning_error
    from agentkit.losses.value import huber as huber
    from agentkit.losses.value import munchausen_error as munchausen_error
    from agentkit.losses.value import q_learning_error as q_learning_error

_FILES = (
    "continuous",
    "distributional",
    "mpo",
    "planning",
    "policy_gradient",
    "recurrent",
    "regression",
    "v_trace",
    "value",
)

__all__ = [
    "MPOConstraints",
    "MPODuals",
    "MPOStats",
    "VTrace",
    "action_cross_entropy",
    "approximate_kl",
    "bcq_action_mask",
    "binary_weights",
    "categorical_q_learning_loss",
    "categorical_target",
    "categorical_td_loss",
    "clipped_policy_loss",
    "clipped_value_loss",
    "cql_penalty",
    "cross_entropy",
    "double_q_learning_error",
    "expectile_loss",
    "explained_variance",
    "exponential_weights",
    "generalized_advantages",
    "huber",
    "lambda_returns",
    "loss_mask",
    "masked",
    "masked_mean",
    "mpo_loss",
    "munchausen_error",
    "n_step_double_q_learning_error",
    "n_step_returns",
    "n_step_targets",
    "policy_gradient_loss",
    "q_learning_error",
    "quantile_huber_loss",
    "quantile_q_learning_loss",
    "sequence_priorities",
    "signed_hyperbolic",
    "signed_parabolic",
    "smoothed_action",
    "standardize",
    "two_hot_cross_entropy",
    "vtrace",
]


def __getattr__(name: str) -> Any:
    """Loads the losses when one is first asked for: all of them need rlax, so one costs what they all do."""
    for file in _FILES if name in __all__ else ():
        module = importlib.import_module(f"agentkit.losses.{file}")
        if hasattr(module, name):
            return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
