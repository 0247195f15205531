"""Makes every end of an episode one that bootstraps."""

from __future__ import annotations

from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper


@final
class TerminationsAsTruncations(ObservationWrapper):
    """Gives the last step of each episode the discount 1, as if more were to follow (RLlib's no_done_at_end).

    An agent then values what it would reach after an end: of use where the end is an accident of the set-up, or where
    rewards of the last step say all about it. In training only: evaluations and recorded episodes have the
    environment's own ends. Works on one environment and on a batch.

    Args:
        environment: the environment.

    Raises:
        ConfigError: one agent plays both sides of a game there.
    """

    works_on_batches = True
    stateless = True
    training_only = True
    keeps_rewards = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        if specs.changes_sides(environment.discount_spec()):
            raise ConfigError(
                "terminations_as_truncations: in a game that one agent plays from both sides (both_sides:), what would "
                "follow the end is the other player's. Leave the wrapper out."
            )

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        ended = np.equal(timestep.step_type, dm_env.StepType.LAST)
        if not np.any(ended):
            return timestep

        def one_at_ends(discount: Nest) -> Nest:
            discount = np.asarray(discount)
            chosen = np.reshape(ended, ended.shape + (1,) * (discount.ndim - ended.ndim))
            return np.where(chosen, np.ones_like(discount), discount)

        return timestep._replace(discount=tree.map_structure(one_at_ends, timestep.discount))
