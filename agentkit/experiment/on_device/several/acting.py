"""Acting of several agents in N environments in JAX, a step at a time; to be compiled.

Agents that share a policy are environments of their own to it: A of them in N environments give it A N rows at each
step, the first agent's before the second's. So all that learns from the rows of one agent learns from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.actors.compiled import act_in_each
from agentkit.actors.policy import Policy, first_state
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.experiment.on_device.acting import (
    Acting,
    Episodes,
    Reset,
    clip_action,
    find_pool_key,
    move,
    where,
)
from agentkit.experiment.on_device.members import ALONE
from agentkit.learning import Update
from agentkit.types import FIRST, LAST, AgentId, Array, Nest, Params, Step


class Party(NamedTuple):
    """Holds a policy, and who plays by it.

    Attributes:
        policy_id: its name.
        agent_ids: of those who play by it, A of them.
        policy: of a single agent.
        update: the algorithm; None of a policy that learns nothing.
        experience: that it learns from, of A N environments; likewise.
        params: of a policy that learns nothing.
    """

    policy_id: str
    agent_ids: Sequence[AgentId]
    policy: Policy
    update: Update | None = None
    experience: Segments | Transitions | Sequences | None = None
    params: Params = ()


class Turn(NamedTuple):
    """Holds what a policy learns from in a step, leaves ``[A N, ...]``.

    Attributes:
        before: the time steps at which its agents act.
        row: see `on_device.acting.take_step`.
        after: the time steps after it.
    """

    before: TimeStep
    row: Step
    after: TimeStep


def start(environment: JaxMultiAgentEnvironment, parties: Sequence[Party], num_envs: int, key: Array) -> Acting:
    """Returns the state in which N environments and all policies begin; to be compiled.

    Args:
        environment: each of them.
        parties: of all agents.
        num_envs: N.
        key: PRNG key ``uint32[2]``.
    """
    policy_key, key, reset_key = jax.random.split(key, 3)
    state, timestep = jax.vmap(environment.reset)(jax.random.split(reset_key, num_envs))
    policies = {
        party.policy_id: first_state(party.policy, own_key, num_envs=num_envs * len(party.agent_ids))
        for party, own_key in zip(parties, keys_of_each(policy_key, len(parties)), strict=True)
    }
    nothing, zero = jnp.zeros(num_envs, jnp.int32), jnp.int32(0)
    returns = {agent_id: jnp.zeros(num_envs, jnp.float32) for agent_id in timestep.observation}
    return Acting(key, state, timestep, policies, returns, nothing, zero, zero, find_pool_key(environment, key))


def take_step(
    environment: JaxMultiAgentEnvironment,
    parties: Sequence[Party],
    params: Mapping[str, Params],
    acting: Acting,
    reset: Reset,
    steps_each: int = 1,
) -> tuple[Acting, dict[str, Turn], Episodes]:
    """Takes a step of all agents in each of N environments, or resets those whose episode has ended.

    Args:
        environment: each of them.
        parties: of all agents.
        params: that each policy acts with, by id.
        acting: the state before.
        reset: see `on_device.acting.fill_pool`.
        steps_each: what a step of an environment counts.

    Returns:
        The state after, the turn of each policy, and the sums over the episodes that have ended.
    """
    before = acting.timestep
    key, act_key, step_key = jax.random.split(acting.key, 3)
    was_last = before.step_type == LAST  # [N]: these are reset, and their actions count for nothing.
    actions: dict[AgentId, Nest] = {}
    states, chosen = {}, {}
    for party, own_key in zip(parties, keys_of_each(act_key, len(parties)), strict=True):
        name, seen = party.policy_id, rows_of(before, party.agent_ids)
        action, states[name], extras = act_in_each(
            party.policy, params[name], own_key, seen.observation, acting.policy[name], seen.step_type
        )
        chosen[name] = action, extras
        actions |= _by_agent(action, party.agent_ids)
    clipped = clip_action(actions, environment.action_spec())
    state, timestep = move(environment, acting.environment, clipped, was_last, step_key, reset, ALONE)
    turns = {}
    for party in parties:
        own, then = (rows_of(each, party.agent_ids) for each in (before, timestep))
        turns[party.policy_id] = _turn(own, *chosen[party.policy_id], then)
    moved, ended = ~was_last, timestep.step_type == LAST
    returns = {agent_id: acting.returns[agent_id] + jnp.where(moved, x, 0.0) for agent_id, x in timestep.reward.items()}
    lengths = acting.lengths + moved
    by_agent = {agent_id: jnp.sum(jnp.where(ended, total, 0.0)) for agent_id, total in returns.items()}
    count, length = jnp.sum(ended, dtype=jnp.int32), jnp.sum(jnp.where(ended, lengths, 0), dtype=jnp.int32)
    episodes = Episodes(count, jnp.sum(jnp.stack(list(by_agent.values()))), length, by_agent)
    after = Acting(
        key,
        state,
        timestep,
        states,
        {agent_id: jnp.where(ended, 0.0, total) for agent_id, total in returns.items()},
        jnp.where(ended, 0, lengths),
        acting.num_steps + steps_each * jnp.sum(moved, dtype=jnp.int32),
        acting.num_episodes + count,
        acting.pool_key,
    )
    return after, turns, episodes


def keys_of_each(key: Array, number: int) -> list[Array]:
    """Returns a key for each of some policies; the first one's is `key`, as if it were alone."""
    # Counted from above: fold_in's small numbers give the keys that the first one splits its own into.
    return [key if i == 0 else jax.random.fold_in(key, 2**32 - i) for i in range(number)]


def rows_of(timestep: TimeStep, agent_ids: Sequence[AgentId]) -> TimeStep:
    """Returns the time steps of agents, one after the other, ``[A N, ...]``; of those of all agents ``[N, ...]``."""
    of_each = [tuple(field[agent_id] for field in timestep[1:]) for agent_id in agent_ids]
    fields = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *of_each)
    return TimeStep(jnp.tile(timestep.step_type, len(agent_ids)), *fields)


def _by_agent(rows: Nest, agent_ids: Sequence[AgentId]) -> dict[AgentId, Nest]:
    """Returns the part ``[N, ...]`` of each agent, of rows ``[A N, ...]``."""
    parts = jax.tree.map(lambda x: x.reshape(len(agent_ids), -1, *x.shape[1:]), rows)
    return {agent_id: jax.tree.map(lambda x, i=i: x[i], parts) for i, agent_id in enumerate(agent_ids)}


def _turn(before: TimeStep, action: Nest, extras: Nest, after: TimeStep) -> Turn:
    """Returns a policy's turn, whose outcome is 0 where there was a reset."""
    moved = before.step_type != LAST
    outcome = (action, after.reward, after.discount, extras)
    action, reward, discount, extras = jax.tree.map(lambda leaf: where(moved, leaf, jnp.zeros_like(leaf)), outcome)
    return Turn(before, Step(before.observation, action, reward, discount, before.step_type == FIRST, extras), after)
