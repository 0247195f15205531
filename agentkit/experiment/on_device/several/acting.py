"""Acting of several agents in N environments in JAX, all together at each step; to be compiled.

Agents that share a policy are environments of their own to it: A of them in N environments give it A N rows at each
step, the first agent's before the second's. So all that learns from the rows of one agent learns from these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol, final

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.actors.compiled import act_in_each
from agentkit.actors.policy import Policy, first_state
from agentkit.agents.common.experience import Segments, Sequences, Transitions
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.step_check import count_wrong_types
from agentkit.experiment.on_device.acting import (
    Acting,
    Episodes,
    Reset,
    clip_action,
    find_pool_key,
    move,
    reset_each,
    where,
)
from agentkit.experiment.on_device.members import ALONE
from agentkit.experiment.on_device.several.opponents import NEWEST, DevicePools, places_of
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
        learned_share: of all agents' actions, the share that it learns from, on average.
    """

    policy_id: str
    agent_ids: Sequence[AgentId]
    policy: Policy
    update: Update | None = None
    experience: Segments | Transitions | Sequences | None = None
    params: Params = ()
    learned_share: float = 1.0


class Turn(NamedTuple):
    """Holds what a policy learns from in a step, leaves ``[A N, ...]``.

    Attributes:
        before: the time steps at which its agents acted.
        row: see `on_device.acting.take_step`.
        after: the time steps that followed.
        is_there: whether there is such a row, bool ``[A N]``; True where there always is one.
    """

    before: TimeStep
    row: Step
    after: TimeStep
    is_there: Array | bool = True


class Play(Protocol):
    """Says how agents act in N environments: together, or in turns."""

    @property
    def most_steps(self) -> int:
        """Returns the steps of an environment in a step of all, at most, as they are counted."""
        ...

    @property
    def has_gaps(self) -> bool:
        """Returns whether there are steps in which a policy has no row of an agent."""
        ...

    def start(self, key: Array) -> Acting:
        """Returns the state in which N environments and all policies begin; to be compiled.

        Args:
            key: PRNG key ``uint32[2]``.
        """
        ...

    def take_step(
        self, params: Mapping[str, Params], acting: Acting, reset: Reset
    ) -> tuple[Acting, dict[str, Turn], Episodes]:
        """Takes a step of all agents in each of N environments, or resets those whose episode has ended.

        Args:
            params: that each policy acts with, by id.
            acting: the state before.
            reset: see `on_device.acting.fill_pool`.

        Returns:
            The state after, the turn of each policy, and the sums over the episodes that have ended.
        """
        ...

    def newest(self, acting: Acting, agent_ids: Sequence[AgentId]) -> TimeStep:
        """Returns the time steps that the next rows of agents begin with; one whose row will not be there is a FIRST.

        Args:
            acting: the state.
            agent_ids: A of them, for leaves ``[A N, ...]``.
        """
        ...


@final
class Together:
    """Has all agents act at each step: `Play`."""

    def __init__(
        self,
        environment: JaxMultiAgentEnvironment,
        parties: Sequence[Party],
        num_envs: int,
        steps_each: int = 1,
        self_play: DevicePools | None = None,
    ):
        """Computes nothing yet.

        Args:
            environment: each of N.
            parties: of all agents.
            num_envs: N.
            steps_each: what a step of an environment counts.
            self_play: says who plays by earlier parameters; None where nobody does.
        """
        self._environment, self._parties, self._num_envs = environment, list(parties), num_envs
        self.most_steps, self._self_play = steps_each, self_play
        self.has_gaps = self_play is not None

    def start(self, key: Array) -> Acting:
        """Returns the state in which environments and policies begin; see `Play`."""
        policy_key, key, reset_key = jax.random.split(key, 3)
        num_envs = self._num_envs
        state, timestep = reset_each(self._environment, jax.random.split(reset_key, num_envs))
        policies = {
            party.policy_id: first_state(party.policy, own_key, num_envs=num_envs * len(party.agent_ids))
            for party, own_key in zip(self._parties, keys_of_each(policy_key, len(self._parties)), strict=True)
        }
        nothing, zero = jnp.zeros(num_envs, jnp.int32), jnp.int32(0)
        returns = {agent_id: jnp.zeros(num_envs, jnp.float32) for agent_id in timestep.observation}
        pool_key = find_pool_key(self._environment, key)
        opponents = () if self._self_play is None else self._self_play.start(key, num_envs)
        return Acting(key, state, timestep, policies, returns, nothing, zero, zero, pool_key, opponents)

    def take_step(
        self, params: Mapping[str, Params], acting: Acting, reset: Reset
    ) -> tuple[Acting, dict[str, Turn], Episodes]:
        """Takes a step of all agents; see `Play`."""
        before = acting.timestep
        key, act_key, step_key = jax.random.split(acting.key, 3)
        was_last = before.step_type == LAST  # [N]: these are reset, and their actions count for nothing.
        actions: dict[AgentId, Nest] = {}
        states, chosen, places = {}, {}, {}
        for party, own_key in zip(self._parties, keys_of_each(act_key, len(self._parties)), strict=True):
            name, seen = party.policy_id, rows_of(before, party.agent_ids)
            own: Any = own_key, seen.observation, acting.policy[name], seen.step_type, len(party.agent_ids)
            found = act_in_each(party.policy, params[name], *own)
            if self._self_play is not None and party.update is not None:
                places[name] = places_of(acting.opponents, party.agent_ids)
                found = self._self_play.act(acting.opponents, places[name], name, party.policy, found, *own)
            action, states[name], extras = found
            chosen[name] = action, extras
            actions |= _by_agent(action, party.agent_ids)
        clipped = clip_action(actions, self._environment.action_spec())
        state, timestep = move(self._environment, acting.environment, clipped, was_last, step_key, reset, ALONE)
        turns = {}
        for party in self._parties:
            at, then = (rows_of(each, party.agent_ids) for each in (before, timestep))
            is_there = places[party.policy_id] == NEWEST if party.policy_id in places else True
            turns[party.policy_id] = Turn(at, row_of(at, *chosen[party.policy_id], then), then, is_there)
        moved = ~was_last
        after = acting._replace(
            key=key,
            environment=state,
            timestep=timestep,
            policy=states,
            returns={
                agent_id: acting.returns[agent_id] + jnp.where(moved, x, 0.0) for agent_id, x in timestep.reward.items()
            },
            lengths=acting.lengths + moved,
            num_steps=acting.num_steps + self.most_steps * jnp.sum(moved, dtype=jnp.int32),
        )
        if self._self_play is not None:
            ended = timestep.step_type == LAST
            opponents = self._self_play.count(acting.opponents, ended, after.returns)
            draw_key = jax.random.fold_in(key, 2**32 - 1)
            after = after._replace(opponents=self._self_play.draw(opponents, was_last, draw_key))
        after, episodes = end_episodes(after, timestep.step_type == LAST)
        return after, turns, episodes._replace(num_out_of_range=count_wrong_types(moved, timestep.step_type))

    def newest(self, acting: Acting, agent_ids: Sequence[AgentId]) -> TimeStep:
        """Returns the newest time steps, of which the next rows are; see `Play`."""
        found = rows_of(acting.timestep, agent_ids)
        if self._self_play is None:
            return found
        will_be_there = places_of(acting.opponents, agent_ids) == NEWEST
        return found._replace(step_type=jnp.where(will_be_there, found.step_type, FIRST))


def end_episodes(acting: Acting, ended: Array) -> tuple[Acting, Episodes]:
    """Returns the state with nothing in its returns where episodes have ended, and the sums over these alone.

    Args:
        acting: just after a step.
        ended: where, bool ``[N]``.
    """
    by_agent = {agent_id: jnp.sum(jnp.where(ended, total, 0.0)) for agent_id, total in acting.returns.items()}
    count, length = jnp.sum(ended, dtype=jnp.int32), jnp.sum(jnp.where(ended, acting.lengths, 0), dtype=jnp.int32)
    after = acting._replace(
        returns={agent_id: jnp.where(ended, 0.0, total) for agent_id, total in acting.returns.items()},
        lengths=jnp.where(ended, 0, acting.lengths),
        num_episodes=acting.num_episodes + count,
    )
    return after, Episodes(count, jnp.sum(jnp.stack(list(by_agent.values()))), length, jnp.int32(0), by_agent)


def keys_of_each(key: Array, number: int) -> list[Array]:
    """Returns a key for each of some policies; the first one's is `key`, as if it were alone."""
    # Counted from above: fold_in's small numbers give the keys that the first one splits its own into.
    return [key if i == 0 else jax.random.fold_in(key, 2**32 - i) for i in range(number)]


def rows_of(timestep: TimeStep, agent_ids: Sequence[AgentId]) -> TimeStep:
    """Returns the time steps of agents, one after the other, ``[A N, ...]``; of those of all agents ``[N, ...]``.

    Args:
        timestep: its step type is one of all, or by agent id as everything else.
        agent_ids: A of them.
    """
    kinds, *others = timestep
    if not isinstance(kinds, dict):
        kinds = dict.fromkeys(agent_ids, kinds)
    of_each = [tuple(field[agent_id] for field in (kinds, *others)) for agent_id in agent_ids]
    return TimeStep(*jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *of_each))


def _by_agent(rows: Nest, agent_ids: Sequence[AgentId]) -> dict[AgentId, Nest]:
    """Returns the part ``[N, ...]`` of each agent, of rows ``[A N, ...]``."""
    parts = jax.tree.map(lambda x: x.reshape(len(agent_ids), -1, *x.shape[1:]), rows)
    return {agent_id: jax.tree.map(lambda x, i=i: x[i], parts) for i, agent_id in enumerate(agent_ids)}


def row_of(before: TimeStep, action: Nest, extras: Nest, after: TimeStep) -> Step:
    """Returns the row between two time steps, whose outcome is 0 where the first one was an episode's last."""
    moved = before.step_type != LAST
    outcome = (action, after.reward, after.discount, extras)
    action, reward, discount, extras = jax.tree.map(lambda leaf: where(moved, leaf, jnp.zeros_like(leaf)), outcome)
    return Step(before.observation, action, reward, discount, before.step_type == FIRST, extras)
