"""Checks of what an environment gives: time steps as its specs promise them, and finite numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import OnNan, SpecError, tell_not_finite
from agentkit.types import FIRST, Nest

_NUMBERS = (float, np.float32, np.float64)


@final
class StepCheck:
    """Checks each time step of an environment, or of a batch of them; about 2 us where nothing is wrong.

    A value that is NaN or infinite is told as `on_nan` says: "stop" raises, "warn" warns once of each leaf. What has
    another structure, shape or dtype than its spec, a choice out of its range, or a discount beyond [0, 1] (or [-1, 1],
    where its spec says so, as of games that are played from both sides), is always an error.

    Args:
        spec: the environment's.
        num_envs: N, for a batch whose leaves are ``[N, ...]``; None for a single environment.
        on_nan: "stop" or "warn".
    """

    def __init__(self, spec: specs.EnvironmentSpec, num_envs: int | None = None, on_nan: OnNan = "stop"):
        self._spec = (
            spec if num_envs is None else specs.EnvironmentSpec(*(specs.add_leading(s, num_envs) for s in spec))
        )
        self._is_single = num_envs is None
        self._on_nan = on_nan
        self._told: set[str] = set()
        self._observation_is_good = fits(self._spec.observations, and_finite=True)
        self._choices = find_choices(spec.observations)
        # A single environment gives rewards as Python's floats; those of a batch are arrays.
        self._scalars = num_envs is None and all(
            specs.is_spec(s) and s.shape == () and s.dtype.kind == "f" for s in (spec.rewards, spec.discounts)
        )
        self._least_discount = -1.0 if specs.changes_sides(spec.discounts) else 0.0
        self._most = float(np.finfo(spec.rewards.dtype).max) if self._scalars else 0.0  # More is infinite when stored.

    def __call__(self, timestep: Any, action: Nest = None, step: int = 0) -> None:
        """Checks the time step that followed an action.

        Args:
            timestep: what the environment gave.
            action: what it was given; None at the start of an episode.
            step: counts the environment's steps, for messages.

        Raises:
            SpecError: it is no time step, or not as the specs promise.
            NonFiniteError: a number is NaN or infinite, and `on_nan` is "stop".
        """
        if not isinstance(timestep, dm_env.TimeStep):
            raise SpecError(
                f"At step {step:,} the environment gave {_brief(timestep)}; expected a dm_env.TimeStep. A gymnasium "
                "environment is adapted by agentkit.envs.gymnasium.GymnasiumEnvironment(env)."
            )
        step_type, reward, discount, observation = timestep
        if not self._observation_is_good(observation):
            specs.validate(observation, self._spec.observations, f"At step {step:,} the environment's observation")
            self._tell("observation", observation, action, step)
        if self._choices:
            self._look_at_choices(observation, step)
        if self._scalars:
            # As Python's float: numpy casts a bound of float64 to the float32 that it is compared with, to infinity.
            if type(reward) not in _NUMBERS or not -self._most <= float(reward) <= self._most:
                self._look_at_reward(reward, step_type == FIRST, action, step)
            if type(discount) not in _NUMBERS or not self._least_discount <= discount <= 1.0:
                self._look_at_discount(discount, step_type == FIRST, step)
        elif not self._is_single or step_type != FIRST:
            self._look_at_reward(reward, False, action, step)
            self._look_at_discount(discount, False, step)

    def _look_at_choices(self, observation: Nest, step: int) -> None:
        """Refuses choices out of their range: all of them would look alike to a network."""
        leaves = tree.flatten(observation)
        for i, name, leaf in self._choices:
            found = np.asarray(leaves[i])
            if ((found < 0) | (found > leaf.maximum)).any():
                specs.fit_array(
                    found,
                    leaf,
                    f"At step {step:,} the environment's {name}",
                    leading="" if self._is_single else "environment",
                    advice="Mend the environment, or give its observation space as many values as there are.",
                )

    def _look_at_reward(self, reward: Nest, is_first: bool, action: Nest, step: int) -> None:
        if not (is_first and reward is None):
            _refuse_none(reward, "reward", step)
            reward = specs.fit(reward, self._spec.rewards, f"At step {step:,} the environment's reward", finite=False)
            if not all(is_finite(leaf) for leaf in tree.flatten(reward)):
                self._tell("reward", reward, action, step)

    def _look_at_discount(self, discount: Nest, is_first: bool, step: int) -> None:
        if is_first and discount is None:
            return
        _refuse_none(discount, "discount", step)
        what = f"At step {step:,} the environment's discount"
        for leaf in tree.flatten(specs.fit(discount, specs.to_arrays(self._spec.discounts), what, finite=False)):
            if not ((leaf >= self._least_discount) & (leaf <= 1)).all():
                least = "-1 (the other player is next)" if self._least_discount else "0 (the episode terminated)"
                raise SpecError(
                    f"At step {step:,} the environment's discount is {leaf}; expected {least} to 1. Gamma is the "
                    "agent's setting, and no environment's."
                )

    def _tell(self, what: str, value: Nest, action: Nest, step: int) -> None:
        """Tells of each leaf of a value that is not finite, once."""
        cause = "The reward or observation is the environment's own: mend it there, or clip it in a wrapper."
        if action is not None and not all(is_finite(np.asarray(leaf)) for leaf in tree.flatten(action)):
            cause = (
                "So was the action before it: the policy's parameters are no longer finite. Lower the learning rate, "
                "set max_grad_norm, or scale the rewards down."
            )
        for name, leaf in zip(specs.leaf_names(value), tree.flatten(value), strict=True):
            found, label = np.asarray(leaf), what if name == "value" else f"{what}/{name}"
            if not is_finite(found) and label not in self._told:
                self._told.add(label)
                tell_not_finite(
                    f"At step {step:,} the environment's {label} is {describe_bad(found)}. {cause}", self._on_nan
                )


def is_finite(leaf: np.ndarray) -> bool:
    """Returns whether no number of an array is NaN or infinite; 1 us for a small one."""
    # A sum of squares is not finite where a number is not, and takes half the time of np.isfinite and all.
    return leaf.dtype.kind not in "fc" or math.isfinite(abs(np.vdot(leaf, leaf))) or bool(np.isfinite(leaf).all())


def describe_bad(array: np.ndarray) -> str:
    """Returns "nan" of one number, and of several how many are not finite, and the first one's place.

    >>> describe_bad(np.array(np.inf)), describe_bad(np.array([0.0, np.nan, -np.inf]))
    ('inf', 'nan at [1] (2 of 3 values are not finite)')
    """
    if array.ndim == 0:
        return str(array)
    bad = np.argwhere(~np.isfinite(array))
    return f"{array[tuple(bad[0])]} at {bad[0].tolist()} ({len(bad)} of {array.size} values are not finite)"


def find_choices(spec: Nest) -> list[tuple[int, str, specs.BoundedArray]]:
    """Returns place, name and spec of each leaf of an observation that is a choice, or several."""
    names = ["observation"] if specs.is_spec(spec) else [f"observation/{name}" for name in specs.leaf_names(spec)]
    return [
        (i, name, leaf)
        for i, (name, leaf) in enumerate(zip(names, tree.flatten(spec), strict=True))
        if isinstance(leaf, specs.DiscreteArray) or specs.num_choices(leaf)
    ]


def _brief(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}: {value!r:.60}"


def _refuse_none(value: Nest, what: str, step: int) -> None:
    if value is None:
        raise SpecError(
            f"At step {step:,} the environment's {what} is None; expected a number. Only the first time step of an "
            "episode (dm_env.restart) has none."
        )


def fits(spec: Nest, and_finite: bool = False) -> Callable[[Nest], bool]:
    """Returns a function that says whether a value is surely as its spec says, and finite where that is asked.

    It says False of what `specs.validate` may still take: a list in place of a tuple, another library's arrays.
    """
    if specs.is_spec(spec):
        return _leaf_fits(spec, and_finite)
    if isinstance(spec, dict):
        children = {key: fits(child, and_finite) for key, child in spec.items()}

        def dict_is_good(value: Nest) -> bool:
            return (
                isinstance(value, dict)
                and value.keys() == children.keys()
                and all(is_good(value[key]) for key, is_good in children.items())
            )

        return dict_is_good
    if isinstance(spec, tuple):
        parts, kind = [fits(child, and_finite) for child in spec], type(spec)

        def tuple_is_good(value: Nest) -> bool:
            return (
                type(value) is kind
                and len(value) == len(parts)
                and all(is_good(child) for is_good, child in zip(parts, value, strict=True))
            )

        return tuple_is_good
    return lambda value: False


def _leaf_fits(spec: specs.Array, and_finite: bool) -> Callable[[Any], bool]:
    shape, dtype = tuple(spec.shape), np.dtype(spec.dtype)
    look = and_finite and dtype.kind in "fc"
    scalar_type = dtype.type if shape == () else None

    def is_good(value: Any) -> bool:
        if type(value) is not np.ndarray:
            return type(value) is scalar_type and (not look or math.isfinite(abs(value)))
        return value.dtype == dtype and value.shape == shape and (not look or is_finite(value))

    return is_good
