"""The values that a sweep searches, setting by setting: a choice among some, or an interval of numbers."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, final

import numpy as np

from agentkit.errors import ConfigError

Value = bool | int | float | str | list[Any]
Parameters = dict[str, Value]


@final
@dataclasses.dataclass(frozen=True)
class Choice:
    """Holds the values that a setting may have, as TOML and JSON write them.

    Attributes:
        values: at least one, in any order.
    """

    values: tuple[Value, ...]

    def __post_init__(self) -> None:
        if not self.values:
            raise ConfigError("expected at least 1 value to choose from, found [].")
        if any(self.values[i] == other for i in range(len(self.values)) for other in self.values[:i]):
            raise ConfigError(f"expected different values to choose from, found {list(self.values)}.")

    def points(self) -> tuple[Value, ...]:
        """Returns the values of a grid."""
        return self.values

    def draw(self, rng: np.random.Generator) -> Value:
        """Returns one of them, each as likely as the others."""
        return self.values[int(rng.integers(len(self.values)))]


@final
@dataclasses.dataclass(frozen=True)
class Interval:
    """Holds the numbers from `low` to `high`, both included.

    Attributes:
        low: the least.
        high: the greatest.
        log: draw powers evenly: as often from 0.001 to 0.01 as from 0.01 to 0.1.
        whole: whole numbers only.
        num: how many points of a grid; None where there is no grid.
    """

    low: float
    high: float
    log: bool = False
    whole: bool = False
    num: int | None = None

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise ConfigError(f"expected low < high, found low = {self.low} and high = {self.high}.")
        if self.log and self.low <= 0:
            raise ConfigError(f"expected low > 0 where log = true, found low = {self.low}.")
        if self.num is not None and self.num < 2:
            raise ConfigError(f"expected num of at least 2, found {self.num}.")

    def points(self) -> tuple[Value, ...]:
        """Returns the values of a grid: `num` of them, evenly spaced; whole numbers once each."""
        if self.num is None:
            raise ConfigError("a grid needs values, such as [1, 2, 3], or num, such as {low = 1, high = 9, num = 3}.")
        space = np.geomspace if self.log else np.linspace
        return tuple(dict.fromkeys(self._as_value(float(value)) for value in space(self.low, self.high, self.num)))

    def draw(self, rng: np.random.Generator) -> Value:
        """Returns a number of the interval."""
        low, high = (self.low - 0.5, self.high + 0.5) if self.whole else (self.low, self.high)
        if self.log:
            return self._as_value(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self._as_value(float(rng.uniform(low, high)))

    def _as_value(self, value: float) -> float | int:
        value = min(max(value, self.low), self.high)
        return round(value) if self.whole else value


Space = Mapping[str, Choice | Interval]


def grid(space: Space) -> Iterator[Parameters]:
    """Yields every combination of the settings' points; the last setting changes first."""
    names = list(space)
    for values in itertools.product(*(space[name].points() for name in names)):
        yield dict(zip(names, values, strict=True))


def draw(space: Space, seed: int, number: int) -> Parameters:
    """Returns the settings of random trial `number`, which depend on nothing but the seed and that number."""
    rng = np.random.default_rng([seed, number])
    return {name: values.draw(rng) for name, values in space.items()}
