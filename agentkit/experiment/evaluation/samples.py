"""Steps as arrays, and what records them: `Samples`."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, final

import dm_env
import numpy as np
import tree

from agentkit import core, nests
from agentkit.types import Array, Nest


class Samples(NamedTuple):
    """Holds N steps; every leaf is ``[N, ...]``.

    The steps of an episode stand together, in their order, and episodes in the order in which they began.

    Attributes:
        observation: o_t.
        action: a_t, as the policy emits it: bounded continuous ones in [-1, 1], discrete ones from 0.
        reward: r_{t+1}, that a_t led to.
        termination: bool ``[N]``, whether the episode terminated there: nothing follows, nothing is bootstrapped.
        truncation: bool ``[N]``, whether it was truncated there: something would have followed. The last step of an
            episode that the number of steps has cut off has neither.
        next_observation: o_{t+1}, the final one of an episode, too.
        extras: what the policy emitted with a_t (its log-probability, its memory before), or ``()``.
        episode: int64 ``[N]``, from 0.
        environment: int64 ``[N]``, which of the environments, from 0.
        t: int64 ``[N]``, steps of the episode before this one.
    """

    observation: Nest
    action: Nest
    reward: Nest
    termination: Array
    truncation: Array
    next_observation: Nest
    extras: Nest
    episode: Array
    environment: Array
    t: Array

    def by_episode(self) -> list[Samples]:
        """Returns the steps of each episode apart."""
        starts = np.flatnonzero(np.diff(self.episode)) + 1
        bounds = itertools.pairwise([0, *starts.tolist(), len(self.episode)])
        return [tree.map_structure(lambda x, part=slice(*pair): x[part], self) for pair in bounds]


class Row(NamedTuple):
    """Holds a step.

    Attributes:
        order: of all steps and beginnings of all environments, in time.
        began: the order of the beginning of its episode.
        data: the step, leaves ``[...]``.
    """

    order: int
    began: int
    data: Samples


@final
class Recorder(core.Adder):
    """Keeps the steps of one environment.

    Attributes:
        rows: those that were not taken yet.
        num_ended: episodes that have ended.
    """

    def __init__(self, environment: int, order: Iterator[int], cast: Callable[[Nest], Nest], max_steps: int | None):
        """Makes a recorder.

        Args:
            environment: its number.
            order: counts what all recorders record.
            cast: of rewards.
            max_steps: after which an episode counts as truncated; None for no limit.
        """
        self.rows: list[Row] = []
        self.num_ended = 0
        self._environment = environment
        self._order = order
        self._cast = cast
        self._max_steps = max_steps
        self._beginnings: list[int] = []
        self._observation: Nest = None
        self._t = 0

    def take_until(self, order: int) -> None:
        """Forgets the rows up to this one."""
        self.rows = [row for row in self.rows if row.order > order]

    def first(self, num_episodes: int) -> list[Row]:
        """Returns the rows of the first episodes."""
        wanted = set(self._beginnings[:num_episodes])
        return [row for row in self.rows if row.began in wanted]

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode."""
        self._beginnings.append(next(self._order))
        self._observation, self._t = nests.copy_nest(timestep.observation), 0

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Keeps a step."""
        next_observation = nests.copy_nest(next_timestep.observation)
        is_last = next_timestep.last() or self._t + 1 == self._max_steps
        terminates = is_last and not any(np.any(leaf) for leaf in tree.flatten(next_timestep.discount))
        step = Samples(
            self._observation,
            nests.copy_nest(action),
            self._cast(next_timestep.reward),
            np.bool_(terminates),
            np.bool_(is_last and not terminates),
            next_observation,
            nests.copy_nest(extras),
            np.int64(self._beginnings[-1]),
            np.int64(self._environment),
            np.int64(self._t),
        )
        self.rows.append(Row(next(self._order), self._beginnings[-1], step))
        self._observation, self._t = next_observation, self._t + 1
        self.num_ended += is_last
        if is_last and not next_timestep.last():  # Cut off, in a batch, whose environments go on.
            self.add_first(next_timestep)

    def reset(self) -> None:
        """Is of no use: samples are taken to the end."""
        raise NotImplementedError("Samples are taken to the end.")

    def close(self) -> None:
        """Has nothing to free."""


def stack(rows: Sequence[Row]) -> Samples:
    """Returns rows as arrays, episode by episode, with the episodes numbered."""
    ordered = [row.data for row in sorted(rows, key=lambda row: (row.began, row.order))]
    samples = tree.map_structure(lambda *leaves: np.stack(leaves), *ordered)
    return samples._replace(episode=np.unique(samples.episode, return_inverse=True)[1].astype(np.int64))
