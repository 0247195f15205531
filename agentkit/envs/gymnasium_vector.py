"""Gymnasium's vector environments as batches: those of ``make_vec``, ALE's own, simulators on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.envs.batched import Batch, check_actions, spec_with_floats
from agentkit.envs.gymnasium import is_vector_environment, space_to_spec
from agentkit.envs.gymnasium_loading import load_vector
from agentkit.envs.rendering import prepare_gymnasium
from agentkit.errors import ConfigError, SpecError
from agentkit.types import FIRST, LAST, MID, WAIT, Nest

NEXT_STEP, SAME_STEP, DISABLED = "NextStep", "SameStep", "Disabled"
"""Gymnasium's autoreset modes, the values of its ``AutoresetMode``."""

_Convert = Callable[[Any], Any]
_LARGEST_SEED = 2**31 - 1


def make(
    name: str, seed: int = 0, num_envs: int | None = None, *, evaluation: bool = False, **kwargs: Any
) -> dm_env.Environment:
    """Makes ``gymnasium.make_vec(name, num_envs, **kwargs)`` a batch; see `gymnasium_loading.load_vector`.

    Args:
        name: gymnasium's name of the environment.
        seed: seeds the first reset.
        num_envs: None for a single environment, which is a vector environment of one inside.
        evaluation: whether the episodes are to be judged by: then ALE's rewards are not clipped, and no life lost is
            an end.
        **kwargs: ``vectorization_mode``, ``vector_kwargs`` and the environment's own.
    """
    batch = VectorEnvironment(load_vector(name, num_envs or 1, evaluation=evaluation, **kwargs), seed)
    return FirstOfVector(batch) if num_envs is None else batch


@final
class VectorEnvironment(Batch):
    """Adapts a `gymnasium.vector.VectorEnv` to agentkit's convention for batches, whatever its autoreset mode.

    The convention is that of `agentkit.envs.batched.BatchedEnvironment`: an environment that was LAST, with its final
    observation, is FIRST at the next step. ``terminated`` becomes LAST with discount 0, ``truncated`` alone LAST with
    discount 1. The mode is what ``metadata["autoreset_mode"]`` says, and next step where it says nothing, as in
    gymnasium:

    * Next step: gymnasium's convention is agentkit's.
    * Same step and disabled: gymnasium can only step all environments, and those that ended have no action yet. So the
      step after an end begins episodes and does nothing else: of the environments that did not end, the step type is
      `agentkit.types.WAIT`, the reward 0, the discount 1 and the observation as before (`begins_apart`).

    It can be reseeded, and two with equal seeds and actions give equal time steps, if the vector environment takes heed
    of seeds: by gymnasium's rule, environment i gets `seed` + i. It cannot be saved (`resumable` is False).

    Attributes:
        num_envs: N.
        begins_apart: whether a step after an end begins episodes and does nothing else.

    Args:
        environment: steps all its environments at once, and takes and gives numpy arrays.
        seed: seeds the first reset.

    Raises:
        ConfigError: it is asynchronous, or its autoreset mode is none of gymnasium's.
        SpecError: it is no vector environment, or a space has no dm_env spec.
    """

    resumable = False

    def __init__(self, environment: Any, seed: int = 0):
        if not is_vector_environment(environment):
            raise SpecError(f"Expected a gymnasium.vector.VectorEnv, found {type(environment).__name__}.")
        self.num_envs = int(environment.num_envs)
        if getattr(environment.unwrapped, "batch_size", self.num_envs) != self.num_envs:
            raise ConfigError(
                f"{environment}: expected a batch_size of all {self.num_envs} environments, found "
                f"{environment.unwrapped.batch_size}. Make it without batch_size."
            )
        self._environment = environment
        self._name = str(environment)
        self._mode, self._is_assumed = _find_mode(environment)
        self.begins_apart = self._mode != NEXT_STEP
        observation_space, action_space = environment.single_observation_space, environment.single_action_space
        self._spec = spec_with_floats(
            space_to_spec(observation_space, "observation"), space_to_spec(action_space, "action")
        )
        self._read = _reader(observation_space, self._spec.observations)
        self._write = _writer(action_space, self._spec.actions, self.num_envs)
        self._last = np.zeros(self.num_envs, bool)
        self._observation: Nest = None  # The newest; None before the first reset.
        self._firsts: Nest = None  # Of the episodes to begin, where gymnasium has given them already.
        self._info: Mapping[str, Any] = {}
        self._ready_to_draw = False
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin episodes that depend on `seed` alone."""
        self._seed: int | None = min(seed, _LARGEST_SEED - self.num_envs)  # Each adds its number, in 32 bits.

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode in every environment."""
        observation, self._info = self._environment.reset(seed=self._seed)
        self._seed = None
        self._last = np.zeros(self.num_envs, bool)
        return self._timestep(np.full(self.num_envs, FIRST), self._read(observation))

    def step(self, actions: Nest) -> dm_env.TimeStep:
        """Takes actions, leaves ``[N, ...]``; elements that were LAST start an episode instead."""
        if self._observation is None:
            return self.reset()
        if self.begins_apart and self._last.any():
            return self._begin()
        observation, reward, terminated, truncated, self._info = self._environment.step(self._write(actions))
        terminated, reward = _to_array(terminated).astype(bool), _to_array(reward)
        ended = terminated | _to_array(truncated).astype(bool)
        observation, was_last = self._read(observation), self._last
        if self._mode == NEXT_STEP:
            self._check_began(was_last, ended, reward)
        elif self._mode == SAME_STEP and ended.any():
            self._firsts, observation = observation, self._with_final(observation, ended)
        self._last = ended
        step_type = np.where(was_last, FIRST, np.where(ended, LAST, MID))
        return self._timestep(step_type, observation, np.where(was_last, 0, reward), ~terminated)

    def _begin(self) -> dm_env.TimeStep:
        """Begins an episode in each environment that was LAST; the others wait."""
        began, firsts, self._firsts = self._last, self._firsts, None
        if self._mode == DISABLED:
            given, self._info = self._environment.reset(options={"reset_mask": began.copy()})
            firsts = self._read(given)
        self._last = np.zeros(self.num_envs, bool)
        observation = tree.map_structure(lambda new, old: _choose(began, new, old), firsts, self._observation)
        return self._timestep(np.where(began, FIRST, WAIT), observation)

    def _timestep(
        self, step_type: np.ndarray, observation: Nest, reward: Any = 0.0, discount: Any = 1.0
    ) -> dm_env.TimeStep:
        self._observation = observation
        with np.errstate(over="ignore"):  # What is infinite then is told of by who checks the step.
            numbers = [np.broadcast_to(x, (self.num_envs,)).astype(np.float32) for x in (reward, discount)]
        return dm_env.TimeStep(step_type.astype(np.int32), *numbers, observation)

    def _with_final(self, observation: Nest, ended: np.ndarray) -> Nest:
        """Returns observations with the final ones of the episodes that ended in the place of the next ones' first."""
        found = self._info.get("final_obs")
        numbers = np.flatnonzero(ended)
        in_objects = isinstance(found, np.ndarray) and found.dtype == object  # As gymnasium's own have them.
        if found is None or (in_objects and any(found[i] is None for i in numbers)):
            raise SpecError(
                f"{self._name} resets in the same step (AutoresetMode.SAME_STEP): expected info['final_obs'] with the "
                f"final observations of environments {numbers.tolist()}, which ended, found {', '.join(self._info)}. "
                "Put them there, or correct metadata['autoreset_mode']."
            )
        if not in_objects:
            return tree.map_structure(lambda new, old: _choose(ended, new, old), self._read(found), observation)
        columns = tree.map_structure(np.copy, observation)
        for i in numbers:
            final = self._read(found[i])
            specs.validate(final, self._spec.observations, f"info['final_obs'][{i}] of {self._name}")
            for column, leaf in zip(tree.flatten(columns), tree.flatten(final), strict=True):
                column[i] = leaf
        return columns

    def _check_began(self, was_last: np.ndarray, ended: np.ndarray, reward: np.ndarray) -> None:
        """Refuses what resets otherwise than in the next step: its data would be wrong without a word."""
        why = ""
        if (was_last & ended).any():
            why = f"environment {np.flatnonzero(was_last & ended)[0]} has ended at the step that was to reset it"
        elif self._is_assumed and reward[was_last].any():
            why = f"environment {np.flatnonzero(was_last & (reward != 0))[0]} has a reward at the step of its reset"
        elif self._is_assumed and ended.any() and self._info.keys() & {"final_obs", "final_observation"}:
            why = "info has final observations, as of one that resets in the same step"
        if why:
            says = "has no metadata['autoreset_mode'], which means" if self._is_assumed else "says that it has"
            raise SpecError(
                f"{self._name} {says} AutoresetMode.NEXT_STEP, but {why}. Set metadata['autoreset_mode'] to how it "
                "resets: gymnasium.vector.AutoresetMode.SAME_STEP, with info['final_obs'], or DISABLED, with "
                "reset(options={'reset_mask': mask})."
            )

    def info_of(self, number: int) -> dict[str, Any]:
        """Returns the newest info of one environment; of one that has just ended, that of its last step."""
        final = self._info.get("final_info") if self._mode == SAME_STEP and self._last[number] else None
        return _element_of_info(self._info if final is None else final, number, self.num_envs)

    @functools.cached_property
    def environments(self) -> list[Any]:
        """Returns what stands for each environment: it has the `last_info`, and nothing else."""
        return [InVector(self, number) for number in range(self.num_envs)]

    @property
    def gymnasium_environment(self) -> Any:
        """Returns the vector environment inside."""
        return self._environment

    def render(self) -> np.ndarray:
        """Returns the image of the first environment; needs ``render_mode="rgb_array"`` when it is made."""
        if not self._ready_to_draw:
            for each in getattr(self._environment.unwrapped, "envs", ()):
                prepare_gymnasium(each.unwrapped)
            self._ready_to_draw = True
        frames = self._environment.render()
        if frames is None or not len(frames) or not isinstance(frames[0], np.ndarray):
            raise SpecError(
                f"render() of {self._name} gave {type(frames).__name__}, expected images. Make the vector environment "
                'with render_mode="rgb_array".'
            )
        frame: np.ndarray = frames[0]
        return frame

    def close(self) -> None:
        """Closes the vector environment."""
        self._environment.close()


@final
class InVector:
    """Stands for one environment of a `VectorEnvironment`, for whoever asks for its info."""

    def __init__(self, batch: VectorEnvironment, number: int):
        """Takes the batch and the environment's number in it."""
        self._batch, self._number = batch, number

    @property
    def last_info(self) -> dict[str, Any]:
        """Returns the newest info."""
        return self._batch.info_of(self._number)


@final
class FirstOfVector(dm_env.Environment):
    """Shows the first environment of a `VectorEnvironment` as a single one, to evaluate or film in.

    The others take the same actions and are not looked at. So each episode is one of the first environment, whatever
    its length: those that end first in a batch are the short ones.

    Args:
        batch: of one environment, or of more where it can only be had so.
    """

    def __init__(self, batch: VectorEnvironment):
        self._batch = batch

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._first_of(self._batch.reset())

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead and ignores the action."""
        actions = tree.map_structure(lambda leaf: np.stack([np.asarray(leaf)] * self._batch.num_envs), action)
        timestep = self._batch.step(actions)
        while timestep.step_type[0] == WAIT:
            timestep = self._batch.step(actions)
        return self._first_of(timestep)

    def _first_of(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        step_type, observation = dm_env.StepType(timestep.step_type[0]), _element(timestep.observation, 0)
        if step_type == FIRST:
            return dm_env.TimeStep(step_type, None, None, observation)
        return dm_env.TimeStep(step_type, timestep.reward[0], timestep.discount[0], observation)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._batch.reseed(seed)

    @property
    def last_info(self) -> dict[str, Any]:
        """Returns the info of the latest reset or step."""
        return self._batch.info_of(0)

    @property
    def gymnasium_environment(self) -> Any:
        """Returns the vector environment inside."""
        return self._batch.gymnasium_environment

    def observation_spec(self) -> Nest:
        """Returns the spec of the observations."""
        return self._batch.observation_spec()

    def action_spec(self) -> Nest:
        """Returns the spec of the actions."""
        return self._batch.action_spec()

    def reward_spec(self) -> specs.Array:
        """Returns float32 scalar."""
        return self._batch.reward_spec()

    def discount_spec(self) -> specs.BoundedArray:
        """Returns float32 scalar in [0, 1]."""
        return self._batch.discount_spec()

    def render(self) -> np.ndarray:
        """Returns the image."""
        return self._batch.render()

    def close(self) -> None:
        """Closes the vector environment."""
        self._batch.close()


def _find_mode(environment: Any) -> tuple[str, bool]:
    """Returns a vector environment's autoreset mode, and whether that is only assumed, by gymnasium's default."""
    inner = environment.unwrapped
    # ALE's writes its mode into the dictionary that gymnasium's base class shares with all others (ale-py 0.12.1).
    shared = next((vars(cls).get("metadata") for cls in type(inner).__mro__ if cls.__name__ == "VectorEnv"), None)
    found = getattr(inner, "autoreset_mode", None)
    if found is None and environment.metadata is not shared:
        found = environment.metadata.get("autoreset_mode")
    mode = getattr(found, "value", found)
    if mode not in (None, NEXT_STEP, SAME_STEP, DISABLED):
        raise ConfigError(
            f"{environment}: expected a gymnasium.vector.AutoresetMode as metadata['autoreset_mode'], found {found!r}."
        )
    return mode or NEXT_STEP, mode is None


def _reader(space: Any, spec: Nest) -> _Convert:
    """Returns a function from values of a space, one or a batch, to new arrays; choices count from 0 in them."""
    if isinstance(spec, dict):
        children = {key: _reader(space[key], child) for key, child in spec.items()}
        return lambda value: {key: read(value[key]) for key, read in children.items()}
    if isinstance(spec, tuple):
        readers = [_reader(*pair) for pair in zip(space, spec, strict=True)]
        return lambda value: tuple(read(part) for read, part in zip(readers, value, strict=True))
    start, dtype = getattr(space, "start", 0), spec.dtype

    def read(value: Any) -> np.ndarray:
        array = _to_array(value)
        if np.any(start):
            array = array - start
        # Of another kind, such as floats for an image of bytes, it stays as it is, and is refused by its dtype.
        return np.array(array, dtype if np.can_cast(array.dtype, dtype, "same_kind") else None, order="C")

    return read


def _writer(space: Any, spec: Nest, num_envs: int) -> _Convert:
    """Returns a function from actions, leaves ``[N, ...]``, to what a vector environment of such a space takes."""
    if isinstance(spec, dict):
        children = {key: _writer(space[key], child, num_envs) for key, child in spec.items()}
        return lambda value: {key: write(value[key]) for key, write in children.items()}
    if isinstance(spec, tuple):
        writers = [_writer(*pair, num_envs) for pair in zip(space, spec, strict=True)]
        return lambda value: tuple(write(part) for write, part in zip(writers, value, strict=True))
    start = getattr(space, "start", 0)
    return lambda value: np.ascontiguousarray(check_actions(value, num_envs, spec.shape) + start, space.dtype)


def _to_array(value: Any) -> np.ndarray:
    try:
        return np.asarray(value)
    except TypeError as error:  # A tensor on another device.
        raise SpecError(
            f"A vector environment gave {type(value).__name__}, expected numpy's arrays: {error} Put gymnasium's "
            "wrapper around it that gives them, such as gymnasium.wrappers.vector.TorchToNumpy."
        ) from error


def _choose(mask: np.ndarray, new: np.ndarray, old: np.ndarray) -> np.ndarray:
    """Returns rows of `new` where `mask` says so, and of `old` elsewhere."""
    return np.where(mask.reshape(-1, *[1] * (old.ndim - 1)), new, old)


def _element(nest: Nest, number: int) -> Nest:
    return tree.map_structure(lambda leaf: leaf[number], nest)


def _element_of_info(info: Mapping[str, Any], number: int, num_envs: int) -> dict[str, Any]:
    """Returns one environment's part of a vector environment's info: an entry has a mask of who has it."""
    found = {}
    for key, value in info.items():
        has_it = info.get(f"_{key}")
        if key.startswith("_") or (has_it is not None and not has_it[number]):
            continue
        if isinstance(value, Mapping):
            found[key] = _element_of_info(value, number, num_envs)
        else:
            found[key] = value[number] if np.shape(value)[:1] == (num_envs,) else value
    return found
