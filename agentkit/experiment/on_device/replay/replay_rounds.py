"""Rounds of agents that learn from replay: steps in N environments, and after each the updates that are due."""

from __future__ import annotations

import fractions
from collections.abc import Mapping
from typing import NamedTuple, Protocol, final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy
from agentkit.agents.common.experience import ReplayConfig, Sequences, Transitions
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.on_device.acting import Acting, Episodes, Reset, all_finite, fill_pool, take_step
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.replay.ring import Marks, Ring, draw, set_priorities
from agentkit.experiment.on_device.replay.sequences import Rows, SequenceKeeper
from agentkit.experiment.on_device.replay.sum_tree import NOWHERE
from agentkit.experiment.on_device.replay.transitions import TransitionKeeper
from agentkit.experiment.on_device.rounds import Round
from agentkit.learning import Update
from agentkit.learning.compiled import counted_update
from agentkit.learning.finite import add_to_tally
from agentkit.learning.sharing import split_rows
from agentkit.types import Array, Nest, ReplaySample, Step

MOST_PARTS = 1_000
"""The largest denominator of updates for each item."""

_STEPS = 32
"""Of a round in each environment: as many share a row of the training's log."""


class Keeper(Protocol):
    """Makes items of steps: the twin of an adder. All is pure, and to be compiled."""

    def start(self, step: Step, observation: Nest) -> tuple[Nest, Ring]:
        """Returns what is kept beside the items before the first step, and the empty ring of items.

        Args:
            step: shapes and dtypes of a step in each of N environments, ``[N, ...]``.
            observation: likewise.
        """
        ...

    def add(
        self, recent: Nest, ring: Ring, before: Acting, row: Step, after: Acting, is_taken: Array | bool = True
    ) -> tuple[Nest, Ring]:
        """Returns both with the items in it that a step in each of N environments completes.

        Args:
            recent: what is kept beside the items.
            ring: of the items.
            before: see `acting.take_step`, which returns the next two; where an episode had ended, there is a reset.
            row: likewise.
            after: likewise.
            is_taken: whether there was such a step; without, nothing changes, bool ``[]``.
        """
        ...

    def look_up(self, recent: Nest, sample: ReplaySample[Nest]) -> ReplaySample[Nest]:
        """Returns the batch of an update for items that were drawn."""
        ...


class Store(NamedTuple):
    """Holds the experience that is kept from one step to the next.

    Attributes:
        recent: what its `Keeper` keeps beside the items.
        ring: the items.
        key: PRNG key ``uint32[2]``, of what is drawn.
    """

    recent: Nest
    ring: Ring
    key: Array

    def items(self) -> Nest:
        """Returns what grows with the number of items; a checkpoint has it in a file of its own."""
        marks = self.ring.marks
        rows = self.recent.steps if isinstance(self.recent, Rows) else ()
        return rows, self.ring.items, (marks.times_drawn, marks.priorities), marks.tree

    def with_items(self, items: Nest) -> Store:
        """Returns the store with others than `items` returned."""
        rows, held, (times_drawn, priorities), tree = items
        recent = self.recent._replace(steps=rows) if isinstance(self.recent, Rows) else self.recent
        marks = self.ring.marks._replace(times_drawn=times_drawn, priorities=priorities, tree=tree)
        return self._replace(recent=recent, ring=self.ring._replace(items=held, marks=marks))

    def num_filled(self) -> list[int]:
        """Returns how much of each array of `items` is in use, along its first axis."""
        rows, *held, tree = (jax.tree.leaves(part) for part in self.items())
        num_rows = int(jnp.max(self.recent.count)) if rows else 0
        num_items = int(self.ring.size)
        return [
            *(min(num_rows, len(leaf)) for leaf in rows),
            *(num_items for part in held for _ in part),
            *(num_items for _ in tree[:1]),  # A weight is an item's; what is above is small.
            *map(len, tree[1:]),
        ]


class _Learning(NamedTuple):
    """Holds what changes with an update; the items are none of it, and so are not copied."""

    training: Nest
    tally: Array
    key: Array
    marks: Marks
    metrics: Mapping[str, Array]


def make_keeper(experience: Transitions | Sequences, num_envs: int) -> Keeper:
    """Returns the twin of an experience's adder for N environments."""
    if isinstance(experience, Sequences):
        return SequenceKeeper(experience.config, num_envs)
    return TransitionKeeper(experience.config)


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
class ReplayRounds:
    """Takes steps in N environments, and after each the updates that are due, on items drawn from a ring.

    A round is of `_STEPS` steps, or of fewer where it reaches the target: then it ends with the step that does.

    Attributes:
        rows: of a round, at most.
    """

    def __init__(
        self,
        environment: JaxEnvironment,
        policy: Policy,
        update: Update,
        experience: Transitions | Sequences,
        num_envs: int,
        members: Members = ALONE,
    ):
        """Computes nothing yet; `checks` has looked at the settings."""
        config, plan = experience.config, experience.batch_plan
        self._environment, self._policy, self._update, self._members = environment, policy, update, members
        self._config, self._batch_size = config, plan.batch_size
        self._due = UpdatesDue(find_rate(experience), config.min_replay_size, plan.num_updates)
        self._keeper = make_keeper(experience, num_envs)
        self.rows = _STEPS * num_envs

    def first_store(self, acting: Acting, key: Array) -> Store:
        """Returns an empty store; see `rounds.Rounds`."""
        params = jax.eval_shape(lambda: self._update.variables(self._update.init(key))["policy"])
        reset = fill_pool(self._environment, acting)[1]
        step = jax.eval_shape(
            lambda params: take_step(self._environment, self._policy, params, acting, reset, self._members)[1], params
        )
        return Store(*self._keeper.start(step, acting.timestep.observation), key)

    def first_metrics(self, training: Nest, acting: Acting, store: Store) -> Mapping[str, Array]:
        """Returns metrics of an update, for their shapes."""
        learning = _Learning(training, jnp.zeros(3, jnp.int32), store.key, store.ring.marks, {})
        return self._learn_once(store, acting.num_steps, learning).metrics

    def run(
        self, training: Nest, acting: Acting, store: Store, tally: Array, metrics: Mapping[str, Array], target: Array
    ) -> Round:
        """Runs a round; see `rounds.Rounds`."""
        acting, reset = fill_pool(self._environment, acting)

        def has_time(carry: tuple[Round, Array]) -> Array:
            found, count = carry
            return (count < _STEPS) & (found.acting.num_steps < target)

        def may_act(carry: tuple[Round, Array]) -> Array:
            return has_time(carry) & ~self._is_due(carry[0])

        def is_open(carry: tuple[Round, Array]) -> Array:
            return self._members.any(has_time(carry) | self._is_due(carry[0]))

        def act(carry: tuple[Round, Array]) -> tuple[Round, Array]:
            found, count = carry
            acts = may_act(carry)
            return self._step(found, acts, reset), count + acts.astype(jnp.int32)

        def go_on(carry: tuple[Round, Array]) -> tuple[Round, Array]:
            # One that is to learn waits until all are: else an update would be computed whenever one member is.
            carry = jax.lax.while_loop(lambda carry: self._members.any(may_act(carry)), act, carry)
            return self._learn(carry[0]), carry[1]

        none = Episodes(jnp.int32(0), jnp.float32(0.0), jnp.int32(0))
        first = Round(training, acting, store, tally, metrics, none, jnp.array(True))
        carry = (first, jnp.int32(0))
        last: Round = jax.lax.while_loop(is_open, go_on, carry)[0]
        return last

    def _is_due(self, now: Round) -> Array:
        return now.tally[0] < self._due(now.store.ring.num_inserted)

    def _step(self, now: Round, acts: Array, reset: Reset) -> Round:
        """Takes a step, but in a member that waits."""
        params = self._update.variables(now.training)["policy"]
        acting, row, episodes = take_step(self._environment, self._policy, params, now.acting, reset, self._members)
        seen = row.observation, row.reward, acting.timestep.observation
        is_finite = now.is_finite & (all_finite(seen) | (now.tally[1] >= 0))
        is_taken = acts if self._members.are_many else True
        recent, ring = self._keeper.add(now.store.recent, now.store.ring, now.acting, row, acting, is_taken)
        new = acting, jax.tree.map(jnp.add, now.episodes, episodes), is_finite
        acting, episodes, is_finite = self._members.choose(acts, new, (now.acting, now.episodes, now.is_finite))
        return now._replace(
            acting=acting,
            store=now.store._replace(recent=recent, ring=ring),
            episodes=episodes,
            is_finite=is_finite,
        )

    def _learn(self, now: Round) -> Round:
        """Makes the updates that are due."""
        store, due = now.store, self._due(now.store.ring.num_inserted)
        # A loop and no `cond`: under `vmap`, that would compute an update at each step, and copy what it looks at.
        last: _Learning = jax.lax.while_loop(
            lambda learning: self._members.any(learning.tally[0] < due),
            lambda learning: self._learn_once(store, now.acting.num_steps, learning, learning.tally[0] < due),
            _Learning(now.training, now.tally, store.key, store.ring.marks, now.metrics),
        )
        store = store._replace(ring=store.ring._replace(marks=last.marks), key=last.key)
        return now._replace(training=last.training, store=store, tally=last.tally, metrics=last.metrics)

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
