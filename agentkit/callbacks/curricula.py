"""Makes the environment harder as training goes on, and keeps its level over a resume."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable
from typing import Any, ClassVar, final

import dm_env

from agentkit.callbacks.base import Callback, Episode, RunView, Stop, each_environment
from agentkit.errors import ConfigError
from agentkit.wrappers.base import EnvironmentWrapper


@final
class CurriculumWrapper(EnvironmentWrapper):
    """Calls a function of `curriculum` before each episode, with the steps taken by then.

    Those steps are a part of the environment's state, so that an episode that is repeated on resume has the level that
    it had.
    """

    def __init__(self, environment: dm_env.Environment, set_level: Callable[[int, Any], Any]):
        super().__init__(environment)
        self._set_level = set_level
        self.curriculum_steps = 0
        self.curriculum_level: Any = None

    def begin_curriculum_at(self, steps: int) -> None:
        """Lets the next episode have the level of so many steps."""
        self.curriculum_steps = steps

    def reset(self) -> dm_env.TimeStep:
        """Sets the level and starts an episode."""
        if not getattr(self._environment, "goes_on", False):  # Else it is one game, of which a life was lost.
            self.curriculum_level = self._set_level(self.curriculum_steps, self._environment)
        return self._environment.reset()

    def _save(self) -> dict[str, Any]:
        return {"steps": self.curriculum_steps}

    def _restore(self, state: dict[str, Any]) -> None:
        self.curriculum_steps = int(state["steps"])


@final
@dataclasses.dataclass
class Curriculum(Callback):
    """Sets the level of the environments that are trained in; see `curriculum`."""

    changes_training: ClassVar[bool] = True
    set_level: Callable[[int, Any], Any]
    steps: tuple[int, ...] = dataclasses.field(default=(), init=False)
    environments: list[Any] = dataclasses.field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        """Refuses what cannot be called."""
        if not callable(self.set_level):
            raise ConfigError(f"curriculum: expected a function (steps, environment), found {self.set_level!r}.")

    def wrap(self, environment: Any) -> Any:
        """Returns the environment, which sets its level before each episode."""
        return CurriculumWrapper(environment, self.set_level)

    def on_start(self, run: RunView, environment: Any) -> Stop | None:
        """Lets the next episodes begin where training stands."""
        if environment is None:  # On a node that does not act.
            return None
        self.environments = each_environment(environment)
        steps, self.steps = self.steps or (run.steps,) * len(self.environments), ()
        for each, number in zip(self.environments, steps, strict=True):
            each.begin_curriculum_at(number)
        return None

    def on_episode(self, run: RunView, episode: Episode) -> Stop | None:
        """Logs the level of the episode, if it is a number, and lets the next one begin where training stands."""
        level = episode.environment.curriculum_level
        if isinstance(level, numbers.Real):
            episode.record["curriculum_level"] = level
        episode.environment.begin_curriculum_at(run.steps)
        return None

    def on_end(self, run: RunView) -> Stop | None:
        """Lets the environments go."""
        self.environments = []
        return None

    def save(self) -> dict[str, Any]:
        """Returns the steps at which the next episodes begin."""
        return {"steps": [each.curriculum_steps for each in self.environments]}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        self.steps = tuple(int(steps) for steps in state["steps"])


def curriculum(set_level: Callable[[int, Any], Any]) -> Curriculum:
    """Calls ``set_level(steps, environment)`` before each training episode, to make it as hard as it should be by now.

    The level must follow from the steps alone: a resumed run calls it again with the same ones. A number that it
    returns is logged as ``curriculum_level``. Evaluations are in environments of their own, whose level nobody sets.

    Args:
        set_level: takes the steps of the run so far, and the environment below the callback's own wrapper;
            ``environment.gymnasium_environment.unwrapped`` is gymnasium's.
    """
    return Curriculum(set_level)
