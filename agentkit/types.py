"""The records that flow through agentkit, and the one place that says what their fields mean.

Time convention (rlax's): a suffix ``_tm1`` is the earlier time, ``_t`` the later. Shapes are
written ``[T, B, ...]``: time first, then batch.

Discounts (whoever sums rewards applies gamma):

* The *environment's* discount is dm_env's: 1 in mid-episode, 0 on termination, and 1 on the LAST
  step of a truncated episode, which therefore bootstraps.
* ``Transition.discount`` is exactly what multiplies the bootstrap value: gamma**n times the product
  of the environment's discounts over the n summed rewards. No loss multiplies gamma in again.
* ``Step.discount`` is the environment's own. A loss that sums over steps applies gamma itself.
* Of several agents in one environment, a step of an agent is from one of its turns to its next, whoever acts meanwhile:
  the environment gives it r_1 + d_1 r_2 + ... and the product of the discounts. No gamma is between them.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

Nest = Any
"""A tree of dicts, tuples, lists and NamedTuples whose leaves are arrays (or array specs)."""

Array = Any
"""A numpy or JAX array."""

Params = Any
"""Parameters of networks: Haiku's dicts of arrays, or tuples of them. Networks and losses know the form."""


AgentId = str
"""The name of one of several agents in an environment."""

T = TypeVar("T")

FIRST, MID, LAST = 0, 1, 2
"""dm_env's step types, to compare a batch's int32 ``[N]`` with: numpy takes 3 us for an IntEnum, 0.6 for an int."""

WAIT = 3
"""The step type, in a batch, of one that has not moved while others began an episode: no step (decision 100)."""


class Transition(NamedTuple):
    """Holds an n-step transition; `agentkit.adders.NStepAdder` writes it.

    Attributes:
        observation: o_t, nest of ``[...]``.
        action: a_t, the action taken on seeing o_t.
        reward: the discounted n-step sum r_{t+1} + gamma d_{t+1} r_{t+2} + ..., float32 ``[]``.
        discount: what multiplies the bootstrap value, gamma**n d_{t+1}...d_{t+n}, float32 ``[]``.
        next_observation: o_{t+n}.
        extras: what the policy emitted with a_t (log-probabilities, recurrent state), or ``()``.
    """

    observation: Nest
    action: Nest
    reward: Nest
    discount: Nest
    next_observation: Nest
    extras: Nest = ()


class Step(NamedTuple):
    """Holds one step of a sequence or an episode; leaves are ``[T, ...]`` once written as an item.

    Attributes:
        observation: o_t.
        action: a_t, taken on seeing o_t; zeros on the final step of an episode.
        reward: r_{t+1}, received for a_t; zero on the final step.
        discount: the environment's discount d_{t+1}; zero on the final step, so that nothing is
            bootstrapped from what comes after it.
        start_of_episode: bool, True where o_t is the first observation of an episode.
        extras: what the policy emitted with a_t, or ``()``.
    """

    observation: Nest
    action: Nest
    reward: Nest
    discount: Nest
    start_of_episode: Nest
    extras: Nest = ()


class SampleInfo(NamedTuple):
    """Holds replay's knowledge of a batch of sampled items; every field is an array ``[B]``.

    Attributes:
        probability: float64, the chance with which the sampler drew this item.
        table_size: int64, items in the table when it was drawn.
        priority: float64, the item's priority when it was drawn.
        times_sampled: int32, how often it has been drawn, this time included.
    """

    probability: Array
    table_size: Array
    priority: Array
    times_sampled: Array


class ReplaySample(NamedTuple, Generic[T]):
    """Holds a batch.

    `T` is the type of ``data``: `Transition`, or `Step` where items are sequences, ``[B, T, ...]``.

    Attributes:
        info: a `SampleInfo` of ``[B]``.
        data: a nest whose leaves are ``[B, ...]``.
        num_updates: updates made before the one on this batch, int32 ``[]``; ``()`` until the learner fills it in.
        num_steps: environment steps taken by then, int32 ``[]``; likewise.
        steps_per_action: how many of these an action of the batch is, float32 ``[]``; ``()`` for one, as it is with a
            single agent.
    """

    info: SampleInfo
    data: T
    num_updates: Array = ()
    num_steps: Array = ()
    steps_per_action: Array = ()


class DrawnBatch(NamedTuple, Generic[T]):
    """Holds the output of a sampler or a dataset: a batch, and beside it the names of its items.

    Attributes:
        keys: uint64 ``[B]``, for `Replay.update_priorities`. They stay on the host: JAX would truncate them.
        sample: what the learner's update gets.
    """

    keys: Array
    sample: ReplaySample[T]


class LossOutput(NamedTuple):
    """Holds the results of a loss.

    Attributes:
        loss: scalar to minimise.
        metrics: dict of scalars to log.
        priorities: new item priorities ``[B]``, or None to leave them.
    """

    loss: Array
    metrics: dict[str, Array]
    priorities: Array | None = None


class TableInfo(NamedTuple):
    """Holds a table's counters at one instant; the same fields from every replay backend."""

    name: str
    size: int
    max_size: int
    num_inserted: int
    num_sampled: int

    @property
    def samples_per_insert(self) -> float:
        """Returns items sampled per item inserted since the table was made; 0 before the first insert."""
        return self.num_sampled / self.num_inserted if self.num_inserted else 0.0


Seed = int | np.random.SeedSequence
"""What seeds a component: an int, or a numpy SeedSequence."""


def has_action(start_of_episode: Array) -> Array:
    """Marks rows of segments or sequences that hold an action, float32 ``[B, T]``: all but an episode's final one.

    Args:
        start_of_episode: of the rows and of the one after them, bool ``[B, T + 1]``. The row before an
            episode's first is the final one of the episode before.
    """
    return 1.0 - start_of_episode[:, 1:].astype(np.float32)


def has_observation(start_of_episode: Array) -> Array:
    """Marks rows of segments that hold an observation of an episode, float32 ``[B, T]``: all but padding.

    Args:
        start_of_episode: of the rows and of the one after them, bool ``[B, T + 1]``. Padding is where both a row and
            the next are said to start an episode, as none has without an action.
    """
    return 1.0 - (start_of_episode[:, :-1] & start_of_episode[:, 1:]).astype(np.float32)
