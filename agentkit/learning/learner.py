"""The one learner, which runs any `Update`.

It owns all that has a side effect: it takes a batch (or K stacked ones), runs them in one compiled call
that donates the old state, writes priorities back, publishes the parameters, counts, and logs without waiting for the
device.
"""

from __future__ import annotations

import dataclasses
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import nests
from agentkit.counting import MOST_STEPS
from agentkit.errors import ConfigError, OnNan, SpecError, tell_not_finite
from agentkit.learning.compiled import CompiledUpdate, return_memory
from agentkit.learning.finite import all_finite, describe_bad, start_tally
from agentkit.learning.sharing import make_mesh, on_each
from agentkit.learning.update import Update
from agentkit.types import DrawnBatch, Nest


class Publisher(Protocol):
    """Takes parameters: `agentkit.variables.VariableStore` or a transport of its kind."""

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest."""
        ...


@dataclasses.dataclass
class LearnerCallbacks:
    """Holds the functions that a learner calls besides changing its state; each may be None.

    Attributes:
        publisher: gets the parameters after every step.
        write_priorities: ``(keys [B], priorities [B]) -> None``, if the update returns priorities.
        log: ``dict of floats -> None``.
        log_seconds: how often to log.
        count_steps: returns the environment steps so far, for schedules that go by them; None where nobody counts.
        steps_per_action: returns how many of these an action that is learned from is; None for one.
    """

    publisher: Publisher | None = None
    write_priorities: Callable[[np.ndarray, np.ndarray], None] | None = None
    log: Callable[[dict[str, float]], None] | None = None
    log_seconds: float = 5.0
    count_steps: Callable[[], int] | None = None
    steps_per_action: Callable[[], float] | None = None


def as_floats(metrics: Any) -> dict[str, float]:
    """Returns metrics by name as a log takes them.

    Raises:
        SpecError: they are no dictionary, or one is no number; it says which.
    """
    if not isinstance(metrics, Mapping):
        raise SpecError(f"metrics: expected a dictionary of numbers by name, found {metrics!r:.80}. Return {{}}.")
    values = {}
    for name, value in metrics.items():
        try:
            is_array = isinstance(value, np.ndarray | jax.Array)  # Of [1] as well, which newer numpys refuse to float.
            values[name] = float(value.item() if is_array else value)
        except (TypeError, ValueError) as error:
            shape = list(np.shape(value))
            found = f"an array of the shape {shape}. Take its mean" if shape else f"{value!r:.80}. Leave it out"
            raise SpecError(f"metrics: expected a number for {name!r}, found {found}.") from error
    return values


MOST_AT_EDGE = 0.1
"""Share of a batch's values at an end of their support, above which the learner warns."""


class Learner:
    """Runs an `Update`. Single-threaded: one `step` at a time."""

    def __init__(
        self,
        update: Update | CompiledUpdate,
        dataset: Iterator[DrawnBatch[Nest]],
        key: jax.Array,
        *,
        num_updates: int = 1,
        callbacks: LearnerCallbacks | None = None,
        devices: Sequence[jax.Device] | None = None,
        on_nan: OnNan = "stop",
    ):
        """Makes a `Learner`.

        Args:
            update: the algorithm; as a `CompiledUpdate`, what an earlier learner has compiled of it is used again.
            dataset: batches with leaves ``[B, ...]``, or ``[K, B, ...]`` where `num_updates` K > 1.
            key: PRNG key ``uint32[2]`` for the initial state.
            num_updates: K, updates in one compiled `lax.scan`.
            callbacks: where parameters, priorities and logs go.
            devices: train data-parallel over these, each taking B / len(devices) of every batch;
                None for JAX's default device.
            on_nan: what to do about numbers that are not finite, which are looked for every `log_seconds` and
                before a save: "stop" raises, "warn" warns.
        """
        if num_updates < 1:
            raise ConfigError(f"num_updates must be at least 1, found {num_updates}.")
        self._update = update if isinstance(update, CompiledUpdate) else CompiledUpdate(update)
        self._dataset = dataset
        self._num_updates = num_updates
        self._callbacks = callbacks or LearnerCallbacks()
        self._on_nan = on_nan
        self._was_finite = True
        self._tally: Any = start_tally(0)
        self._version = 0
        self._metrics: dict[str, Any] = {}
        self._log_time = time.monotonic()
        self._log_version = 0
        self._warned_of_edge = False
        self._has_compiled = False  # The first step does.
        self._mesh = make_mesh(devices)
        self._compiled = self._update.step(num_updates, self._mesh)
        self._state = self._place(self._update.init(key))
        self._publish(self._update.variables(self._state))

    @property
    def state(self) -> Nest:
        """Returns the training state; the next `step` donates its buffers, so copy what you keep."""
        return self._state

    @property
    def tally(self) -> Any:
        """Returns the number of updates and the first bad metric so far, int32 ``[3]``; see `finite.start_tally`."""
        return self._tally

    @property
    def num_updates_done(self) -> int:
        """Counts updates since the training began, before a restore included."""
        return self._version

    def _place(self, state: Nest) -> Nest:
        return state if self._mesh is None else jax.device_put(state, on_each(self._mesh))

    def _publish(self, variables: Mapping[str, Nest]) -> None:
        if self._callbacks.publisher is not None:
            self._callbacks.publisher.publish(self._version, variables)

    def close(self) -> None:
        """Does nothing: its state is freed with it."""

    def begin_with(self, state: Nest) -> None:
        """Takes the training state that another learner ended with, and publishes its parameters; counts stay at 0.

        Args:
            state: of the structure, shapes and dtypes of `state`.
        """
        self._state = self._place(jax.tree.map(jnp.array, state))
        self._publish(self._update.variables(self._state))

    def variables(self) -> dict[str, Nest]:
        """Returns copies of what actors may fetch, by name."""
        return self._update.variables(self._state)

    def step(self) -> None:
        """Takes the next (stacked) batch and runs its updates; returns before the device is done.

        Raises:
            ReplayTimeoutError, ReplayClosedError: from the dataset.
            ConfigError: the batch cannot be divided among the devices.
            NonFiniteError: it is time to look, and a metric or the state is not finite; or a priority is not.
        """
        keys, batch = next(self._dataset)
        if self._mesh is not None and np.shape(keys)[-1] % self._mesh.size:
            raise ConfigError(
                f"A batch of {np.shape(keys)[-1]} items cannot be divided among {self._mesh.size} devices. "
                "Choose a batch size that is a multiple of the number of devices."
            )
        count_steps, steps_per_action = self._callbacks.count_steps, self._callbacks.steps_per_action
        num_steps = () if count_steps is None else np.int32(min(count_steps(), MOST_STEPS))
        per_action = () if steps_per_action is None else np.float32(steps_per_action())
        self._state, output, variables, self._tally = self._compiled(
            self._state, batch, self._tally, (num_steps, per_action)
        )
        self._version += self._num_updates
        self._publish(variables)
        if output.priorities is not None and self._callbacks.write_priorities is not None:
            self._write_priorities(np.asarray(keys).reshape(-1), np.asarray(output.priorities, np.float64).reshape(-1))
        if not self._has_compiled:
            self._has_compiled = True
            return_memory()
        self._metrics = output.metrics
        self._log_if_time()

    def take(self, state: Nest, metrics: Mapping[str, Any], tally: Any) -> None:
        """Takes over what updates have made that were run elsewhere, as in a compiled loop, and publishes it.

        Args:
            state: the training state after them.
            metrics: of the newest one.
            tally: see `finite.start_tally`; `tally` before them.

        Raises:
            NonFiniteError: it is time to look, and a metric or the state is not finite.
        """
        self._state, self._metrics, self._tally = state, dict(metrics), tally
        self._version = int(tally[0])
        self._publish(self._update.variables(state))
        self._log_if_time()

    def _write_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        finite = np.isfinite(priorities)
        if not finite.all():
            tell_not_finite(
                f"After update {self._version:,}, {np.sum(~finite)} of {finite.size} new priorities are nan or inf: "
                "the training is no longer finite. Lower the learning rate, or scale the rewards down.",
                self._on_nan,
            )
            keys, priorities = keys[finite], priorities[finite]
        assert self._callbacks.write_priorities is not None
        self._callbacks.write_priorities(keys, priorities)

    def _log_if_time(self) -> None:
        if time.monotonic() - self._log_time >= self._callbacks.log_seconds:
            self.log()

    def log(self) -> None:
        """Logs the newest metrics now, if there were updates since the last row; call it when the training ends.

        Raises:
            NonFiniteError: a metric or the state is not finite, and `on_nan` is "stop".
        """
        now = time.monotonic()
        if self._callbacks.log is not None and self._version > self._log_version:
            metrics = self.metrics(now)
            self._warn_of_edge(metrics.get("at_edge", 0.0))
            self._callbacks.log(metrics)  # First: the log then shows what is wrong.
        self.check_finite()
        self._log_time, self._log_version = now, self._version

    def _warn_of_edge(self, share: float) -> None:
        """Says once that values have reached the ends of their support, where returns beyond are cut off."""
        if share > MOST_AT_EDGE and not self._warned_of_edge:
            self._warned_of_edge = True
            warnings.warn(
                f"{100 * share:.0f} % of a batch's values are at an end of their support: returns beyond vmin or vmax "
                "count as these. If there can be such returns, widen it (--set vmin=... --set vmax=...), or scale the "
                "rewards.",
                stacklevel=2,
            )

    def metrics(self, now: float | None = None) -> dict[str, float]:
        """Returns the newest metrics as floats (waits for the device), with the rate since the last log."""
        elapsed = (time.monotonic() if now is None else now) - self._log_time
        rate = (self._version - self._log_version) / max(elapsed, 1e-9)
        values = as_floats(jax.device_get(self._metrics))
        return {"updates": float(self._version), "updates_per_second": rate, **values}

    def check_finite(self) -> None:
        """Looks for numbers that are not finite, in the state and the newest metrics; waits for the device.

        Raises:
            NonFiniteError: there is one, and `on_nan` is "stop".
        """
        tally = jax.device_get(self._tally)
        if tally[1] < 0 and all_finite(self._state):
            self._was_finite = True
        elif self._was_finite:
            self._was_finite = False  # To warn once is enough.
            tell_not_finite(describe_bad(self._state, sorted(self._metrics), tally), self._on_nan)
        self._tally = start_tally(self._version)

    def save(self) -> dict[str, Any]:
        """Returns the training state by path, and the number of updates.

        Raises:
            NonFiniteError: it is not finite, and `on_nan` is "stop": no checkpoint of it replaces a good one.
        """
        self.check_finite()
        leaves = nests.flatten_to_paths(jax.device_get(self._state))
        # Copies: an array of JAX's may be a view of a buffer that the next step donates.
        return {"num_updates": self._version, "state": {path: np.array(leaf) for path, leaf in leaves.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, and publishes its parameters.

        Raises:
            CheckpointError: an array is missing, unknown, or of another shape or dtype.
        """
        restored = nests.restore_from_paths(self._state, state["state"], "Learner state")
        self._state = self._place(jax.tree.map(jnp.array, restored))
        self._version = self._log_version = int(state["num_updates"])
        self._tally = start_tally(self._version)
        self._publish(self._update.variables(self._state))
