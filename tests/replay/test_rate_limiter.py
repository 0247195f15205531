import math

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from agentkit.errors import ConfigError
from agentkit.replay import Fifo, MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack
from agentkit.testing.replay import pair_table


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda: MinSize(0), "min_size_to_sample"),
        (lambda: MinSize(2.5), "whole number"),
        (lambda: Queue(0), "deadlock"),
        (lambda: Stack(-1), "deadlock"),
        (lambda: SampleToInsertRatio(0.0, 1, 1.0), "samples_per_insert"),
        (lambda: SampleToInsertRatio(-1.0, 1, 9.0), "samples_per_insert"),
        (lambda: SampleToInsertRatio(math.inf, 1, 1.0), "samples_per_insert|buffer"),
        (lambda: SampleToInsertRatio(math.nan, 1, 1.0), "samples_per_insert|buffer"),
        (lambda: SampleToInsertRatio(4.0, 1, 3.9), "at least max"),
        (lambda: SampleToInsertRatio(0.1, 10, 0.9), "at least max"),
        (lambda: SampleToInsertRatio(1.0, 10, -5.0), "at least max"),
        (lambda: SampleToInsertRatio(1.0, 10, math.nan), "at least max"),
        (lambda: SampleToInsertRatio(1.0, 10, (11.0, 20.0)), "min_difference"),
        (lambda: SampleToInsertRatio(1.0, 10, (0.0, math.nan)), "at least max"),
        (lambda: RateLimiter(4.0, 1, 0.0, 3.0), "deadlock"),
        (lambda: RateLimiter(0.5, 1, 0.0, 0.7), "deadlock"),
        (lambda: RateLimiter(1.0, 1, math.inf, math.inf), "deadlock"),
    ],
)
def test_deadlocks_are_refused_when_built(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    "kwargs, words",
    [
        ({"max_size": 5, "rate_limiter": MinSize(6)}, "wait for ever"),
        ({"max_times_sampled": 1, "rate_limiter": SampleToInsertRatio(2.0, 1, 2.0)}, "max_times_sampled"),
        ({"max_size": 0}, "max_size"),
        ({"max_size": 2.5}, "whole number"),
        ({"max_times_sampled": -1}, "max_times_sampled"),
        ({"sampler": Fifo}, "sampler"),
        ({"remover": "fifo"}, "remover"),
        ({"name": ""}, "name"),
    ],
)
def test_tables_that_cannot_work_are_refused(kwargs, words):
    with pytest.raises(ConfigError, match=words):
        pair_table(**kwargs)


def test_queue_serves_batches_up_to_its_size():
    Queue(4).check_batch("q", 4)
    with pytest.raises(ConfigError, match="never be drawn"):
        Queue(4).check_batch("q", 5)


LIMITS = st.builds(
    lambda spi, low, width, size: (spi, size, float(low), float(low) + width),
    st.sampled_from([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0]),
    st.integers(-8, 8),
    st.integers(1, 20).map(lambda n: n / 2),
    st.integers(1, 4),
)


def runs_dry(limit: RateLimiter, batch: int, max_size: int, max_times: int, choices: list[bool]) -> bool:
    """True if neither an insert nor a batch may proceed at some point of this interleaving."""
    size = inserted = sampled = 0
    items: list[int] = []
    for prefer_insert in choices:
        counts = {"size": len(items), "inserted": inserted, "sampled": sampled}
        insert = limit.can_insert(1, **counts)
        enough = not max_times or sum(items) >= batch
        sample = limit.can_sample(batch, **counts) and enough
        if not insert and not sample:
            return True
        if insert and (prefer_insert or not sample):
            inserted += 1
            items = [*items, max_times][-max_size:]
        else:
            sampled += batch
            for _ in range(batch if max_times else 0):
                items[0] -= 1  # as a Fifo sampler does it
                items = items if items[0] else items[1:]
    del size
    return False


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    LIMITS,
    st.integers(1, 8),
    st.sampled_from([0, 1, 4]),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_what_is_accepted_never_deadlocks(limit, batch, max_times, spare, random):
    max_size = max(batch, limit[1]) + spare
    try:
        table = pair_table(max_size=max_size, max_times_sampled=max_times, rate_limiter=RateLimiter(*limit))
        table.check_batch(batch)
    except ConfigError:
        assume(False)
    for bias in (0.0, 0.1, 0.5, 0.9, 1.0):
        choices = [random.random() < bias for _ in range(300)]
        assert not runs_dry(table.rate_limiter, batch, max_size, max_times, choices)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(LIMITS, st.integers(1, 20))
def test_batches_are_refused_only_if_they_deadlock(limit, batch):
    """Not refused out of caution: greedy inserting, or greedy sampling, does get stuck."""
    try:
        limiter = RateLimiter(*limit)
    except ConfigError:
        assume(False)
    try:
        limiter.check_batch("t", batch)
    except ConfigError:
        # Greedy inserting passes through every offset that batches leave, the worst one included.
        assert runs_dry(limiter, batch, 1000, 0, [True] * 2000)


def test_decisions_are_reverbs():
    reverb = pytest.importorskip("reverb")
    for limiter, theirs in [
        (MinSize(3), reverb.rate_limiters.MinSize(3)),
        (SampleToInsertRatio(2.0, 3, 4.0), reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)),
        (
            SampleToInsertRatio(0.5, 2, (-3.0, 2.0)),
            reverb.rate_limiters.SampleToInsertRatio(0.5, 2, (-3.0, 2.0)),
        ),
        (Queue(6), reverb.rate_limiters.Queue(6)),
    ]:
        table = reverb.Table("t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 5, theirs)
        server = reverb.Server([table])
        client = reverb.Client(f"localhost:{server.port}")
        inserted = sampled = 0
        for step in range(40):
            counts = {"size": min(inserted, 5), "inserted": inserted, "sampled": sampled}
            for n in (1, 2, 5, 9):
                assert limiter.can_insert(n, **counts) == table.can_insert(n), (limiter, counts, n)
                assert limiter.can_sample(n, **counts) == table.can_sample(n), (limiter, counts, n)
            if limiter.can_insert(1, **counts) and step % 3:
                client.insert([0.0], {"t": 1.0})
                inserted += 1
            elif limiter.can_sample(1, **counts):
                list(client.sample("t", 1))
                sampled += 1
        server.stop()
