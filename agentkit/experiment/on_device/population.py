"""Populations: several runs of one agent in one compiled program, mapped over them by `jax.vmap`.

Each run has its own keys, steps and targets, and comes out as it would alone. One that has reached its target waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit.experiment.on_device.chunks import DeviceLearner, Pace, Ran
from agentkit.experiment.on_device.loop import Chunk, DeviceLoop, Held, Report, State
from agentkit.experiment.on_device.members import AXIS
from agentkit.experiment.on_device.replay.store import stores_of
from agentkit.experiment.on_device.rounds import Scratch
from agentkit.learning.compiled import compile_quickly
from agentkit.learning.finite import start_tally
from agentkit.learning.sharing import make_mesh, on_parts, split
from agentkit.types import Array, Nest

Settings = Mapping[str, Array]
"""Numeric settings of an agent that differ between members, by name: float32 or int32, ``[]`` or ``[S]``."""


@final
class Population:
    """Holds the states of S members, leaves ``[S, ...]``, and runs a chunk of all at once."""

    def __init__(
        self,
        make_loop: Callable[[Settings], DeviceLoop],
        settings: Settings,
        keys: Sequence[Array],
        devices: Sequence[jax.Device] | None = None,
    ):
        """Makes the first states; runs nothing yet.

        Args:
            make_loop: makes the loop of one member, of settings that are traced.
            settings: of all, ``[S]``.
            keys: PRNG keys ``uint32[2]`` of S members' environments and policies.
            devices: each of them runs as many members, by themselves; None for JAX's default device.
        """
        self._settings, self._pace, self._size = jax.tree.map(jnp.asarray, dict(settings)), Pace(), len(keys)
        self._make_loop = make_loop

        def start(settings: Settings, key: Array) -> State:
            return make_loop(settings).first_state(key)

        def run(settings: Settings, training: Nest, state: State, tally: Array, target: Array, rounds: Array) -> Chunk:
            return make_loop(settings).run_rounds(training, state, tally, target, rounds)

        self._first_device = None if devices is None else devices[0]
        run_all = jax.vmap(run, (0, 0, 0, 0, 0, None), axis_name=AXIS)
        mesh = make_mesh(devices)
        place = None if mesh is None else split(mesh)
        run_all = run_all if mesh is None else on_parts(run_all, mesh, num_whole=1)
        self._run = jax.jit(run_all, donate_argnums=(1, 2))
        self._start = jax.jit(jax.vmap(start, axis_name=AXIS), out_shardings=place)
        self._stack = jax.jit(
            lambda parts: jax.tree.map(lambda *leaves: jnp.stack(leaves), *parts), out_shardings=place
        )
        self._split = jax.jit(lambda whole: [_part(whole, i) for i in range(self._size)])
        self._take = jax.jit(_part)
        self._put = jax.jit(
            lambda whole, part, i: jax.tree.map(lambda leaf, x: leaf.at[i].set(x), whole, part), donate_argnums=0
        )
        self._keys = jnp.stack(keys)
        self._state: State | None = None
        self._training: Nest = None
        self._ran: list[Ran | None] = [None] * self._size

    def held(self) -> Held:
        """Returns the shapes and dtypes of all that the members have on the device; computes nothing."""

        def first_training(settings: Settings, key: Array) -> Nest:
            return self._make_loop(settings).first_training(key)

        def scratch(settings: Settings, key: Array) -> Scratch:
            return self._make_loop(settings).scratch(key)

        training, others = (jax.vmap(function, axis_name=AXIS) for function in (first_training, scratch))
        of_all = training, self._start, others  # What is compiled is not traced again for `start`.
        return Held(*(jax.eval_shape(function, self._settings, self._keys) for function in of_all))

    def trace(self, settings: Settings) -> Any:
        """Runs a round of a member with other settings, to be traced: whether one program can have several of them."""
        # The others as Python's numbers: an array's would be traced, too.
        settings = {name: np.asarray(each)[0].item() for name, each in self._settings.items()} | dict(settings)

        def run(key: Array) -> Chunk:
            loop = self._make_loop(settings)
            return loop.run_rounds(loop.first_training(key), loop.first_state(key), start_tally(0), 1, 1)

        return jax.vmap(run, axis_name=AXIS)(self._keys)

    def start(self) -> None:
        """Makes the first states."""
        self._state = compile_quickly(self._start, self._settings, self._keys)(self._settings, self._keys)

    def run(self, learners: Sequence[DeviceLearner], targets: Sequence[int]) -> None:
        """Runs a chunk, whose results `Member.next` gives.

        Args:
            learners: of the S members.
            targets: environment steps in all of each; of one that is to wait, any that it has reached.
        """
        begun = time.monotonic()
        if self._training is None:  # Now that checkpoints are restored.
            self._training = self._stack([learner.state for learner in learners])
        tallies = jnp.asarray(np.stack([np.asarray(learner.tally) for learner in learners]))
        chunk: Chunk = self._run(
            self._settings,
            self._training,
            self._state,
            tallies,
            jnp.asarray(targets, jnp.int32),
            jnp.int32(self._pace.num_rounds),
        )
        self._training, self._state = chunk.training, chunk.state
        numbers = np.asarray(chunk.num_rounds)  # Waits for the device.
        self._pace.measure(int(numbers.max()), begun)
        report = jax.tree.map(np.asarray, chunk.report)
        parts = self._split((chunk.training, chunk.state.metrics, chunk.tally))
        if self._first_device is not None:  # Where their evaluations are, and what else is a member's alone.
            parts = jax.device_put(parts, self._first_device)
        for i, (training, metrics, tally) in enumerate(parts):
            own: Report = jax.tree.map(lambda x, i=i: x[i, : numbers[i]], report)
            self._ran[i] = Ran(training, metrics, tally, own)

    def ran(self, index: int) -> Ran:
        """Returns what a member's part of the last chunk came to; once."""
        found, self._ran[index] = self._ran[index], None
        assert found is not None, "whoever steps a member has run a chunk of all"
        return found

    def counts(self, index: int) -> dict[str, tuple[int, int]]:
        """Returns the counts of a member's replay; see `chunks.Chunks`."""
        assert self._state is not None, "start has made it"
        stores = stores_of(self._state.store)
        return {name: (store.ring.capacity, int(store.ring.num_inserted[index])) for name, store in stores.items()}

    def state_of(self, index: int) -> State:
        """Returns a copy of a member's state."""
        found: State = self._take(self._state, jnp.int32(index))
        return found

    def put(self, index: int, state: State) -> None:
        """Replaces a member's state."""
        self._state = self._put(self._state, state, jnp.int32(index))


def _part(whole: Nest, index: Any) -> Nest:
    return jax.tree.map(lambda leaf: leaf[index], whole)


@final
class Member:
    """Is a run's part in a population: `chunks.Chunks`."""

    def __init__(self, population: Population, index: int):
        """Takes the population, and the member's place in it."""
        self._population, self._index = population, index

    @property
    def state(self) -> State:
        """Returns a copy of the member's state."""
        return self._population.state_of(self._index)

    @state.setter
    def state(self, state: State) -> None:
        self._population.put(self._index, state)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Returns the counts of its replay; see `chunks.Chunks`."""
        return self._population.counts(self._index)

    def next(self, learner: DeviceLearner, target: int) -> Ran:
        """Returns the member's part of the chunk that `Population.run` has run with this learner and target."""
        del learner, target
        return self._population.ran(self._index)
