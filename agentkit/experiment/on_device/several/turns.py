"""Acting of several agents in turns, in N environments in JAX; to be compiled.

A step of the loop asks each agent once, in their order: it acts where it is its turn. Where players alternate, all of
them have acted then. What an agent learns from is complete at its next turn, or at the end: then a row is there, of its
turn before. So a row comes a step late, and in a step in which it is not an agent's turn there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
from dm_env import TimeStep

from agentkit.actors.compiled import act_in_each, count_others
from agentkit.actors.policy import ActorIndex, first_state
from agentkit.envs.jax.step_check import count_wrong_types
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.experiment.on_device.acting import (
    Acting,
    Episodes,
    Reset,
    choose,
    clip_action,
    find_pool_key,
    reset_each,
)
from agentkit.experiment.on_device.several.acting import Party, Turn, end_episodes, keys_of_each, row_of, rows_of
from agentkit.experiment.on_device.several.opponents import NEWEST, DevicePools, places_of
from agentkit.types import FIRST, LAST, MID, AgentId, Array, Nest, Params, Step


class Waiting(NamedTuple):
    """Holds an agent's turn until its next one, in each of N environments.

    Attributes:
        action: that it took, leaves ``[N, ...]``; zeros at an episode's end.
        extras: of its policy, likewise.
        reward: that it was given since, r_1 + d_1 r_2 + ..., float32 ``[N]``.
        discount: the product of the discounts since, float32 ``[N]``.
        has_begun: whether it has acted in this episode, bool ``[N]``.
        is_there: whether there is such a turn to learn from, bool ``[N]``: none before an agent's first one of all, and
            none by earlier parameters.
    """

    action: Nest
    extras: Nest
    reward: Array
    discount: Array
    has_begun: Array
    is_there: Array


class Games(NamedTuple):
    """Holds N environments whose agents act in turns.

    Attributes:
        state: of the environments, leaves ``[N, ...]``.
        observation: what each agent sees, by id, leaves ``[N, ...]``.
        is_over: whether the episode has ended, which the next step hands out, and then resets, bool ``[N]``.
        waiting: by agent id.
    """

    state: Nest
    observation: Mapping[AgentId, Nest]
    is_over: Array
    waiting: Mapping[AgentId, Waiting]


class Seat(NamedTuple):
    """Holds who acts at a place in the order of the agents.

    Attributes:
        number: its place.
        agent_id: the agent.
        party: by which it plays.
    """

    number: int
    agent_id: AgentId
    party: Party


@final
class InTurns:
    """Asks each agent in its turn: `several.acting.Play`.

    In what it keeps, the newest time step is each agent's own, at which it has acted, or has ended: all its fields are
    by agent id, and so are the states of policies.

    Attributes:
        most_steps: that an environment takes in a step of all: one of each agent.
        has_gaps: True.
    """

    def __init__(
        self,
        environment: JaxTurnEnvironment,
        parties: Sequence[Party],
        num_envs: int,
        self_play: DevicePools | None = None,
    ):
        """Computes nothing yet.

        Args:
            environment: each of N.
            parties: of all agents.
            num_envs: N.
            self_play: says who plays by earlier parameters; None where nobody does.
        """
        self._environment, self._parties, self._num_envs = environment, list(parties), num_envs
        plays = {agent_id: party for party in parties for agent_id in party.agent_ids}
        self._seats = [Seat(i, agent_id, plays[agent_id]) for i, agent_id in enumerate(environment.observation_spec())]
        self.most_steps, self.has_gaps, self._self_play = len(self._seats), True, self_play

    def start(self, key: Array) -> Acting:
        """Returns the state in which environments and policies begin; see `Play`."""
        policy_key, key, reset_key = jax.random.split(key, 3)
        num_envs = self._num_envs
        state, timestep = reset_each(self._environment, jax.random.split(reset_key, num_envs))
        nothing, zero = jnp.zeros(num_envs, jnp.int32), jnp.int32(0)
        no_rewards, all_go_on = jnp.zeros(num_envs, jnp.float32), jnp.ones(num_envs, jnp.float32)
        not_yet = jnp.zeros(num_envs, bool)
        actions = self._zeros(self._environment.action_spec())
        policies, waiting = {}, {}
        for seat, own_key in zip(self._seats, keys_of_each(policy_key, len(self._seats)), strict=True):
            index = ActorIndex(seat.party.agent_ids.index(seat.agent_id), len(seat.party.agent_ids))
            policies[seat.agent_id] = first_state(seat.party.policy, own_key, index, num_envs)
            extras = self._zeros(seat.party.policy.extras_spec)
            waiting[seat.agent_id] = Waiting(actions[seat.agent_id], extras, no_rewards, all_go_on, not_yet, not_yet)
        own = TimeStep(
            *(dict.fromkeys(waiting, each) for each in (timestep.step_type, no_rewards, all_go_on)),
            self._zeros(self._environment.observation_spec()),
        )
        games = Games(state, timestep.observation, not_yet, waiting)
        returns, pool_key = dict.fromkeys(waiting, no_rewards), find_pool_key(self._environment, key)
        opponents = () if self._self_play is None else self._self_play.start(key, num_envs)
        return Acting(key, games, own, policies, returns, nothing, zero, zero, pool_key, opponents)

    def take_step(
        self, params: Mapping[str, Params], acting: Acting, reset: Reset
    ) -> tuple[Acting, dict[str, Turn], Episodes]:
        """Asks all agents, and hands out and resets the episodes that had ended; see `Play`."""
        key, act_key, step_key, reset_key = jax.random.split(acting.key, 4)
        was_over = acting.environment.is_over
        now, of_each, num_wrong = acting._replace(key=key), {}, jnp.int32(0)
        number = len(self._seats)
        keys = zip(self._seats, jax.random.split(act_key, number), jax.random.split(step_key, number), strict=True)
        for seat, own_act_key, own_step_key in keys:
            own_params = params[seat.party.policy_id]
            now, of_each[seat.agent_id], acts = self._ask(seat, own_params, now, was_over, own_act_key)
            now, wrong = self._move(seat, now, acts, own_step_key)
            num_wrong += wrong
        ended = now.environment.is_over & ~was_over
        if self._self_play is not None:
            opponents = self._self_play.count(now.opponents, ended, now.returns)
            draw_key = jax.random.fold_in(key, 2**32 - 1)
            now = now._replace(opponents=self._self_play.draw(opponents, was_over, draw_key))
        now, episodes = end_episodes(now, ended)
        episodes = episodes._replace(num_out_of_range=episodes.num_out_of_range + num_wrong)
        now = now._replace(environment=self._begin(now.environment, was_over, reset_key, reset))
        turns: dict[str, Turn] = {
            party.policy_id: jax.tree.map(
                lambda *leaves: jnp.concatenate(leaves), *(of_each[agent_id] for agent_id in party.agent_ids)
            )
            for party in self._parties
        }
        return now, turns, episodes

    def _ask(self, seat: Seat, params: Params, now: Acting, was_over: Array, key: Array) -> tuple[Acting, Turn, Array]:
        """Returns the state once an agent has its new time steps and has chosen, its turn before, and where it acts."""
        games, name = now.environment, seat.agent_id
        waiting, before = games.waiting[name], TimeStep(*(field[name] for field in now.timestep))
        acts = ~games.is_over & (jax.vmap(self._environment.turn)(games.state) == seat.number)
        ends = was_over & waiting.has_begun
        is_given = acts | ends
        kind = jnp.where(ends, LAST, jnp.where(waiting.has_begun, MID, FIRST)).astype(jnp.int32)
        nothing = self._zeros(self._environment.observation_spec()[name])  # What is shown to who waits counts nothing.
        seen = choose(is_given, games.observation[name], nothing)
        after = TimeStep(kind, waiting.reward, waiting.discount, seen)
        turn = Turn(before, row_of(before, waiting.action, waiting.extras, after), after, is_given & waiting.is_there)
        asked = jnp.where(acts, kind, LAST).astype(jnp.int32)
        given = key, seen, now.policy[name], asked
        found, learns = act_in_each(seat.party.policy, params, *given), True
        if self._self_play is not None and seat.party.update is not None:
            places = places_of(now.opponents, [name])
            found = self._self_play.act(now.opponents, places, seat.party.policy_id, seat.party.policy, found, *given)
            learns = places == NEWEST
        (action, policy, extras), spec = found, self._environment.action_spec()[name]
        action = jax.tree.map(lambda x, leaf: x.astype(leaf.dtype), action, spec)
        outcome = choose(acts, (action, extras), jax.tree.map(jnp.zeros_like, (action, extras)))
        action, extras = choose(is_given, outcome, (waiting.action, waiting.extras))
        is_counted = is_given & (kind != FIRST)  # What came before an agent's first turn is in its first step.
        waiting = Waiting(
            action,
            extras,
            jnp.where(is_counted, 0.0, waiting.reward),
            jnp.where(is_counted, 1.0, waiting.discount),
            waiting.has_begun | acts,
            jnp.where(acts, learns, waiting.is_there),
        )
        others = count_others(seat.party.policy, now.policy[name], asked)
        newest = choose(is_given, after, before)
        now = now._replace(
            environment=games._replace(waiting={**games.waiting, name: waiting}),
            timestep=TimeStep(*({**old, name: new} for old, new in zip(now.timestep, newest, strict=True))),
            policy={**now.policy, name: choose(acts, policy, others)},
        )
        return now, turn, acts

    def newest(self, acting: Acting, agent_ids: Sequence[AgentId]) -> TimeStep:
        """Returns the time steps at which agents have acted last, or have ended; see `Play`."""
        found = rows_of(acting.timestep, agent_ids)
        will_be_there = jnp.concatenate([acting.environment.waiting[agent_id].is_there for agent_id in agent_ids])
        return found._replace(step_type=jnp.where(will_be_there, found.step_type, FIRST))

    def _move(self, seat: Seat, now: Acting, acts: Array, key: Array) -> tuple[Acting, Array]:
        """Returns the state after an agent's action where it acts, of which all agents hear, and steps of no type."""
        games, spec = now.environment, self._environment.action_spec()
        own = clip_action(games.waiting[seat.agent_id].action, spec[seat.agent_id])
        actions = {**self._zeros(spec), seat.agent_id: own}
        keys = jax.random.split(key, self._num_envs)
        state, timestep = jax.vmap(self._environment.step)(games.state, actions, keys)
        waiting = {
            name: each._replace(
                reward=each.reward + jnp.where(acts, each.discount * timestep.reward[name], 0.0),
                discount=each.discount * jnp.where(acts, timestep.discount[name], 1.0),
            )
            for name, each in games.waiting.items()
        }
        returns = {name: x + jnp.where(acts, timestep.reward[name], 0.0) for name, x in now.returns.items()}
        state, observation = choose(acts, (state, timestep.observation), (games.state, games.observation))
        now = now._replace(
            environment=Games(state, observation, games.is_over | acts & (timestep.step_type == LAST), waiting),
            returns=returns,
            lengths=now.lengths + acts,
            num_steps=now.num_steps + jnp.sum(acts, dtype=jnp.int32),
        )
        return now, count_wrong_types(acts, timestep.step_type)

    def _begin(self, games: Games, was_over: Array, key: Array, reset: Reset) -> Games:
        """Returns the games with a new one in the place of each that was over."""

        def begin() -> Games:
            new, timestep = reset(jax.random.split(key, self._num_envs))
            waiting = {
                name: each._replace(
                    reward=jnp.where(was_over, 0.0, each.reward),
                    discount=jnp.where(was_over, 1.0, each.discount),
                    has_begun=each.has_begun & ~was_over,
                )
                for name, each in games.waiting.items()
            }
            state, observation = choose(was_over, (new, timestep.observation), (games.state, games.observation))
            return Games(state, observation, games.is_over & ~was_over, waiting)

        found: Games = jax.lax.cond(jnp.any(was_over), begin, lambda: games)
        return found

    def _zeros(self, spec: Nest) -> Nest:
        """Returns zeros of a spec, leaves ``[N, ...]``."""
        return jax.tree.map(lambda leaf: jnp.zeros((self._num_envs, *leaf.shape), leaf.dtype), spec)


def close_up(rows: Step, is_there: Array, newest: TimeStep) -> tuple[Step, tuple[Nest, Array]]:
    """Returns rows ``[R, S, ...]`` without gaps, and what comes behind them: an observation, and whether it is a start.

    Each stream has its rows in their order, then the newest observation, which has no action yet, and for the rest of
    the room episodes of no step, which show it, too: learners take such rows for final observations.

    Args:
        rows: of S streams.
        is_there: which of them there are, bool ``[R, S]``.
        newest: the streams' newest time steps ``[S, ...]``.
    """
    order = jnp.argsort(~is_there, axis=0, stable=True)
    count, number = jnp.sum(is_there, 0, keepdims=True), jnp.arange(len(is_there))[:, None]
    closed: Step = jax.tree.map(
        lambda x: jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), 0), rows
    )
    room = number >= count  # [R, S]

    def fill(x: Array, rest: Any) -> Array:
        return jnp.where(room.reshape(room.shape + (1,) * (x.ndim - 2)), rest, x)

    zeros: Step = jax.tree.map(lambda x: fill(x, jnp.zeros((), x.dtype)), closed)
    begins, behind = newest.step_type == FIRST, newest.observation
    start = jnp.where(room, (number > count) | begins[None], closed.start_of_episode)
    filled = zeros._replace(
        observation=jax.tree.map(lambda x, last: fill(x, last[None]), closed.observation, behind),
        start_of_episode=start,
    )
    return filled, (behind, begins | (count[0] < len(is_there)))
