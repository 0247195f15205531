"""Named, versioned parameters held in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from agentkit.core import VariableSource, Versioned
from agentkit.errors import ConfigError, unknown_name
from agentkit.types import Nest


class VariableStore(VariableSource):
    """Holds parameters: the learner publishes them, actors of the same process get them. Thread-safe.

    Nothing is copied: what is published must not be changed (or donated) afterwards.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current = Versioned(-1, {})

    @property
    def version(self) -> int:
        """Returns the newest version, -1 before the first one."""
        return self._current.version

    def publish(self, version: int, variables: Mapping[str, Nest]) -> None:
        """Makes `variables` the newest; `version` is the number of updates behind them.

        Raises:
            ConfigError: if the version goes down.
        """
        with self._lock:
            if version < self._current.version:
                raise ConfigError(
                    f"Parameters of version {version} were published after version {self._current.version}. "
                    "Versions count learner updates and never go down; make a new VariableStore for a new learner."
                )
            self._current = Versioned(version, dict(variables), time.time())

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        """Implements `core.VariableSource.get`."""
        current = self._current
        if current.version <= newer_than:
            return None
        for name in names:
            if name not in current.variables:
                raise unknown_name("variable", name, current.variables)
        return current._replace(variables={name: current.variables[name] for name in names})
