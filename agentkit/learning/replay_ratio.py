"""How often to learn, expressed as a replay table's rate limit."""

from __future__ import annotations

from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.replay.rate_limiter import RateLimiter, SampleToInsertRatio

_INSERTS_AHEAD = 1_000  # Actors may be this far ahead of a learner: enough for many environments at once.


def rate_limit(plan: BatchPlan, updates_per_insert: float, min_replay_size: int) -> RateLimiter:
    """Makes the rate limit that gives `updates_per_insert` updates for each inserted item, on average.

    The learner may be two calls ahead of its due, and actors a thousand items ahead of the learner (decision 3).

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
    learner_ahead = 2 * max(plan.batch_size * plan.num_updates, samples_per_insert)
    return SampleToInsertRatio(
        samples_per_insert,
        min_replay_size,
        (balance - learner_ahead, balance + learner_ahead + _INSERTS_AHEAD * samples_per_insert),
    )
