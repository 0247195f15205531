"""The thread behind a Reverb sampler, on pieces made by hand (no Reverb needed)."""

import threading

import numpy as np
import pytest

from agentkit.errors import ReplayClosedError, ReplayTimeoutError
from agentkit.replay.reverb.sampler import ReverbSampler
from agentkit.testing.replay import pair_table, wait_until

pytestmark = pytest.mark.both_stacks


def make_sampler(make_pieces, batch_size, *, can_sample=lambda num_items: True, timeout=5.0, streams=False):
    return ReverbSampler(
        pair_table(),
        batch_size,
        make_pieces=make_pieces,
        can_sample=can_sample,
        why_late=lambda seconds: ReplayTimeoutError(f"late by {seconds}"),
        timeout=timeout,
        streams=streams,
    )


class Source:
    """Items 0, 1, 2, ... in pieces of the given sizes; 0 ends an iterator."""

    def __init__(self, sizes):
        self.sizes = iter(sizes)
        self.count = 0
        self.num_iterators = 0

    def __call__(self):
        self.num_iterators += 1
        for size in self.sizes:
            if size == 0:
                return
            numbers = np.arange(self.count, self.count + size)
            self.count += size
            info = [numbers.astype(np.uint64)] + [np.zeros(size)] * 4
            yield info + [numbers.copy() for _ in range(4)]
        raise RuntimeError("the source is dry")


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("sizes", [[4] * 3, [1, 3, 5, 0, 2, 1], [12], [0, 0, 4, 8], [3, 3, 3, 0, 3]])
def test_pieces_become_whole_batches(sizes, streams):
    source = Source(sizes)
    sampler = make_sampler(source, 4, streams=streams)
    batches = [next(sampler) for _ in range(3)]
    for i, batch in enumerate(batches):
        assert batch.keys.tolist() == list(range(4 * i, 4 * i + 4))
        assert all(leaf.tolist() == batch.keys.tolist() for leaf in batch.sample.data)
    batches[0].sample.data.first[:] = -1
    assert batches[1].sample.data.first.tolist() == [4, 5, 6, 7]
    with pytest.raises(ReplayClosedError, match="failed for good: the source is dry"):
        next(sampler)
    sampler.close()


def test_asks_only_for_what_may_be_drawn():
    allowed = threading.Event()
    asked = []

    def can_sample(num_items):
        asked.append(num_items)
        return allowed.is_set()

    source = Source([3] * 100)
    sampler = make_sampler(source, 3, can_sample=can_sample, timeout=0.1)
    with pytest.raises(ReplayTimeoutError, match=r"late by 0\.1"):
        next(sampler)
    assert not sampler.ready() and source.count == 0 and set(asked) == {3}
    allowed.set()
    assert wait_until(sampler.ready)
    assert source.count == 3, "one batch ahead"
    next(sampler)
    assert wait_until(sampler.ready) and source.count == 6
    sampler.close()
    assert not sampler.ready()


def test_a_silent_server_is_asked_again():
    answers = iter([ReplayClosedError("silent"), True, True, True])

    def can_sample(num_items):
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    sampler = make_sampler(Source([2] * 9), 2, can_sample=can_sample)
    assert next(sampler).keys.tolist() == [0, 1]
    sampler.close()


def test_close_ends_the_thread_and_wakes_who_waits():
    before = threading.active_count()
    sampler = make_sampler(Source([]), 1, can_sample=lambda num_items: False)
    raised = []

    def wait():
        try:
            next(sampler)
        except ReplayClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    sampler.close()
    sampler.close()
    thread.join(5)
    assert len(raised) == 1
    assert wait_until(lambda: threading.active_count() == before)
