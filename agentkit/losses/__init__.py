"""Losses: pure functions over rlax, the source beside each formula."""

from agentkit.losses.value import double_q_learning_error, huber, importance_weights, q_learning_error

__all__ = ["double_q_learning_error", "huber", "importance_weights", "q_learning_error"]
