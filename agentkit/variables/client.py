"""An actor's view of the parameters: a local copy, refreshed when it is time."""

from __future__ import annotations

import time

from agentkit.core import VariableSource
from agentkit.errors import ConfigError, VariablesTimeoutError
from agentkit.types import Nest


class VariableClient:
    """Holds the newest parameters of one name that it has fetched."""

    def __init__(self, source: VariableSource, name: str = "policy", *, update_period: int = 1, timeout: float = 60.0):
        """Makes one.

        Args:
            source: where to fetch.
            name: which variables.
            update_period: every how many calls of `update` to ask the source.
            timeout: seconds that a waiting call waits for parameters to be published.
        """
        if update_period < 1:
            raise ConfigError(f"update_period must be at least 1, found {update_period}.")
        self._source = source
        self._names = (name,)
        self._update_period = update_period
        self._timeout = timeout
        self._num_calls = 0
        self._version = -1
        self._params: Nest = None

    @property
    def version(self) -> int:
        """How many learner updates the held parameters have seen; -1 before the first fetch."""
        return self._version

    @property
    def params(self) -> Nest:
        """The held parameters; the first access waits for some to be published."""
        if self._version < 0:
            self.update(wait=True)
        return self._params

    def update(self, wait: bool = False) -> None:
        """Fetches what is newer, if it is time; `wait` asks at once and waits for the first version.

        Raises:
            VariablesTimeoutError: nothing was published within the timeout.
        """
        self._num_calls += 1
        if not wait and self._num_calls % self._update_period:
            return
        found = self._source.get(self._names, newer_than=self._version)
        deadline = time.monotonic() + self._timeout
        while wait and found is None and self._version < 0:
            if time.monotonic() > deadline:
                raise VariablesTimeoutError(
                    f"No variables {self._names[0]!r} were published within {self._timeout:g} s. Is the learner alive?"
                )
            time.sleep(0.01)
            found = self._source.get(self._names, newer_than=self._version)
        if found is not None:
            self._version = found.version
            self._params = found.variables[self._names[0]]
