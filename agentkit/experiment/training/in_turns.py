"""Makes the replay of one process, whose environment and learner take turns, and lets the learner do what is due.

With a learner or a table of a user's own a turn might never end; that is refused.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from agentkit.errors import ConfigError
from agentkit.experiment.training.own_learner import OwnLearner
from agentkit.learning import Learner
from agentkit.replay import InProcessReplay, Replay, Table

MOST_WITHOUT_A_BATCH = 10_000
"""Steps in a row, where one is due: a learner may go over a batch several times."""


def make_replay_in_turns(backend: str, tables: Sequence[Table], seed: int) -> Replay:
    """Makes agentkit's own replay, or Reverb's on a server in this process.

    Args:
        backend: "in_process" or "reverb".
        tables: what it holds.
        seed: of what agentkit's own one draws; Reverb takes none.
    """
    if backend == "in_process":
        return InProcessReplay(tables, seed=seed, in_turns=True)
    from agentkit.replay.reverb.single_process import (
        SingleProcessReverbReplay,  # Loads TensorFlow: only when asked for.
    )

    return SingleProcessReverbReplay(tables, in_turns=True)


class _Due(Protocol):
    """Says what is due; a `datasets.ReplayDataset`, or one that is timed."""

    @property
    def num_taken(self) -> int: ...

    def ready(self) -> bool: ...


def check_turns(table: Table) -> None:
    """Refuses a table from which a learner may draw without end: where they take turns, nobody would act again.

    Raises:
        ConfigError: its rate limit lets samples never wait, and no item goes by being drawn.
    """
    if table.rate_limiter.min_difference == -math.inf and not table.max_times_sampled:
        raise ConfigError(
            f"Table {table.name!r}: expected a rate limit by which the learner waits for new items, found one by which "
            "it never does (MinSize, the default), so that in one process nobody would act again. Give "
            "Table(rate_limiter=learning.rate_limit(batch_plan, updates_per_insert, min_replay_size))."
        )


def learn_what_is_due(learner: Learner | OwnLearner, dataset: _Due) -> None:
    """Lets the learner step until the rate limit lets no batch through.

    Raises:
        ConfigError: it draws none, so that this would never end.
    """
    num_taken, num_without = dataset.num_taken, 0
    while dataset.ready():
        learner.step()
        num_without = num_without + 1 if dataset.num_taken == num_taken else 0
        num_taken = dataset.num_taken
        if num_without == MOST_WITHOUT_A_BATCH:
            raise ConfigError(
                f"make_learner: expected a learner whose step() draws a batch, found one that drew none in "
                f"{num_without:,} steps in a row while one was due. Begin step() with next(parts.dataset)."
            )
