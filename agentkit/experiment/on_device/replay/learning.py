"""Learning from replay in a compiled loop: what is kept, how many updates are due, and how one is made."""

from __future__ import annotations

import fractions
from collections.abc import Mapping
from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.agents.common.experience import ReplayConfig, Sequences, Transitions
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.replay.ring import Marks, draw, set_priorities
from agentkit.experiment.on_device.replay.store import Store, make_keeper
from agentkit.experiment.on_device.replay.sum_tree import NOWHERE
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
        return self._learn_once(store, jnp.int32(0), learning).metrics

    def learn(self, now: Progress, num_steps: Array) -> Progress:
        """Makes the updates that are due.

        Args:
            now: with a `Store`.
            num_steps: environment steps so far, int32 ``[]``.
        """
        store, due = now.store, self._due(now.store.ring.num_inserted)
        # A loop and no `cond`: under `vmap`, that would compute an update at each step, and copy what it looks at.
        last: _Learning = jax.lax.while_loop(
            lambda learning: self._members.any(learning.tally[0] < due),
            lambda learning: self._learn_once(store, num_steps, learning, learning.tally[0] < due),
            _Learning(now.training, now.tally, store.key, store.ring.marks, now.metrics),
        )
        store = store._replace(ring=store.ring._replace(marks=last.marks), key=last.key)
        return Progress(last.training, store, last.tally, last.metrics)

    def _learn_once(
        self, store: Store, num_steps: Array, learning: _Learning, learns: Array | bool = True
    ) -> _Learning:
        """Makes an update, but in a member that does not learn."""
        key, draw_key = jax.random.split(learning.key)
        ring = store.ring._replace(marks=learning.marks)
        sample, places, marks = draw(ring, draw_key, self._batch_size, learns)
        batch = split_rows(self._keeper.look_up(store.recent, sample))
        batch = batch._replace(num_updates=learning.tally[0], num_steps=num_steps)
        training, output = counted_update(self._update, learning.training, batch)
        if self._config.prioritized and output.priorities is not None:
            places = jnp.where(learns, places, NOWHERE) if self._members.are_many else places
            marks = set_priorities(marks, places, output.priorities, self._config.priority_exponent)
        new = training, add_to_tally(learning.tally, output.metrics, 1), key, output.metrics
        if self._members.are_many and learning.metrics:
            old = learning.training, learning.tally, learning.key, learning.metrics
            new = self._members.choose(learns, new, old)
        training, tally, key, metrics = new
        return _Learning(training, tally, key, marks, metrics)
