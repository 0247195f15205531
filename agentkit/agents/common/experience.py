"""The three ways to keep experience: n-step transitions, overlapping sequences, and a queue of segments."""

from __future__ import annotations

import dataclasses
import math
from typing import Literal, final, get_args

import jax

from agentkit.actors.batches import SplitAdder
from agentkit.adders import (
    BatchedSegmentAdder,
    EpisodeAdder,
    NStepAdder,
    SegmentAdder,
    SequenceAdder,
    segment_layout,
)
from agentkit.agents.common.past import past_of_sequences, past_of_transitions
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, check_ranges
from agentkit.agents.common.views import Reach
from agentkit.core import Adder, BatchPlan
from agentkit.errors import ConfigError, SaysWhatWasMeant, unknown_name
from agentkit.learning import Schedule, rate_limit
from agentkit.replay import Prioritized, Replay, Table, Uniform, queue_table
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

_SHORTEST_SEGMENT = 5
"""Least rows of a segment where many environments fill an update: rewards of fewer steps say little."""

_LONGEST_EPISODE = 1_000
"""Steps that there is room for where nobody says how long episodes are: most of gymnasium's have fewer."""

BatchMode = Literal["truncate_episodes", "complete_episodes"]


@dataclasses.dataclass(frozen=True)
class ReplayConfig(metaclass=SaysWhatWasMeant):
    """Holds the hyperparameters of agents that learn from replay; an "item" is a transition or a sequence.

    Attributes:
        discount: gamma, in [0, 1].
        n_step: rewards summed before bootstrapping (Sutton 1988).
        batch_size: items per update.
        updates_per_step: gradient updates for each transition inserted. That is one a step, and n_step - 1 more an
            episode, whose first state is in n_step of them (decision 57).
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: items held.
        min_replay_size: items held before learning begins.
        prioritized: draw items by the size of their errors or losses (Schaul et al. 2016) instead of uniformly.
        priority_exponent: alpha, how much prioritisation is used, where `prioritized`.
        importance_exponent: beta, how much of its bias is undone, where `prioritized`.
    """

    discount: Fraction = 0.99
    n_step: Count = 1
    batch_size: Count = 256
    updates_per_step: Positive = 1.0
    updates_per_call: Count = 1
    replay_size: Count = 1_000_000
    min_replay_size: Count = 1_000
    prioritized: bool = False
    priority_exponent: NotNegative = 0.6
    importance_exponent: Fraction | Schedule = 0.4

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and one item of more steps than replay has items."""
        check_ranges(self)
        if self.n_step > 1 and self.n_step >= self.replay_size:
            raise ConfigError(
                f"n_step must be less than replay_size, found n_step={self.n_step} and replay_size={self.replay_size}. "
                "Usual are 1 to 10 steps."
            )


@final
@dataclasses.dataclass(frozen=True)
class Transitions:
    """Keeps n-step `Transition`s in one table, drawn uniformly or by priority, with the extras of their first step.

    Attributes:
        config: says how many rewards are summed, and what is held and drawn.
        table: the table's name.
        scale_rewards: whether rewards of a data set are scaled by its range of returns (`datasets.scale_rewards`).
        reach: how many steps before them items show, for views (`agents.addons.with_views`); None for none.
    """

    config: ReplayConfig
    table: str = "transitions"
    scale_rewards: bool = False
    reach: Reach | None = None

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        return BatchPlan(self.table, self.config.batch_size, self.config.updates_per_call)

    def with_num_envs(self, num_envs: int) -> Transitions:
        """Returns itself: each environment writes for itself."""
        del num_envs
        return self

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        config, has_past = self.config, self.reach is not None
        layout = NStepAdder.layout(environment_spec, extras_spec, marks_starts=has_past)
        if self.reach is not None:
            layout = past_of_transitions(layout, self.reach, config.n_step)
        return [replay_table(self.table, layout, config, self.batch_plan, config.updates_per_step)]

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`. New items get the largest priority seen; the update replaces it once they are drawn."""
        n, discount = self.config.n_step, self.config.discount

        def make() -> NStepAdder:
            writer = replay.writer(NStepAdder.history(n) + (self.reach.start if self.reach else 0))
            return NStepAdder(
                writer,
                environment_spec,
                tables=self.table,
                n=n,
                discount=discount,
                extras_spec=extras_spec,
                marks_starts=self.reach is not None,
            )

        return make() if num_envs is None else SplitAdder([make() for _ in range(num_envs)])


@dataclasses.dataclass(frozen=True)
class SequencesConfig(ReplayConfig):
    """Holds the hyperparameters of agents that learn from sequences in replay.

    Attributes:
        sequence_length: rows of a sequence, T; one more is stored, to bootstrap from.
        sequence_period: rows from the start of one sequence to the next.
    """

    sequence_length: Count = 40
    sequence_period: Count = 20


@final
@dataclasses.dataclass(frozen=True)
class Sequences:
    """Keeps overlapping sequences of `Step`s ``[T + 1]`` with the policy's extras, drawn uniformly or by priority.

    Sequences run on from one episode into the next (`SequenceAdder`'s "continue"), so nothing is padded, and short
    episodes fill whole sequences; networks begin anew where a row has ``start_of_episode``.

    Attributes:
        config: says how long sequences are, and what is held and drawn.
        table: the table's name.
        reach: see `Transitions`.
    """

    config: SequencesConfig
    table: str = "sequences"
    reach: Reach | None = None

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        return BatchPlan(self.table, self.config.batch_size, self.config.updates_per_call)

    def with_num_envs(self, num_envs: int) -> Sequences:
        """Returns itself: each environment writes for itself."""
        del num_envs
        return self

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        config = self.config
        layout = SequenceAdder.layout(environment_spec, config.sequence_length + 1, extras_spec)
        if self.reach is not None:
            layout = past_of_sequences(layout, self.reach)
        updates_per_item = config.updates_per_step * config.sequence_period
        return [replay_table(self.table, layout, config, self.batch_plan, updates_per_item)]

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`. New items get the largest priority seen; the update replaces it once they are drawn."""
        length = self.config.sequence_length + 1

        def make() -> SequenceAdder:
            return SequenceAdder(
                replay.writer(SequenceAdder.history(length) + (self.reach.start if self.reach else 0)),
                environment_spec,
                tables=self.table,
                length=length,
                period=self.config.sequence_period,
                end_of_episode="continue",
                extras_spec=extras_spec,
            )

        return make() if num_envs is None else SplitAdder([make() for _ in range(num_envs)])


@dataclasses.dataclass(frozen=True)
class SegmentsConfig(metaclass=SaysWhatWasMeant):
    """Holds the hyperparameters of agents that learn once from each segment of experience (on-policy).

    Attributes:
        segment_length: rows that an environment fills for each update, T; None for so many that an update has
            `Segments.update_rows` at least, however many environments there are. Of complete episodes the steps of
            the longest, which a longer one is refused for; None for 1,000.
        batch_size: segments per update; None for one of each environment of an actor, so that an update follows
            every T steps of all environments.
        discount: gamma, in [0, 1].
        batch_mode: RLlib's; "truncate_episodes" cuts the stream of steps into segments of T rows exactly, and
            "complete_episodes" makes each segment one whole episode, whose last rows are padding.
    """

    segment_length: Count | None = None
    batch_size: Count | None = None
    discount: Fraction = 0.99
    batch_mode: BatchMode = dataclasses.field(default="truncate_episodes", kw_only=True)

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and an unknown batch mode."""
        check_ranges(self)
        if self.batch_mode not in get_args(BatchMode):
            raise unknown_name("batch_mode", str(self.batch_mode), get_args(BatchMode))


@final
@dataclasses.dataclass(frozen=True)
class Segments:
    """Hands the learner each segment of T rows, ``[T + 1]`` `Step`s with the policy's extras, once.

    N environments fill segments (see `agentkit.adders.BatchedSegmentAdder`; `EpisodeAdder` where each is to be one
    whole episode), and a short queue holds them. Of several environments with complete episodes, those that are
    under way at an update end with actions of the policy after it.

    Attributes:
        config: says how long segments are, and how many an update takes.
        num_minibatches: into which an update cuts its rows, or its segments where the policy has a memory.
        queue_size: segments that wait for the learner, at most: so far may actors be ahead; None for as few as can be.
        num_envs: environments of an actor.
        table: the table's name.
        update_rows: rows of an update, at least, where the config has no segment_length.
        reach: see `Transitions`; segments begin with so many rows from before them.
    """

    config: SegmentsConfig
    num_minibatches: int = 1
    queue_size: int | None = None
    num_envs: int = 1
    table: str = "segments"
    update_rows: int = 2_048
    reach: Reach | None = None

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        size = self.config.batch_size
        return BatchPlan(self.table, self.num_envs if size is None else size)

    @property
    def completes_episodes(self) -> bool:
        """Returns whether each segment is one whole episode."""
        return self.config.batch_mode == "complete_episodes"

    @property
    def segment_length(self) -> int:
        """Returns T: that of the config, or what gives an update enough rows, which minibatches divide."""
        if self.config.segment_length is not None:
            return self.config.segment_length
        if self.completes_episodes:
            return math.ceil(_LONGEST_EPISODE / self.num_minibatches) * self.num_minibatches
        least = max(math.ceil(self.update_rows / self.batch_plan.batch_size), _SHORTEST_SEGMENT)
        return math.ceil(least / self.num_minibatches) * self.num_minibatches

    def with_num_envs(self, num_envs: int) -> Segments:
        """See `Experience`."""
        return dataclasses.replace(self, num_envs=num_envs)

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        memory_spec = getattr(extras_spec, "core", ())  # Only a `PolicyExtras` has one.
        self._check_minibatches(has_memory=bool(jax.tree.leaves(memory_spec)))
        num_segments = self.batch_plan.batch_size
        together = num_segments % self.num_envs == 0 and not self.completes_episodes
        least = num_segments if together else num_segments + self.num_envs - 1
        size = least if self.queue_size is None else self.queue_size
        if size < least:
            raise ConfigError(
                f"queue_size must be at least {least} for batches of {num_segments} segments from {self.num_envs} "
                f"environments, found {size}. Raise it, or leave it out."
            )
        layout = segment_layout(environment_spec, self.segment_length, extras_spec, self._num_rows_before)
        return [queue_table(self.table, layout, size)]

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`."""
        table, length = self.table, self.segment_length

        def make_complete() -> EpisodeAdder:
            writer = replay.writer(EpisodeAdder.history())
            return EpisodeAdder(writer, environment_spec, tables=table, length=length, extras_spec=extras_spec)

        if self.completes_episodes:
            return make_complete() if num_envs is None else SplitAdder([make_complete() for _ in range(num_envs)])
        settings = {"tables": table, "length": length, "extras_spec": extras_spec, "history": self._num_rows_before}
        if num_envs is None:
            return SegmentAdder(replay.writer(1), environment_spec, **settings)
        return BatchedSegmentAdder(replay.writer(1), environment_spec, num_envs=num_envs, **settings)

    @property
    def _num_rows_before(self) -> int:
        return 0 if self.reach is None else self.reach.start

    def _check_minibatches(self, has_memory: bool) -> None:
        num_segments, length = self.batch_plan.batch_size, self.segment_length
        if self.config.segment_length is None and self.num_minibatches > self.update_rows:
            raise ConfigError(
                f"num_minibatches must be at most {self.update_rows}, the rows of an update, found "
                f"{self.num_minibatches}. Choose fewer, or give a segment_length."
            )
        if num_segments * length % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches={self.num_minibatches} does not divide the rows of an update: {num_segments} "
                f"segments of {length}. Choose a divisor."
            )
        if has_memory and num_segments % self.num_minibatches:
            raise ConfigError(
                f"num_minibatches={self.num_minibatches} does not divide the {num_segments} segments of an update, "
                "which a policy with a memory learns from whole. Choose a divisor, more environments or another "
                "batch_size."
            )


def replay_table(name: str, layout: Nest, config: ReplayConfig, plan: BatchPlan, updates_per_item: float) -> Table:
    """Returns the table of items drawn uniformly or by priority, as often as the config says."""
    return Table(
        name,
        layout,
        max_size=config.replay_size,
        sampler=Prioritized(config.priority_exponent) if config.prioritized else Uniform(),
        rate_limiter=rate_limit(plan, updates_per_item, config.min_replay_size),
    )
