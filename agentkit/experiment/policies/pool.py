"""How earlier parameters of policies are kept and chosen as opponents; this file loads no JAX."""

from __future__ import annotations

import dataclasses
from typing import Literal, final, get_args

from agentkit.agents.common.ranges import Count, Fraction, check_ranges
from agentkit.errors import SaysWhatWasMeant, unknown_name

DECAY = 0.99
"""What is left of a pool's games at each further one against the same parameters, as of AlphaStar's payoffs."""

Choose = Literal["newest", "uniform", "prioritized"]


@final
@dataclasses.dataclass(frozen=True)
class Pool(metaclass=SaysWhatWasMeant):
    """Keeps earlier parameters of the policies that learn, as opponents: self-play.

    In an episode with such opponents one agent, drawn anew each time, plays by the newest parameters and learns. The
    others play by earlier ones of their own policies, exploring as in training, and learn nothing.

    Attributes:
        choose: by which: the "newest" that were kept; any of them ("uniform", as in fictitious self-play: Heinrich et
            al. 2015); or "prioritized", in proportion to (1 - w)^2, where w is the share of games that is won against
            them (PFSP of AlphaStar: Vinyals et al. 2019, with its f_hard), counted with half a win in one game more:
            else those against whom the first game is won would never be met again.
        period: environment steps after which parameters are kept again: at the start of an episode, or on the device
            between two rounds.
        size: the most that are kept of a policy; the oldest go first.
        share: of episodes with such opponents. In the others all play by the newest parameters, and learn.
    """

    choose: Choose = "prioritized"
    period: Count = 10_000
    size: Count = 50
    share: Fraction = 0.5

    def __post_init__(self) -> None:
        """Refuses impossible settings."""
        check_ranges(self)
        if self.choose not in get_args(Choose):
            raise unknown_name("choose", str(self.choose), get_args(Choose))

    def learning_share(self, num_learning: int) -> float:
        """Returns the share of episodes from which an agent learns, of so many that learn at all."""
        return 1.0 - self.share + self.share / num_learning
