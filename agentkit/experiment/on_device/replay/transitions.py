"""n-step transitions, made by N environments in a compiled loop and drawn from a ring, equal to `adders.NStepAdder`'s.

That adder says what is in them. They enter the ring in its order and at its time: those that end at o_t when a_t is
taken, and at an episode's end all that remain. So the counts of items and of updates at each step are the host's.
"""

from __future__ import annotations

from typing import NamedTuple, final

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.agents.common.experience import ReplayConfig
from agentkit.experiment.on_device.acting import choose
from agentkit.experiment.on_device.replay.ring import Ring, insert, make_ring
from agentkit.types import LAST, Array, Nest, ReplaySample, Step, Transition


class Window(NamedTuple):
    """Holds the last n steps of the episodes that N environments are in, the newest one last.

    Attributes:
        steps: leaves ``[N, n, ...]``.
        count: how many of them there are, int32 ``[N]``.
    """

    steps: Step
    count: Array


@final
class TransitionKeeper:
    """Makes transitions of steps; see `store.Keeper`. The window holds steps of which not all are written."""

    def __init__(self, config: ReplayConfig):
        """Takes what says n, gamma, the ring's capacity, and the exponent of priorities."""
        self._config = config

    def start(self, step: Step, observation: Nest) -> tuple[Window, Ring]:
        """Returns an empty window, and an empty ring; see `store.Keeper`."""
        n = self._config.n_step
        steps = jax.tree.map(lambda x: jnp.zeros((x.shape[0], n, *x.shape[1:]), x.dtype), step)
        window = Window(steps, jnp.zeros(step.reward.shape[0], jnp.int32))
        item = jax.eval_shape(lambda last: jax.tree.map(lambda x: x[0, 0], _transitions(steps, 1.0, last)), observation)
        return window, make_ring(item, self._config.replay_size, self._config.prioritized)

    def add(
        self, recent: Window, ring: Ring, before: TimeStep, row: Step, after: TimeStep, is_taken: Array | bool = True
    ) -> tuple[Window, Ring]:
        """Returns both with a step and the transitions that it completes; a reset completes nothing."""
        window, config, n = recent, self._config, recent.steps.reward.shape[1]
        moved = before.step_type != LAST
        ended = after.step_type == LAST
        oldest = n - jnp.maximum(window.count, 1)  # [N]
        earlier = _transitions(window.steps, config.discount, row.observation)
        earlier = jax.tree.map(lambda x: x[jnp.arange(x.shape[0]), oldest][:, None], earlier)
        steps = jax.tree.map(lambda x, new: jnp.concatenate([x[:, 1:], new[:, None]], 1), window.steps, row)
        count = jnp.where(moved, jnp.minimum(window.count + 1, n), 0)
        remaining = _transitions(steps, config.discount, after.observation)
        items = jax.tree.map(lambda *parts: jnp.concatenate(parts, 1), earlier, remaining)  # [N, 1 + n, ...]
        are_there = [window.count[:, None] > 0, ended[:, None] & (jnp.arange(n)[None] >= n - count[:, None])]
        items = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), items)
        mask = (jnp.concatenate(are_there, 1) & jnp.reshape(is_taken, (-1, 1))).reshape(-1)
        new = Window(steps, jnp.where(ended, 0, count))
        if is_taken is not True:
            new = choose(jnp.asarray(is_taken), new, window)
        return new, insert(ring, items, mask, config.priority_exponent)

    def look_up(self, recent: Window, sample: ReplaySample[Transition]) -> ReplaySample[Transition]:
        """Returns the sample itself: items are whole."""
        del recent
        return sample


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
