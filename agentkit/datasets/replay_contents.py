"""Joins the items of a replay table to the episodes that they were made of."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import tree

from agentkit.datasets.episodes import Episode
from agentkit.types import Nest, Step, Transition


def join_transitions(items: Transition, rows: np.ndarray, n_step: int, discount: float) -> list[Episode]:
    """Joins transitions to episodes, and finds each single reward where several were summed.

    An episode of which the first steps are gone begins where it is known. One that is not finished counts as
    truncated; where rewards were summed, it is left out, since its single ones are not known.

    Args:
        items: ``[N, ...]``, oldest first.
        rows: of the first and the last step of each, ``[N, 2]``.
        n_step: how many rewards were summed at most.
        discount: gamma, which the transitions' rewards and discounts have in them; above 0.
    """
    ending_in: dict[int, list[int]] = collections.defaultdict(list)
    for item, last in enumerate(rows[:, 1].tolist()):
        ending_in[last].append(item)
    starts = set(rows[:, 0].tolist())
    episodes = []
    for last, group in ending_in.items():
        if last in starts or (n_step > 1 and not _is_finished(items.discount[group], discount)):
            continue
        chain = _walk_back(rows[:, 0], ending_in, last, n_step)
        rewards = _single_rewards(np.asarray(items.reward[chain], np.float64), n_step, discount)
        observations = tree.map_structure(
            lambda before, after, chain=chain: np.concatenate([before[chain], after[chain[-1:]]]),
            items.observation,
            items.next_observation,
        )
        terminated = bool(items.discount[chain[-1]] == 0)
        episodes.append(_episode(observations, _take(items.action, chain), rewards, terminated))
    return episodes


def _is_finished(discounts: np.ndarray, discount: float) -> bool:
    """Returns whether the items that end in a row, where none begins, end an episode: the newest is then of one step.

    Args:
        discounts: of these items, oldest first.
        discount: gamma.
    """
    if discounts[-1] == 0:
        return True
    # Without discounting, items of one step and of several look alike; an unfinished episode has one item there.
    return bool(discounts[-1] == np.float32(discount)) and not (discount == 1.0 and len(discounts) == 1)


def _walk_back(starts: np.ndarray, ending_in: dict[int, list[int]], last: int, n_step: int) -> list[int]:
    """Returns one item for each step of the episode that ends in row `last`, in order."""
    chain = collections.deque(ending_in[last])  # They begin in the episode's last n rows.
    known = {int(starts[item]) for item in chain}
    while len(chain) >= n_step:
        # What ends n - 1 steps after the first known step begins one step before it; or is of a first step, known.
        ended = ending_in.get(int(starts[chain[n_step - 1]]), [])
        before = [item for item in ended if int(starts[item]) not in known]
        if not before:
            break
        chain.appendleft(before[0])
        known.add(int(starts[before[0]]))
    return list(chain)


def _single_rewards(sums: np.ndarray, n_step: int, discount: float) -> np.ndarray:
    """Returns the rewards ``[T]`` whose discounted sums over up to n steps, from each step on, are given.

    Backwards: errors of rounding shrink by gamma with each step, where forwards they would grow.
    """
    rewards = sums.copy()
    for t in reversed(range(len(sums))):
        for j in range(1, min(n_step, len(sums) - t)):
            rewards[t] -= discount**j * rewards[t + j]
    return rewards


def join_sequences(items: Step, rows: np.ndarray) -> list[Episode]:
    """Joins sequences to episodes; one whose first or last steps are in no sequence is as long as it is known.

    Args:
        items: ``[N, T, ...]``, oldest first; they may overlap and run on from one episode into the next.
        rows: of their steps, ``[N, T]``.
    """
    place_of = {int(row): place for place, row in enumerate(rows.reshape(-1))}
    next_of: dict[int, int] = {}
    for sequence in rows.tolist():
        next_of.update(itertools.pairwise(sequence))
    steps: Step = tree.map_structure(lambda x: x.reshape(-1, *x.shape[2:]), items._replace(extras=()))
    followers = set(next_of.values())
    episodes = []
    for first in (row for row in place_of if row not in followers):
        stream = [first]
        while stream[-1] in next_of:
            stream.append(next_of[stream[-1]])
        places = [place_of[row] for row in stream]
        for part in _parts(places, np.asarray(steps.start_of_episode[places])):
            acted = part[:-1]  # The last row has an episode's final observation, or the newest one.
            rewards = np.asarray(steps.reward[acted], np.float64)
            terminated = bool(steps.discount[acted[-1]] == 0)
            episodes.append(_episode(_take(steps.observation, part), _take(steps.action, acted), rewards, terminated))
    return episodes


def _parts(places: Sequence[int], is_start: np.ndarray) -> Iterator[list[int]]:
    """Yields the places of each episode with a step."""
    cuts = [0, *np.flatnonzero(is_start[1:] > 0) + 1, len(places)]
    for start, stop in itertools.pairwise(cuts):
        if stop - start > 1:
            yield list(places[start:stop])


def _take(nest: Nest, places: Sequence[int]) -> Nest:
    return tree.map_structure(lambda x: x[list(places)], nest)


def _episode(observations: Nest, actions: Nest, rewards: np.ndarray, terminated: bool) -> Episode:
    ends = np.zeros((2, len(rewards)), bool)
    ends[0 if terminated else 1, -1] = True
    return Episode(observations, actions, rewards, *ends)
