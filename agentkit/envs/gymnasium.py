"""Gymnasium's environments: classic control, Box2D, MuJoCo and yours. The one file that imports gymnasium."""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, final

import dm_env
import numpy as np

from agentkit import specs
from agentkit.envs.gymnasium_values import explain, make_reader, take_reset, take_step
from agentkit.envs.rendering import explain_import, prepare_gymnasium, prepare_pygame
from agentkit.errors import (
    DISTRIBUTION,
    AgentkitError,
    ConfigError,
    MissingExtraError,
    SpecError,
    missing_extra,
    unknown_name,
)
from agentkit.types import Nest

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise missing_extra("gymnasium", "gymnasium") from error

_EXTRAS = {"box2d": "box2d"} | dict.fromkeys(
    ("classic_control", "mujoco", "phys2d", "tabular", "toy_text"), "gymnasium"
)
"""This project's extra for each of gymnasium's families; the games of ALE have `register_atari`."""

_FIRST, _MID, _LAST = dm_env.StepType.FIRST, dm_env.StepType.MID, dm_env.StepType.LAST


def make(name: str, seed: int = 0, **kwargs: Any) -> GymnasiumEnvironment:
    """Makes `gymnasium.make(name, **kwargs)` a dm_env environment; see `load`."""
    return GymnasiumEnvironment(load(name, **kwargs), seed)


def load(name: str, **kwargs: Any) -> gymnasium.Env:
    """Calls `gymnasium.make(name, **kwargs)` and explains its errors.

    Gymnasium's environment checker is off unless ``disable_env_checker=False`` is given; it costs
    time at every step and only warns. Names that begin with ``ALE/`` load ale-py.

    ``max_episode_steps`` is the time limit in the place of the environment's own, shorter or longer; -1 is for none.

    Raises:
        UnknownNameError: if gymnasium has no environment of this name, or it takes no such argument.
        ConfigError: `max_episode_steps` is no number of steps.
        MissingExtraError: if the environment needs a package that is not installed.
    """
    _register(name)
    kwargs.setdefault("disable_env_checker", True)
    return _made(gymnasium.make, name, kwargs)


def load_vector(name: str, num_envs: int, **kwargs: Any) -> gymnasium.vector.VectorEnv:
    """Calls `gymnasium.make_vec(name, num_envs, **kwargs)` and explains its errors, as `load` does.

    Raises:
        ConfigError: a setting is impossible; and what `load` raises.
    """
    _register(name)
    spec = gymnasium.registry.get(name)
    if kwargs.get("vectorization_mode") in ("sync", "async") or getattr(spec, "vector_entry_point", None) is None:
        kwargs.setdefault("disable_env_checker", True)  # A class of its own has no such argument.
    try:
        vector: gymnasium.vector.VectorEnv = _made(
            functools.partial(gymnasium.make_vec, num_envs=num_envs), name, kwargs
        )
    except AgentkitError:
        raise
    except ValueError as error:  # The name of a mode.
        raise ConfigError(f"gymnasium_vector:{name}: {error}.") from error
    return vector


def is_vector_environment(environment: object) -> bool:
    """Returns whether this is a batch of gymnasium's kind."""
    return isinstance(environment, gymnasium.vector.VectorEnv)


def _made(make_it: Callable[..., Any], name: str, kwargs: dict[str, Any]) -> Any:
    """Returns what a function of gymnasium's makes; see `load`."""
    steps = kwargs.get("max_episode_steps")
    if steps is not None and (isinstance(steps, bool) or not isinstance(steps, int) or (steps < 1 and steps != -1)):
        raise ConfigError(f"max_episode_steps: expected at least 1, or -1 for no limit, found {steps!r}.")
    try:
        with _quiet_mujoco():
            return make_it(name, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=5, cutoff=0.4)
        own = "One of your own is found once the module that registers it is imported (--import MODULE)."
        raise unknown_name("gymnasium environment", name, near, f"Gymnasium says: {error} {own}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing(name, error) from error
    except gymnasium.error.Error as error:  # A version that is no more.
        raise ConfigError(f"gymnasium:{name}: {error}") from error
    except TypeError as error:
        _explain(error, name, kwargs)
        raise
    except ModuleNotFoundError as error:
        module, colon, _ = name.partition(":")
        missing = {error.name, getattr(error.__cause__, "name", None)}  # Gymnasium raises one of its own.
        if colon and any(module == name or module.startswith(f"{name}.") for name in missing):
            raise ConfigError(
                f"gymnasium:{name} names the module {module!r}, which cannot be imported here. Install it, run from "
                "the folder that it is in, or correct the name."
            ) from error
        raise
    except ImportError as error:  # MuJoCo's v2 and v3 are in another package now.
        raise _missing(name, error) from error


def _missing(name: str, error: Exception) -> MissingExtraError:
    """Returns the error for a package that an environment needs: which extra brings it, and gymnasium's own words."""
    spec = gymnasium.registry.get(name.partition(":")[2] or name)
    family = re.search(r"^gymnasium\.envs\.(\w+)", str(getattr(spec, "entry_point", "")))
    advice = re.search(r"gymnasium\[(\w+)\]", str(error).replace("-", "_"))
    extras = [_EXTRAS[match[1]] for match in (family, advice) if match is not None and match[1] in _EXTRAS]
    how = f": pip install '{DISTRIBUTION}[{extras[0]}]'" if extras else ""
    return MissingExtraError(f"gymnasium:{name} needs a package that is not installed{how}. Gymnasium says: {error}")


def registered_names() -> list[str]:
    """Returns the names that gymnasium knows, the newest version of each."""
    newest: dict[str, tuple[int, str]] = {}
    for name, spec in gymnasium.registry.items():
        key = f"{spec.namespace or ''}/{spec.name}"
        newest[key] = max(newest.get(key, (-1, "")), (spec.version or 0, name))
    return sorted(name for _, name in newest.values())


def find(package: str, name: str, kind: str, prefix: str = "") -> str:
    """Returns gymnasium's name of an environment that a package has registered.

    Args:
        package: whose environments are meant, by where their classes are.
        name: what follows `prefix`, with a version or without one, for the newest.
        kind: what to call it in the error.
        prefix: what gymnasium's names have before it, such as ``ALE/``.

    Raises:
        UnknownNameError: the package has none of this name; proposes the nearest.
    """
    ids = [i for i, spec in gymnasium.registry.items() if str(spec.entry_point).partition(".")[0] == package]
    ids = [known for known in ids if known.startswith(prefix)]
    newest = {known.removeprefix(prefix).rpartition("-v")[0]: known for known in registered_names() if known in ids}
    if f"{prefix}{name}" in ids:
        return f"{prefix}{name}"
    if name not in newest:
        raise unknown_name(kind, name, difflib.get_close_matches(name, newest, n=8, cutoff=0.4) or newest)
    return newest[name]


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


def find_spec(name: str) -> Any:
    """Returns what gymnasium has registered under a name, for `add_spec` in another process; None for nothing."""
    return gymnasium.registry.get(name)


def add_spec(spec: Any) -> None:
    """Registers the environment of a record, unless gymnasium knows the name."""
    gymnasium.registry.setdefault(spec.id, spec)


def _explain(error: TypeError, name: str, kwargs: dict[str, Any]) -> None:
    """Raises an error with the nearest match, if an argument that the environment's class does not have is why."""
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unexpected is None or unexpected[1] not in kwargs:
        return
    entry_point = gymnasium.spec(name).entry_point
    made = gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    classes = made.__mro__ if isinstance(made, type) else (made,)
    known = {key for cls in classes if callable(cls) for key in _parameters(cls)} - {"self", "args", "kwargs"}
    raise unknown_name(f"argument of gymnasium:{name}", unexpected[1], known) from error


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # Some classes written in C have none.
        return []


def film_settings(name: str, size: int | None) -> dict[str, Any]:
    """Returns the arguments with which gymnasium's environment `name` draws images of a height, as far as it can."""
    prepare_pygame()
    settings: dict[str, Any] = {"render_mode": "rgb_array"}
    spec = gymnasium.registry.get(name.partition(":")[2] or name)
    if size is not None and spec is not None and "envs.mujoco" in str(spec.entry_point):
        settings |= {"width": size * 4 // 3 // 2 * 2, "height": size}
    return settings


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Drops MuJoCo's complaints about gymnasium's model files.

    It would print them and write a file MUJOCO_LOG.TXT into the working directory.
    """
    try:
        import mujoco  # type: ignore[import-untyped]
    except Exception as error:
        explain_import(error, "mujoco")
        if not isinstance(error, ImportError):
            raise
        yield  # Then no model is loaded either.
        return
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(handler)


def _register(name: str) -> None:
    if name.startswith("ALE/"):
        register_atari()


def register_atari() -> None:
    """Makes ALE's games known to gymnasium.

    Raises:
        MissingExtraError: ale-py is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise missing_extra("ale-py", "atari") from error
    register(ale_py)


def register(package: ModuleType) -> None:
    """Makes the environments of an imported package known to gymnasium; some do so themselves."""
    gymnasium.register_envs(package)


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
        self._write = _writer(environment.action_space)
        self._reset_next_step = True
        self._ready_to_draw = False
        self._num_steps = 0  # Of this episode.
        self._seed: int | None = seed
        self.last_info: Mapping[str, Any] = {}

    def wrapped_by(self, wrappers: Sequence[Callable[[gymnasium.Env], gymnasium.Env]]) -> GymnasiumEnvironment:
        """Returns an adapter of the environment inside with gymnasium's own wrappers around it, in their order."""
        environment = self._environment
        for wrapper in wrappers:
            environment = wrapper(environment)
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

    def _tell(self, error: Exception) -> None:
        """Raises an error with environment and step in front, unless it is one of the environment's own."""
        told = error if isinstance(error, SpecError) else explain(error)
        if told is not None:
            spec = self._environment.spec
            name = type(self._environment.unwrapped).__name__ if spec is None else spec.id
            raise SpecError(f"{name}, step {self._num_steps:,} of an episode: {told}") from error

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
            spec = self._environment.spec
            raise _missing(type(self._environment.unwrapped).__name__ if spec is None else spec.id, error) from error
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
        if start is not None:
            return specs.DiscreteFrom(int(space.n), np.int32, name, start)
        return specs.DiscreteArray(int(space.n), dtype=np.int32, name=name)
    if isinstance(space, spaces.Box):
        if np.isfinite(space.low).any() or np.isfinite(space.high).any():
            return specs.BoundedArray(space.shape, space.dtype, *_bounds(space), name)
        return specs.Array(space.shape, space.dtype, name)
    if isinstance(space, spaces.MultiDiscrete):
        start, most = _start(space), np.asarray(space.nvec) - 1
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


def _writer(space: gymnasium.Space) -> Callable[[Nest], Any]:
    """Returns a function from arrays of the space's spec to what the environment expects."""
    if isinstance(space, spaces.Dict):
        children = {key: _writer(child) for key, child in space.items()}
        return lambda value: {key: write(value[key]) for key, write in children.items()}
    if isinstance(space, spaces.Tuple):
        writers = [_writer(child) for child in space]
        return lambda value: tuple(write(part) for write, part in zip(writers, value, strict=True))
    if isinstance(space, spaces.Discrete):
        # An int, not an array: environments index dicts with it.
        first = int(space.start)
        return int if first == 0 else lambda value: int(value) + first
    start = _start(space)
    if start is not None:
        return lambda value: (np.asarray(value) + start).astype(space.dtype)
    return np.asarray


def _start(space: gymnasium.Space) -> Any:
    """Returns what a discrete space counts from; None where that is 0 or the space is not discrete."""
    start = getattr(space, "start", None)
    return start if start is not None and np.any(start) else None
