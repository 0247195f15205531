"""Turns a loaded policy into a pure function of named arrays, in the environment's own terms."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.actors.policy import ActorIndex, Policy, first_state
from agentkit.errors import ConfigError
from agentkit.experiment.policies.export.lowering import Program, lower
from agentkit.types import Nest
from agentkit.wrappers.canonical_actions import to_bounds

Arrays = dict[str, Any]
"""Arrays by name, each with a batch axis in front."""

_KEY = np.zeros(2, np.uint32)
_MOST = np.iinfo(np.int32).max

NEXT = "next_"
"""Begins the name of a state's array where it is a result."""


class Exportable(Protocol):
    """Has what an export needs of a policy; a `LoadedPolicy` is one, and says more of each attribute."""

    arrays: Nest
    observation_spec: Nest
    action_spec: Nest
    agent_observation_spec: Nest
    agent_action_spec: Nest
    num_steps: int

    @property
    def pure_policy(self) -> Policy:
        """Returns the pure function of parameters and one observation."""
        ...

    def __call__(self, observation: Nest, /) -> tuple[Nest, Any]:
        """Returns the action for an observation, and a state."""
        ...

    def save(self, path: str | pathlib.Path, *, extra: Mapping[str, np.ndarray] | None = None) -> None:
        """Writes a policy file."""
        ...


@dataclasses.dataclass(frozen=True)
class Acting:
    """Holds a policy as a function of arrays ``[B, ...]``.

    Attributes:
        step: ``(params, {observation..., state...}, key) -> {action..., next_state...}``; the key is for policies that
            choose at random, which are not exported.
        params: of the policy.
        observations: specs by name.
        actions: specs of the environment's own actions, by name.
        state: the row with which an episode begins, of each array of the policy's memory; empty without one.
        program: `step` as a list of operations.
    """

    step: Callable[..., Arrays]
    params: Nest
    observations: Mapping[str, specs.Array]
    actions: Mapping[str, specs.Array]
    state: Mapping[str, np.ndarray]
    program: Program

    def describe(self) -> dict[str, Any]:
        """Returns names, shapes, dtypes, bounds and the first state as JSON has them; shapes have no batch axis."""
        return {
            "observations": {name: _describe(spec) for name, spec in self.observations.items()},
            "actions": {name: _describe(spec) for name, spec in self.actions.items()},
            "state": {
                name: {"shape": list(row.shape), "dtype": row.dtype.name, "first": row.tolist()}
                for name, row in self.state.items()
            },
        }


def acting_of(policy: Exportable) -> Acting:
    """Returns what a policy does; of its state only what actions depend on.

    Raises:
        ConfigError: its choices count from beyond 32 bits.
    """
    pure, params = policy.pure_policy, policy.arrays
    observations, actions = named("observation", policy.observation_spec), named("action", policy.action_spec)
    agents = list(named("action", policy.agent_action_spec).values())
    starts = {name: specs.start_of(spec) for name, spec in named("observation", policy.agent_observation_spec).items()}
    for name, spec in (*observations.items(), *actions.items()):
        if spec.dtype == np.int64 and isinstance(spec, specs.BoundedArray) and np.abs(spec.minimum).max() > _MOST:
            raise ConfigError(f"{name} counts from {spec.minimum}, which is beyond the 32 bits of exported policies.")
    first = pure.reset(first_state(pure, jax.random.PRNGKey(0), ActorIndex(num_steps=policy.num_steps)))
    rows = {name: np.asarray(row) for name, row in named("state", first).items()}
    structure = jax.tree.structure(first)

    def make_step(kept: frozenset[str]) -> Callable[..., Arrays]:
        def act(params: Nest, observation: Arrays, state: Arrays, key: Any) -> Arrays:
            nest = jax.tree.unflatten(structure, [state.get(name, rows[name]) for name in rows])
            counted = {
                name: x - np.int32(starts[name]) if np.any(starts[name]) else x for name, x in observation.items()
            }
            action, new, _ = pure.act(params, key, _nest(policy.observation_spec, counted), nest)
            leaves = zip(actions, jax.tree.leaves(action), agents, strict=True)
            found = {name: to_bounds(leaf, agents_own, actions[name], jnp) for name, leaf, agents_own in leaves}
            return found | {NEXT + name: leaf for name, leaf in named("state", new).items() if name in kept}

        def step(params: Nest, arrays: Arrays, key: Any = _KEY) -> Arrays:
            state = {name: arrays[name] for name in rows if name in kept}
            return jax.vmap(act, (None, 0, 0, None))(params, {name: arrays[name] for name in observations}, state, key)

        return step

    everything = frozenset(rows)
    inputs = {name: (spec.shape, spec.dtype) for name, spec in observations.items()}
    inputs |= {name: (row.shape, row.dtype) for name, row in rows.items()}
    whole = lower(make_step(everything), params, inputs)
    kept = _memory(whole, list(actions), everything)
    names = [*actions, *(NEXT + name for name in rows if name in kept)]
    return Acting(
        make_step(kept),
        params,
        observations,
        actions,
        {name: row for name, row in rows.items() if name in kept},
        whole.only({name: whole.outputs[name] for name in names}),
    )


def some_observations(acting: Acting, batch_size: int, seed: int = 0) -> Arrays:
    """Returns observations ``[B, ...]`` within their bounds, where they have any; else of a standard normal."""
    generator = np.random.default_rng(seed)

    def draw(spec: specs.Array) -> np.ndarray:
        shape = (batch_size, *spec.shape)
        low = np.maximum(getattr(spec, "minimum", -np.inf), -1e6)
        high = np.minimum(getattr(spec, "maximum", np.inf), 1e6)
        if spec.dtype.kind == "b":
            return generator.random(shape) < 0.5
        if spec.dtype.kind in "iu":
            # As integers: of floats that are broadcast, numpy takes the lowest for all.
            low, high = (np.broadcast_to(bound, shape).astype(np.int64) for bound in (low, high))
            return generator.integers(low, high + 1).astype(spec.dtype)
        values = generator.normal(size=shape)
        if np.all(np.abs(low) < 1e3) and np.all(np.abs(high) < 1e3):
            values = low + generator.random(shape) * (high - low)
        return values.astype(spec.dtype)

    return {name: draw(spec) for name, spec in acting.observations.items()}


def first_states(acting: Acting, batch_size: int) -> Arrays:
    """Returns the state ``[B, ...]`` with which episodes begin."""
    return {name: np.repeat(row[None], batch_size, axis=0) for name, row in acting.state.items()}


def _memory(program: Program, actions: list[str], state: frozenset[str]) -> frozenset[str]:
    """Returns which arrays of the state later actions depend on."""
    wanted = list(actions)
    while True:
        used = state & set(program.only({name: program.outputs[name] for name in wanted}).inputs)
        if {NEXT + name for name in used} <= set(wanted):
            return used
        wanted = [*actions, *(NEXT + name for name in used)]


def named(name: str, nest: Nest) -> dict[str, Any]:
    """Returns the leaves of a nest by names such as ``observation`` or ``state/core/hidden``."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(nest, is_leaf=specs.is_spec)
    return {"/".join([name, *map(_key, path)]): leaf for path, leaf in leaves}


def _key(entry: Any) -> str:
    """Returns a step of a path: a dict's key, a NamedTuple's field, or a place in a list."""
    return str(next(getattr(entry, kind) for kind in ("key", "name", "idx") if hasattr(entry, kind)))


def _nest(spec: Nest, leaves: dict[str, Any]) -> Nest:
    return jax.tree.unflatten(jax.tree.structure(spec, is_leaf=specs.is_spec), list(leaves.values()))


def _describe(spec: specs.Array) -> dict[str, Any]:
    found: dict[str, Any] = {"shape": list(spec.shape), "dtype": spec.dtype.name}
    if isinstance(spec, specs.BoundedArray):
        bounds = {"minimum": spec.minimum, "maximum": spec.maximum}
        found |= {
            name: value.tolist() if (value := np.asarray(bound)).ndim and np.ptp(value) else float(value.flat[0])
            for name, bound in bounds.items()
            if np.isfinite(bound).all()
        }
    return found
