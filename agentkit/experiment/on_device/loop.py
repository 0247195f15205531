"""The compiled loop: rounds of acting and learning, until a step or for a number of rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy
from agentkit.agents.common.experience import Segments
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.on_device.segments import Acting, Episodes, as_sample, collect, start
from agentkit.learning import Update
from agentkit.learning.compiled import counted_update
from agentkit.learning.finite import add_to_tally
from agentkit.types import Array, Nest, Step

MOST_ROUNDS = 256
"""Rounds of a chunk, at most: its reports have so many rows."""


class Report(NamedTuple):
    """Holds what is known of each round of a chunk, leaves ``[MOST_ROUNDS]``; zeros behind the last one.

    Attributes:
        num_steps: environment steps at its end, int32.
        num_episodes: that had ended by then, int32.
        episodes: sums over those that ended in it.
        is_finite: whether its rewards and observations were all finite, bool.
    """

    num_steps: Array
    num_episodes: Array
    episodes: Episodes
    is_finite: Array


class Chunk(NamedTuple):
    """Holds the results of a chunk.

    Attributes:
        training: the training state after it.
        acting: the environments' and the policy's.
        tally: see `learning.finite.start_tally`.
        metrics: of the newest update.
        report: of its rounds.
        num_rounds: int32 ``[]``.
    """

    training: Nest
    acting: Acting
    tally: Array
    metrics: Mapping[str, Array]
    report: Report
    num_rounds: Array


@final
class DeviceLoop:
    """Compiles the training of an agent that learns from segments, and runs it in chunks of rounds.

    In a round N environments fill segments of T rows with the newest policy, and the learner takes them, as on the
    host: an update as soon as it has a batch of B. Where B is a multiple of N, a round is as long as it takes to fill
    one; where N is a multiple of B, N / B updates follow at its end.

    Attributes:
        rows: of a round, in all environments; those that reset are no steps.
        updates: of a round.
    """

    def __init__(
        self, environment: JaxEnvironment, policy: Policy, update: Update, experience: Segments, num_envs: int
    ):
        """Compiles nothing yet; `num_envs` and the batch size of `experience` must divide each other."""
        self._environment, self._policy, self._update = environment, policy, update
        self._num_envs, self._length = num_envs, experience.segment_length
        self._batch_size = experience.batch_plan.batch_size
        self._times = max(self._batch_size // num_envs, 1)  # Segments of each environment in a round.
        self.updates = max(num_envs // self._batch_size, 1)
        self.rows = self._times * num_envs * self._length
        # Compiled, so that no two of its arrays are one buffer, which could not be donated twice.
        self._start = jax.jit(lambda key: start(environment, policy, num_envs, key))
        self._run = jax.jit(self._run_rounds, donate_argnums=(0, 1))

    def start(self, key: Array) -> Acting:
        """Returns the state of the environments and of the policy at the start of a run.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        found: Acting = self._start(key)
        return found

    def run(self, training: Nest, acting: Acting, tally: Any, target: int, num_rounds: int) -> Chunk:
        """Runs rounds until `target` steps are reached, or `num_rounds` of them; the state is donated.

        Chunks do not show in what comes out: one of 10 rounds is equal to two of 5. The last round may go beyond the
        target, by less than `rows`.

        Args:
            training: the training state.
            acting: the environments' and the policy's.
            tally: see `learning.finite.start_tally`.
            target: environment steps in all.
            num_rounds: at most, from 1 to `MOST_ROUNDS`.
        """
        # Traced, so that chunks of any length share one program.
        found: Chunk = self._run(training, acting, tally, jnp.int32(target), jnp.int32(num_rounds))
        return found

    def _run_rounds(self, training: Nest, acting: Acting, tally: Array, target: Array, num_rounds: Array) -> Chunk:
        metrics, report = jax.eval_shape(lambda: self._round(training, acting, tally)[3:])
        report = jax.tree.map(lambda x: jnp.zeros((MOST_ROUNDS, *x.shape), x.dtype), report)
        metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics)

        def goes_on(chunk: Chunk) -> Array:
            return (chunk.num_rounds < num_rounds) & (chunk.acting.num_steps < target)

        def go_on(chunk: Chunk) -> Chunk:
            training, acting, tally, metrics, row = self._round(chunk.training, chunk.acting, chunk.tally)
            number = chunk.num_rounds
            report = jax.tree.map(lambda rows, x: rows.at[number].set(x), chunk.report, row)
            return Chunk(training, acting, tally, metrics, report, number + 1)

        first = Chunk(training, acting, jnp.asarray(tally), metrics, report, jnp.int32(0))
        last: Chunk = jax.lax.while_loop(goes_on, go_on, first)
        return last

    def _round(
        self, training: Nest, acting: Acting, tally: Array
    ) -> tuple[Nest, Acting, Array, Mapping[str, Array], Report]:
        params = self._update.variables(training)["policy"]

        def fill(acting: Acting, _: None) -> tuple[Acting, tuple[Step, Episodes]]:
            acting, segments, episodes = collect(self._environment, self._policy, params, acting, self._length)
            return acting, (segments, episodes)

        def learn(carry: tuple[Nest, Array], segments: Step) -> tuple[tuple[Nest, Array], Mapping[str, Array]]:
            training, tally = carry
            batch = as_sample(segments)._replace(num_updates=tally[0], num_steps=acting.num_steps)
            training, output = counted_update(self._update, training, batch)
            return (training, add_to_tally(tally, output.metrics, 1)), output.metrics

        acting, (segments, episodes) = jax.lax.scan(fill, acting, None, length=self._times)
        # [times, N, T + 1, ...] to [updates, B, T + 1, ...]: in the order in which a queue has them.
        shape = (self.updates, self._batch_size)
        batches = jax.tree.map(lambda x: x.reshape(shape + x.shape[2:]), segments)
        (training, tally), metrics = jax.lax.scan(learn, (training, tally), batches)
        is_finite = _all_finite((segments.observation, segments.reward))
        sums = jax.tree.map(lambda x: jnp.sum(x, 0, dtype=x.dtype), episodes)
        row = Report(acting.num_steps, acting.num_episodes, sums, is_finite)
        return training, acting, tally, jax.tree.map(lambda x: x[-1], metrics), row


def divide_each_other(num_envs: int, batch_size: int) -> bool:
    """Returns whether one of the two is a multiple of the other."""
    return math.gcd(num_envs, batch_size) == min(num_envs, batch_size)


def _all_finite(nest: Nest) -> Array:
    floats = [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats] or [jnp.array(True)]))
