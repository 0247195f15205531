"""Checks of what an environment in JAX gives: before it is compiled its shapes and dtypes, and later its ranges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import specs
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.pooled import checked_size
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.envs.step_check import find_choices
from agentkit.errors import SpecError
from agentkit.types import LAST, MID, Array, Nest

_STEP_TYPE = specs.Array((), np.int32, "step_type")


def check_steps(environment: JaxEnvironment, name: str) -> None:
    """Refuses an environment whose `reset` or `step` breaks its specs; nothing is computed.

    With `count_out_of_range` it is for the compiled loop what `envs.step_check.StepCheck` is for the host's.

    Args:
        environment: of one agent, or of several.
        name: of it, for messages.

    Raises:
        SpecError: naming the leaf, what was expected there and what was found.
        ConfigError: its `reset_pool` is no number of resets.
    """
    checked_size(environment.reset_pool)
    action = jax.tree.map(lambda spec: jax.ShapeDtypeStruct(spec.shape, spec.dtype), environment.action_spec())
    key = jax.random.PRNGKey(0)
    promised = dm_env.TimeStep(
        _STEP_TYPE, environment.reward_spec(), environment.discount_spec(), environment.observation_spec()
    )
    reset, step = f"The environment {name}'s reset", f"The environment {name}'s step"
    are_several = isinstance(environment, JaxMultiAgentEnvironment)
    begun, first = _parts_of(jax.eval_shape(environment.reset, key), promised, reset, are_several)
    _refuse_typed_keys(begun, reset)
    followed, then = _parts_of(jax.eval_shape(environment.step, begun, action, key), promised, step, are_several)
    _compare(followed, begun, f"{step}, whose state must be of reset's form: state")
    # Of agents in turns the loop keeps what they see alone.
    for part in ("observation",) if isinstance(environment, JaxTurnEnvironment) else then._fields:
        _compare(getattr(then, part), getattr(first, part), f"{step}, whose {part} must be of reset's form: {part}")


def count_out_of_range(observations: Nest, discounts: Nest, observation: Nest, discount: Nest) -> Array:
    """Returns how many choices and discounts are out of their range, NaN included, int32 ``[]``; to be compiled.

    Args:
        observations: the spec.
        discounts: the spec; its bounds count as far as they say whether -1 is allowed.
        observation: that was given, leaves ``[N, ...]``.
        discount: likewise, leaves ``[N]``.
    """
    least, leaves = -1.0 if specs.changes_sides(discounts) else 0.0, tree.flatten(observation)
    ranges: list[tuple[Any, float, np.ndarray]] = [
        (leaves[i], 0, np.broadcast_to(leaf.maximum, leaf.shape)[None]) for i, _, leaf in find_choices(observations)
    ]
    ranges += [(leaf, least, np.ones(1, np.float32)) for leaf in tree.flatten(discount)]
    return sum((jnp.sum(~((x >= low) & (x <= high)), dtype=jnp.int32) for x, low, high in ranges), jnp.int32(0))


def count_wrong_types(moved: Array, step_type: Array) -> Array:
    """Returns how many steps that followed an action are neither MID nor LAST, int32 ``[]``; to be compiled.

    Args:
        moved: where there was an action, bool ``[N]``.
        step_type: of what followed, int32 ``[N]``.
    """
    return jnp.sum(moved & (step_type != MID) & (step_type != LAST), dtype=jnp.int32)


def _parts_of(returned: Any, promised: dm_env.TimeStep, where: str, are_several: bool) -> tuple[Nest, dm_env.TimeStep]:
    """Returns the state and the time step that a method returned, which must be as promised; by id in any mapping."""
    if not isinstance(returned, tuple) or len(returned) != 2 or not isinstance(returned[1], dm_env.TimeStep):
        raise SpecError(f"{where}: expected a state and a dm_env.TimeStep, found {_said(returned)}.")
    state, timestep = returned
    for part, spec in promised._asdict().items():
        found = getattr(timestep, part)
        if are_several and isinstance(found, Mapping) and isinstance(spec, Mapping) and found.keys() == spec.keys():
            for agent_id in spec:
                _compare(found[agent_id], spec[agent_id], f"{where}: {part}[{agent_id!r}]")
        else:
            _compare(found, spec, f"{where}: {part}")
    return state, timestep


def _refuse_typed_keys(state: Nest, where: str) -> None:
    """Refuses keys of `jax.random.key` in a state, which no checkpoint can have as arrays."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise SpecError(
                f"{where}: state{jax.tree_util.keystr(path)}: expected arrays of numbers, found a key of "
                f"jax.random.key, {leaf.dtype}. Keep jax.random.key_data(key), or a key of jax.random.PRNGKey."
            )


def _compare(found: Nest, expected: Nest, what: str) -> None:
    """Refuses arrays of other paths, shapes or dtypes; both are nests of specs, or of what `jax.eval_shape` gives."""
    forms, others = _forms(expected), _forms(found)
    for path in [*forms, *others]:
        if forms.get(path) != others.get(path):
            raise SpecError(
                f"{what}{path}: expected {forms.get(path, 'none')}, found {others.get(path, 'none')}. Give what the "
                "spec promises (a cast, a reshape), or correct the spec."
            )
    structures: list[Any] = [jax.tree.structure(nest) for nest in (expected, found)]
    if structures[0] != structures[1]:  # Such as a list in the place of a tuple: all paths are alike.
        kinds = [str(each).removeprefix("PyTreeDef") for each in structures]
        raise SpecError(f"{what}: expected the containers {kinds[0]}, found {kinds[1]}. Give those of the spec.")


def _forms(nest: Nest) -> dict[str, str]:
    """Returns dtype and shape of each leaf by its path, such as ``{"['position']": "float32[2]"}``."""
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(nest)
    }


def _said(value: Any) -> str:
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else f"a {type(value).__name__}"
