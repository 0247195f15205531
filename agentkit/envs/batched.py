"""Many environments stepped together as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.envs.columns import stack_info_columns
from agentkit.envs.resumable import episode_seed
from agentkit.envs.step_check import fits
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.types import FIRST, LAST, Nest


class Batch(dm_env.Environment):
    """Answers for the specs of a batch, which are those of one environment: a subclass sets `_spec`."""

    _spec: specs.EnvironmentSpec

    def observation_spec(self) -> Nest:
        """Returns the spec of one environment's observation."""
        return self._spec.observations

    def action_spec(self) -> Nest:
        """Returns the spec of one environment's action."""
        return self._spec.actions

    def reward_spec(self) -> Nest:
        """Returns the spec of one environment's reward."""
        return self._spec.rewards

    def discount_spec(self) -> Nest:
        """Returns the spec of one environment's discount."""
        return self._spec.discounts

    def columns_spec(self) -> Nest:
        """Returns the specs of one environment's columns, see `envs.columns`; () for none."""
        return self._spec.columns


def spec_with_floats(observations: Nest, actions: Nest) -> specs.EnvironmentSpec:
    """Returns the specs of an environment whose reward is a float32, and whose discount is one in [0, 1]."""
    reward = specs.Array((), np.float32, name="reward")
    return specs.EnvironmentSpec(
        observations, actions, reward, specs.BoundedArray((), np.float32, 0.0, 1.0, name="discount")
    )


@final
class BatchedEnvironment(Batch):
    """Runs N environments one after the other; the convention of every batch in agentkit.

    Specs are those of one environment. A time step holds arrays: `step_type` int32 ``[N]``, reward
    and discount ``[N, ...]`` and observation leaves ``[N, ...]``. An element whose last step was
    LAST is reset by the next `step`: its action is ignored, its step type is FIRST, its reward 0
    and its discount 1 (where a single environment gives None). A batch that can only be stepped as a whole and has
    to be reset before, so that others wait meanwhile, says so by an attribute `begins_apart`: see `types.WAIT` and
    `agentkit.envs.gymnasium_vector`.

    Attributes:
        failed: the number of the environment whose step or reset has raised; None so far.

    Args:
        environments: at least one, all with the same specs.
        first: the number of the first one, where they are part of a larger batch.

    Raises:
        ConfigError: if there is none, or one is a batch itself.
        SpecError: if the specs differ.
    """

    def __init__(self, environments: Sequence[dm_env.Environment], first: int = 0):
        if not environments:
            raise ConfigError("A batch needs at least one environment, found none.")
        for environment in environments:
            specs.check_is_environment(environment)
            if specs.is_batched(environment):
                raise ConfigError("Expected single environments to batch, found a batch. Batch once.")
        self._environments = list(environments)
        self._first = first
        self.failed: int | None = None
        self._ended = [False] * len(environments)  # Whose last step was LAST.
        each = (specs.make_environment_spec(environment) for environment in environments)
        self._spec = common_spec(enumerate(each, first))
        self._stack_observation = _checked_stacker(self._spec.observations, first)
        self._stack_reward = _filler(self._spec.rewards, 0)
        self._stack_discount = _filler(self._spec.discounts, 1)
        self._split_action = _splitter(self._spec.actions, len(environments))

    @property
    def num_envs(self) -> int:
        """Returns N, the number of environments."""
        return len(self._environments)

    @property
    def environments(self) -> list[Any]:
        """Returns the environments inside."""
        return list(self._environments)

    @property
    def resumable(self) -> bool:
        """Returns whether every environment inside stands in mid-episode again after `restore`."""
        return all(getattr(environment, "resumable", False) for environment in self._environments)

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode in every environment."""
        timesteps: list[dm_env.TimeStep] = []
        try:
            for i, environment in enumerate(self._environments):
                timesteps.append(environment.reset())
                self._ended[i] = False  # Here, as what comes after it may raise.
        except BaseException:
            self.failed = self._first + len(timesteps)
            raise
        return self._stack(timesteps)

    def step(self, actions: Nest) -> dm_env.TimeStep:
        """Takes actions, leaves ``[N, ...]``; resets elements that were LAST instead, as an `EnvironmentLoop` does."""
        timesteps: list[dm_env.TimeStep] = []
        try:
            each = zip(self._environments, self._split_action(actions), strict=True)
            for i, (environment, action) in enumerate(each):
                timesteps.append(environment.reset() if self._ended[i] else environment.step(action))
                self._ended[i] = getattr(timesteps[-1], "step_type", None) == LAST
        except BaseException:
            self.failed = self._first + len(timesteps)
            raise
        return self._stack(timesteps)

    def _stack(self, timesteps: list[dm_env.TimeStep]) -> dm_env.TimeStep:
        for number, timestep in enumerate(timesteps, self._first):
            if not isinstance(timestep, dm_env.TimeStep) or (
                (timestep.reward is None or timestep.discount is None) and timestep.step_type != FIRST
            ):
                raise SpecError(
                    f"Environment {number} of a batch gave {timestep!r:.100}; expected a dm_env.TimeStep, with a "
                    "reward and a discount unless it is an episode's first."
                )
        return dm_env.TimeStep(
            step_type=np.array([timestep.step_type for timestep in timesteps], np.int32),
            reward=self._stack_reward([timestep.reward for timestep in timesteps]),
            discount=self._stack_discount([timestep.discount for timestep in timesteps]),
            observation=self._stack_observation([timestep.observation for timestep in timesteps]),
        )

    @property
    def info_columns(self) -> dict[str, np.ndarray]:
        """Returns the newest values of the info's columns, ``[N, ...]``."""
        return stack_info_columns(self._environments)

    @property
    def raw_return(self) -> np.ndarray | None:
        """Returns the sums of the episodes' rewards before wrappers changed them, ``[N]``; None where none does."""
        sums = [getattr(environment, "raw_return", None) for environment in self._environments]
        return None if sums[0] is None else np.array(sums, np.float64)

    def reseed(self, seed: int) -> None:
        """Reseeds environment i with a seed made of (`seed`, i)."""
        for i, environment in enumerate(self._environments, self._first):
            environment.reseed(episode_seed(seed, i))

    def render(self) -> np.ndarray:
        """Returns the image of the first environment."""
        return self._environments[0].render()

    def close(self) -> None:
        """Closes every environment."""
        for environment in self._environments:
            environment.close()

    def save(self) -> dict[str, Any]:
        """Returns the state of every environment, by its number.

        Raises:
            CheckpointError: if an environment cannot be saved.
        """
        if not self.resumable:
            raise CheckpointError(
                "The environments of this batch cannot be saved in mid-episode. Make them with "
                "envs.make(name, num_envs=N), or wrap each in ResumableEnvironment."
            )
        return {str(i): environment.save() for i, environment in enumerate(self._environments, self._first)}

    def restore(self, state: dict[str, Any]) -> dm_env.TimeStep | None:
        """Restores every environment.

        Returns:
            The current time step, or None if the batch was saved before its first reset.

        Raises:
            CheckpointError: if the state is of another number of environments or does not fit.
        """
        numbers = [str(self._first + i) for i in range(self.num_envs)]
        if set(state) != set(numbers):
            raise CheckpointError(
                f"Expected the state of {self.num_envs} environments, found {sorted(state)}. "
                f"Make the batch as when it was saved."
            )
        timesteps = [
            environment.restore(state[number]) for environment, number in zip(self._environments, numbers, strict=True)
        ]
        if any(timestep is None for timestep in timesteps):
            return None
        self._ended = [timestep.last() for timestep in timesteps]
        return self._stack(timesteps)


def common_spec(found: Iterable[tuple[int, specs.EnvironmentSpec]]) -> specs.EnvironmentSpec:
    """Returns the spec that all environments of a batch have.

    Args:
        found: each one's number in the batch and its spec; one at least.

    Raises:
        SpecError: they differ.
    """
    (first, spec), *others = found
    for number, other in others:
        if other != spec:
            raise SpecError(
                f"Environments of one batch must have the same specs; number {number} has "
                f"{specs.in_words(other)}; number {first} has {specs.in_words(spec)}."
            )
    return spec


def _stacker(spec: Nest) -> Callable[[list[Nest]], Nest]:
    if specs.is_spec(spec):
        # np.array of equal arrays copies into one new block; faster than np.stack for small ones.
        return lambda values: np.array(values, spec.dtype)
    leaf_dtypes = [leaf.dtype for leaf in tree.flatten(spec)]

    def stack(values: list[Nest]) -> Nest:
        columns = zip(*(tree.flatten(value) for value in values), strict=True)
        leaves = [np.array(column, dtype) for column, dtype in zip(columns, leaf_dtypes, strict=True)]
        return tree.unflatten_as(spec, leaves)

    return stack


def _checked_stacker(spec: Nest, first: int) -> Callable[[list[Nest]], Nest]:
    """Returns a stacker that refuses what is not of the spec: numpy would cast or broadcast it silently."""
    stack, is_good = _stacker(spec), fits(spec)

    def checked(values: list[Nest]) -> Nest:
        for number, value in enumerate(values, first):
            if not is_good(value):
                specs.validate(value, spec, f"The observation of environment {number} of a batch")
        return stack(values)

    return checked


def _filler(spec: Nest, fill: float) -> Callable[[list[Nest]], Nest]:
    """Returns a stacker that puts `fill` where a value is None (the first step of an episode)."""
    stack = _stacker(spec)
    missing = tree.map_structure(lambda s: np.full(s.shape, fill, s.dtype), spec)

    def fill_and_stack(values: list[Nest]) -> Nest:
        filled = [missing if value is None else value for value in values]
        try:
            with np.errstate(over="ignore"):  # What is infinite then is told of by who checks the step.
                return stack(filled)
        except (TypeError, ValueError) as error:
            raise SpecError(
                f"A reward or discount of a batch: expected {spec}, found {filled!r:.200}: {error}."
            ) from error

    return fill_and_stack


def check_actions(leaf: Nest, num_envs: int, shape: Sequence[int]) -> np.ndarray:
    """Returns one leaf of the actions of `num_envs` environments as an array ``[num_envs, *shape]``.

    Raises:
        SpecError: there is not one action for each of them.
    """
    array = np.asarray(leaf)
    if array.shape != (num_envs, *shape):
        raise SpecError(
            f"Actions for {num_envs} environments: expected shape {[num_envs, *shape]}, found "
            f"{list(array.shape)}. Give one action per environment along the first axis."
        )
    return array


def _splitter(spec: Nest, num_envs: int) -> Callable[[Nest], Sequence[Nest]]:
    if specs.is_spec(spec):
        return lambda actions: list(check_actions(actions, num_envs, spec.shape))

    def split(actions: Nest) -> Sequence[Nest]:
        tree.assert_same_structure(spec, actions)
        pairs = zip(tree.flatten(actions), tree.flatten(spec), strict=True)
        leaves = [check_actions(leaf, num_envs, leaf_spec.shape) for leaf, leaf_spec in pairs]
        return [tree.unflatten_as(spec, [leaf[i] for leaf in leaves]) for i in range(num_envs)]

    return split
