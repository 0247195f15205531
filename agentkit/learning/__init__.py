"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.actor_critic import ActorCritic, ActorCriticLosses, ActorCriticState, deterministic_actor_critic
from agentkit.learning.learner import Learner, LearnerOutlets
from agentkit.learning.minibatches import run_epochs
from agentkit.learning.schedule import rate_limit
from agentkit.learning.statistics import (
    RunningStatistics,
    deviation,
    init_nest_statistics,
    init_statistics,
    normalize,
    normalize_nest,
    update_nest_statistics,
    update_statistics,
)
from agentkit.learning.targets import TargetUpdate, periodic, polyak
from agentkit.learning.update import Loss, SgdState, Update, UpdateOutput, adam, apply_gradients, sgd

__all__ = [
    "ActorCritic",
    "ActorCriticLosses",
    "ActorCriticState",
    "Learner",
    "LearnerOutlets",
    "Loss",
    "RunningStatistics",
    "SgdState",
    "TargetUpdate",
    "Update",
    "UpdateOutput",
    "adam",
    "apply_gradients",
    "deterministic_actor_critic",
    "deviation",
    "init_nest_statistics",
    "init_statistics",
    "normalize",
    "normalize_nest",
    "periodic",
    "polyak",
    "rate_limit",
    "run_epochs",
    "sgd",
    "update_nest_statistics",
    "update_statistics",
]
