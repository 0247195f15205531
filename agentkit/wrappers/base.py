"""The base of every dm_env wrapper."""

from __future__ import annotations

import abc
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, ConfigError, OwnStatisticsWarning
from agentkit.types import FIRST, Nest

_GYMNASIUM_STATISTICS = ("NormalizeObservation", "NormalizeReward")


class Around:
    """Passes public attributes that it lacks (`reseed`, `render`, `num_envs`, ...) on to the environment inside.

    Subclasses set `_environment`. So ``hasattr(wrapper, "reseed")`` tells the truth about the chain.
    """

    _environment: Any

    @property
    def environment(self) -> Any:
        """Returns the environment inside."""
        return self._environment

    def __getattr__(self, name: str) -> Any:
        # Private names stay private; this also ends the recursion before __init__ has run.
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._environment, name)


class EnvironmentWrapper(Around, dm_env.Environment):
    """Passes everything on to the environment inside; subclasses change single methods.

    `save` and `restore` hold what outlives an episode (statistics, counters). What lives within an
    episode (stacked frames, a step count) is rebuilt by replaying the episode's actions, which is
    the work of `agentkit.envs.resumable.ResumableEnvironment`, the outermost layer.

    Args:
        environment: a dm_env environment.

    Raises:
        SpecError: if `environment` is not a dm_env environment.
        ConfigError: if it is a batch of environments and this wrapper works on one.
    """

    works_on_batches: ClassVar[bool] = False
    """Whether the wrapper also wraps a batch (every field of a time step ``[N, ...]``)."""

    stateless: ClassVar[bool] = False
    """Whether it keeps nothing from one step to the next, so that it may also be around a resumable environment."""

    training_only: ClassVar[bool] = False
    """Whether evaluations go without it, so that their returns are the environment's own."""

    evaluation_settings: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Settings that it has in evaluations, whatever is given, so that their returns are the environment's own."""

    keeps_rewards: ClassVar[bool] = False
    """Whether one for training only leaves the rewards as they are."""

    within_episode: ClassVar[bool] = False
    """Whether it keeps something within an episode, with which it begins anew at the next one."""

    ends_softly: ClassVar[bool] = False
    """Whether it ends episodes after which the environment inside goes on as if nothing had been."""

    sets_discounts: ClassVar[bool] = False
    """Whether its discounts are its own, and not those of the environment inside."""

    observes_rewards: ClassVar[bool] = False
    """Whether the reward of the environment inside becomes part of the observation."""

    keeps_statistics: ClassVar[bool] = False
    """Whether observations depend on those of earlier episodes, so that each environment's wrapper shows others."""

    def __init__(self, environment: dm_env.Environment):
        specs.check_is_environment(environment)
        if specs.is_batched(environment) and not self.works_on_batches:
            raise ConfigError(
                f"{type(self).__name__} wraps one environment, found a batch of "
                f"{environment.num_envs}. Wrap each environment and batch them afterwards: "
                "envs.make(name, num_envs=N, wrappers=[...]). A vector environment takes gymnasium's "
                "wrappers where it is made: gymnasium.make_vec(..., wrappers=[...])."
            )
        self._environment = environment

    @property
    def resumable(self) -> bool:
        """Returns whether the environment stands in mid-episode again after `restore`."""
        return self.stateless and getattr(self._environment, "resumable", False)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._environment.reset()

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        return self._environment.step(action)

    def observation_spec(self) -> Nest:
        """Returns the spec of the observations."""
        return self._environment.observation_spec()

    def action_spec(self) -> Nest:
        """Returns the spec of the actions."""
        return self._environment.action_spec()

    def reward_spec(self) -> Nest:
        """Returns the spec of the rewards."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Returns the spec of the discounts."""
        return self._environment.discount_spec()

    def close(self) -> None:
        """Frees the resources of the environment inside."""
        self._environment.close()

    def save(self) -> dict[str, Any]:
        """Returns the parts of the chain's state that outlive an episode, as they are now.

        Raises:
            CheckpointError: around a resumable environment, whose place is outermost.
        """
        if self.resumable:
            return self._environment.save()
        if getattr(self._environment, "resumable", False):
            raise CheckpointError(
                f"{type(self).__name__} is around a resumable environment, so its own state within an "
                "episode would be lost. Put the resumable layer outermost: "
                f"envs.make(name, wrappers=[{type(self).__name__}]), or "
                f"ResumableEnvironment({type(self).__name__}(envs.make(name, raw=True)), seed)."
            )
        state: dict[str, Any] = {"wrapper": self._save()}
        if hasattr(self._environment, "save"):
            state["environment"] = self._environment.save()
        return state

    def restore(self, state: dict[str, Any]) -> dm_env.TimeStep | None:
        """Restores the state that `save` returned.

        The episode under way is part of it only around what is resumable: then this is its time step.
        """
        if self.resumable:
            timestep = self._environment.restore(state)
            return None if timestep is None else self._transform(timestep)
        if "wrapper" not in state or ("environment" in state) != hasattr(self._environment, "save"):
            raise CheckpointError(
                f"State for {type(self).__name__} does not fit: found the parts {sorted(state)}. "
                "Build the environment with the same wrappers as when it was saved."
            )
        self._restore(state["wrapper"])
        if "environment" in state:
            self._environment.restore(state["environment"])
        return None

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Returns a time step of the environment inside, as seen outside."""
        return timestep

    def _save(self) -> dict[str, Any]:
        """Returns this wrapper's own state; stateful wrappers override it."""
        return {}

    def _restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `_save` returned."""
        if state:
            raise CheckpointError(
                f"{type(self).__name__} keeps no state, found {sorted(state)} to restore. "
                "Build the environment with the same wrappers as when it was saved."
            )


def check_count(name: str, value: Any, least: int = 1) -> None:
    """Refuses what is no whole number of at least `least`.

    Raises:
        ConfigError: `value` is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{name}: expected a whole number of at least {least}, found {value!r}.")


def without_training_only(wrappers: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Returns those wrappers that are around an environment in evaluation, too, with the settings that hold there.

    Only those of a class or a `functools.partial` of one are known: a function of yours wraps as it does in training.
    """
    kept = [each for each in wrappers if not _says(each, "training_only")]
    return [_in_evaluation(each, kept[position + 1 :]) for position, each in enumerate(kept)]


def _in_evaluation(wrapper: Callable[..., Any], outer: Sequence[Callable[..., Any]]) -> Callable[..., Any]:
    own: Mapping[str, Any] = getattr(getattr(wrapper, "func", wrapper), "evaluation_settings", {})
    given = wrapper.keywords if isinstance(wrapper, functools.partial) else {}
    changed = {name: value for name, value in own.items() if name in given}
    if any(_says(each, "observes_rewards") for each in outer):
        changed.pop("clip_reward", None)  # The agent observes rewards as in training.
    return functools.partial(wrapper, **changed) if changed else wrapper


def only_in_training(wrappers: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Returns those wrappers that are around an environment in training alone."""
    return [each for each in wrappers if _says(each, "training_only")]


def is_gymnasium_wrapper(wrapper: Callable[..., Any]) -> bool:
    """Returns whether this is a class of gymnasium's wrappers, or a `functools.partial` of one."""
    cls = getattr(wrapper, "func", wrapper)
    return _is_gymnasium(cls, "Wrapper")


def _is_gymnasium(cls: Any, *names: str) -> bool:
    """Returns whether this is a class of gymnasium's that is called so, or is derived from one."""
    return isinstance(cls, type) and any(
        base.__name__ in names and base.__module__.startswith("gymnasium.") for base in cls.__mro__
    )


def check_order(wrappers: Sequence[Callable[..., Any]]) -> None:
    """Refuses wrappers that undo each other in the order in which they are given.

    Args:
        wrappers: around one environment, the innermost first.

    Raises:
        ConfigError: one that changes rewards in training only is inside of one that makes rewards observations, so
            that an evaluation would show the agent others than the training; one that begins anew with each episode
            is around a soft horizon, after which the environment goes on; terminations are made truncations inside of
            a wrapper that makes terminations; or one of gymnasium's is around one of agentkit's.
    """
    for position, outer in enumerate(wrappers):
        for inner in wrappers[:position]:
            names = name_of(inner), name_of(outer)
            if is_gymnasium_wrapper(outer) and not is_gymnasium_wrapper(inner):
                raise ConfigError(
                    "wrappers: {1} is gymnasium's, and goes around gymnasium's environment, inside of {0}. Put {1} "
                    "before {0}.".format(*names)
                )
            if _says(inner, "training_only") and not _says(inner, "keeps_rewards") and _says(outer, "observes_rewards"):
                raise ConfigError(
                    "wrappers: {0} is for training only, and {1} after it would show its rewards to the agent, so that "
                    "evaluations would have other observations. Put {0} after {1}.".format(*names)
                )
            if _says(inner, "ends_softly") and _says(outer, "within_episode"):
                raise ConfigError(
                    "wrappers: after {0} the environment goes on, and {1} around it would begin anew. Put {0} after "
                    "{1}.".format(*names)
                )
            if _says(inner, "training_only") and _says(inner, "keeps_rewards") and _says(outer, "sets_discounts"):
                raise ConfigError(
                    "wrappers: {1} makes terminations of its own, which {0} inside of it does not see. Put {0} after "
                    "{1}.".format(*names)
                )


def name_of(wrapper: Callable[..., Any]) -> str:
    """Returns the name of a wrapper's class or function, for messages; of another callable that of its class."""
    made = getattr(wrapper, "func", wrapper)
    return str(getattr(made, "__name__", type(made).__name__))


def check_statistics(environment: Any) -> None:
    """Refuses an environment whose wrappers normalise by statistics that no other environment of a run has.

    Of gymnasium's, which the environment's own function has put around it, it warns: old runs have them, and who
    evaluates nothing may want them.

    Args:
        environment: single, or a batch in this process.

    Raises:
        ConfigError: a wrapper in the chain keeps statistics.
    """
    cls = type(environment)
    if getattr(cls, "keeps_statistics", False):
        raise ConfigError(_refusal(cls.__name__))
    if hasattr(cls, "gymnasium_environment"):
        _warn_of_statistics(environment.gymnasium_environment)
        return
    if hasattr(cls, "environments"):  # A batch.
        inside = environment.environments
    else:
        inside = [environment.environment] if hasattr(cls, "environment") else []
    for each in inside:
        check_statistics(each)


def _warn_of_statistics(environment: Any) -> None:
    """Warns of gymnasium's wrappers that keep statistics; those that were frozen are the same everywhere."""
    while _is_gymnasium(cls := type(environment), "Wrapper", "VectorWrapper"):
        said = getattr(cls, "keeps_statistics", _is_gymnasium(cls, *_GYMNASIUM_STATISTICS))
        if said and getattr(environment, "update_running_mean", True):
            warnings.warn(_refusal(cls.__name__, "the environment"), OwnStatisticsWarning, stacklevel=1)
        environment = environment.env
    if _is_gymnasium(type(environment), "SyncVectorEnv"):
        for each in environment.envs:
            _warn_of_statistics(each)


def check_no_statistics(wrappers: Sequence[Callable[..., Any]]) -> None:
    """Refuses wrappers of a run that would normalise by statistics of their own in each of its environments.

    Raises:
        ConfigError: there is one.
    """
    for each in wrappers:
        is_theirs = is_gymnasium_wrapper(each) and name_of(each) in _GYMNASIUM_STATISTICS
        if is_theirs or _says(each, "keeps_statistics"):
            raise ConfigError(_refusal(name_of(each)))


def _refusal(name: str, where: str = "wrappers") -> str:
    return (
        f"{where}: {name} has statistics of its own in each environment, so that evaluations, other actors and saved "
        "policies would have other observations than the training. Take --normalize observations (in Python "
        "agents.addons.with_normalization(agent)), or of agents such as ppo the setting normalize_observations."
    )


def observes_rewards(wrappers: Sequence[Callable[..., Any]]) -> bool:
    """Returns whether one of the wrappers makes rewards part of the observation."""
    return any(_says(each, "observes_rewards") for each in wrappers)


def _says(wrapper: Callable[..., Any], attribute: str) -> bool:
    return bool(getattr(getattr(wrapper, "func", wrapper), attribute, False))


class ObservationWrapper(EnvironmentWrapper):
    """Changes time steps only, one at a time."""

    @abc.abstractmethod
    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        """Returns the time step as seen outside."""

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._transform(self._environment.reset())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        return self._transform(self._environment.step(action))


class RewardWrapper(ObservationWrapper):
    """Changes rewards in training only, and sums what they were, so that logs have the environment's own returns, too.

    Works on one environment and on a batch, and also around a resumable environment: the sum is for logs only, which
    look at its growth.
    """

    works_on_batches = True
    stateless = True
    training_only = True

    def __init__(self, environment: dm_env.Environment):
        super().__init__(environment)
        self._sum: Any = np.zeros(environment.num_envs) if specs.is_batched(environment) else 0.0

    @abc.abstractmethod
    def _change(self, reward: Nest) -> Nest:
        """Returns the reward as seen outside."""

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        if timestep.reward is None:
            self._sum = 0.0
            return timestep
        if isinstance(self._sum, np.ndarray):
            self._sum = np.where(timestep.step_type == FIRST, 0.0, self._sum + _totals(timestep.reward, len(self._sum)))
        else:
            self._sum = 0.0 if timestep.first() else self._sum + float(sum(map(np.sum, tree.flatten(timestep.reward))))
        return timestep._replace(reward=self._change(timestep.reward))

    @property
    def raw_return(self) -> Any:
        """Returns the sum of the environment's own rewards in this episode so far; of a batch ``[N]``."""
        inner = getattr(self._environment, "raw_return", None)
        return self._sum if inner is None else inner


def _totals(reward: Nest, num_envs: int) -> np.ndarray:
    """Returns the sum of each reward's numbers in a batch, ``[N]``."""
    leaves = (np.reshape(leaf, (num_envs, -1)) for leaf in tree.flatten(reward))
    return np.sum([leaf.sum(-1, dtype=np.float64) for leaf in leaves], axis=0)
