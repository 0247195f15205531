"""How far a run is, from the rows of its logs: rates, time left, and the returns so far as a small curve."""

from __future__ import annotations

import collections
import math
from collections.abc import Mapping, Sequence
from typing import final

_NUM_RETURNS = 10  # The mean return of this many last episodes is shown.
_RATE_SECONDS = 30.0  # Rates are over about this much of the past, so that they follow changes.
_SETTLE_SECONDS = 5.0  # Before this, compiling hides how fast a run is, and no time left is shown.
_CURVE_POINTS = 32
_LEVELS = "▁▂▃▄▅▆▇█"


@final
class Progress:
    """Follows a run by its rows.

    Attributes:
        num_steps: where the run ends.
        unit: of these: "step", or "update" of a run without an environment.
        steps: so far.
        episodes: so far; None while no row has said so.
        ended: whether the run is over, where `steps` does not say it.
    """

    def __init__(self, num_steps: int, start_step: int, now: float, unit: str = "step"):
        """Begins at a step and a time in seconds; `unit` is the word for what the run counts."""
        self.num_steps = num_steps
        self.unit = unit
        self.steps: float = start_step
        self.episodes: float | None = None
        self.ended = False
        self._updates_per_second: float | None = None
        self._returns: collections.deque[float] = collections.deque(maxlen=_NUM_RETURNS)
        self._curve = Curve()
        self._step_rate, self._update_rate = Rate(), Rate()
        self._started = now
        self._compiled = False  # Which the first step waits for.
        self._step_rate.add(now, start_step)

    def add(self, now: float, row: Mapping[str, float]) -> None:
        """Takes a row's values; names that it does not know are ignored."""
        if "steps" in row:
            self.steps = row["steps"]
            self._step_rate.add(now, self.steps)
            if not self._compiled and self._step_rate.num_counts > 2:
                self._step_rate.forget_first()
                self._compiled = True
        if "updates" in row:
            self._update_rate.add(now, row["updates"])
        # Of clipped or scaled rewards nobody knows what is good.
        found = row.get("episode_raw_return", row.get("episode_return"))
        if found is not None:
            self._returns.append(found)
            if math.isfinite(found):  # With on_nan="warn" training goes on, and no bar is as high as infinity.
                self._curve.add(found)
        self.episodes = row.get("episodes", self.episodes)
        self._updates_per_second = row.get("updates_per_second", self._updates_per_second)

    @property
    def share(self) -> float:
        """Returns the share of the steps that were taken, at most 1."""
        return min(self.steps / self.num_steps, 1.0)

    def counted(self) -> str:
        """Returns the steps so far, of how many."""
        return f"{self.steps:,.0f}/{self.num_steps:,} {self.unit}s"

    def speed(self) -> str:
        """Returns the steps per second; nothing while they are unknown."""
        rate = self._rate()
        return f"{_short(rate)} {self.unit}s/s" if rate else ""

    def time(self, now: float) -> str:
        """Returns the time that the run took, or that is left; nothing while it is unknown."""
        if self._is_over():
            return f"took {duration(now - self._started)}"
        rate = self._rate()
        if rate and now - self._started >= _SETTLE_SECONDS:
            return f"{duration((self.num_steps - self.steps) / rate)} left"
        return ""

    def _is_over(self) -> bool:
        return self.ended or self.steps >= self.num_steps

    def _rate(self) -> float | None:
        """Returns the steps per second; None while all that is known is how long the first step was compiled."""
        return self._step_rate.per_second() if self._compiled or self._is_over() else None

    def mean_return(self) -> str:
        """Returns the mean return of the last episodes; nothing before the first has ended."""
        return f"return {sum(self._returns) / len(self._returns):.1f}" if self._returns else ""

    def curve(self, width: int) -> str:
        """Returns the returns of all episodes so far as a curve of at most `width` signs; nothing of too few."""
        points = self._curve.points(width)
        return sparkline(points) if len(points) > 2 else ""

    def counts(self) -> list[str]:
        """Returns the number of episodes and the updates per second, as far as they are known."""
        found = [] if self.episodes is None else [f"{self.episodes:,.0f} episode{'' if self.episodes == 1 else 's'}"]
        rate = self._update_rate.per_second() if self._updates_per_second is None else self._updates_per_second
        return [*found, f"{_short(rate)} updates/s"] if rate and self.unit != "update" else found


@final
class Rate:
    """Measures how fast a count grows, over the recent past.

    A count that stands still adds nothing: learning that comes in bursts, as PPO's, has the rate between two bursts.
    """

    def __init__(self) -> None:
        """Begins without a count."""
        self._points: collections.deque[tuple[float, float]] = collections.deque()
        self.num_counts = 0  # That there were, also those that are long past.

    def add(self, now: float, count: float) -> None:
        """Takes the count at a time in seconds."""
        points = self._points
        if points and points[-1][1] == count:
            return
        points.append((now, count))
        self.num_counts += 1
        while len(points) > 2 and now - points[1][0] > _RATE_SECONDS:
            points.popleft()

    def forget_first(self) -> None:
        """Measures from the second count on, if there is a third: before it, something else took the time."""
        if len(self._points) > 2:
            self._points.popleft()

    def per_second(self) -> float | None:
        """Returns the rate; None while two counts are not known."""
        if len(self._points) < 2:
            return None
        (first_time, first), (last_time, last) = self._points[0], self._points[-1]
        return (last - first) / (last_time - first_time) if last_time > first_time else None


@final
class Curve:
    """Keeps a sequence of any length as a few means over equal parts of it."""

    def __init__(self) -> None:
        """Begins empty."""
        self._means: list[float] = []
        self._part: list[float] = []
        self._length = 1

    def add(self, value: float) -> None:
        """Takes the next value."""
        self._part.append(value)
        if len(self._part) == self._length:
            self._means.append(sum(self._part) / self._length)
            self._part.clear()
        if len(self._means) == 2 * _CURVE_POINTS:
            self._means = [(one + other) / 2 for one, other in zip(self._means[::2], self._means[1::2], strict=True)]
            self._length *= 2

    def points(self, most: int) -> list[float]:
        """Returns at most `most` means, over equal parts but for the last."""
        size = -(-len(self._means) // most) if most > 0 else 0
        parts = [self._means[i : i + size] for i in range(0, len(self._means), size)] if size else []
        return [sum(part) / len(part) for part in parts]


def sparkline(values: Sequence[float]) -> str:
    """Returns numbers as a line of small bars, from the least to the greatest.

    >>> sparkline([1, 2, 3, 8]), sparkline([5, 5])
    ('▁▂▃█', '▄▄')
    """
    low, high = min(values), max(values)
    if high == low:
        return _LEVELS[3] * len(values)
    return "".join(_LEVELS[round((value - low) / (high - low) * (len(_LEVELS) - 1))] for value in values)


def duration(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    >>> duration(59.6), duration(3725)
    ('1:00', '1:02:05')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}"
