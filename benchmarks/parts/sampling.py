"""Part 3: in-process sampling of 256 transitions beside the bare numpy gather, uniform and prioritised."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from data import VECTOR, environment_spec, fill, transition_replay
from turns import Line, in_turns, line, repeat

from agentkit import specs
from agentkit.replay import Prioritized

SAMPLING = "In-process sampling, 256 transitions of 17 floats and 6 of action"
BATCH = 256
UNIFORM_LIMIT, PRIORITISED_LIMIT = 1.5, 10.0


def bare_gathers(
    spec: specs.EnvironmentSpec, num_rows: int, batch: int = BATCH
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Five columns (o, a, r, d, o') taken by ``column[index]``, and by ``column.take``; indices are drawn before."""
    rng = np.random.default_rng(1)
    leaves = (spec.observations, spec.actions, spec.rewards, spec.discounts, spec.observations)
    # Written, row by row as replay's are: pages that nobody wrote are one page of zeros, and always in the cache.
    columns = [np.ones((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]
    indices = itertools.cycle(rng.integers(0, num_rows, (400, batch)))

    def fancy() -> object:
        index = next(indices)
        return [column[index] for column in columns]

    def take() -> object:
        index = next(indices)
        return [column.take(index, 0) for column in columns]

    return fancy, take


def sampling_lines(sizes: tuple[int, ...], number: int) -> list[Line]:
    """For each size of replay, `number` calls a round."""
    spec, found = environment_spec(VECTOR), []
    for size in sizes:
        uniform, ranked = transition_replay(spec, size), transition_replay(spec, size, Prioritized(0.6))
        fill(uniform, spec, size)
        fill(ranked, spec, size)
        fancy, take = bare_gathers(spec, size)
        draw, draw_ranked = uniform.sampler("t", BATCH), ranked.sampler("t", BATCH)
        priorities = np.random.default_rng(2).random((100, BATCH)) + 0.1
        turns = itertools.cycle(priorities)
        for _ in range(200):  # so that the priorities are not all the same
            ranked.update_priorities("t", next(draw_ranked).keys, next(turns))

        def draw_and_update(replay=ranked, sampler=draw_ranked, values=turns) -> None:
            replay.update_priorities("t", next(sampler).keys, next(values))

        fancy_name, take_name = "column[index], bare", "column.take(index), bare"
        times = in_turns(
            {
                fancy_name: repeat(fancy, number),
                take_name: repeat(take, number),
                "uniform": repeat(draw.__next__, number),
                "prioritised": repeat(draw_ranked.__next__, number),
                "updated": repeat(draw_and_update, number),
            }
        )
        for name, words, limit in (
            ("uniform", "uniform", UNIFORM_LIMIT),
            ("prioritised", "prioritised", None),
            ("updated", "prioritised, priorities written back", PRIORITISED_LIMIT),
        ):
            for bare in (fancy_name, take_name):
                found.append(line(SAMPLING, f"{size:,} items, {words}", times, name, bare, limit=limit))
    return found
