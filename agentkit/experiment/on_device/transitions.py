"""n-step transitions, made by N environments in a compiled loop and drawn from a ring, equal to `adders.NStepAdder`'s.

That adder says what is in them. They enter the ring in its order and at its time: those that end at o_t when a_t is
taken, and at an episode's end all that remain. So the counts of items and of updates at each step are the host's.
"""

from __future__ import annotations

import fractions
from collections.abc import Mapping
from typing import NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.on_device.acting import Acting, Episodes, all_finite, take_step
from agentkit.experiment.on_device.ring import Marks, Ring, draw, insert, make_ring, set_priorities
from agentkit.experiment.on_device.rounds import Round
from agentkit.learning import Update
from agentkit.learning.compiled import counted_update
from agentkit.learning.finite import add_to_tally
from agentkit.types import LAST, Array, Nest, Step, Transition

MOST_PARTS = 1_000
"""The largest denominator of updates for each item."""

_STEPS = 32
"""Of a round in each environment: as many share a row of the training's log."""


class Window(NamedTuple):
    """Holds the last n steps of the episodes that N environments are in, the newest one last.

    Attributes:
        steps: leaves ``[N, n, ...]``.
        count: how many of them there are, int32 ``[N]``.
    """

    steps: Step
    count: Array


class Store(NamedTuple):
    """Holds the experience that is kept from one step to the next.

    Attributes:
        window: steps of which not all transitions are written.
        ring: the transitions.
        key: PRNG key ``uint32[2]``, of what is drawn.
    """

    window: Window
    ring: Ring
    key: Array


class _Learning(NamedTuple):
    """Holds what changes with an update; the items are none of it, and so are not copied."""

    training: Nest
    tally: Array
    key: Array
    marks: Marks
    metrics: Mapping[str, Array]


def add_step(store: Store, config: ReplayConfig, before: Acting, row: Step, after: Acting) -> Store:
    """Returns the store with the transitions in it that a step in each of N environments completes.

    Args:
        store: of the steps before.
        config: says gamma, and the exponent of priorities.
        before: see `acting.take_step`, which returns the other two; where an episode had ended, there is a reset,
            which completes nothing.
        row: likewise.
        after: likewise.
    """
    window, n = store.window, store.window.steps.reward.shape[1]
    moved = before.timestep.step_type != LAST
    ended = after.timestep.step_type == LAST
    oldest = n - jnp.maximum(window.count, 1)  # [N]
    earlier = _transitions(window.steps, config.discount, row.observation)
    earlier = jax.tree.map(lambda x: x[jnp.arange(x.shape[0]), oldest][:, None], earlier)
    steps = jax.tree.map(lambda x, new: jnp.concatenate([x[:, 1:], new[:, None]], 1), window.steps, row)
    count = jnp.where(moved, jnp.minimum(window.count + 1, n), 0)
    remaining = _transitions(steps, config.discount, after.timestep.observation)
    items = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), earlier, remaining)  # [N, 1 + n, ...]
    are_there = [window.count[:, None] > 0, ended[:, None] & (jnp.arange(n)[None] >= n - count[:, None])]
    items = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)
    ring = insert(store.ring, items, jnp.concatenate(are_there, 1).reshape(-1), config.priority_exponent)
    return store._replace(window=Window(steps, jnp.where(ended, 0, count)), ring=ring)


def _transitions(steps: Step, discount: float, last: Nest) -> Transition:
    """Returns the transitions from each of the steps ``[N, n, ...]`` to the observation after the last one."""
    n = steps.reward.shape[1]
    total, factor = jnp.zeros_like(steps.reward[:, 0]), jnp.ones_like(steps.reward[:, 0])
    totals, factors = [], []
    for i in reversed(range(n)):  # As the adder does, from the last step backwards.
        weight = discount * steps.discount[:, i]
        total, factor = steps.reward[:, i] + weight * total, factor * weight
        totals.append(total)
        factors.append(factor)
    reward, bootstrap = (jnp.stack(parts[::-1], 1) for parts in (totals, factors))
    after = jax.tree.map(lambda x: jnp.repeat(x[:, None], n, 1), last)
    return Transition(steps.observation, steps.action, reward, bootstrap, after, steps.extras)


def find_rate(config: ReplayConfig) -> fractions.Fraction:
    """Returns the updates for each item, as a fraction of whole numbers."""
    return fractions.Fraction(config.updates_per_step).limit_denominator(MOST_PARTS)


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
class TransitionRounds:
    """Takes steps in N environments, and after each the updates that are due, on transitions drawn from a ring.

    A round is of `_STEPS` steps, or of fewer where it reaches the target: then it ends with the step that does.

    Attributes:
        rows: of a round, at most.
    """

    def __init__(
        self, environment: JaxEnvironment, policy: Policy, update: Update, experience: Transitions, num_envs: int
    ):
        """Computes nothing yet; `checks` has looked at the settings."""
        config, plan = experience.config, experience.batch_plan
        self._environment, self._policy, self._update, self._num_envs = environment, policy, update, num_envs
        self._config, self._batch_size = config, plan.batch_size
        self._due = UpdatesDue(find_rate(config), config.min_replay_size, plan.num_updates)
        self.rows = _STEPS * num_envs

    def first_store(self, acting: Acting, key: Array) -> Store:
        """Returns an empty store; see `rounds.Rounds`."""
        params = jax.eval_shape(lambda: self._update.variables(self._update.init(key))["policy"])
        step = jax.eval_shape(lambda params: take_step(self._environment, self._policy, params, acting)[1], params)
        n = self._config.n_step
        steps = jax.tree.map(lambda x: jnp.zeros((x.shape[0], n, *x.shape[1:]), x.dtype), step)
        window = Window(steps, jnp.zeros(self._num_envs, jnp.int32))
        last = acting.timestep.observation
        item = jax.eval_shape(lambda: jax.tree.map(lambda x: x[0, 0], _transitions(steps, 1.0, last)))
        return Store(window, make_ring(item, self._config.replay_size, self._config.prioritized), key)

    def first_metrics(self, training: Nest, acting: Acting, store: Store) -> Mapping[str, Array]:
        """Returns metrics of an update, for their shapes."""
        tally = jnp.zeros(3, jnp.int32)
        learning = _Learning(training, tally, store.key, store.ring.marks, {})
        return self._learn_once(store.ring, acting.num_steps, learning).metrics

    def run(
        self, training: Nest, acting: Acting, store: Store, tally: Array, metrics: Mapping[str, Array], target: Array
    ) -> Round:
        """Runs a round; see `rounds.Rounds`."""

        def goes_on(carry: tuple[Round, Array]) -> Array:
            found, count = carry
            return (count < _STEPS) & (found.acting.num_steps < target)

        def go_on(carry: tuple[Round, Array]) -> tuple[Round, Array]:
            found, count = carry
            return self._step(found), count + 1

        none = Episodes(jnp.int32(0), jnp.float32(0.0), jnp.int32(0))
        first = Round(training, acting, store, tally, metrics, none, jnp.array(True))
        last: Round = jax.lax.while_loop(goes_on, go_on, (first, jnp.int32(0)))[0]
        return last

    def _step(self, now: Round) -> Round:
        params = self._update.variables(now.training)["policy"]
        acting, row, episodes = take_step(self._environment, self._policy, params, now.acting)
        seen = row.observation, row.reward, acting.timestep.observation
        is_finite = all_finite(seen) | (now.tally[1] >= 0)
        store = add_step(now.store, self._config, now.acting, row, acting)
        learning = self._learn(
            store.ring,
            acting.num_steps,
            _Learning(now.training, now.tally, store.key, store.ring.marks, now.metrics),
        )
        return Round(
            learning.training,
            acting,
            store._replace(ring=store.ring._replace(marks=learning.marks), key=learning.key),
            learning.tally,
            learning.metrics,
            jax.tree.map(jnp.add, now.episodes, episodes),
            now.is_finite & is_finite,
        )

    def _learn(self, ring: Ring, num_steps: Array, learning: _Learning) -> _Learning:
        """Makes the updates that are due."""
        due = self._due(ring.num_inserted)
        # A loop and no `cond`: under `vmap`, that would compute an update at each step, and copy what it looks at.
        last: _Learning = jax.lax.while_loop(
            lambda learning: learning.tally[0] < due,
            lambda learning: self._learn_once(ring, num_steps, learning),
            learning,
        )
        return last

    def _learn_once(self, ring: Ring, num_steps: Array, learning: _Learning) -> _Learning:
        key, draw_key = jax.random.split(learning.key)
        batch, places, marks = draw(ring._replace(marks=learning.marks), draw_key, self._batch_size)
        batch = batch._replace(num_updates=learning.tally[0], num_steps=num_steps)
        training, output = counted_update(self._update, learning.training, batch)
        if self._config.prioritized and output.priorities is not None:
            marks = set_priorities(marks, places, output.priorities, self._config.priority_exponent)
        return _Learning(training, add_to_tally(learning.tally, output.metrics, 1), key, marks, output.metrics)
