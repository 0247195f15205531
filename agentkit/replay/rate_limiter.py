"""Rate limiters as plain data, with Reverb's semantics; deadlocking settings are refused when built.

With `inserted` and `sampled` the items inserted into and drawn from a table so far:

    difference = inserted * samples_per_insert - sampled
    insert while  size < min_size_to_sample  or  difference + samples_per_insert <= max_difference
    sample while  size >= min_size_to_sample and difference - 1 >= min_difference

Removing an item changes its table's size and neither counter.
"""

from __future__ import annotations

import dataclasses
import fractions
import math

import numpy as np

from agentkit.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class RateLimiter:
    """Says when inserts and samples may proceed. Usually one of the constructors below makes it.

    Attributes:
        samples_per_insert: how often, on average, each item is to be drawn.
        min_size_to_sample: items that must be in the table before the first sample.
        min_difference: samples wait where they would take the difference below this.
        max_difference: inserts wait where they would take the difference above this.
    """

    samples_per_insert: float
    min_size_to_sample: int
    min_difference: float
    max_difference: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.samples_per_insert) and self.samples_per_insert > 0):
            raise ConfigError(f"samples_per_insert must be finite and > 0, found {self.samples_per_insert!r}.")
        if not isinstance(self.min_size_to_sample, int | np.integer) or self.min_size_to_sample < 1:
            raise ConfigError(
                f"min_size_to_sample must be a whole number of at least 1, found {self.min_size_to_sample!r}."
            )
        if math.isnan(self.min_difference) or math.isnan(self.max_difference):
            raise ConfigError("min_difference and max_difference must not be NaN.")
        least = max(1.0, self.samples_per_insert)
        # Written so that infinite differences of one sign (NaN here) are refused as well.
        if not self.max_difference - self.min_difference >= least:
            raise ConfigError(
                "This rate limit would deadlock: inserts and samples would wait for each other. Expected "
                f"max_difference - min_difference >= max(1, samples_per_insert) = {least:g}, "
                f"found {self.max_difference:g} - {self.min_difference:g}. Raise the error buffer."
            )
        owed = self.samples_per_insert * self.min_size_to_sample
        if self.min_difference > owed:
            raise ConfigError(
                "This rate limit would deadlock once min_size_to_sample items are in: expected "
                f"min_difference <= samples_per_insert * min_size_to_sample = {owed:g}, found "
                f"{self.min_difference:g}. Lower min_difference, or raise min_size_to_sample."
            )

    def can_insert(self, num_items: int, *, size: int, inserted: int, sampled: int) -> bool:
        """Returns whether `num_items` more items may be inserted."""
        if size + num_items <= self.min_size_to_sample:
            return True
        return (inserted + num_items) * self.samples_per_insert - sampled <= self.max_difference

    def can_sample(self, num_items: int, *, size: int, inserted: int, sampled: int) -> bool:
        """Returns whether `num_items` more items may be drawn."""
        if size < self.min_size_to_sample:
            return False
        return inserted * self.samples_per_insert - (sampled + num_items) >= self.min_difference

    def check_table(self, name: str, max_size: int, max_times_sampled: int) -> None:
        """Refuses a limit that a table of this size and `max_times_sampled` could never satisfy."""
        if 0 < max_times_sampled < self.samples_per_insert and math.isfinite(self.max_difference):
            raise ConfigError(
                f"Table {name!r} would wait for ever: each item goes after {max_times_sampled} samples, and "
                f"inserts wait for {self.samples_per_insert} samples per insert. Raise max_times_sampled, "
                "set it to 0, or lower samples_per_insert."
            )

    def check_batch(self, name: str, batch_size: int, max_times_sampled: int = 0) -> None:
        """Refuses a batch so large that the limit could never let it through.

        Inserts stop at the greatest difference from which one more would pass `max_difference`. With
        batches of one size the differences are multiples of the greatest common divisor of that size
        and samples_per_insert, so the least such difference is known.
        """
        if not math.isfinite(self.max_difference):
            return
        per_insert = fractions.Fraction(self.samples_per_insert)
        unit = fractions.Fraction(
            math.gcd(per_insert.numerator, batch_size * per_insert.denominator), per_insert.denominator
        )
        below = fractions.Fraction(self.max_difference) - per_insert
        reached = (math.floor(below / unit) + 1) * unit
        if reached - batch_size < self.min_difference:
            raise ConfigError(
                f"Table {name!r}: a batch of {batch_size} items can never be drawn: inserts may stop when "
                f"{float(reached) - self.min_difference:g} samples may be taken. Raise the error buffer or "
                "lower the batch size."
            )
        # Items of which each goes after a few draws have at least as many left as samples are owed.
        lasting = max(float(reached), float(self.min_size_to_sample))
        if max_times_sampled and batch_size > lasting:
            raise ConfigError(
                f"Table {name!r}: a batch of {batch_size} items can never be drawn: items go after "
                f"{max_times_sampled} samples, and inserts may stop when the items left last for "
                f"{lasting:g}. Raise max_difference or the minimum size, or lower the batch size."
            )


def MinSize(min_size_to_sample: int) -> RateLimiter:  # noqa: N802 (Reverb's name for it)
    """Makes samples wait until the table holds this many items; nothing else waits."""
    return RateLimiter(1.0, min_size_to_sample, -math.inf, math.inf)


def SampleToInsertRatio(  # noqa: N802
    samples_per_insert: float, min_size_to_sample: int, error_buffer: float | tuple[float, float]
) -> RateLimiter:
    """Holds samples / inserts near `samples_per_insert`, within an error buffer.

    Args:
        samples_per_insert: the target.
        min_size_to_sample: items needed before the first sample.
        error_buffer: samples by which the balance may be off in either direction; or the bounds
            (min_difference, max_difference) themselves.

    Raises:
        ConfigError: the buffer is below max(1, samples_per_insert), or the bounds deadlock.
    """
    if isinstance(error_buffer, tuple):
        low, high = error_buffer
    else:
        offset = samples_per_insert * min_size_to_sample
        low, high = offset - error_buffer, offset + error_buffer
    least = max(1.0, samples_per_insert)
    if not high - low >= 2 * least:
        raise ConfigError(
            f"The error buffer must be at least max(1, samples_per_insert) = {least:g}, found "
            f"{(high - low) / 2:g}: a smaller one could block inserts and samples for good. Raise it."
        )
    return RateLimiter(samples_per_insert, min_size_to_sample, low, high)


def Lockstep(samples_per_insert: float, min_size_to_sample: int) -> RateLimiter:  # noqa: N802
    """Inserts and samples take turns: the tightest limit there is, for synchronous training.

    Once `min_size_to_sample` items are in, exactly `samples_per_insert` samples follow each insert, and the
    next insert waits for them. Writers wait until each item is in.

    Args:
        samples_per_insert: a multiple (1, 2, ...) of the batch size: that many updates per insert.
        min_size_to_sample: items needed before the first sample.
    """
    balance = samples_per_insert * min_size_to_sample
    return RateLimiter(samples_per_insert, min_size_to_sample, balance - samples_per_insert, balance)


def Queue(size: int) -> RateLimiter:  # noqa: N802
    """Limits a table of `size` items, each of which is drawn once: inserts wait when it is full.

    Use it with Fifo sampler and remover and ``max_times_sampled=1``.
    """
    return RateLimiter(1.0, 1, 0.0, float(size))


def Stack(size: int) -> RateLimiter:  # noqa: N802
    """Limits as `Queue` does, for a Lifo sampler and remover."""
    return Queue(size)
