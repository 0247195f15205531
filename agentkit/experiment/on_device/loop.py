"""The compiled loop: rounds of acting and learning, until a step or for a number of rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentkit.actors.policy import Policy
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.on_device.acting import Acting, Episodes
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.replay.replay_rounds import ReplayRounds
from agentkit.experiment.on_device.replay.sum_tree import NOWHERE
from agentkit.experiment.on_device.rounds import Rounds, Scratch
from agentkit.experiment.on_device.segments import SegmentRounds
from agentkit.learning import Update
from agentkit.learning.compiled import compile_quickly, strongly_typed
from agentkit.learning.sharing import make_mesh, on_each, shared_among, split
from agentkit.types import Array, Nest

MOST_ROUNDS = 256
"""Rounds of a chunk, at most: its reports have so many rows."""


class State(NamedTuple):
    """Holds all that a chunk hands on to the next one, beside the learner's.

    Attributes:
        acting: the environments' and the policy's.
        store: the experience that is kept; ``()`` where a round keeps nothing.
        metrics: of the newest update; zeros before the first.
    """

    acting: Acting
    store: Nest
    metrics: Mapping[str, Array]


class Report(NamedTuple):
    """Holds what is known of each round of a chunk, leaves ``[MOST_ROUNDS]``; zeros behind the last one.

    Attributes:
        num_steps: environment steps at its end, int32.
        num_episodes: that had ended by then, int32.
        episodes: sums over those that ended in it.
        is_finite: see `rounds.Round`.
    """

    num_steps: Array
    num_episodes: Array
    episodes: Episodes
    is_finite: Array


class Chunk(NamedTuple):
    """Holds the results of a chunk.

    Attributes:
        training: the training state after it.
        state: all else that the next one needs.
        tally: see `learning.finite.start_tally`.
        report: of its rounds.
        num_rounds: int32 ``[]``.
    """

    training: Nest
    state: State
    tally: Array
    report: Report
    num_rounds: Array


class Held(NamedTuple):
    """Holds all that a run has on the device while a round runs, but what the updates compute with.

    Attributes:
        training: the training state.
        state: all else that a chunk hands on.
        scratch: what a round fills.
    """

    training: Nest
    state: State
    scratch: Scratch


def make_rounds(
    environment: JaxEnvironment,
    policy: Policy,
    update: Update,
    experience: Segments | Transitions | Sequences,
    num_envs: int,
    members: Members = ALONE,
) -> Rounds:
    """Returns what a round of one agent does, as its experience wants it.

    Args:
        environment: each of them.
        policy: of a single environment.
        update: the algorithm.
        experience: that it learns from.
        num_envs: environments that step together.
        members: of the program.
    """
    settings: Any = (environment, policy, update, experience, num_envs, members)
    return SegmentRounds(*settings) if isinstance(experience, Segments) else ReplayRounds(*settings)


@final
class DeviceLoop:
    """Compiles a training, and runs it in chunks of rounds.

    Attributes:
        rows: of a round, in all environments, at most; those that reset are no steps.
    """

    def __init__(
        self,
        rounds: Rounds,
        members: Members = ALONE,
        devices: Sequence[jax.Device] | None = None,
    ):
        """Compiles nothing yet; `checks.check_settings` says what must hold.

        Args:
            rounds: what a round does, see `make_rounds`.
            members: of the program.
            devices: share the environments and each batch; each has the parameters, and the whole of a replay. None
                for JAX's default device.
        """
        self._rounds, self.rows, self._members = rounds, rounds.rows, members
        self._mesh = make_mesh(devices)
        # Compiled, so that no two of its arrays are one buffer, which could not be donated twice.
        whole, place = (None, None) if self._mesh is None else (on_each(self._mesh), _state_places(self._mesh))
        places: Any = (whole, place, whole, whole, whole)  # Of arguments, and of a `Chunk`; None is JAX's own choice.
        self._start = jax.jit(self.first_state, out_shardings=place)
        self._run = jax.jit(self.run_rounds, donate_argnums=(0, 1), in_shardings=places, out_shardings=Chunk(*places))

    def start(self, key: Array) -> State:
        """Returns the state at the start of a run.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        found: State = compile_quickly(self._start, key)(key)
        return found

    def held(self, key: Array) -> Held:
        """Returns the shapes and dtypes of all that a run has on the device; computes nothing.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        of_all = self.first_training, self._start, self.scratch  # What is compiled is not traced again for `start`.
        return Held(*(jax.eval_shape(function, key) for function in of_all))

    def run(self, training: Nest, state: State, tally: Any, target: int, num_rounds: int) -> Chunk:
        """Runs rounds until `target` steps are reached, or `num_rounds` of them; the state is donated.

        Chunks do not show in what comes out: one of 10 rounds is equal to two of 5. The last round may go beyond the
        target, by less than `rows`.

        Args:
            training: the training state.
            state: all else.
            tally: see `learning.finite.start_tally`.
            target: environment steps in all.
            num_rounds: at most, from 1 to `MOST_ROUNDS`.
        """
        # Traced, so that chunks of any length share one program.
        found: Chunk = self._run(training, state, tally, jnp.int32(target), jnp.int32(num_rounds))
        return found

    def first_training(self, key: Array) -> Nest:
        """Returns the training state that the update begins with; to be compiled."""
        return strongly_typed(self._rounds.first_training(key))

    def scratch(self, key: Array) -> Scratch:
        """Returns what a round fills, whose shapes alone count; to be traced."""
        return self._rounds.scratch(key)

    def first_state(self, key: Array) -> State:
        """Returns what `start` does; to be compiled."""
        acting_key, store_key = jax.random.split(key)
        acting = self._rounds.start(acting_key)
        store = self._rounds.first_store(acting, store_key)
        metrics = jax.eval_shape(lambda: self._rounds.first_metrics(self._rounds.first_training(key), acting, store))
        return State(strongly_typed(acting), store, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), metrics))

    def run_rounds(self, training: Nest, state: State, tally: Array, target: Array, num_rounds: Array) -> Chunk:
        """Returns what `run` does; to be compiled."""
        with shared_among(self._mesh):
            return self._run_rounds(training, state, tally, target, num_rounds)

    def _run_rounds(self, training: Nest, state: State, tally: Array, target: Array, num_rounds: Array) -> Chunk:
        def goes_on(chunk: Chunk) -> Array:
            return (chunk.num_rounds < num_rounds) & (chunk.state.acting.num_steps < target)

        def go_on(chunk: Chunk) -> Chunk:
            now, goes = chunk.state, goes_on(chunk)
            found = self._rounds.run(chunk.training, now.acting, now.store, chunk.tally, now.metrics, target)
            acting, number = found.acting, jnp.where(goes, chunk.num_rounds, NOWHERE)
            row = Report(acting.num_steps, acting.num_episodes, found.episodes, found.is_finite)
            report = jax.tree.map(lambda rows, x: rows.at[number].set(x, mode="drop"), chunk.report, row)
            new = found.training, acting, found.metrics, found.tally, chunk.num_rounds + 1
            # A member that has reached its target waits for the others; it has put nothing into its store.
            old = chunk.training, now.acting, now.metrics, chunk.tally, chunk.num_rounds
            training, acting, metrics, tally, count = self._members.choose(goes, new, old)
            return Chunk(training, State(acting, found.store, metrics), tally, report, count)

        row = Report(jnp.int32(0), jnp.int32(0), self._rounds.no_episodes(), jnp.array(False))
        report = jax.tree.map(lambda x: jnp.zeros((MOST_ROUNDS, *x.shape), x.dtype), row)
        first = Chunk(training, state, jax.tree.map(jnp.asarray, tally), report, jnp.int32(0))
        last: Chunk = jax.lax.while_loop(lambda chunk: self._members.any(goes_on(chunk)), go_on, first)
        return strongly_typed(last)  # As the next chunk's state is: it runs the same program.


def _state_places(mesh: Mesh) -> State:
    """Returns the shardings of a loop's state: what there is of each environment is split."""
    whole: Any = on_each(mesh)
    each: Any = split(mesh)
    return State(Acting(whole, each, each, each, each, each, whole, whole, whole), whole, whole)
