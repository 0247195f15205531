"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.compiled import CompiledUpdate, initial_state
from agentkit.learning.gradients import apply_gradients
from agentkit.learning.learner import Learner, LearnerCallbacks
from agentkit.learning.optimizers import adam, global_norm, optimizer_step, tell_counts
from agentkit.learning.replay_ratio import rate_limit
from agentkit.learning.schedules import (
    Cosine,
    Linear,
    Piecewise,
    Schedule,
    steps_before,
    unit_of,
    value_at,
    value_in_update,
)
from agentkit.learning.targets import TargetUpdate, periodic, polyak
from agentkit.learning.update import Loss, SgdState, Update, UpdateOutput, check_loss_output, objective, sgd

__all__ = [
    "CompiledUpdate",
    "Cosine",
    "Learner",
    "LearnerCallbacks",
    "Linear",
    "Loss",
    "Piecewise",
    "Schedule",
    "SgdState",
    "TargetUpdate",
    "Update",
    "UpdateOutput",
    "adam",
    "apply_gradients",
    "check_loss_output",
    "global_norm",
    "initial_state",
    "objective",
    "optimizer_step",
    "periodic",
    "polyak",
    "rate_limit",
    "sgd",
    "steps_before",
    "tell_counts",
    "unit_of",
    "value_at",
    "value_in_update",
]
