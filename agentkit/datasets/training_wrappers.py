"""What a run's wrappers for training only, such as `wrappers.RewardScale`, make of recorded episodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit.datasets.episodes import Episode
from agentkit.errors import AgentkitError, ConfigError
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest
from agentkit.wrappers.base import name_of, only_in_training

_LARGEST = float(np.finfo(np.float32).max)  # Of rewards, which agents learn in single precision.


def as_in_training(
    episodes: Sequence[Episode], spec: EnvironmentSpec, wrappers: Sequence[Callable[[Any], Any]]
) -> list[Episode]:
    """Returns episodes with the rewards and ends that a run's wrappers for training only make of their own.

    An episode that a wrapper ends earlier is cut there, and its other steps are left out. Observations stay.

    Args:
        episodes: as the environment has them in evaluations.
        spec: of the environment.
        wrappers: of the run, of which those for training only are applied in their order, such as `RewardScale`.

    Raises:
        ConfigError: a wrapper needs more than the data's steps, or makes other steps or what is no reward of them.
    """
    chosen = only_in_training(wrappers)
    if not chosen:
        return list(episodes)
    try:
        played = _Played(episodes, spec)
        environment: Any = played
        for wrapper in chosen:
            environment = wrapper(environment)
        return [_replayed(episode, number, played, environment) for number, episode in enumerate(episodes)]
    except AgentkitError:  # It says what is wrong.
        raise
    except Exception as error:
        why = str(error) if isinstance(error, _CannotPlayError) else f"it raised {error!r:.200}"
        raise ConfigError(
            f"wrappers: {', '.join(map(name_of, chosen))}, for training only, cannot be applied to data: {why}. Leave "
            "it out, or give data that have its rewards and ends already."
        ) from error


class _CannotPlayError(Exception):
    """Says what a wrapper makes of data that cannot be learned from."""


def _replayed(episode: Episode, number: int, played: _Played, environment: Any) -> Episode:
    """Returns an episode up to its first end as its wrapped `environment` shows it, which is `played` inside."""
    environment.reset()
    played.check(number, 0)
    rewards: list[float] = []
    last, discount = False, 1.0
    while not last and len(rewards) < len(episode.rewards):
        timestep = environment.step(_row(episode.actions, len(rewards)))
        last, discount = timestep.last(), _number(timestep.discount)
        rewards.append(_number(timestep.reward))
        played.check(number, len(rewards))
        if not abs(rewards[-1]) <= _LARGEST:  # Nor NaN.
            raise _CannotPlayError(f"expected each reward to be a finite number, found {timestep.reward!r:.80}")
        if discount != 1.0 and not (last and discount == 0.0):
            raise _CannotPlayError(
                f"expected discounts of 1, or 0 at the end of an episode, found {timestep.discount!r:.80} at "
                f"{'its end' if last else 'a step before'}"
            )
    left_out = len(episode.rewards) - len(rewards)
    cut = Episode(*(tree.map_structure(lambda x: x[: len(x) - left_out], column) for column in episode))
    terminations, truncations = np.zeros((2, len(rewards)), bool)
    terminations[-1] = discount == 0.0
    truncations[-1] = not terminations[-1]
    return cut._replace(rewards=np.asarray(rewards), terminations=terminations, truncations=truncations)


def _number(x: Any) -> float:
    """Returns what should be one number; NaN where it is none."""
    array = np.asarray(x)
    return float(array) if array.shape == () and array.dtype.kind in "biuf" else np.nan


def _row(nest: Nest, index: int) -> Nest:
    return tree.map_structure(lambda x: x[index], nest)


@final
class _Played(dm_env.Environment):
    """Plays episodes again, one after the other, whatever the actions."""

    def __init__(self, episodes: Sequence[Episode], spec: EnvironmentSpec):
        self._episodes = episodes
        self._spec = spec
        self._number = self._num_steps = 0

    def check(self, number: int, num_steps: int) -> None:
        """Raises an error unless exactly so many steps of the episode of this number were taken."""
        if (self._number, self._num_steps) != (number, num_steps):
            raise _CannotPlayError("it takes steps or resets of its own, or leaves some out")

    def reset(self) -> dm_env.TimeStep:
        """Begins the next episode, or again the one of which no step was taken yet."""
        if self._num_steps:
            self._number, self._num_steps = self._number + 1, 0
        return dm_env.restart(_row(self._episodes[self._number].observations, 0))

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Returns the next step."""
        episode, t = self._episodes[self._number], self._num_steps
        reward, discount = np.float64(episode.rewards[t]), 0.0 if episode.terminations[t] else 1.0
        self._num_steps += 1
        kind = dm_env.StepType.LAST if self._num_steps == len(episode.rewards) else dm_env.StepType.MID
        return dm_env.TimeStep(kind, reward, discount, _row(episode.observations, self._num_steps))

    def observation_spec(self) -> Nest:
        """Returns the environment's."""
        return self._spec.observations

    def action_spec(self) -> Nest:
        """Returns the environment's."""
        return self._spec.actions
