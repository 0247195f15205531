import math
import random

import pytest

from agentkit.errors import ConfigError
from agentkit.replay import Fifo, MinSize, Queue, RateLimiter, SampleToInsertRatio, Stack
from agentkit.testing.replay import pair_table

pytestmark = pytest.mark.both_stacks


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


def test_bounds_hold_exactly():
    limit = RateLimiter(2.0, 3, 0.0, 4.0)
    for size, inserted, sampled, inserts, samples in [
        (0, 0, 0, 3, 0),  # up to the minimum size inserts are free
        (2, 2, 0, 1, 0),
        (3, 3, 0, 0, 6),
        (3, 3, 2, 0, 4),
        (3, 3, 4, 1, 2),
        (3, 3, 6, 2, 0),
    ]:
        counts = {"size": size, "inserted": inserted, "sampled": sampled}
        allowed = [n for n in range(1, 9) if limit.can_insert(n, **counts)]
        drawn = [n for n in range(1, 9) if limit.can_sample(n, **counts)]
        assert (allowed, drawn) == (list(range(1, inserts + 1)), list(range(1, samples + 1))), counts


def test_queue_serves_batches_up_to_its_size():
    Queue(4).check_batch("q", 4)
    with pytest.raises(ConfigError, match="never be drawn"):
        Queue(4).check_batch("q", 5)


def random_limit(rng: random.Random) -> RateLimiter | None:
    """A limiter with small numbers, None if it is refused."""
    low = float(rng.randint(-8, 8))
    per_insert = rng.choice([0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 8.0])
    try:
        return RateLimiter(per_insert, rng.randint(1, 4), low, low + rng.randint(1, 30) / 2)
    except ConfigError:
        return None


def runs_dry(limit: RateLimiter, batch: int, max_size: int, max_times: int, choices: list[bool]) -> bool:
    """True if neither an insert nor a batch may proceed at some point of this interleaving."""
    inserted = sampled = 0
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
    return False


def test_what_is_accepted_never_deadlocks():
    rng, accepted = random.Random(0), 0
    while accepted < 400:
        limit, batch, max_times = random_limit(rng), rng.randint(1, 8), rng.choice([0, 1, 4])
        if limit is None:
            continue
        max_size = max(batch, limit.min_size_to_sample) + rng.randint(0, 4)
        try:
            table = pair_table(max_size=max_size, max_times_sampled=max_times, rate_limiter=limit)
            table.check_batch(batch)
        except ConfigError:
            continue
        accepted += 1
        for bias in (0.0, 0.2, 0.8, 1.0):
            choices = [rng.random() < bias for _ in range(150)]
            assert not runs_dry(limit, batch, max_size, max_times, choices), (table, batch)


def test_batches_are_refused_only_if_they_deadlock():
    """Not out of caution: greedy inserting passes through every offset that batches leave, and gets stuck."""
    rng, refused = random.Random(1), 0
    while refused < 200:
        limit, batch = random_limit(rng), rng.randint(1, 20)
        if limit is None:
            continue
        try:
            limit.check_batch("t", batch)
        except ConfigError:
            refused += 1
            assert runs_dry(limit, batch, 100, 0, [True] * 500), (limit, batch)


@pytest.mark.reverb
def test_decisions_are_reverbs():
    import reverb

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
