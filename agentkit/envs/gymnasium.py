"""Gymnasium's environments: classic control, Box2D, MuJoCo and yours, with dm_env's interface."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.envs.gymnasium_loading import explain_missing, gymnasium, load, spaces
from agentkit.envs.gymnasium_values import explain, make_reader, take_reset, take_step
from agentkit.envs.rendering import prepare_gymnasium
from agentkit.envs.wrapping import wrap_once
from agentkit.errors import SpecError
from agentkit.types import Nest

_FIRST, _MID, _LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST


def make(name: str, seed: int = 0, **kwargs: Any) -> GymnasiumEnvironment:
    """Makes `gymnasium.make(name, **kwargs)` a dm_env environment; see `gymnasium_loading.load`."""
    return GymnasiumEnvironment(load(name, **kwargs), seed)


def is_vector_environment(environment: object) -> bool:
    """Returns whether this is a batch of gymnasium's kind."""
    return isinstance(environment, gymnasium.vector.VectorEnv)


def transform_observations(
    environment: gymnasium.Env, function: Callable[[Any], Any], space: gymnasium.Space
) -> gymnasium.Env:
    """Returns the environment with each observation changed by a function, into a value of `space`."""
    return gymnasium.wrappers.TransformObservation(environment, function, space)


def seeded_by(environment: gymnasium.Env, seed_it: Callable[[int], Any]) -> gymnasium.Env:
    """Returns the environment with `seed_it(seed)` called before each reset that has a seed."""

    class Seeded(gymnasium.Wrapper):
        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
            if seed is not None:
                seed_it(seed)
            return self.env.reset(seed=seed, options=options)

    return Seeded(environment)


def _check_spaces(environment: gymnasium.Env) -> None:
    for name in ("observation_space", "action_space"):
        space = getattr(environment, name, None)
        if not isinstance(space, spaces.Space):
            raise SpecError(
                f"{type(environment.unwrapped).__name__}.{name}: expected a gymnasium Space, found {space!r:.80}. Set "
                f"self.{name} = gymnasium.spaces.Box(...), or another space, in __init__."
            )


@final
class GymnasiumEnvironment(dm_env.Environment):
    """Gives a gymnasium environment dm_env's interface.

    ``terminated`` becomes LAST with discount 0, ``truncated`` alone LAST with discount 1, both LAST
    with discount 0. Observations are copied, so an environment may reuse its buffers; one that does not
    fit its space is refused (see `agentkit.envs.gymnasium_values`), and a reward may be an array of one number.
    Discrete spaces count from 0 outside, whatever their ``start``. The first reset is seeded by `seed`;
    later ones go on with the environment's own generator, unless `reseed` is called.

    Attributes:
        last_info: the info dict of the latest reset or step.

    Args:
        environment: a `gymnasium.Env`, not a vector environment.
        seed: seeds the first reset.

    Raises:
        SpecError: for a space that has no dm_env spec (Text, Graph, Sequence, OneOf, ...).
    """

    def __init__(self, environment: gymnasium.Env, seed: int = 0):
        # A VectorEnv is no Env; a pool like EnvPool's is one, of several environments.
        if not isinstance(environment, gymnasium.Env) or hasattr(environment, "num_envs"):
            raise SpecError(
                f"Expected a gymnasium.Env of one environment, found {type(environment).__name__}. "
                "For a batch use envs.make(name, num_envs=N), or hand in a gymnasium.vector.VectorEnv."
            )
        _check_spaces(environment)
        self._environment = environment
        self._observation_spec = space_to_spec(environment.observation_space, "observation")
        self._action_spec = space_to_spec(environment.action_space, "action")
        self._read = make_reader(self._observation_spec)
        self._read_first = make_reader(self._observation_spec, thorough=True)
        self._write = make_writer(environment.action_space)
        self._reset_next_step = True
        self._ready_to_draw = False
        self._num_steps = 0  # Of this episode.
        self._seed: int | None = seed
        self.last_info: Mapping[str, Any] = {}

    def wrapped_by(self, wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]]) -> GymnasiumEnvironment:
        """Returns an adapter of the environment inside with gymnasium's own wrappers around it, in their order."""
        environment = self._environment
        for wrapper in wrappers:
            environment = wrap_once(environment, wrapper)
        return GymnasiumEnvironment(environment, 0 if self._seed is None else self._seed)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._seed = seed

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        self._reset_next_step, self._num_steps = False, 0
        try:
            observation, self.last_info = take_reset(self._environment.reset(seed=self._seed))
            self._seed = None
            return dm_env.TimeStep(_FIRST, None, None, self._read_first(observation))
        except (SpecError, TypeError, ValueError) as error:
            self._tell(error)
            raise

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead and ignores the action."""
        if self._reset_next_step:
            return self.reset()
        self._num_steps += 1
        try:
            found = take_step(self._environment.step(self._write(action)))
            observation, reward, terminated, truncated, self.last_info = found
            observation = self._read(observation)
        except (SpecError, TypeError, ValueError) as error:
            self._tell(error)
            raise
        if terminated or truncated:
            self._reset_next_step = True
            return dm_env.TimeStep(_LAST, reward, 0.0 if terminated else 1.0, observation)
        return dm_env.TimeStep(_MID, reward, 1.0, observation)

    def _name(self) -> str:
        spec = self._environment.spec
        return type(self._environment.unwrapped).__name__ if spec is None else str(spec.id)

    def _tell(self, error: Exception) -> None:
        """Raises an error with environment and step in front, unless it is one of the environment's own."""
        told = error if isinstance(error, SpecError) else explain(error)
        if told is not None:
            raise SpecError(f"{self._name()}, step {self._num_steps:,} of an episode: {told}") from error

    def observation_spec(self) -> Nest:
        """Returns the observation space as specs."""
        return self._observation_spec

    def action_spec(self) -> Nest:
        """Returns the action space as specs."""
        return self._action_spec

    @property
    def gymnasium_environment(self) -> gymnasium.Env:
        """Returns the environment inside."""
        return self._environment

    def render(self) -> np.ndarray:
        """Returns an image, uint8 ``[H, W, 3]``; needs ``render_mode="rgb_array"`` when it is made.

        Raises:
            SpecError: it draws no image.
            MissingExtraError: what it draws with is not installed.
        """
        if not self._ready_to_draw:
            prepare_gymnasium(self._environment.unwrapped)
            self._ready_to_draw = True
        try:
            frame: Any = self._environment.render()
        except gymnasium.error.DependencyNotInstalled as error:
            raise explain_missing(self._name(), error) from error
        if not isinstance(frame, np.ndarray):
            raise SpecError(
                f"render() of {self._environment} gave {type(frame).__name__}, expected an image. "
                'Make the environment with render_mode="rgb_array".'
            )
        return frame

    def close(self) -> None:
        """Closes the gymnasium environment."""
        self._environment.close()


def space_to_spec(space: gymnasium.Space, name: str) -> Nest:
    """Returns the spec of a gymnasium space.

    Box gives an Array, or a BoundedArray where a bound is finite; Discrete a DiscreteArray int32;
    MultiDiscrete and MultiBinary a BoundedArray; Dict and Tuple a dict and a tuple of specs. Choices count from 0,
    and `specs.start_of` says from what the space counts them.

    Raises:
        SpecError: for any other space.
    """
    if isinstance(space, spaces.Discrete):
        start = _start(space)
        _check_choices(name, space, int(space.n))
        if start is not None:
            return specs.DiscreteFrom(int(space.n), np.int32, name, start)
        return specs.DiscreteArray(int(space.n), dtype=np.int32, name=name)
    if isinstance(space, spaces.Box):
        if np.isfinite(space.low).any() or np.isfinite(space.high).any():
            return specs.BoundedArray(space.shape, space.dtype, *_bounds(space), name)
        return specs.Array(space.shape, space.dtype, name)
    if isinstance(space, spaces.MultiDiscrete):
        start, most = _start(space), np.asarray(space.nvec) - 1
        _check_choices(name, space, int(np.max(most, initial=0)) + 1)
        if start is not None:
            return specs.BoundedFrom(space.shape, np.int32, 0, most, name, start)
        return specs.BoundedArray(space.shape, np.int32, 0, most, name)
    if isinstance(space, spaces.MultiBinary):
        return specs.BoundedArray(space.shape, np.int8, 0, 1, name)
    if isinstance(space, spaces.Dict):
        return {key: space_to_spec(child, key) for key, child in space.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(space_to_spec(child, f"{name}_{i}") for i, child in enumerate(space))
    advice = "Convert it with a gymnasium wrapper first."
    if type(space).__module__.partition(".")[0] == "minigrid":
        advice = "minigrid:NAME, such as minigrid:DoorKey-5x5, has it as numbers."
    raise SpecError(
        f"The {name} space {type(space).__name__} {_what_is(space)}, for which there is no network; expected Box, "
        f"Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of these. {advice}"
    )


def _check_choices(name: str, space: gymnasium.Space, num_values: int) -> None:
    most = np.iinfo(np.int32).max
    if num_values > most:
        raise SpecError(
            f"The {name} space {space} has a choice of {num_values:,} values, expected at most {most:,}, which int32 "
            "holds. Offer fewer, or split it into several choices."
        )


def _what_is(space: gymnasium.Space) -> str:
    """Says in words what kind of values a space without an array spec has."""
    if isinstance(space, spaces.Graph):
        return "has graphs"
    if isinstance(space, spaces.Text) or np.issubdtype(space.dtype or object, np.str_):
        return "has text"
    if isinstance(space, spaces.Sequence):
        return "has sequences of any length"
    return "has values of no fixed shape"


def _bounds(space: spaces.Box) -> tuple[Any, Any]:
    """Returns a Box's bounds, of an image each as one number where it is the same everywhere: it may be printed."""
    is_image = len(space.shape) > 2 and space.low.size > 0
    uniform = is_image and all((bound == bound.flat[0]).all() for bound in (space.low, space.high))
    return (space.low.flat[0], space.high.flat[0]) if uniform else (space.low, space.high)


def make_writer(space: gymnasium.Space) -> Callable[[Nest], Any]:
    """Returns a function from arrays of the space's spec to what the environment expects."""
    if isinstance(space, spaces.Dict):
        children = {key: make_writer(child) for key, child in space.items()}
        return lambda value: {key: write(value[key]) for key, write in children.items()}
    if isinstance(space, spaces.Tuple):
        writers = [make_writer(child) for child in space]
        return lambda value: tuple(write(part) for write, part in zip(writers, value, strict=True))
    if isinstance(space, spaces.Discrete):
        # An int, not an array: environments index dicts with it.
        first = int(space.start)
        return int if first == 0 else lambda value: int(value) + first
    start = _start(space)
    if start is not None:
        return lambda value: (np.asarray(value) + start).astype(space.dtype)
    return np.array  # A copy, for an environment may change it: JAX's are read-only, and others go on into replay.


def _start(space: gymnasium.Space) -> Any:
    """Returns what a discrete space counts from; None where that is 0 or the space is not discrete."""
    start = getattr(space, "start", None)
    return start if start is not None and np.any(start) else None
