"""Compiles an update once, however many learners run it (decision 95)."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from agentkit.learning.finite import add_to_tally
from agentkit.learning.optimizers import tell_counts
from agentkit.learning.sharing import on_each, shared_among, split
from agentkit.learning.update import Update, UpdateOutput
from agentkit.types import Array, Nest, ReplaySample

_QUICK_TO_COMPILE: tuple[dict[str, Any], ...] = (
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
)

Step = Callable[[Nest, ReplaySample[Nest], Any, Any], tuple[Nest, UpdateOutput, Mapping[str, Nest], Any]]
"""``(state, batch, tally, (num_steps, steps_per_action)) -> (state, output, variables, tally)``.

The tally is as in `finite.start_tally`, the counts of steps are as in `types.ReplaySample`.
"""


@final
class CompiledUpdate:
    """Holds an `Update` with what JAX has compiled of it: each `Learner` that is given it compiles nothing again.

    Attributes:
        update: the algorithm.
    """

    def __init__(self, update: Update):
        """Compiles nothing yet."""
        self.update = update
        self._inits: dict[Any, Callable[[jax.Array], Nest]] = {}  # By the device that was the default.
        self._steps: dict[tuple[int, Mesh | None], Step] = {}
        self._variables = jax.jit(self._copy_variables)

    def init(self, key: jax.Array) -> Nest:
        """Returns the training state that the update begins with.

        It is compiled by `compile_quickly`.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
            return self.update.init(key)  # Line by line, as its user wants to see it.
        device = jax.config.jax_default_device  # type: ignore[attr-defined]
        if device not in self._inits:
            self._inits[device] = compile_quickly(jax.jit(lambda key: strongly_typed(self.update.init(key))), key)
        return self._inits[device](key)

    def variables(self, state: Nest) -> dict[str, Nest]:
        """Returns copies of what actors may fetch: a step donates the buffers of its state (decision 4)."""
        found: dict[str, Nest] = self._variables(state)
        return found

    def step(self, num_updates: int = 1, mesh: Mesh | None = None) -> Step:
        """Returns the compiled step of a learner, which donates the state that it is given.

        Args:
            num_updates: K, updates in a `lax.scan` over batches ``[K, B, ...]``; of 1, batches are ``[B, ...]``.
            mesh: shares batches among its devices; None for JAX's default device.
        """
        if (num_updates, mesh) not in self._steps:
            self._steps[num_updates, mesh] = self._compile_step(num_updates, mesh)
        return self._steps[num_updates, mesh]

    def _copy_variables(self, state: Nest) -> dict[str, Nest]:
        copies: dict[str, Nest] = jax.tree.map(jnp.copy, dict(self.update.variables(state)))
        return copies

    def _compile_step(self, num_updates: int, mesh: Mesh | None) -> Step:
        def run(
            state: Nest, batch: ReplaySample[Nest], tally: jax.Array, counts: tuple[Array, Array]
        ) -> tuple[Nest, UpdateOutput, Mapping[str, Nest], jax.Array]:
            def update(state: Nest, batch: ReplaySample[Nest]) -> tuple[Nest, UpdateOutput]:
                num_steps, steps_per_action = counts
                batch = batch._replace(num_steps=num_steps, steps_per_action=steps_per_action)
                return counted_update(self.update, state, batch)

            with shared_among(mesh):
                if num_updates == 1:
                    state, output = update(state, batch._replace(num_updates=tally[0]))
                else:
                    batch = batch._replace(num_updates=tally[0] + jnp.arange(num_updates, dtype=jnp.int32))
                    state, outputs = jax.lax.scan(update, state, batch)
                    output = outputs._replace(metrics=jax.tree.map(jnp.mean, outputs.metrics))
            return state, output, self._copy_variables(state), add_to_tally(tally, output.metrics, num_updates)

        if mesh is None:
            return jax.jit(run, donate_argnums=0)
        whole, batch = on_each(mesh), split(mesh, axis=int(num_updates > 1))
        in_shardings = (whole, batch, whole, whole)
        return jax.jit(run, donate_argnums=0, in_shardings=in_shardings, out_shardings=whole)


def counted_update(update: Update, state: Nest, batch: ReplaySample[Nest]) -> tuple[Nest, UpdateOutput]:
    """Returns training state and output of one update, whose optimisers' schedules stand at the batch's counts.

    Args:
        update: the algorithm.
        state: its training state.
        batch: with its counts.
    """
    return update.update(tell_counts(state, steps=batch.num_steps, updates=batch.num_updates), batch)


def strongly_typed(nest: Nest) -> Nest:
    """Returns a nest without JAX's weak types, such as a Python number's: a loop over it would be compiled twice."""

    def strong(leaf: Array) -> Array:
        array = jnp.asarray(leaf)
        return jax.lax.convert_element_type(array, array.dtype)

    return jax.tree.map(strong, nest)


def initial_state(update: Update, key: jax.Array) -> Nest:
    """Returns the training state that an update begins with.

    Args:
        update: the algorithm.
        key: PRNG key ``uint32[2]``.
    """
    return CompiledUpdate(update).init(key)


def return_memory() -> None:
    """Returns to the system the memory that compiling took and freed, and malloc would keep: 120 MB of SAC's 480.

    Only glibc can be told so.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # Other libraries of C; Windows has none to open.
        ctypes.CDLL(None).malloc_trim(0)


def compile_quickly(jitted: Any, *args: Any) -> Callable[..., Any]:
    """Returns a function that is compiled in a third of the time on a CPU: what runs once need not run fast.

    Args:
        jitted: of `jax.jit`, which is traced once only.
        *args: of which its arguments have the shapes and dtypes.
    """
    if jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        return jitted  # type: ignore[no-any-return]
    lowered = jitted.lower(*args)
    for options in _QUICK_TO_COMPILE if jax.default_backend() == "cpu" else ():
        with contextlib.suppress(jax.errors.JaxRuntimeError):  # Not every version of XLA has every option.
            quick: Callable[..., Any] = lowered.compile(compiler_options=options)
            return quick
    compiled: Callable[..., Any] = lowered.compile()
    return compiled
