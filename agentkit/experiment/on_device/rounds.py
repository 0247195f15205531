"""Rounds: what the compiled loop repeats, a way for each kind of experience."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

from agentkit.experiment.on_device.acting import Acting, Episodes
from agentkit.types import Array, Nest


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


class Rounds(Protocol):
    """Acts and learns as one kind of experience wants it; all is pure, and to be compiled."""

    @property
    def rows(self) -> int:
        """Returns the rows of a round in all environments, at most; those that reset are no steps."""
        ...

    def first_store(self, acting: Acting, key: Array) -> Nest:
        """Returns the experience that is kept at the start of a run.

        Args:
            acting: as `acting.start` returns it.
            key: PRNG key ``uint32[2]``, of what is drawn from it.
        """
        ...

    def first_metrics(self, training: Nest, acting: Acting, store: Nest) -> Mapping[str, Array]:
        """Returns the metrics of an update, whose shapes alone count."""
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
