"""What is kept of experience in a compiled loop, and what makes items of steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.agents.common.experience import Sequences, Transitions
from agentkit.experiment.on_device.replay.ring import Ring
from agentkit.experiment.on_device.replay.sequences import Rows, SequenceKeeper
from agentkit.experiment.on_device.replay.sum_tree import FAN_OUT
from agentkit.experiment.on_device.replay.transitions import TransitionKeeper
from agentkit.types import Array, Nest, ReplaySample, Step

ONLY = ""
"""Stands for the policy id where there is one policy."""


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
        self, recent: Nest, ring: Ring, before: TimeStep, row: Step, after: TimeStep, is_taken: Array | bool = True
    ) -> tuple[Nest, Ring]:
        """Returns both with the items in it that a step in each of N environments completes.

        Args:
            recent: what is kept beside the items.
            ring: of the items.
            before: the time steps before it, ``[N, ...]``; where an episode had ended, there is a reset.
            row: see `acting.take_step`, which returns it.
            after: the time steps after it.
            is_taken: whether there was such a step; without, nothing changes, bool ``[]``, or of each ``[N]``.
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
            *(-(-num_items // FAN_OUT**level) for level in range(len(tree))),
        ]


def make_keeper(experience: Transitions | Sequences, num_envs: int) -> Keeper:
    """Returns the twin of an experience's adder for N environments."""
    if isinstance(experience, Sequences):
        return SequenceKeeper(experience.config, num_envs)
    return TransitionKeeper(experience.config)


def stores_of(kept: Nest) -> dict[str, Store]:
    """Returns the stores by policy id, that of a single agent as `ONLY`; of a policy that keeps nothing there is none.

    Args:
        kept: by a `loop.State`: a store, ``()``, or one of the two by policy id.
    """
    by_id = kept if isinstance(kept, dict) else {ONLY: kept}
    return {policy_id: store for policy_id, store in by_id.items() if isinstance(store, Store)}


def change_stores(kept: Nest, change: Callable[[str, Store], Store]) -> Nest:
    """Returns what a `loop.State` keeps, with `change` of each policy id and store; see `stores_of`."""
    if isinstance(kept, dict):
        return {name: change(name, store) if isinstance(store, Store) else store for name, store in kept.items()}
    return change(ONLY, kept) if isinstance(kept, Store) else kept
