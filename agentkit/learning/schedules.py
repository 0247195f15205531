"""Schedules as data: numbers that change in the course of training, for step sizes, clips, costs and epsilons.

A schedule is a function of the training's progress and holds no state of its own, so a resumed run goes on where it
was. A setting of type ``Positive | Schedule`` takes a number, one of these, or a schedule of optax's: any function of
the count of the learner's updates that JAX can trace.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.types import Array, Nest, ReplaySample

Unit = Literal["steps", "updates"]
"""Counts environment steps or the learner's updates; where one learns from data alone, both are updates."""


@dataclasses.dataclass(frozen=True)
class Linear:
    """Goes from `start` to `end` in a straight line, and stays there.

    Attributes:
        start: the value at first.
        end: the value after `duration`.
        duration: how long it takes, in units of `by`.
        by: "steps" or "updates".
    """

    start: float
    end: float
    duration: float
    by: Unit = "steps"

    def __post_init__(self) -> None:
        """Refuses values that are not finite, and durations that are not positive."""
        _check(self, (self.start, self.end), self.duration)

    def __call__(self, count: Array) -> Array:
        """Returns the value after `count` steps or updates."""
        done = jnp.minimum(count / self.duration, 1.0)
        return self.start * (1.0 - done) + self.end * done

    @property
    def extremes(self) -> tuple[float, ...]:
        """Returns the values between which all others are."""
        return self.start, self.end


@dataclasses.dataclass(frozen=True)
class Cosine:
    """Goes from `start` to `end` along half a cosine (Loshchilov & Hutter 2017, eq. 5), and stays there.

    Attributes:
        start: the value at first.
        end: the value after `duration`.
        duration: how long it takes, in units of `by`.
        by: "steps" or "updates".
    """

    start: float
    end: float
    duration: float
    by: Unit = "steps"

    def __post_init__(self) -> None:
        """Refuses values that are not finite, and durations that are not positive."""
        _check(self, (self.start, self.end), self.duration)

    def __call__(self, count: Array) -> Array:
        """Returns the value after `count` steps or updates."""
        done = jnp.minimum(count / self.duration, 1.0)
        return self.end + (self.start - self.end) * 0.5 * (1.0 + jnp.cos(math.pi * done))

    @property
    def extremes(self) -> tuple[float, ...]:
        """Returns the values between which all others are."""
        return self.start, self.end


@dataclasses.dataclass(frozen=True)
class Piecewise:
    """Has one value until the first boundary, another one until the second, and so on.

    Attributes:
        values: one more than there are boundaries.
        boundaries: where the next value begins, rising, in units of `by`.
        by: "steps" or "updates".
    """

    values: tuple[float, ...]
    boundaries: tuple[float, ...]
    by: Unit = "steps"

    def __post_init__(self) -> None:
        """Refuses values that are not finite, and boundaries that do not rise or do not fit the values."""
        object.__setattr__(self, "values", tuple(self.values))  # A config file has lists.
        object.__setattr__(self, "boundaries", tuple(self.boundaries))
        _check(self, self.values, *self.boundaries)
        if len(self.values) != len(self.boundaries) + 1:
            raise ConfigError(
                f"Piecewise: expected one value more than boundaries, found {len(self.values)} values and "
                f"{len(self.boundaries)} boundaries."
            )
        if any(later <= earlier for earlier, later in itertools.pairwise(self.boundaries)):
            raise ConfigError(f"Piecewise: expected boundaries that rise, found {self.boundaries}.")

    def __call__(self, count: Array) -> Array:
        """Returns the value after `count` steps or updates."""
        place = jnp.searchsorted(jnp.asarray(self.boundaries, jnp.float32), jnp.float32(count), side="right")
        return jnp.asarray(self.values, jnp.float32)[place]

    @property
    def extremes(self) -> tuple[float, ...]:
        """Returns the values between which all others are."""
        return self.values


Schedule = Linear | Cosine | Piecewise | Callable[[Any], Any]
"""One of the above, or a function of the learner's updates so far, int32 ``[]``, such as a schedule of optax's."""


def unit_of(schedule: Schedule) -> Unit:
    """Returns what a schedule counts: of a function, updates."""
    unit: Unit = getattr(schedule, "by", "updates")
    return unit


def value_at(setting: float | Schedule, *, steps: Array, updates: Array) -> Array | float:
    """Returns the setting's value now: itself if it is a number.

    Args:
        setting: a number or a schedule.
        steps: environment steps so far; ``()`` where nobody has counted them.
        updates: the learner's updates so far; likewise.

    Raises:
        ConfigError: the setting is a schedule of what nobody has counted.
    """
    if not callable(setting):
        return setting
    unit = unit_of(setting)
    count = steps if unit == "steps" else updates
    if isinstance(count, tuple):
        raise ConfigError(
            f"{setting} needs the batch's num_{unit}, which is empty. Learner fills it in (num_steps from "
            "LearnerCallbacks.count_steps); do likewise."
        )
    value: Array = setting(count)
    return value


def value_in_update(setting: float | Schedule, batch: ReplaySample[Nest], mask: Array | None = None) -> Array | float:
    """Returns the setting's value in the update on `batch`, beside which the learner writes its counts.

    Args:
        setting: a number or a schedule.
        batch: says how many steps were taken and updates made before.
        mask: of agents that learn from each step once, 1 for each of the batch's rows with an action; see
            `steps_before`.

    Raises:
        ConfigError: the setting is a schedule of a count that the batch does not have.
    """
    steps = batch.num_steps if mask is None else steps_before(batch, mask)
    return value_at(setting, steps=steps, updates=batch.num_updates)


def steps_before(batch: ReplaySample[Nest], mask: Array) -> Array:
    """Returns the environment steps taken before those of a batch, float32 ``[]``; ``()`` where nobody counts them.

    Args:
        batch: of steps that are learned from once.
        mask: 1 for each row with an action; an episode's final observation, and padding, have none.
    """
    if isinstance(batch.num_steps, tuple):
        return ()
    steps = jnp.sum(mask)
    if not isinstance(batch.steps_per_action, tuple):
        steps = steps * batch.steps_per_action
    return jnp.maximum(batch.num_steps - steps, 0.0)


def _check(schedule: Linear | Cosine | Piecewise, values: tuple[float, ...], *durations: float) -> None:
    name = type(schedule).__name__
    if schedule.by not in ("steps", "updates"):
        raise ConfigError(f'{name}: by must be "steps" or "updates", found {schedule.by!r}.')
    for value in values:
        if not math.isfinite(value):
            raise ConfigError(f"{name}: expected finite values, found {value}.")
    for duration in durations:
        if not (math.isfinite(duration) and duration > 0):
            raise ConfigError(f"{name}: expected finite durations and boundaries above 0, found {duration}.")
