"""Makes the learner of a run: agentkit's own, or a user's with what a run asks of one beside `core.Learner`."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, final

import jax
import numpy as np

from agentkit import core, nests
from agentkit.checkpoint import structure_of
from agentkit.errors import OnNan, SpecError, tell_not_finite
from agentkit.experiment.policies.agent_parts import AgentParts
from agentkit.experiment.policies.own_actor import check_methods, close_own, restore_own, seed_of
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.learning.learner import as_floats
from agentkit.types import DrawnBatch, Nest

_METHODS = ("step", "save", "restore", "variables")


@final
class OwnLearner:
    """Counts, publishes, logs and checks what a learner of a user's own does; has the methods of `learning.Learner`."""

    def __init__(
        self, learner: core.Learner, *, num_updates: int = 1, callbacks: LearnerCallbacks, on_nan: OnNan = "stop"
    ):
        """Publishes the learner's first parameters.

        Args:
            learner: the user's.
            num_updates: that one of its steps counts for.
            callbacks: where parameters and logs go.
            on_nan: see `learning.Learner`; of numbers among its variables and metrics.

        Raises:
            SpecError: it lacks a method, or its variables are none that can be published.
        """
        check_methods("make_learner", "core.Learner", learner, _METHODS)
        self._learner = learner
        self._num_updates = num_updates
        self._callbacks = callbacks
        self._on_nan = on_nan
        self._was_finite = True
        self._version = self._log_version = 0
        self._log_time = time.monotonic()
        self._variables: dict[str, Nest] = {}
        self._publish()

    @property
    def state(self) -> Nest:
        """Returns nothing: nobody waits for a device."""
        return ()

    @property
    def num_updates_done(self) -> int:
        """Counts updates since the training began, before a restore included."""
        return self._version

    def close(self) -> None:
        """Closes the user's learner, if it can be."""
        close_own(self._learner)

    def step(self) -> None:
        """Lets the learner step, publishes its parameters, and logs where it is time."""
        self._learner.step()
        self._version += self._num_updates
        self._publish()
        if time.monotonic() - self._log_time >= self._callbacks.log_seconds:
            self.log()

    def _publish(self) -> None:
        found = self._learner.variables()
        if not isinstance(found, Mapping) or "policy" not in found:
            raise SpecError(
                "variables: expected a dictionary of arrays by name, with those to act with under 'policy', found "
                f"{sorted(found) if isinstance(found, Mapping) else type(found).__name__}."
            )
        self._variables = {name: nests.copy_nest(nest) for name, nest in found.items()}
        if self._callbacks.publisher is not None:
            self._callbacks.publisher.publish(self._version, self._variables)

    def log(self) -> None:
        """Logs the newest metrics now, if there were updates since the last row; see `learning.Learner.log`."""
        now = time.monotonic()
        if self._callbacks.log is not None and self._version > self._log_version:
            self._callbacks.log(self.metrics(now))
        self.check_finite()
        self._log_time, self._log_version = now, self._version

    def metrics(self, now: float | None = None) -> dict[str, float]:
        """Returns the updates so far and their rate since the last log, and the learner's own metrics, if it has any.

        Where these have a rate, too, as those of a `learning.Learner` inside, it is of another time, and left out.

        Raises:
            SpecError: one of them is no number.
        """
        elapsed = (time.monotonic() if now is None else now) - self._log_time
        rate = (self._version - self._log_version) / max(elapsed, 1e-9)
        counted = {"updates": float(self._version), "updates_per_second": rate}
        return counted | as_floats(getattr(self._learner, "metrics", dict)()) | counted

    def check_finite(self) -> None:
        """Looks for numbers among the variables that are not finite.

        Raises:
            NonFiniteError: there is one, and `on_nan` is "stop".
        """
        leaves = nests.flatten_to_paths(self._variables)
        bad = [path for path, leaf in leaves.items() if leaf.dtype.kind == "f" and not np.isfinite(leaf).all()]
        if bad and self._was_finite:
            tell_not_finite(
                f"After update {self._version:,}, variables of the learner are nan or inf: {', '.join(bad)[:200]}. "
                "Lower the learning rate, or scale the rewards down.",
                self._on_nan,
            )
        self._was_finite = not bad

    def save(self) -> dict[str, Any]:
        """Returns the learner's state, and its variables, which are loaded to act with where there is no learner.

        Raises:
            NonFiniteError: see `check_finite`.
        """
        self.check_finite()
        return {
            "num_updates": self._version,
            "own": self._learner.save(),
            "structure": structure_of(self._variables),
            "variables": nests.flatten_to_paths(self._variables),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned, and publishes its parameters.

        Raises:
            CheckpointError: the user's learner cannot take it.
        """
        restore_own("learner", self._learner, state["own"])
        self._version = self._log_version = int(state["num_updates"])
        self._publish()


def make_learner(
    parts: AgentParts,
    dataset: Iterator[DrawnBatch[Nest]],
    key: jax.Array,
    *,
    callbacks: LearnerCallbacks,
    devices: Sequence[jax.Device] | None = None,
    on_nan: OnNan = "stop",
    training: Nest | None = None,
) -> Learner | OwnLearner:
    """Makes an agent's learner: of its `make_learner`, or of its update.

    Args:
        parts: the agent's.
        dataset: its batches.
        key: PRNG key ``uint32[2]``; see `learning.Learner`, also for the others.
        callbacks: where parameters, priorities and logs go.
        devices: of a learner by JAX.
        on_nan: what to do about numbers that are not finite.
        training: the training state to begin with; None for the update's own.
    """
    num_updates = parts.agent.batch_plan.num_updates
    if parts.agent.make_learner is not None:
        own = parts.agent.make_learner(
            core.LearnerParts(parts.environment_spec, dataset, seed_of(key), callbacks.write_priorities)
        )
        return OwnLearner(own, num_updates=num_updates, callbacks=callbacks, on_nan=on_nan)
    learner = Learner(
        parts.compiled_update,
        dataset,
        key,
        num_updates=num_updates,
        callbacks=callbacks,
        devices=devices,
        on_nan=on_nan,
    )
    if training is not None:
        learner.begin_with(training)
    return learner
