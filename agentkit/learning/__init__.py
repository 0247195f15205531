"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.learner import Learner, LearnerOutlets
from agentkit.learning.schedule import rate_limit
from agentkit.learning.statistics import RunningStatistics, init_statistics, normalize, update_statistics
from agentkit.learning.targets import TargetUpdate, periodic, polyak
from agentkit.learning.update import Loss, SgdState, Update, UpdateOutput, adam, sgd

__all__ = [
    "Learner",
    "LearnerOutlets",
    "Loss",
    "RunningStatistics",
    "SgdState",
    "TargetUpdate",
    "Update",
    "UpdateOutput",
    "adam",
    "init_statistics",
    "normalize",
    "periodic",
    "polyak",
    "rate_limit",
    "sgd",
    "update_statistics",
]
