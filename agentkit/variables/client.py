"""An actor's view of the parameters: a local copy, refreshed when it is time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from agentkit.core import VariableSource
from agentkit.errors import ConfigError, VariablesTimeoutError
from agentkit.types import Nest

FIRST_PAUSE = 0.01
LONGEST_PAUSE = 0.2
"""Seconds between two questions of a call that waits; each pause is longer than the last."""

FETCHING_SHARE = 0.05
LONGEST_PERIOD = 1.0
"""Large parameters are asked for less often: fetching takes a twentieth of the time, but no period is longer."""


def _constant(seconds: float) -> Callable[[], float]:
    return lambda: seconds


class VariableClient:
    """Holds the newest parameters of one name, fetched from a source, and knows their age.

    A source that cannot be reached is no error as long as there are parameters to act with, and these
    are not older than the limit, if one is set.
    """

    def __init__(
        self,
        source: VariableSource,
        name: str = "policy",
        *,
        update_seconds: float | Callable[[], float] = 0.0,
        max_age_seconds: float | None = None,
        timeout: float = 60.0,
        place: Callable[[Nest], Nest] = lambda params: params,
    ):
        """Makes a `VariableClient`.

        Args:
            source: where to fetch; this client's own, where it reaches another process.
            name: which variables.
            update_seconds: ask at most this often; less often where fetching would take more than a twentieth of
                the time, down to once in a second. 0 asks at each call. A function where it changes with the source.
            max_age_seconds: with parameters published longer ago than this, `update` waits for newer ones
                and, after `timeout`, raises. Choose it longer than the learner may have to wait for data:
                a learner without data publishes nothing. None is no limit.
            timeout: seconds that a waiting call waits for parameters to be published.
            place: applied once to what was fetched: ``jax.device_put`` where they come as numpy arrays, which a
                compiled policy would take to its device again at each call.
        """
        self._find_period = update_seconds if callable(update_seconds) else _constant(update_seconds)
        update_seconds = self._find_period()
        if not update_seconds >= 0 or (max_age_seconds is not None and not max_age_seconds > update_seconds):
            raise ConfigError(
                "Expected update_seconds >= 0, and max_age_seconds longer than that (or None), "
                f"found {update_seconds=} and {max_age_seconds=}."
            )
        self._source = source
        self._names = (name,)
        self._max_age_seconds = math.inf if max_age_seconds is None else max_age_seconds
        self._timeout = timeout
        self._place = place
        self._next_time = -math.inf
        self._version = -1
        self._params: Nest = None
        self._published = -math.inf
        self._lost: Exception | None = None

    @property
    def version(self) -> int:
        """Counts the learner updates that the held parameters have seen; -1 before the first fetch."""
        return self._version

    @property
    def params(self) -> Nest:
        """Returns the held parameters; the first access waits for some to be published."""
        if self._version < 0:
            self.update(wait=True)
        return self._params

    @property
    def age_seconds(self) -> float:
        """Returns the seconds since the held parameters were published; infinite before the first fetch.

        It compares this host's clock with the learner's.
        """
        return max(0.0, time.time() - self._published)

    @property
    def lost(self) -> bool:
        """Returns whether the source could not be reached when it was last asked."""
        return self._lost is not None

    def update(self, wait: bool = False) -> None:
        """Fetches newer parameters, if it is time; `wait` asks at once and waits for the first version.

        Raises:
            VariablesTimeoutError: nothing was published, or nothing newer where the held parameters are
                older than the limit, within the timeout.
        """
        if not (wait or self._is_time() or self._is_too_old()):
            return
        self._fetch()
        if self._is_too_old() or (wait and self._version < 0):
            self._wait()

    def _is_time(self) -> bool:
        return self._find_period() == 0 or time.monotonic() >= self._next_time

    def _is_too_old(self) -> bool:
        # Before the first fetch there is nothing to be too old: that waits where parameters are needed.
        return self._version >= 0 and self._max_age_seconds < math.inf and self.age_seconds > self._max_age_seconds

    def _fetch(self) -> None:
        asked = time.monotonic()
        self._next_time = asked + self._find_period()
        try:
            found = self._source.get(self._names, newer_than=self._version)
        except (ConnectionError, TimeoutError) as error:
            self._lost = error
            return
        self._lost = None
        if found is not None:
            self._version = found.version
            self._params = self._place(found.variables[self._names[0]])
            self._published = found.published or time.time()
            cost = time.monotonic() - asked
            self._next_time = asked + max(self._find_period(), min(cost / FETCHING_SHARE, LONGEST_PERIOD))

    def _wait(self) -> None:
        deadline = time.monotonic() + self._timeout
        pause = FIRST_PAUSE
        while self._version < 0 or self._is_too_old():
            if time.monotonic() > deadline:
                raise self._late() from self._lost
            time.sleep(pause)
            pause = min(1.5 * pause, LONGEST_PAUSE)
            self._fetch()

    def _late(self) -> VariablesTimeoutError:
        name, why = self._names[0], "" if self._lost is None else f" {self._lost}"
        if self._version < 0:
            return VariablesTimeoutError(
                f"No variables {name!r} were published within {self._timeout:g} s. Is the learner alive?{why}"
            )
        return VariablesTimeoutError(
            f"The variables {name!r} held here are {self.age_seconds:.1f} s old, the limit is "
            f"{self._max_age_seconds:g} s, and nothing newer came within {self._timeout:g} s: the learner publishes "
            f"too slowly, or is gone. Restart it, or raise max_age_seconds.{why}"
        )
