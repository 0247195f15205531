"""Takes numbers out of gymnasium's ``info`` into a run's logs."""

from __future__ import annotations

import dataclasses
import numbers
import warnings
from typing import Any, final

import numpy as np

from agentkit.callbacks.base import Callback, Episode, RunView, Stop
from agentkit.errors import ConfigError, SpecError


@final
@dataclasses.dataclass
class InfoMetrics(Callback):
    """Logs numbers of ``info``; see `info_metrics`."""

    names: tuple[str, ...]
    _seen: set[str] = dataclasses.field(default_factory=set, init=False, repr=False, compare=False)
    _num_episodes: int = dataclasses.field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuses names that are none, or the logs' own."""
        own = {"steps", "episodes", "episode_return", "episode_raw_return", "episode_length", "updates"}
        if not self.names or not all(isinstance(name, str) for name in self.names):
            raise ConfigError(f"info_metrics: expected names in info, such as 'is_success', found {self.names!r}.")
        if taken := own & set(self.names):
            raise ConfigError(f"info_metrics: {sorted(taken)} are columns of the logs already; leave them out.")

    def on_episode(self, run: RunView, episode: Episode) -> Stop | None:
        """Adds the numbers to the episode's row."""
        self._add(episode)
        return None

    def on_evaluation_episode(self, run: RunView, episode: Episode) -> Stop | None:
        """Adds the numbers to the record, of which the evaluation's row has the mean."""
        self._add(episode)
        return None

    def on_end(self, run: RunView) -> Stop | None:
        """Warns of names that no episode of this process had, which may be misspelt; a launched learner plays none."""
        lacking = sorted(set(self.names) - self._seen)
        if lacking and self._num_episodes:
            warnings.warn(
                f"info_metrics: expected {lacking} in info at an episode's last step, found it in none of "
                f"{self._num_episodes:,}, which had {sorted(self._seen) or 'nothing'}. Correct it, or leave it out.",
                stacklevel=2,
            )
        return None

    def _add(self, episode: Episode) -> None:
        self._num_episodes += 1
        self._seen.update(map(str, episode.info))
        for name in self.names:
            if name in episode.info:
                episode.record[name] = _number(name, episode.info[name])


def _number(name: str, value: Any) -> float:
    array = np.asarray(value)
    if array.size != 1 or not (array.dtype == bool or isinstance(array.reshape(-1)[0], numbers.Real)):
        raise SpecError(f"info_metrics: expected one number as info[{name!r}], found {value!r:.100}.")
    return float(array.reshape(-1)[0])


def info_metrics(*names: str) -> InfoMetrics:
    """Logs numbers of gymnasium's ``info`` at an episode's last step, such as "is_success": SB3's `info_keywords`.

    Each training episode's row has its own, each evaluation's row the mean over those episodes that have one.
    """
    return InfoMetrics(names)
