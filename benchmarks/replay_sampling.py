"""What in-process replay costs, as ratios to the bare numpy gather, with HalfCheetah-like transitions.

Run alone on the machine: ``python benchmarks/replay_sampling.py``. The bare gather takes 256 rows
of the five columns (observation, action, reward, discount, next observation) by fancy indexing.
"""

from __future__ import annotations

import sys
import timeit
from collections.abc import Callable

import numpy as np

from agentkit import specs
from agentkit.replay import FromInline, FromStep, InProcessReplay, Layout, Prioritized, Select, Table
from agentkit.replay.table import Selector, Uniform
from agentkit.types import Transition

BATCH = 256
EPISODE = 1000
RAW_BYTES = (17 + 6 + 1 + 1) * 4


def layout() -> Layout:
    return Layout(
        step={"observation": specs.Array((17,), np.float32), "action": specs.Array((6,), np.float32)},
        data=Transition(
            observation=FromStep(1, Select.FIRST),
            action=FromStep(0, Select.FIRST),
            reward=FromInline(0),
            discount=FromInline(1),
            next_observation=FromStep(1, Select.LAST),
        ),
        inline=(specs.Array((), np.float32), specs.Array((), np.float32)),
    )


def filled(num_items: int, sampler: Selector) -> tuple[InProcessReplay, float, float]:
    """A full replay, and the microseconds of append and create_item in the best tenth of the episodes."""
    replay = InProcessReplay([Table("t", layout(), num_items, sampler=sampler)])
    writer = replay.writer(2)
    observations = np.random.default_rng(0).standard_normal((EPISODE, 17)).astype(np.float32)
    action, inline = np.zeros(6, np.float32), (np.float32(1), np.float32(0.99))
    clock, times = timeit.default_timer, []
    for _ in range(num_items // EPISODE + 20):
        append = create = 0.0
        for observation in observations:
            step = {"observation": observation, "action": action}
            start = clock()
            index = writer.append(step)
            middle = clock()
            if index:
                writer.create_item("t", 1.0, index - 1, index + 1, inline)
            append, create = append + middle - start, create + clock() - middle
        writer.end_episode()
        times.append((1e6 * append / EPISODE, 1e6 * create / EPISODE))
    best_append, best_create = np.quantile(times, 0.1, axis=0)
    return replay, float(best_append), float(best_create)


def per_call(*functions: Callable[[], object], number: int = 100, repeat: int = 60) -> list[float]:
    """Microseconds of each, the best of many repeats, in turns, so that all see the same machine."""
    timers = [timeit.Timer(function) for function in functions]
    rounds = [[timer.timeit(number) for timer in timers] for _ in range(repeat)]
    return [1e6 * least / number for least in np.min(rounds, axis=0)]


def gathers(num_rows: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """The bare gather by fancy indexing, and by `take`; both walk over prepared indices."""
    rng = np.random.default_rng(1)
    wide = [rng.standard_normal((num_rows, n)).astype(np.float32) for n in (17, 6, 17)]
    columns = [*wide, *(rng.standard_normal(num_rows).astype(np.float32) for _ in range(2))]
    indices = rng.integers(0, num_rows, (400, BATCH))
    at = iter(range(10**9))

    def fancy() -> object:
        index = indices[next(at) % 400]
        return [column[index] for column in columns]

    def take() -> object:
        index = indices[next(at) % 400]
        return [column.take(index, 0) for column in columns]

    return fancy, take


def main(sizes: tuple[int, ...] = (100_000, 1_000_000)) -> None:
    for size in sizes:
        fancy, take = gathers(size)
        plain, append, create = filled(size, Uniform())
        ranked, ranked_append, ranked_create = filled(size, Prioritized(0.6))
        draw, ranked_draw = plain.sampler("t", BATCH), ranked.sampler("t", BATCH)
        priorities = np.random.default_rng(2).random(BATCH) + 0.1

        def draw_and_update(replay=ranked, sampler=ranked_draw, p=priorities) -> None:
            replay.update_priorities("t", next(sampler).info.key, p)

        bare, bare_take, uniform, prioritised, updated = per_call(
            fancy, take, draw.__next__, ranked_draw.__next__, draw_and_update
        )
        stored = plain.nbytes / size
        print(f"{size} items: bare gather {bare:.1f} us by fancy indexing, {bare_take:.1f} us by take")
        print(f"  uniform {uniform:.1f} us = {uniform / bare:.2f} x fancy, {uniform / bare_take:.2f} x take")
        print(f"  prioritised {prioritised:.1f} us = {prioritised / bare:.2f} x fancy")
        print(f"  prioritised with update {updated:.1f} us = {updated / bare:.2f} x fancy")
        print(f"  append {append:.2f} us, create_item {create:.2f} us")
        print(f"  prioritised: append {ranked_append:.2f} us, create_item {ranked_create:.2f} us")
        print(f"  {stored:.1f} bytes a transition = {stored / RAW_BYTES:.2f} x raw ({RAW_BYTES})")


if __name__ == "__main__":
    main(tuple(int(arg) for arg in sys.argv[1:]) or (100_000, 1_000_000))
