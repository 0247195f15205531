"""Learning from replay in a compiled loop: what is kept, how many updates are due, and how one is made."""

from __future__ import annotations

import fractions
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.agents.common.experience import ReplayConfig, Sequences, Transitions
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.replay.ring import Marks, draw, set_priorities
from agentkit.experiment.on_device.replay.store import Store, make_keeper
from agentkit.experiment.on_device.rounds import Progress
from agentkit.learning import Update
from agentkit.learning.compiled import counted_update
from agentkit.learning.finite import add_to_tally
from agentkit.learning.sharing import split_rows
from agentkit.types import Array, Nest, Step

MOST_PARTS = 1_000
"""The largest denominator of updates for each item."""


class _Learning(NamedTuple):
    """Holds what changes with an update; the items are none of it, and so are not copied."""

    training: Nest
    tally: Array
    key: Array
    marks: Marks
    metrics: Mapping[str, Array]


def find_rate(experience: Transitions | Sequences) -> fractions.Fraction:
    """Returns the updates for each item, as a fraction of whole numbers."""
    config: ReplayConfig = experience.config
    steps = experience.config.sequence_period if isinstance(experience, Sequences) else 1
    return fractions.Fraction(config.updates_per_step).limit_denominator(MOST_PARTS) * steps


@final
class UpdatesDue:
    """Says how many updates follow so many items, as the table's rate limit does in turns with an actor.

    It is `learning.rate_limit`'s rule in whole numbers, which are exact without float64. The host's sums are rounded
    where the rate is no binary fraction (1/3), so that an update of its may come an item later.
    """

    def __init__(self, updates_per_item: fractions.Fraction, min_size: int, updates_per_call: int):
        """Takes the settings of the agent.

        Args:
            updates_per_item: p / q.
            min_size: items before the first update.
            updates_per_call: K, which come together.
        """
        self._rate, self._min_size, self._per_call = updates_per_item, min_size, updates_per_call

    def __call__(self, num_inserted: Array) -> Array:
        """Returns the updates that are due once so many items are in, those that were made included, int32 ``[]``."""
        p, q, per_call = self._rate.numerator, self._rate.denominator, self._per_call
        more = num_inserted - self._min_size
        # floor((p / q more + 2 max(K, p / q)) / K) calls, where p * more alone might not fit into int32.
        whole, part = more // (q * per_call), more % (q * per_call)
        calls = p * whole + (p * part + 2 * max(per_call * q, p)) // (q * per_call)
        return jnp.where(more >= 0, calls * per_call, 0)


@final
class ReplayLearning:
    """Keeps the steps of N environments as items, and makes the updates that are due."""

    def __init__(self, update: Update, experience: Transitions | Sequences, num_envs: int, members: Members = ALONE):
        """Computes nothing yet; `checks` has looked at the settings."""
        config, plan = experience.config, experience.batch_plan
        self._update, self._members = update, members
        self._config, self._batch_size = config, plan.batch_size
        self._due = UpdatesDue(find_rate(experience), config.min_replay_size, plan.num_updates)
        self._keeper = make_keeper(experience, num_envs)

    def start(self, step: Step, observation: Nest, key: Array) -> Store:
        """Returns an empty store.

        Args:
            step: shapes and dtypes of a step in each of N environments, ``[N, ...]``.
            observation: likewise.
            key: PRNG key ``uint32[2]``, of what is drawn.
        """
        return Store(*self._keeper.start(step, observation), key)

    def add(self, store: Store, before: TimeStep, row: Step, after: TimeStep, is_taken: Array | bool = True) -> Store:
        """Returns the store with the items that a step completes; see `store.Keeper.add`."""
        recent, ring = self._keeper.add(store.recent, store.ring, before, row, after, is_taken)
        return store._replace(recent=recent, ring=ring)

    def is_due(self, tally: Array, store: Store) -> Array:
        """Returns whether the learner has an update to make before the next step, bool ``[]``."""
        return tally[0] < self._due(store.ring.num_inserted)

    def first_metrics(self, training: Nest, store: Store) -> Mapping[str, Array]:
        """Returns metrics of an update, whose shapes alone count."""
        learning = _Learning(training, jnp.zeros(3, jnp.int32), store.key, store.ring.marks, {})
        return self._update_once(store, jnp.int32(0), learning, True).metrics

    def learn(self, now: Progress, num_steps: Array) -> Progress:
        """Makes the updates that are due.

        Args:
            now: with a `Store`.
            num_steps: environment steps so far, int32 ``[]``.
        """
        store, due = now.store, self._due(now.store.ring.num_inserted)

        def is_behind(learning: _Learning) -> Array:
            return learning.tally[0] < due

        def go_on(learning: _Learning) -> _Learning:
            learns = is_behind(learning)
            new = self._update_once(store, num_steps, learning, learns)
            # No mark has changed of a member that waits, so that none need be copied: there are as many as items.
            none: Any = ()
            kept: _Learning = self._members.choose(learns, new._replace(marks=none), learning._replace(marks=none))
            return kept._replace(marks=new.marks)

        # A loop and no `cond`: under `vmap`, that would compute an update at each step, and copy what it looks at.
        first = _Learning(now.training, now.tally, store.key, store.ring.marks, now.metrics)
        last: _Learning = jax.lax.while_loop(lambda learning: self._members.any(is_behind(learning)), go_on, first)
        store = store._replace(ring=store.ring._replace(marks=last.marks), key=last.key)
        return Progress(last.training, store, last.tally, last.metrics)

    def _update_once(self, store: Store, num_steps: Array, learning: _Learning, learns: Array | bool) -> _Learning:
        """Returns what comes of an update, with the marks of before unless it `learns`."""
        key, draw_key = jax.random.split(learning.key)
        ring = store.ring._replace(marks=learning.marks)
        sample, places, marks = draw(ring, draw_key, self._batch_size, learns)
        batch = split_rows(self._keeper.look_up(store.recent, sample))
        batch = batch._replace(num_updates=learning.tally[0], num_steps=num_steps)
        training, output = counted_update(self._update, learning.training, batch)
        priorities = output.priorities if self._config.prioritized else None
        if priorities is not None:
            marks = set_priorities(marks, places, priorities, self._config.priority_exponent)
        tally = add_to_tally(learning.tally, output.metrics, 1, priorities)
        return _Learning(training, tally, key, marks, output.metrics)
