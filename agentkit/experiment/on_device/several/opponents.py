"""Self-play in the compiled loop: pools of earlier parameters, and who plays by which of them in each environment.

The rules are those of `multi_agent.pools`, with two differences. The newest parameters are kept between two rounds; and
where the pool is full, a game that has not ended goes on with those that took their opponent's place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import nests
from agentkit.actors.compiled import act_in_each
from agentkit.actors.policy import Policy
from agentkit.experiment.on_device.acting import choose
from agentkit.experiment.policies.pool import DECAY, Pool
from agentkit.learning import Update
from agentkit.types import AgentId, Array, Params

NEWEST = -1
"""In the place of a number in the pool: plays by the newest parameters, and learns."""


class Opponents(NamedTuple):
    """Holds pools of P parameters of each of L policies that learn, and who plays by them in N environments.

    Attributes:
        params: by policy id, leaves ``[P, ...]``; those of one place were the newest of all policies at one time.
        steps: of the environment then, int32 ``[P]``.
        num_kept: how many were ever kept, int32 ``[]``; number k is at place k % P.
        games: of late, that a policy played to learn against another's parameters at a place, float32 ``[L, L, P]``;
            policies in the order of their ids, whatever that of the config.
        won: of those games, likewise; a draw counts half.
        playing: by agent id: by which place it plays, or `NEWEST`, int32 ``[N]``.
    """

    params: Mapping[str, Params]
    steps: Array
    num_kept: Array
    games: Array
    won: Array
    playing: Mapping[AgentId, Array]


@final
class DevicePools:
    """Keeps pools, and decides of each episode who learns and who plays by which parameters; all is to be compiled."""

    def __init__(self, config: Pool, updates: Mapping[str, Update], plays: Mapping[AgentId, str]):
        """Computes nothing yet.

        Args:
            config: how parameters are kept and chosen.
            updates: of the policies that learn, by id.
            plays: the policy id of each agent that learns, two agents or more.
        """
        self._config, self._updates = config, updates
        numbers = _numbers_of(updates)
        self._numbers = {agent_id: numbers[policy_id] for agent_id, policy_id in plays.items()}

    def start(self, key: Array, num_envs: int) -> Opponents:
        """Returns empty pools, with which all learn.

        Args:
            key: PRNG key ``uint32[2]``, of nothing that shows.
            num_envs: N.
        """
        size, number = self._config.size, len(self._updates)
        params = {
            policy_id: jax.tree.map(
                lambda x: jnp.zeros((size, *x.shape), x.dtype),
                jax.eval_shape(lambda key, update=update: update.variables(update.init(key))["policy"], key),
            )
            for policy_id, update in self._updates.items()
        }
        none, newest = jnp.zeros((number, number, size), jnp.float32), jnp.full(num_envs, NEWEST, jnp.int32)
        playing = dict.fromkeys(self._numbers, newest)
        return Opponents(params, jnp.zeros(size, jnp.int32), jnp.int32(0), none, none, playing)

    def keep(self, now: Opponents, params: Mapping[str, Params], num_steps: Array) -> Opponents:
        """Returns the pools with the newest parameters, where it is time, in the place of the oldest.

        Args:
            now: the pools before a round.
            params: the newest, of each policy that learns.
            num_steps: environment steps at the round's start, wherever it was cut, int32 ``[]``.
        """
        period, size = self._config.period, self._config.size
        newest = jnp.where(now.num_kept > 0, now.steps[(now.num_kept - 1) % size], 0)
        place = now.num_kept % size

        def add() -> Opponents:
            return now._replace(
                params={
                    policy_id: jax.tree.map(lambda pool, x: pool.at[place].set(x), now.params[policy_id], own)
                    for policy_id, own in params.items()
                },
                steps=now.steps.at[place].set(num_steps),
                num_kept=now.num_kept + 1,
                games=now.games.at[..., place].set(0.0),
                won=now.won.at[..., place].set(0.0),
            )

        found: Opponents = jax.lax.cond(num_steps // period > newest // period, add, lambda: now)
        return found

    def draw(self, now: Opponents, begins: Array, key: Array) -> Opponents:
        """Returns who plays by what once new episodes have been given out.

        Args:
            now: the pools, and who has played so far.
            begins: where an episode begins, bool ``[N]``.
            key: PRNG key ``uint32[2]``.
        """
        chances = self._chances(now)
        agent_ids, num_envs = sorted(self._numbers), begins.shape[0]  # Whatever the order of the policies.
        share_key, learner_key, *own_keys = jax.random.split(key, 2 + len(agent_ids))
        is_played = (jax.random.uniform(share_key, (num_envs,)) < self._config.share) & (now.num_kept > 0)
        learner = jax.random.randint(learner_key, (num_envs,), 0, len(agent_ids))
        policy_of_learner = jnp.asarray([self._numbers[each] for each in agent_ids])[learner]  # [N]
        playing = {}
        for i, (agent_id, own_key) in enumerate(zip(agent_ids, own_keys, strict=True)):
            of_each = chances[policy_of_learner, self._numbers[agent_id]]  # [N, P]
            drawn = jax.random.categorical(own_key, jnp.log(of_each)).astype(jnp.int32)
            given = jnp.where(is_played & (learner != i), drawn, NEWEST)
            playing[agent_id] = jnp.where(begins, given, now.playing[agent_id])
        return now._replace(playing=playing)

    def _chances(self, now: Opponents) -> Array:
        """Returns the chance of each place, of a policy that learns and an opponent's, float32 ``[L, L, P]``."""
        size = self._config.size
        is_kept = jnp.broadcast_to(jnp.arange(size) < now.num_kept, now.games.shape).astype(jnp.float32)
        if self._config.choose == "newest":
            newest = jax.nn.one_hot((now.num_kept - 1) % size, size)
            return jnp.broadcast_to(newest, now.games.shape)
        if self._config.choose == "uniform":
            return is_kept
        win_rate = (now.won + 0.5) / (now.games + 1.0)  # As `Earlier.win_rate` has it.
        return is_kept * (1.0 - win_rate) ** 2

    def act(self, now: Opponents, places: Array, policy_id: str, policy: Policy, found: tuple, *given: Any) -> tuple:
        """Returns what agents do where they play by earlier parameters, and what was `found` elsewhere.

        Args:
            now: the pools.
            places: see `places_of`, int32 ``[A N]``.
            policy_id: of the agents.
            policy: theirs.
            found: actions, states and extras by the newest parameters, leaves ``[A N, ...]``.
            *given: all that `act_in_each` takes behind the parameters.
        """
        is_held = places != NEWEST

        def act_by_all() -> tuple:
            # All places in all environments: for the few that there are that is less than parameters for each game.
            of_all = jax.vmap(lambda params: act_in_each(policy, params, *given))(now.params[policy_id])
            own = jax.tree.map(lambda x: x[jnp.maximum(places, 0), jnp.arange(places.shape[0])], of_all)
            chosen: tuple = choose(is_held, own, found)
            return chosen

        chosen: tuple = jax.lax.cond(jnp.any(is_held), act_by_all, lambda: found)
        return chosen

    def count(self, now: Opponents, ended: Array, returns: Mapping[AgentId, Array]) -> Opponents:
        """Returns the pools with the games that have ended: of each that learned beside each opponent.

        Args:
            now: the pools, and who has played by what.
            ended: where, bool ``[N]``.
            returns: of each agent, float32 ``[N]``.
        """
        games, won = now.games, now.won
        for learner, own in self._numbers.items():
            for other, number in self._numbers.items():
                place = now.playing[other]
                is_game = ended & (now.playing[learner] == NEWEST) & (place != NEWEST)
                place = jnp.where(is_game, place, self._config.size)  # Elsewhere: dropped.
                ours, theirs = returns[learner], returns[other]
                score = jnp.where(ours > theirs, 1.0, jnp.where(ours == theirs, 0.5, 0.0))  # As `pools.score_of`.
                more = jnp.zeros(self._config.size).at[place].add(1.0, mode="drop")
                wins = jnp.zeros(self._config.size).at[place].add(score, mode="drop")
                games = games.at[own, number].set(games[own, number] * DECAY**more + more)
                won = won.at[own, number].set(won[own, number] * DECAY**more + wins)
        return now._replace(games=games, won=won)


def places_of(now: Opponents, agent_ids: Sequence[AgentId]) -> Array:
    """Returns by what agents play, one after the other, int32 ``[A N]``; of those of no pool the newest."""
    newest = jnp.full_like(next(iter(now.playing.values())), NEWEST)
    return jnp.concatenate([now.playing.get(agent_id, newest) for agent_id in agent_ids])


def _numbers_of(policy_ids: Iterable[str]) -> dict[str, int]:
    """Returns the number of each policy in tables of games."""
    return {policy_id: number for number, policy_id in enumerate(sorted(policy_ids))}


def pools_of(opponents: Opponents) -> dict[str, Any]:
    """Returns the pools of a run as `multi_agent.pools.Pools.save` does, for who reads a checkpoint."""
    held: Opponents = jax.device_get(opponents)
    numbers = _numbers_of(held.params)
    size = len(held.steps)
    places = [number % size for number in range(max(int(held.num_kept) - size, 0), int(held.num_kept))]
    return {
        policy_id: {
            str(int(held.steps[place])): {
                "params": {
                    path: np.asarray(leaf)[place]
                    for path, leaf in nests.flatten_to_paths(held.params[policy_id]).items()
                },
                **{
                    name: {
                        other: float(table[i, number, place])
                        for other, i in numbers.items()
                        if held.games[i, number, place] > 0
                    }
                    for name, table in (("games", held.games), ("won", held.won))
                },
            }
            for place in places
        }
        for policy_id, number in numbers.items()
    }
