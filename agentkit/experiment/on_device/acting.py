"""Acting in N environments in JAX, a step at a time; to be compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.actors.compiled import act_in_each
from agentkit.actors.policy import Policy, first_state
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.envs.jax.step_check import count_out_of_range, count_wrong_types
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.types import FIRST, LAST, AgentId, Array, Nest, Params, Step


class Acting(NamedTuple):
    """Holds all that acting in N environments keeps from one step to the next.

    In environments of several agents, rewards, discounts, observations and returns are by agent id, and the states of
    policies by policy id; where agents act in turns see `several.turns.InTurns`.

    Attributes:
        key: PRNG key ``uint32[2]``.
        environment: states of the environments, leaves ``[N, ...]``.
        timestep: the newest ones, leaves ``[N, ...]``.
        policy: states of the policy, leaves ``[N, ...]``.
        returns: of the unfinished episodes, float32 ``[N]``.
        lengths: likewise, int32 ``[N]``.
        num_steps: taken so far in all environments, int32 ``[]``.
        num_episodes: ended so far, int32 ``[]``.
        pool_key: PRNG key of all pools of resets; ``()`` where there are none.
        opponents: a `several.opponents.Opponents`; ``()`` where all play by the newest parameters.
    """

    key: Array
    environment: Nest
    timestep: dm_env.TimeStep
    policy: Nest
    returns: Array
    lengths: Array
    num_steps: Array
    num_episodes: Array
    pool_key: Array = ()
    opponents: Nest = ()


Reset = Callable[[Array], tuple[Any, dm_env.TimeStep]]
"""``keys [N, 2] -> (states, time steps)`` of N environments that begin an episode, leaves ``[N, ...]``."""


class Episodes(NamedTuple):
    """Holds sums over some steps, and over the episodes that have ended in them: as large for many as for few.

    Attributes:
        count: int32 ``[]``.
        total_return: float32 ``[]``; of all agents.
        total_length: int32 ``[]``.
        num_out_of_range: choices, discounts and types of these steps that no spec allows, of several agents also masks
            that allow nothing, int32 ``[]``.
        by_agent: the total return of each agent, by id; empty of a single one.
    """

    count: Array
    total_return: Array
    total_length: Array
    num_out_of_range: Array
    by_agent: Mapping[AgentId, Array] = {}


def no_episodes(agent_ids: Iterable[AgentId] = ()) -> Episodes:
    """Returns the sums over no episodes."""
    by_agent = {each: jnp.float32(0.0) for each in agent_ids}
    return Episodes(jnp.int32(0), jnp.float32(0.0), jnp.int32(0), jnp.int32(0), by_agent)


def start(environment: JaxEnvironment, policy: Policy, num_envs: int, key: Array) -> Acting:
    """Returns the state in which N environments and their policy begin; to be compiled.

    Args:
        environment: each of them.
        policy: of a single environment.
        num_envs: N.
        key: PRNG key ``uint32[2]``.
    """
    policy_key, key, reset_key = jax.random.split(key, 3)
    state, timestep = reset_each(environment, jax.random.split(reset_key, num_envs))
    none, zero = jnp.zeros(num_envs, jnp.int32), jnp.int32(0)
    policy_state = first_state(policy, policy_key, num_envs=num_envs)
    pool_key = find_pool_key(environment, key)
    return Acting(key, state, timestep, policy_state, none.astype(jnp.float32), none, zero, zero, pool_key)


def find_pool_key(environment: JaxEnvironment, key: Array) -> Array:
    """Returns the key of an environment's pools of resets, where it has them; `key` is split for all else."""
    return () if environment.reset_pool is None else jax.random.fold_in(key, 2**32 - 1)  # No split gives this one.


def fill_pool(environment: JaxEnvironment, acting: Acting, number: Array) -> Reset:
    """Returns what resets environments: anew, or out of a pool that is made here.

    Environments begin with what their keys draw from the pool. A pool does not depend on the key of the steps, so that
    it can be made again where a round was cut.

    Args:
        environment: each of N, which says how large its pool is.
        acting: has the key of the pools.
        number: of the pool, int32 ``[]``.
    """
    size = environment.reset_pool
    if size is None:
        return functools.partial(reset_each, environment)
    pool = make_pool(environment, jax.random.fold_in(acting.pool_key, number))

    def reset(keys: Array) -> tuple[Any, dm_env.TimeStep]:
        places = jax.vmap(lambda key: jax.random.randint(key, (), 0, size))(keys)
        drawn: tuple[Any, dm_env.TimeStep] = jax.tree.map(lambda leaf: leaf[places], pool)
        return drawn

    return reset


def make_pool(environment: JaxEnvironment, key: Array) -> Nest:
    """Returns a pool of resets, leaves ``[reset_pool, ...]``; ``()`` where an environment has none."""
    size = environment.reset_pool
    return () if size is None else reset_each(environment, jax.random.split(key, size))


def reset_each(environment: JaxEnvironment, keys: Array) -> tuple[Any, dm_env.TimeStep]:
    """Returns states and time steps of environments that begin an episode; each is a FIRST, as on the host."""
    states, timestep = jax.vmap(environment.reset)(keys)
    return states, timestep._replace(step_type=jnp.full_like(timestep.step_type, FIRST))


def take_step(
    environment: JaxEnvironment,
    policy: Policy,
    params: Params,
    acting: Acting,
    reset: Reset,
    members: Members = ALONE,
) -> tuple[Acting, Step, Episodes]:
    """Takes a step in each of N environments, or resets those whose episode has ended.

    Args:
        environment: each of them.
        policy: of a single environment.
        params: that it acts with.
        acting: the state before.
        reset: see `fill_pool`.
        members: of the program.

    Returns:
        The state after, the rows ``[N, ...]``, whose outcome is 0 where there was a reset, and the sums over the
        episodes that have ended.
    """
    before = acting.timestep
    key, act_key, step_key = jax.random.split(acting.key, 3)
    action, policy_state, extras = act_in_each(
        policy, params, act_key, before.observation, acting.policy, before.step_type
    )
    was_last = before.step_type == LAST  # [N]: these are reset, and their actions count for nothing.
    clipped = clip_action(action, environment.action_spec())
    state, timestep = move(environment, acting.environment, clipped, was_last, step_key, reset, members)
    moved = ~was_last
    outcome = (action, timestep.reward, timestep.discount, extras)
    action, reward, discount, extras = jax.tree.map(lambda leaf: where(moved, leaf, jnp.zeros_like(leaf)), outcome)
    row = Step(before.observation, action, reward, discount, before.step_type == FIRST, extras)
    returns, lengths = acting.returns + reward, acting.lengths + moved
    ended = timestep.step_type == LAST
    episodes = Episodes(
        jnp.sum(ended, dtype=jnp.int32),
        jnp.sum(jnp.where(ended, returns, 0.0)),
        jnp.sum(jnp.where(ended, lengths, 0), dtype=jnp.int32),
        count_out_of_range(environment.observation_spec(), environment.discount_spec(), before.observation, discount)
        + count_wrong_types(moved, timestep.step_type),
    )
    after = Acting(
        key,
        state,
        timestep,
        policy_state,
        jnp.where(ended, 0.0, returns),
        jnp.where(ended, 0, lengths),
        acting.num_steps + jnp.sum(moved, dtype=jnp.int32),
        acting.num_episodes + episodes.count,
        acting.pool_key,
    )
    return after, row, episodes


def where(condition: Array, one: Array, other: Array) -> Array:
    """Returns ``[N, ...]`` chosen by ``[N]``."""
    return jnp.where(condition.reshape(condition.shape + (1,) * (one.ndim - 1)), one, other)


def choose(condition: Array, one: Any, other: Any) -> Any:
    """Returns a nest ``[N, ...]`` chosen by ``[N]``."""
    return jax.tree.map(lambda x, y: where(condition, x, y), one, other)


def all_finite(nest: Nest) -> Array:
    """Returns whether every floating-point number is finite, bool ``[]``."""
    floats = [leaf for leaf in jax.tree.leaves(nest) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in floats] or [jnp.array(True)]))


def move(
    environment: JaxEnvironment,
    state: Nest,
    action: Nest,
    was_last: Array,
    key: Array,
    reset: Reset,
    members: Members,
) -> tuple[Nest, dm_env.TimeStep]:
    """Returns states and time steps after a step of each environment, or a reset where its episode has ended.

    Args:
        environment: each of them.
        state: of N environments.
        action: of each, leaves ``[N, ...]``.
        was_last: whether the episode had ended, bool ``[N]``.
        key: PRNG key ``uint32[2]``; each environment's is for its step or for its reset.
        reset: see `fill_pool`.
        members: of the program.
    """
    keys = jax.random.split(key, was_last.shape[0])
    stepped = jax.vmap(environment.step)(state, action, keys)

    def begin() -> tuple[Any, dm_env.TimeStep]:
        found: tuple[Any, dm_env.TimeStep] = choose(was_last, reset(keys), stepped)
        return found

    # At most steps no episode has ended: a seventh of PPO's time on CartPole, with 64 environments.
    moved: tuple[Any, dm_env.TimeStep] = jax.lax.cond(members.any(jnp.any(was_last)), begin, lambda: stepped)
    return moved


def clip_action(action: Nest, spec: Nest) -> Nest:
    """Returns bounded continuous actions within their bounds, as the environments of every other mode do."""

    def clip(leaf: specs.Array, value: Array) -> Array:
        if not isinstance(leaf, specs.BoundedArray) or not np.issubdtype(leaf.dtype, np.floating):
            return value
        return jnp.clip(value, leaf.minimum, leaf.maximum)

    return jax.tree.map(clip, spec, action)
