"""Puts episodes into replay before a run's first step, without a bearing on how often the run learns (decision 79)."""

from __future__ import annotations

import math
from collections.abc import Iterable

from agentkit.core import Adder
from agentkit.datasets.episodes import Episode, add_episode
from agentkit.replay import Replay
from agentkit.types import Nest

_ANY_NUMBER = 2**62


def fill_replay(
    replay: Replay, table: str, adder: Adder, episodes: Iterable[Episode], extras: Nest = ()
) -> tuple[int, int]:
    """Adds episodes to a table of a replay that nobody has drawn from yet.

    Of the rate limit, items count toward the size that learning waits for, and no further: the others count as drawn
    as often as the limit asks. So learning begins with the run's own first step, where there are enough of them, and
    then keeps its rate per step.

    Args:
        replay: one that was just made.
        table: the table that the adder feeds.
        adder: writes the items; closed in the end.
        episodes: to add.
        extras: of the policy, for each step.

    Returns:
        Steps, and items that were made of them; a full table keeps the newest.

    Raises:
        ConfigError: another process's replay, whose rate limit is not kept here.
    """
    limiter, num_steps = replay.table(table).rate_limiter, 0
    # While they come in, nothing waits: no end of them counts as drawn.
    replay.count_as_sampled(table, _ANY_NUMBER)
    for episode in episodes:
        num_steps += len(episode.rewards)
        add_episode(adder, episode, extras)
    adder.close()
    num_items = replay.info(table).num_inserted
    extra = max(0, num_items - limiter.min_size_to_sample)
    replay.count_as_sampled(table, math.floor(extra * limiter.samples_per_insert))
    return num_steps, num_items
