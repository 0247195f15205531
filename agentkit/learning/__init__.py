"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.actor_critic import (
    ActorCriticLosses,
    ActorCriticState,
    action_value_error,
    adam_actor_critic,
    deterministic_actor_critic,
    deterministic_policy_loss,
)
from agentkit.learning.gradients import apply_gradients
from agentkit.learning.learner import Learner, LearnerCallbacks
from agentkit.learning.optimizers import adam, global_norm, linear_decay, optimizer_step
from agentkit.learning.replay_ratio import rate_limit
from agentkit.learning.schedules import Cosine, Linear, Piecewise, Schedule, value_at
from agentkit.learning.soft import (
    Bootstrap,
    SoftLosses,
    SoftState,
    Temperature,
    adam_soft_actor_critic,
    soft_actor_critic,
    soft_target,
)
from agentkit.learning.targets import TargetUpdate, periodic, polyak
from agentkit.learning.update import Loss, SgdState, Update, UpdateOutput, sgd
from agentkit.networks import ActorCritic

__all__ = [
    "ActorCritic",
    "ActorCriticLosses",
    "ActorCriticState",
    "Bootstrap",
    "Cosine",
    "Learner",
    "LearnerCallbacks",
    "Linear",
    "Loss",
    "Piecewise",
    "Schedule",
    "SgdState",
    "SoftLosses",
    "SoftState",
    "TargetUpdate",
    "Temperature",
    "Update",
    "UpdateOutput",
    "action_value_error",
    "adam",
    "adam_actor_critic",
    "adam_soft_actor_critic",
    "apply_gradients",
    "deterministic_actor_critic",
    "deterministic_policy_loss",
    "global_norm",
    "linear_decay",
    "optimizer_step",
    "periodic",
    "polyak",
    "rate_limit",
    "sgd",
    "soft_actor_critic",
    "soft_target",
    "value_at",
]
