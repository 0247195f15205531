"""The base of agentkit's own environments, and the shortest way to write a new one."""

from __future__ import annotations

import abc
from typing import Any

import dm_env
import numpy as np

from agentkit.errors import ConfigError
from agentkit.types import Nest

NO_LIMIT = 2**31 - 1
"""Steps of an episode that nobody reaches, for simulators that know no word for no limit; some count in int32."""
_LARGEST = 10_000


class Environment(dm_env.Environment):
    """Keeps the books of a dm_env environment: episode ends, resets, seeds, step limit.

    A subclass sets its specs and writes `_start` and `_advance`; randomness comes from `self._rng`
    only, and `_start` sets everything that `_advance` reads. Then an episode depends on its seed
    and its actions alone, which is what makes it resumable.

    Args:
        seed: seeds `self._rng`.
        max_steps: an episode that is this long is truncated (LAST with discount 1); None for no limit.
    """

    def __init__(self, seed: int = 0, max_steps: int | None = None):
        self._max_steps = max_steps
        self._num_steps = 0
        self._reset_next_step = True
        self.reseed(seed)

    @abc.abstractmethod
    def _start(self) -> Nest:
        """Begins an episode and returns its first observation."""

    @abc.abstractmethod
    def _advance(self, action: Nest) -> tuple[Nest, float, bool]:
        """Takes an action; returns the observation, the reward, and whether the episode terminated."""

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._rng = np.random.default_rng(seed)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        self._num_steps = 0
        self._reset_next_step = False
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, self._start())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead and ignores the action."""
        if self._reset_next_step:
            return self.reset()
        self._num_steps += 1
        observation, reward, terminated = self._advance(action)
        truncated = self._num_steps == self._max_steps
        if not (terminated or truncated):
            return dm_env.TimeStep(dm_env.StepType.MID, reward, 1.0, observation)
        self._reset_next_step = True
        return dm_env.TimeStep(dm_env.StepType.LAST, reward, 0.0 if terminated else 1.0, observation)


def check_size(name: str, value: int, least: int = 1) -> None:
    """Refuses a size with which an environment would be none, or fill the memory.

    Raises:
        ConfigError: `value` is no whole number from `least` to 10,000.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= _LARGEST:
        raise ConfigError(f"{name} must be a whole number from {least} to {_LARGEST:,}, found {value!r}.")


def check_within(name: str, value: Any, least: float, most: float = np.inf, *, above: bool = False) -> None:
    """Refuses a number outside of a range, and what is no number; `above` leaves `least` itself out.

    Raises:
        ConfigError: `value` is no such number, NaN included.
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or (above and value == least):
        ends = f"above {least}" if above else f"of at least {least}"
        ends += "" if most == np.inf else f" and at most {most}"
        raise ConfigError(f"{name}: expected a number {ends}, found {value!r}.")


def check_max_episode_steps(value: Any) -> None:
    """Refuses a time limit that is no number of steps; None is for the environment's own, and -1 for none.

    Raises:
        ConfigError: `value` is none of these.
    """
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if value is not None and not (is_whole and (value >= 1 or value == -1)):
        raise ConfigError(f"max_episode_steps: expected at least 1, or -1 for no limit, found {value!r}.")


def checked_action(action: Nest, num_actions: int) -> int:
    """Returns `action` as an int in [0, num_actions).

    Raises:
        ValueError: if it is not such an action.
    """
    value = int(action)
    if not 0 <= value < num_actions:
        raise ValueError(f"Expected an action in 0..{num_actions - 1}, found {action!r}.")
    return value
