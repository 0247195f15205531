"""Rounds: what the compiled loop repeats, a way for each kind of experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import jax.numpy as jnp

from agentkit.experiment.on_device.acting import Acting, Episodes
from agentkit.types import Array, Nest


class Progress(NamedTuple):
    """Holds what an agent's updates change.

    Attributes:
        training: the training state.
        store: the experience that is kept.
        tally: see `learning.finite.start_tally`.
        metrics: of the newest update.
    """

    training: Nest
    store: Nest
    tally: Array
    metrics: Mapping[str, Array]


class Round(NamedTuple):
    """Holds the results of a round.

    Attributes:
        training: the training state after it.
        acting: the environments' and the policy's.
        store: the experience that is kept.
        tally: see `learning.finite.start_tally`.
        metrics: of the newest update.
        episodes: sums over those that ended in it.
        is_finite: whether its rewards and observations were all finite, bool ``[]``; True after an update that was not,
            which is then the cause.
    """

    training: Nest
    acting: Acting
    store: Nest
    tally: Array
    metrics: Mapping[str, Array]
    episodes: Episodes
    is_finite: Array


class Scratch(NamedTuple):
    """Holds what a round fills and does not hand on.

    Attributes:
        segments: to learn from, leaves ``[times, N, T + 1, ...]``, of several policies by id; ``()`` where agents learn
            from replay.
        resets: the pool of them, see `acting.make_pool`.
    """

    segments: Nest
    resets: Nest


class Rounds(Protocol):
    """Acts and learns as one kind of experience wants it; all is pure, and to be compiled.

    Of several agents, training states, what is kept, tallies and metrics are by policy id.
    """

    @property
    def rows(self) -> int:
        """Returns the rows of a round in all environments, at most; those that reset are no steps."""
        ...

    def start(self, key: Array) -> Acting:
        """Returns the state in which environments and policies begin.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        ...

    def first_training(self, key: Array) -> Nest:
        """Returns the training state that updates begin with."""
        ...

    def first_store(self, acting: Acting, key: Array) -> Nest:
        """Returns the experience that is kept at the start of a run.

        Args:
            acting: as `start` returns it.
            key: PRNG key ``uint32[2]``, of what is drawn from it.
        """
        ...

    def first_metrics(self, training: Nest, acting: Acting, store: Nest) -> Mapping[str, Array]:
        """Returns the metrics of an update, whose shapes alone count."""
        ...

    def scratch(self, key: Array) -> Scratch:
        """Returns what a round fills, whose shapes alone count.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        ...

    def no_episodes(self) -> Episodes:
        """Returns the sums over no episodes."""
        ...

    def run(
        self, training: Nest, acting: Acting, store: Nest, tally: Array, metrics: Mapping[str, Array], target: Array
    ) -> Round:
        """Runs a round.

        Args:
            training: the training state.
            acting: the environments' and the policy's.
            store: the experience that is kept.
            tally: see `learning.finite.start_tally`.
            metrics: of the update before.
            target: environment steps in all, at which it may end early, int32 ``[]``.
        """
        ...


def end_of_round(num_steps: Array, target: Array, rows: int) -> Array:
    """Returns the step at which a round ends that nothing else ends: the next multiple of `rows`, or a target before.

    So it is known which round a step belongs to, wherever rounds were cut. Equal numbers ``num_steps // rows`` are one.

    Args:
        num_steps: so far, int32 ``[]``.
        target: see `Rounds.run`.
        rows: see `Rounds.rows`.
    """
    return num_steps + jnp.minimum(target - num_steps, rows - num_steps % rows)
