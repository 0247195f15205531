"""How often to learn, expressed as a replay table's rate limit."""

from __future__ import annotations

from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.replay.rate_limiter import RateLimiter, SampleToInsertRatio

LEAST_AHEAD, MOST_AHEAD = 100, 1_000
"""Bounds of how many items actors may be ahead: fewer would hold up who writes many at once, more would not help."""


def rate_limit(plan: BatchPlan, updates_per_insert: float, min_replay_size: int) -> RateLimiter:
    """Makes the rate limit that gives `updates_per_insert` updates for each inserted item, on average.

    The learner may be two calls ahead of its due, and actors `min_replay_size` items ahead of the learner, but at
    least a hundred and at most a thousand (decision 3): they act by parameters that lack the updates for these.

    Args:
        plan: batch size and updates per call.
        updates_per_insert: gradient updates per item inserted, > 0.
        min_replay_size: items before the first update.

    Raises:
        ConfigError: for a rate that is not positive, or an empty batch.
    """
    if plan.batch_size < 1 or plan.num_updates < 1:
        raise ConfigError(
            f"Expected batch_size and updates_per_call of at least 1, found {plan.batch_size} and {plan.num_updates}."
        )
    if not updates_per_insert > 0:
        raise ConfigError(f"Expected a positive number of updates per step, found {updates_per_insert}.")
    samples_per_insert = updates_per_insert * plan.batch_size
    balance = samples_per_insert * min_replay_size
    actors_ahead = min(max(min_replay_size, LEAST_AHEAD), MOST_AHEAD)
    learner_ahead = 2 * max(plan.batch_size * plan.num_updates, samples_per_insert)
    return SampleToInsertRatio(
        samples_per_insert,
        min_replay_size,
        (balance - learner_ahead, balance + learner_ahead + actors_ahead * samples_per_insert),
    )
