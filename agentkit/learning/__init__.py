"""Learning: an algorithm is an `Update` of pure functions; `Learner` runs any of them."""

from agentkit.learning.actor_critic import ActorCriticLosses, ActorCriticState, deterministic_actor_critic
from agentkit.learning.curiosity import RndConfig, random_network_distillation
from agentkit.learning.gradients import apply_gradients
from agentkit.learning.imitation import GailConfig, generative_adversarial_imitation
from agentkit.learning.learner import (
    ActorCritic,
    Learner,
    LearnerOutlets,
    Loss,
    SgdState,
    TargetUpdate,
    Update,
    UpdateOutput,
    adam,
    annealed,
    descend,
    global_norm,
    periodic,
    polyak,
    sgd,
)
from agentkit.learning.minibatches import run_epochs
from agentkit.learning.natural_gradient import (
    NaturalGradient,
    conjugate_gradient,
    fisher_vector_product,
    natural_gradient,
)
from agentkit.learning.schedule import rate_limit
from agentkit.learning.soft import Bootstrap, SoftLosses, SoftState, Temperature, soft_actor_critic, soft_target
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

__all__ = [
    "ActorCritic",
    "ActorCriticLosses",
    "ActorCriticState",
    "Bootstrap",
    "GailConfig",
    "Learner",
    "LearnerOutlets",
    "Loss",
    "NaturalGradient",
    "RndConfig",
    "RunningStatistics",
    "SgdState",
    "SoftLosses",
    "SoftState",
    "TargetUpdate",
    "Temperature",
    "Update",
    "UpdateOutput",
    "adam",
    "annealed",
    "apply_gradients",
    "conjugate_gradient",
    "descend",
    "deterministic_actor_critic",
    "deviation",
    "fisher_vector_product",
    "generative_adversarial_imitation",
    "global_norm",
    "init_nest_statistics",
    "init_statistics",
    "natural_gradient",
    "normalize",
    "normalize_nest",
    "periodic",
    "polyak",
    "random_network_distillation",
    "rate_limit",
    "run_epochs",
    "sgd",
    "soft_actor_critic",
    "soft_target",
    "update_nest_statistics",
    "update_statistics",
]
