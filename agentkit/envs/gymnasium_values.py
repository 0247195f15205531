"""Takes what gymnasium environments return: observations as their spec says, rewards and ends as numbers.

What is nearly right ends in one line that says what was found and what was expected; the adapter adds environment and
step. Gymnasium itself is not needed here.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.types import Nest

_SMALL = 256
"""How many numbers are looked at in each step: bounds of a small array cost 2 us, of an image 100."""


def make_reader(spec: Nest, name: str = "observation", thorough: bool = False) -> Callable[[Any], Nest]:
    """Returns a function from a space's values to new arrays of its spec; see `specs.fit` for what is refused.

    Structure, shape and dtype are looked at in every value, and choices of up to 256 numbers; whether larger arrays of
    whole numbers are within bounds that are closer than their dtype's, only where `thorough`, as at the start of an
    episode, or where the dtype is not the spec's. NaN and infinity pass, and so does what is infinite in the spec's
    precision: what to do about them is a run's setting (`StepCheck`).

    Args:
        spec: of `space_to_spec`.
        name: of the value, for errors.
        thorough: whether to look at the bounds of large arrays, too.
    """
    if isinstance(spec, dict):
        children = {key: make_reader(child, f"{name}/{key}", thorough) for key, child in spec.items()}

        def read_dict(value: Any) -> Nest:
            if not isinstance(value, Mapping) or not children.keys() <= value.keys():
                raise SpecError(
                    f"{name}: expected a dictionary with {', '.join(children)}, found {specs.brief(value)}."
                )
            return {key: read(value[key]) for key, read in children.items()}

        return read_dict
    if isinstance(spec, tuple):
        parts = [make_reader(child, f"{name}/{i}", thorough) for i, child in enumerate(spec)]

        def read_tuple(value: Any) -> Nest:
            if not isinstance(value, tuple | list) or len(value) != len(parts):
                raise SpecError(f"{name}: expected a tuple of {len(parts)}, found {specs.brief(value)}.")
            return tuple([read(part) for read, part in zip(parts, value, strict=True)])

        return read_tuple
    return _leaf_reader(spec, name, thorough)


def _leaf_reader(spec: specs.Array, name: str, thorough: bool) -> Callable[[Any], np.ndarray]:
    own, shape, dtype, start = specs.in_own_terms(spec), spec.shape, spec.dtype, specs.start_of(spec)
    if isinstance(spec, specs.DiscreteArray):
        low, high = int(own.minimum), int(own.maximum)  # type: ignore[attr-defined]

        def read_choice(value: Any) -> np.ndarray:
            if not (isinstance(value, int | np.integer) and low <= value <= high):
                value = specs.fit_array(value, own, name)
            return np.array(int(value) - low, dtype)

        return read_choice
    bounds = _closer_than_dtype(own) if thorough or np.prod(shape) <= _SMALL else None
    kinds = "f" if dtype.kind == "f" else "iu" if bounds is not None else ""  # Casts that lose no number in silence.
    shifted = bool(np.any(start))

    def read(value: Any) -> np.ndarray:
        if (
            type(value) is not np.ndarray
            or value.shape != shape
            or not (value.dtype == own.dtype or value.dtype.kind in kinds)
            or (bounds is not None and np.count_nonzero((value < bounds[0]) | (value > bounds[1])))
        ):
            value = specs.fit_array(value, own, name, finite=False)
        return np.array(value - start if shifted else value, dtype)

    return read


def _closer_than_dtype(spec: specs.Array) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the bounds of whole numbers, None where the dtype has no others."""
    if spec.dtype.kind not in "iu" or not isinstance(spec, specs.BoundedArray):
        return None
    info = np.iinfo(spec.dtype)
    whole = (spec.minimum == info.min).all() and (spec.maximum == info.max).all()
    return None if whole else (spec.minimum, spec.maximum)


def take_reset(found: Any) -> tuple[Any, Mapping[str, Any]]:
    """Returns the observation and the info of a reset.

    Raises:
        SpecError: it returned something else than these two.
    """
    if not isinstance(found, tuple | list) or len(found) != 2 or not isinstance(found[1], Mapping | None):
        raise SpecError(
            f"reset() returned {specs.brief(found)}; expected two values, (observation, info), with info a dictionary. "
            "Return observation, {}."
        )
    return found[0], found[1] or {}


def take_step(found: Any) -> tuple[Any, float, bool, bool, Mapping[str, Any]]:
    """Returns observation, reward, whether the episode terminated and was truncated, and the info of a step.

    A reward is a Python or numpy number, or an array of one number, such as ``[1.0]``.

    Raises:
        SpecError: it returned something else.
    """
    if not isinstance(found, tuple | list) or len(found) != 5:
        raise SpecError(_not_five(count_values(found)))
    observation, reward, terminated, truncated, info = found
    if type(reward) is not float:
        reward = _number(reward, "reward")
    if type(terminated) is not bool:
        terminated = _flag(terminated, "terminated")
    if type(truncated) is not bool:
        truncated = _flag(truncated, "truncated")
    if type(info) is not dict and not isinstance(info, Mapping | None):
        raise SpecError(f"info: expected a dictionary, found {specs.brief(info)}.")
    return observation, reward, terminated, truncated, info or {}


def count_values(found: Any) -> str:
    """Returns in words how many values were returned, or what else was."""
    return f"{len(found)} values" if isinstance(found, tuple | list) else specs.brief(found)


def _not_five(found: str) -> str:
    return (
        f"step() returned {found}; expected five: observation, reward, terminated, truncated, info. The four of gym "
        "before 0.26 had one done for both ends: say which it was (truncated for a time limit), or convert the "
        "environment with shimmy."
    )


def _number(value: Any, name: str) -> float:
    array = np.asarray(value) if not isinstance(value, str | bytes | Mapping) else np.empty(0)
    if array.dtype.kind not in "biuf" or array.size != 1:
        raise SpecError(f"{name}: expected one number, found {specs.brief(value)}.")
    return float(array.item())


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, np.bool_):
        return bool(value)
    if isinstance(value, str | bytes | Mapping) or np.size(value) != 1 or np.asarray(value).item() not in (0, 1):
        raise SpecError(f"{name}: expected True or False, found {specs.brief(value)}.")
    return bool(np.asarray(value).item())


def find_refused_argument(error: Exception) -> str | None:
    """Returns which argument, "seed" or "options", a reset does not take; None for other errors."""
    argument = re.search(r"reset\(\) got an unexpected keyword argument '(seed|options)'", str(error))
    return None if argument is None else argument[1]


def explain(error: Exception) -> SpecError | None:
    """Returns in one line why gymnasium could not call an environment, or take what it returned; None for other errors.

    Gymnasium's own wrappers, such as a time limit, are inside of the adapter and meet an environment before it does.
    """
    argument = find_refused_argument(error)
    if argument is not None:
        return SpecError(
            f"reset() takes no {argument!r}; expected def reset(self, *, seed=None, options=None), which begins "
            "with super().reset(seed=seed)."
        )
    count = re.fullmatch(r"(?:not enough|too many) values to unpack \(expected (2|5)(?:, got (\d+))?\)", str(error))
    where = traceback.extract_tb(error.__traceback__)[-1].filename.replace("\\", "/")
    if count is None or "/gymnasium/" not in where:
        return None
    if count[1] == "5":
        return SpecError(_not_five(f"{count[2] or 'more than 5'} values"))
    return SpecError("reset() returned something else than two values; expected (observation, info).")
