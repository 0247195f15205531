"""Overlapping sequences of steps, made by N environments in a compiled loop, equal to those of `adders.SequenceAdder`.

That adder says what is in them, with "continue". A row is stored once, however many sequences it is in: an item says
where its sequence begins. Sequences enter the ring in the adder's order and at its time, so that the counts of items
and of updates at each step are the host's.
"""

from __future__ import annotations

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.agents.common.experience import SequencesConfig
from agentkit.experiment.on_device.replay.ring import Ring, insert, make_ring
from agentkit.experiment.on_device.replay.sum_tree import NOWHERE
from agentkit.types import LAST, Array, Nest, ReplaySample, Step


class Rows(NamedTuple):
    """Holds the newest R rows of each of N environments, episode after episode.

    Attributes:
        steps: leaves ``[R, N, ...]``; row number i is at place i % R.
        count: rows so far, int32 ``[N]``.
    """

    steps: Step
    count: Array


class Start(NamedTuple):
    """Holds where a sequence begins: an item.

    Attributes:
        environment: its number, int32.
        place: of its first row in `Rows`, int32.
    """

    environment: Array
    place: Array


@final
class SequenceKeeper:
    """Makes sequences of steps; see `store.Keeper`."""

    def __init__(self, config: SequencesConfig, num_envs: int):
        """Takes what says how long sequences are and how many are held, and N."""
        self._config, self._num_envs = config, num_envs
        self._length, self._period = config.sequence_length + 1, config.sequence_period
        # All environments have as many rows, but for one, so the newest C sequences are the newest of each.
        most_items = -(-config.replay_size // num_envs) + 2
        self._num_rows = most_items * self._period + self._length + 2

    def start(self, step: Step, observation: Nest) -> tuple[Rows, Ring]:
        """Returns no rows, and an empty ring; see `store.Keeper`."""
        del observation
        steps = jax.tree.map(lambda x: jnp.zeros((self._num_rows, *x.shape), x.dtype), step)
        number = jax.ShapeDtypeStruct((), jnp.int32)
        ring = make_ring(Start(number, number), self._config.replay_size, self._config.prioritized)
        return Rows(steps, jnp.zeros(self._num_envs, jnp.int32)), ring

    def add(
        self, recent: Rows, ring: Ring, before: TimeStep, row: Step, after: TimeStep, is_taken: Array | bool = True
    ) -> tuple[Rows, Ring]:
        """Returns both with a step, and with the final row of an episode as soon as it ends, when the adder has it."""
        moved = (before.step_type != LAST) & is_taken
        ended = (after.step_type == LAST) & is_taken
        rest = jax.tree.map(jnp.zeros_like, row)
        final_row = rest._replace(observation=after.observation)
        rows, starts, are_there = recent, [], []
        for each, is_there in ((row, moved), (final_row, ended)):
            rows, place, completes = self._append(rows, each, is_there)
            starts.append(Start(jnp.arange(self._num_envs, dtype=jnp.int32), place))
            are_there.append(completes)
        # Environment by environment, as the host's adders write.
        items = jax.tree.map(lambda *parts: jnp.stack(parts, 1).reshape(-1), *starts)
        mask = jnp.stack(are_there, 1).reshape(-1)
        return rows, insert(ring, items, mask, self._config.priority_exponent)

    def _append(self, rows: Rows, row: Step, is_there: Array) -> tuple[Rows, Array, Array]:
        """Returns the rows with one more where it is there, and where the sequence begins that it completes, if any."""
        numbers = jnp.arange(self._num_envs)
        place = jnp.where(is_there, rows.count % self._num_rows, NOWHERE)
        steps = jax.tree.map(lambda x, new: x.at[place, numbers].set(new, mode="drop"), rows.steps, row)
        count = rows.count + is_there
        first = count - self._length  # Of the sequence that ends here, if one does.
        completes = is_there & (first >= 0) & (first % self._period == 0)
        return Rows(steps, count), (first % self._num_rows).astype(jnp.int32), completes

    def look_up(self, recent: Rows, sample: ReplaySample[Start]) -> ReplaySample[Step]:
        """Returns the rows ``[B, T + 1, ...]`` of the sequences that were drawn."""
        start = sample.data
        places = (start.place[:, None] + jnp.arange(self._length)[None]) % self._num_rows
        numbers = jnp.broadcast_to(start.environment[:, None], places.shape)
        return ReplaySample(sample.info, jax.tree.map(lambda x: x[places, numbers], recent.steps))
