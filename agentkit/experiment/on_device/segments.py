"""Segments of experience, made by N environments in a compiled loop; equal to `adders.BatchedSegmentAdder`'s.

That adder says what a segment holds. It works without a change because a step after LAST begins the next episode: the
row of a final observation has no action, and is there in every environment where one ended.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy
from agentkit.adders.segment import segment_layout
from agentkit.agents.common.experience import Segments
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.on_device.acting import (
    Acting,
    Episodes,
    Reset,
    all_finite,
    fill_pool,
    make_pool,
    no_episodes,
    start,
    take_step,
)
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.rounds import Progress, Round, Scratch
from agentkit.learning import Update
from agentkit.learning.compiled import counted_update
from agentkit.learning.finite import add_to_tally
from agentkit.learning.sharing import split_rows
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.types import FIRST, Array, Nest, Params, ReplaySample, SampleInfo, Step, has_action


@final
class SegmentLearning:
    """Learns from segments of T rows in N environments.

    An update comes as soon as there is a batch of B, as on the host. Where B is a multiple of N, a round is as long as
    it takes to fill one; where N is a multiple of B, N / B updates follow at its end.

    Attributes:
        length: rows of a segment, T.
        times: segments of each environment in a round.
    """

    def __init__(self, update: Update, experience: Segments, num_envs: int, steps_per_action: float | None = None):
        """Computes nothing yet; `num_envs` and the batch size of `experience` must divide each other.

        Args:
            update: the algorithm.
            experience: says what it learns from.
            num_envs: N.
            steps_per_action: see `types.ReplaySample`; None for one.
        """
        self._update, self._batch_size = update, experience.batch_plan.batch_size
        self._steps_per_action = () if steps_per_action is None else jnp.float32(steps_per_action)
        self._num_envs = num_envs
        self.length, self.times = experience.segment_length, segments_of_round(experience, num_envs)
        self._num_updates = max(num_envs // self._batch_size, 1)

    def no_segments(self, spec: EnvironmentSpec, extras_spec: Nest) -> Step:
        """Returns zeros in the place of a round's segments, ``[times, N, T + 1, ...]``.

        Args:
            spec: of the environment.
            extras_spec: of the policy.
        """
        segment = segment_layout(spec, self.length, extras_spec).step
        zeros: Step = jax.tree.map(lambda x: jnp.zeros((self.times, self._num_envs, *x.shape), x.dtype), segment)
        return zeros

    def learn(
        self, training: Nest, tally: Array, segments: Step, num_steps: Array,
        metrics: Mapping[str, Array] | None = None,
    ) -> Progress:  # fmt: skip
        """Makes the updates of a round; it keeps nothing for the next one.

        Args:
            training: the training state.
            tally: see `learning.finite.start_tally`.
            segments: of the round, ``[times, N, T + 1, ...]``.
            num_steps: environment steps so far, int32 ``[]``.
            metrics: of the newest update, where batches may have no action in them, which are no updates then; None
                where each has some.
        """
        newest = () if metrics is None else metrics

        def update(carry: tuple[Nest, Array, Nest], segments: Step) -> tuple[tuple[Nest, Array, Nest], Nest]:
            def learnt() -> tuple[Nest, Array, Mapping[str, Array]]:
                training, tally, _ = carry
                batch = as_sample(split_rows(segments))._replace(
                    num_updates=tally[0], num_steps=num_steps, steps_per_action=self._steps_per_action
                )
                training, output = counted_update(self._update, training, batch)
                return training, add_to_tally(tally, output.metrics, 1), output.metrics

            if metrics is not None:
                carry = jax.lax.cond(jnp.any(has_action(segments.start_of_episode) > 0), learnt, lambda: carry)
                return carry, carry[2]
            training, tally, found = learnt()
            return (training, tally, ()), found

        # [times, N, T + 1, ...] to [updates, B, T + 1, ...]: in the order in which a queue has them.
        shape = (self._num_updates, self._batch_size)
        batches = jax.tree.map(lambda x: x.reshape(shape + x.shape[2:]), segments)
        (training, tally, _), found = jax.lax.scan(update, (training, tally, newest), batches)
        return Progress(training, (), tally, jax.tree.map(lambda x: x[-1], found))


@final
class SegmentRounds:
    """Fills segments of T rows in N environments with the newest policy, and then has the learner take them.

    Attributes:
        rows: of a round, in all environments; those that reset are no steps.
    """

    def __init__(
        self,
        environment: JaxEnvironment,
        policy: Policy,
        update: Update,
        experience: Segments,
        num_envs: int,
        members: Members = ALONE,
    ):
        """Computes nothing yet; `num_envs` and the batch size of `experience` must divide each other."""
        self._environment, self._policy, self._update = environment, policy, update
        self._num_envs, self._members = num_envs, members
        self._learning = SegmentLearning(update, experience, num_envs)
        self.rows = self._learning.times * num_envs * self._learning.length

    def start(self, key: Array) -> Acting:
        """Returns the state in which environments and policy begin; see `rounds.Rounds`."""
        return start(self._environment, self._policy, self._num_envs, key)

    def first_training(self, key: Array) -> Nest:
        """Returns the training state that the update begins with."""
        return self._update.init(key)

    def first_store(self, acting: Acting, key: Array) -> Nest:
        """Returns ``()``: a round keeps nothing for the next one."""
        del acting, key
        return ()

    def first_metrics(self, training: Nest, acting: Acting, store: Nest) -> Mapping[str, Array]:
        """Returns metrics of an update, for their shapes."""
        return self.run(training, acting, store, jnp.zeros(3, jnp.int32), {}, jnp.int32(0)).metrics

    def scratch(self, key: Array) -> Scratch:
        """Returns the segments of a round, and its pool of resets; see `rounds.Rounds`."""
        spec = make_environment_spec(self._environment)
        segments = self._learning.no_segments(spec, self._policy.extras_spec)
        return Scratch(segments, make_pool(self._environment, key))

    def no_episodes(self) -> Episodes:
        """Returns the sums over no episodes."""
        return no_episodes()

    def run(
        self, training: Nest, acting: Acting, store: Nest, tally: Array, metrics: Mapping[str, Array], target: Array
    ) -> Round:
        """Runs a round; see `rounds.Rounds`."""
        del store, metrics, target
        params = self._update.variables(training)["policy"]
        reset = fill_pool(self._environment, acting, acting.num_steps)

        def fill(acting: Acting, _: None) -> tuple[Acting, tuple[Step, Episodes]]:
            acting, segments, episodes = collect(
                self._environment, self._policy, params, acting, self._learning.length, reset, self._members
            )
            return acting, (segments, episodes)

        acting, (segments, episodes) = jax.lax.scan(fill, acting, None, length=self._learning.times)
        is_finite = all_finite((segments.observation, segments.reward)) | (tally[1] >= 0)
        learnt = self._learning.learn(training, tally, segments, acting.num_steps)
        sums = jax.tree.map(lambda x: jnp.sum(x, 0, dtype=x.dtype), episodes)
        return Round(learnt.training, acting, learnt.store, learnt.tally, learnt.metrics, sums, is_finite)


def collect(
    environment: JaxEnvironment,
    policy: Policy,
    params: Params,
    acting: Acting,
    length: int,
    reset: Reset,
    members: Members = ALONE,
) -> tuple[Acting, Step, Episodes]:
    """Takes `length` steps in each of N environments; to be compiled.

    Args:
        environment: each of them.
        policy: of a single environment.
        params: that it acts with.
        acting: the state before.
        length: rows of a segment, T.
        reset: see `acting.fill_pool`.
        members: of the program.

    Returns:
        The state after, the segments ``[N, T + 1, ...]``, and the sums over the ended episodes.
    """

    def step(acting: Acting, _: None) -> tuple[Acting, tuple[Step, Episodes]]:
        acting, row, episodes = take_step(environment, policy, params, acting, reset, members)
        return acting, (row, episodes)

    acting, (rows, episodes) = jax.lax.scan(step, acting, None, length=length)
    segments = close_segments(rows, acting.timestep.observation, acting.timestep.step_type == FIRST)
    return acting, segments, jax.tree.map(lambda x: jnp.sum(x, 0, dtype=x.dtype), episodes)


def close_segments(rows: Step, observation: Nest, start_of_episode: Array) -> Step:
    """Returns rows ``[T, N, ...]`` as segments ``[N, T + 1, ...]``, whose last row has what comes after them.

    Args:
        rows: of T steps.
        observation: the next one, ``[N, ...]``.
        start_of_episode: whether an episode begins with it, bool ``[N]``.
    """
    rest = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape[1:], leaf.dtype), rows)
    bootstrap = rest._replace(observation=observation, start_of_episode=start_of_episode)
    found: Step = jax.tree.map(lambda x, last: jnp.moveaxis(jnp.concatenate([x, last[None]]), 0, 1), rows, bootstrap)
    return found


def as_sample(segments: Step) -> ReplaySample[Step]:
    """Returns segments ``[B, T + 1, ...]`` as the batch of an update, drawn as a queue's items are: each once."""
    size = segments.start_of_episode.shape[0]
    ones = jnp.ones(size, jnp.float32)
    info = SampleInfo(ones, jnp.full(size, size, jnp.int32), ones, jnp.ones(size, jnp.int32))
    return ReplaySample(info, segments)


def segments_of_round(experience: Segments, num_envs: int) -> int:
    """Returns how many segments of each of N environments make a batch, or more than one."""
    return max(experience.batch_plan.batch_size // num_envs, 1)


def divide_each_other(num_envs: int, batch_size: int) -> bool:
    """Returns whether one of the two is a multiple of the other."""
    return math.gcd(num_envs, batch_size) == min(num_envs, batch_size)
