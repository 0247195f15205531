"""Any environment in JAX as an ordinary one: dm_env's interface, numpy arrays, one step a call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Any, final

import dm_env
import jax
import numpy as np
import tree

from agentkit import specs
from agentkit.child import check_not_forked
from agentkit.envs.base import checked_action
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.errors import ConfigError, SpecError
from agentkit.types import LAST, MID, Nest


@final
class DmEnvironment(dm_env.Environment):
    """Steps an environment in JAX from Python: for evaluation, and for every mode but the training on the device.

    It runs on the CPU, where a step at a time is quickest; a step takes about 30 us there.

    Attributes:
        jax_environment: the environment inside.
    """

    def __init__(self, environment: JaxEnvironment, seed: int = 0):
        """Compiles nothing before the first reset; equal environments are compiled once."""
        check_not_forked()
        self.jax_environment = environment
        self._compiled = CompiledSteps(environment)
        self._action_spec = environment.action_spec()
        self._state: Any = None
        self._is_over = True
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone."""
        self._key = on_cpu(jax.random.PRNGKey(seed))  # Where the key is, all else is computed.

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        self._key, self._state, timestep = self._compiled.reset(self._key)
        self._is_over = False
        return dm_env.TimeStep(dm_env.StepType.FIRST, None, None, to_numpy(timestep.observation))

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead and ignores the action."""
        if self._is_over:
            return self.reset()
        cast = tree.map_structure(cast_action, self._action_spec, action)
        self._key, self._state, timestep = self._compiled.step(self._key, self._state, cast)
        step_type, reward, discount, observation = to_numpy(timestep)
        kind = kind_of_step(step_type, self.jax_environment)
        self._is_over = kind == dm_env.StepType.LAST
        return dm_env.TimeStep(kind, reward, discount, observation)

    def observation_spec(self) -> Nest:
        """Returns the spec of the observations."""
        return self.jax_environment.observation_spec()

    def action_spec(self) -> Nest:
        """Returns the spec of the actions."""
        return self._action_spec

    def reward_spec(self) -> Nest:
        """Returns the spec of the rewards."""
        return self.jax_environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Returns the spec of the discounts."""
        return self.jax_environment.discount_spec()

    def render(self) -> np.ndarray:
        """Returns an image of where it stands, as `JaxEnvironment.render` draws it."""
        return self.jax_environment.render(self._state)


@final
class CompiledSteps:
    """Compiles an environment's `reset` and `step` at the first reset, as it is then; equal environments once."""

    def __init__(self, environment: JaxEnvironment):
        """Compiles nothing yet.

        Raises:
            ConfigError: the environment has no hash.
        """
        try:
            hash(environment)
        except Exception as error:
            raise ConfigError(
                f"The environment {type(environment).__name__} has no hash ({error}), by which equal ones are compiled "
                "once. Write its class as @dataclasses.dataclass(frozen=True), with tuples in the place of lists."
            ) from error
        self._environment = environment

    @functools.cached_property
    def reset(self) -> Callable[[jax.Array], tuple]:
        """Returns ``key -> (key, state, time step)``."""
        return self._both[0]

    @functools.cached_property
    def step(self) -> Callable[[jax.Array, Any, Nest], tuple]:
        """Returns ``(key, state, action) -> (key, state, time step)``."""
        return self._both[1]

    @functools.cached_property
    def _both(self) -> tuple[Callable[..., tuple], Callable[..., tuple]]:
        return _compiled_once(self._environment, attributes_of(self._environment))


@functools.lru_cache(maxsize=16)
def _compiled_once(
    environment: JaxEnvironment, attributes: Hashable
) -> tuple[Callable[..., tuple], Callable[..., tuple]]:
    del attributes  # What they were is compiled in.

    def reset(key: jax.Array) -> tuple:
        key, own = jax.random.split(key)
        return key, *environment.reset(own)

    def step(key: jax.Array, state: Any, action: Nest) -> tuple:
        key, own = jax.random.split(key)
        return key, *environment.step(state, action, own)

    compiled_reset, compiled_step = jax.jit(reset), jax.jit(step)
    # Traced now: at the first step the attributes might be others than they were found to be.
    action = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), environment.action_spec())
    key, state, _ = compiled_reset.eval_shape(jax.eval_shape(jax.random.PRNGKey, 0))
    for _ in range(2):  # A state after reset may be weakly typed, and is not after a step.
        key, state, _ = compiled_step.eval_shape(key, state, action)
    return compiled_reset, compiled_step


class _Itself:
    """Is equal to another of the same object: of what has no hash, such as an array."""

    def __init__(self, value: Any):
        self._value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other._value is self._value

    def __hash__(self) -> int:
        return id(self._value)


def attributes_of(environment: JaxEnvironment, outside: tuple[JaxEnvironment, ...] = ()) -> Hashable:
    """Returns what the attributes are now that no `__eq__` compares, of an environment and of those inside of it.

    An instance of a class without an `__eq__` of its own is equal to itself, whatever was set on it between two runs.
    So what is compiled once is of the environment and of these. What is changed in place (an entry of an array or of a
    list) is not seen: set another one.

    Args:
        environment: whose attributes they are.
        outside: those that it is inside of, which are not looked into again.
    """
    outside = (*outside, environment)
    is_compared = type(environment).__eq__ is not object.__eq__
    found: list[Hashable] = []
    for name, value in sorted(getattr(environment, "__dict__", {}).items()):
        if isinstance(value, jax.core.Tracer):  # Left behind by a compilation, and of no value.
            continue
        if isinstance(value, JaxEnvironment) and not any(value is each for each in outside):
            found.append((name, attributes_of(value, outside)))
        if not is_compared:
            found.append((name, type(value), value if _has_hash(value) else _Itself(value)))
    return tuple(found)


def _has_hash(value: Any) -> bool:
    try:
        hash(value)
    except Exception:  # Of any kind: it is somebody's own.
        return False
    return True


@functools.cache
def _cpu() -> jax.Device | None:
    """Returns the CPU as a JAX device; None where JAX may use an accelerator only."""
    try:
        return jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        return None


def kind_of_step(step_type: np.ndarray, environment: JaxEnvironment) -> dm_env.StepType:
    """Returns the type of the time step that an environment's `step` gave.

    Raises:
        SpecError: it is neither MID nor LAST.
    """
    if step_type not in (MID, LAST):
        raise SpecError(
            f"The environment {type(environment).__name__}'s step: step_type: expected MID ({MID}) or LAST ({LAST}), "
            f"found {step_type}. Only reset begins an episode; agentkit.envs.jax.time_steps.next_step makes the rest."
        )
    return dm_env.StepType(int(step_type))


def cast_action(spec: specs.Array, action: Any) -> np.ndarray:
    """Returns an action of a spec's dtype, and refuses a choice that there is not."""
    if isinstance(spec, specs.DiscreteArray):
        checked_action(action, spec.num_values)
    return np.asarray(action, spec.dtype)


def on_cpu(key: jax.Array) -> jax.Array:
    """Returns a key on the CPU, where all that is computed from it is then."""
    return jax.device_put(key, _cpu())


def to_numpy(nest: Nest) -> Nest:
    """Returns a nest as numpy arrays of its own."""
    # Copies: on a CPU numpy would see JAX's own buffer, which is read-only.
    return jax.tree.map(np.array, nest)
