"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.curiosity import RndConfig, random_network_distillation
from agentkit.learning.gradients import apply_gradients
from agentkit.learning.imitation import GailConfig, generative_adversarial_imitation
from agentkit.learning.learner import (
    Learner,
    LearnerCallbacks,
    Loss,
    SgdState,
    TargetUpdate,
    Update,
    UpdateOutput,
    adam,
    global_norm,
    linear_decay,
    optimizer_step,
    periodic,
    polyak,
    sgd,
)
from agentkit.learning.schedule import rate_limit

__all__ = [
    "GailConfig",
    "Learner",
    "LearnerCallbacks",
    "Loss",
    "RndConfig",
    "SgdState",
    "TargetUpdate",
    "Update",
    "UpdateOutput",
    "adam",
    "apply_gradients",
    "generative_adversarial_imitation",
    "global_norm",
    "linear_decay",
    "optimizer_step",
    "periodic",
    "polyak",
    "random_network_distillation",
    "rate_limit",
    "sgd",
]
