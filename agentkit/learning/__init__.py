"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.actor_critic import (
    ActorCriticLosses,
    ActorCriticState,
    action_value_error,
    adam_actor_critic,
    deterministic_actor_critic,
    deterministic_policy_loss,
)
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
from agentkit.learning.soft import (
    Bootstrap,
    SoftLosses,
    SoftState,
    Temperature,
    adam_soft_actor_critic,
    soft_actor_critic,
    soft_target,
)
from agentkit.networks import PolicyCritic

__all__ = [
    "ActorCriticLosses",
    "ActorCriticState",
    "Bootstrap",
    "GailConfig",
    "Learner",
    "LearnerCallbacks",
    "Loss",
    "PolicyCritic",
    "RndConfig",
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
    "generative_adversarial_imitation",
    "global_norm",
    "linear_decay",
    "optimizer_step",
    "periodic",
    "polyak",
    "random_network_distillation",
    "rate_limit",
    "sgd",
    "soft_actor_critic",
    "soft_target",
]
