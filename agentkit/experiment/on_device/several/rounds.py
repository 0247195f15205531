"""Rounds of several agents, together or in turns: each policy learns as its experience wants it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit.agents.common.experience import Segments
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.jax.step_check import count_out_of_range
from agentkit.envs.jax.turn_base import JaxTurnEnvironment
from agentkit.experiment.on_device.acting import (
    Acting,
    Episodes,
    Reset,
    all_finite,
    fill_pool,
    make_pool,
    no_episodes,
)
from agentkit.experiment.on_device.replay.learning import ReplayLearning
from agentkit.experiment.on_device.replay.replay_rounds import STEPS
from agentkit.experiment.on_device.rounds import Progress, Round, Scratch, end_of_round
from agentkit.experiment.on_device.segments import SegmentLearning, close_segments
from agentkit.experiment.on_device.several.acting import Party, Play, Together, Turn, keys_of_each, rows_of
from agentkit.experiment.on_device.several.opponents import DevicePools
from agentkit.experiment.on_device.several.turns import InTurns, close_up
from agentkit.experiment.policies.pool import Pool
from agentkit.networks.action_mask import split_action_mask
from agentkit.types import FIRST, LAST, Array, Nest, Step


class _Playing(NamedTuple):
    """Holds what changes with a step of a round.

    Attributes:
        acting: the environments' and the policies'.
        progress: of those that learn from replay, by policy id.
        rows: of those that learn from segments, by policy id, ``[R, A N, ...]``.
        is_there: which of these rows there are, bool ``[R, A N]``; empty where all are.
        episodes: sums over those that ended.
        is_finite: see `rounds.Round`.
        count: steps so far, int32 ``[]``.
    """

    acting: Acting
    progress: dict[str, Progress]
    rows: dict[str, Step]
    is_there: dict[str, Array]
    episodes: Episodes
    is_finite: Array
    count: Array


@final
class SeveralRounds:
    """Takes steps of all agents in N environments: those with a replay learn after each, the others at the round's end.

    Where a policy learns from segments, a round is as long as these are in an update, which must be as long for all
    that do. Else it is of `STEPS` steps in each environment, or of fewer where it reaches the target.

    Attributes:
        rows: steps of a round in all environments, at most, as they are counted.
    """

    def __init__(
        self,
        environment: JaxMultiAgentEnvironment,
        parties: Sequence[Party],
        num_envs: int,
        steps_each: int = 1,
        pool: Pool | None = None,
    ):
        """Computes nothing yet; `multi_agent.on_device` has looked at the settings.

        Args:
            environment: each of them.
            parties: of all agents.
            num_envs: N.
            steps_each: what a step of an environment counts; 1 where agents act in turns.
            pool: of earlier parameters, as opponents; None where all play by the newest.
        """
        self._environment, self._parties, self._num_envs = environment, list(parties), num_envs
        self._updates = {party.policy_id: party.update for party in parties if party.update is not None}
        plays = {name: party.policy_id for party in parties for name in party.agent_ids if party.update is not None}
        self._self_play = None if pool is None else DevicePools(pool, self._updates, plays)
        self._play: Play
        if isinstance(environment, JaxTurnEnvironment):
            self._play = InTurns(environment, parties, num_envs, self._self_play)
        else:
            self._play = Together(environment, parties, num_envs, steps_each, self._self_play)
        self._agent_ids = {party.policy_id: party.agent_ids for party in parties}
        num_agents = sum(len(party.agent_ids) for party in parties)
        self._on_segments: dict[str, SegmentLearning] = {}
        self._on_replay: dict[str, ReplayLearning] = {}
        for party in parties:
            name, number = party.policy_id, num_envs * len(party.agent_ids)
            if isinstance(party.experience, Segments):
                per_action = self._play.most_steps / (num_agents * party.learned_share)
                self._on_segments[name] = SegmentLearning(self._updates[name], party.experience, number, per_action)
            elif party.experience is not None:
                self._on_replay[name] = ReplayLearning(self._updates[name], party.experience, number)
        self._length = max((each.times * each.length for each in self._on_segments.values()), default=STEPS)
        self.rows = self._length * num_envs * self._play.most_steps

    def start(self, key: Array) -> Acting:
        """Returns the state in which environments and policies begin; see `rounds.Rounds`."""
        return self._play.start(key)

    def first_training(self, key: Array) -> dict[str, Nest]:
        """Returns the training state that each update begins with, by policy id."""
        keys = keys_of_each(key, len(self._updates))
        return {name: update.init(each) for (name, update), each in zip(self._updates.items(), keys, strict=True)}

    def first_store(self, acting: Acting, key: Array) -> dict[str, Nest]:
        """Returns an empty store of each policy that has a replay; see `rounds.Rounds`."""
        turns = self._turns(acting, key)
        stores: dict[str, Nest] = {}
        for name, each in zip(self._updates, keys_of_each(key, len(self._updates)), strict=True):
            learning, now = self._on_replay.get(name), rows_of(acting.timestep, self._agent_ids[name])
            stores[name] = () if learning is None else learning.start(turns[name].row, now.observation, each)
        return stores

    def first_metrics(
        self, training: Mapping[str, Nest], acting: Acting, store: Mapping[str, Nest]
    ) -> dict[str, Mapping[str, Array]]:
        """Returns metrics of an update of each policy, for their shapes."""
        metrics = {name: each.first_metrics(training[name], store[name]) for name, each in self._on_replay.items()}
        turns, none = self._turns(acting, acting.key), jnp.zeros(3, jnp.int32)
        for name, learning in self._on_segments.items():
            rows = self._no_rows(turns[name].row)
            segments = self._segments(name, rows, None, acting)
            metrics[name] = learning.learn(training[name], none, segments, jnp.int32(0)).metrics
        return metrics

    def scratch(self, key: Array) -> Scratch:
        """Returns the segments of each policy that learns from them, and the pool of resets; see `rounds.Rounds`."""
        specs = self._environment.agent_specs()
        segments = {
            party.policy_id: self._on_segments[party.policy_id].no_segments(
                specs[party.agent_ids[0]], party.policy.extras_spec
            )
            for party in self._parties
            if party.policy_id in self._on_segments
        }
        return Scratch(segments, make_pool(self._environment, key))

    def no_episodes(self) -> Episodes:
        """Returns the sums over no episodes."""
        return no_episodes(agent_id for party in self._parties for agent_id in party.agent_ids)

    def run(
        self,
        training: Mapping[str, Nest],
        acting: Acting,
        store: Mapping[str, Nest],
        tally: Mapping[str, Array],
        metrics: Mapping[str, Mapping[str, Array]],
        target: Array,
    ) -> Round:
        """Runs a round; see `rounds.Rounds`."""
        end = end_of_round(acting.num_steps, target, self.rows)
        number = acting.num_steps if self._on_segments else acting.num_steps // self.rows
        reset = fill_pool(self._environment, acting, number)
        if self._self_play is not None:
            newest = {name: update.variables(training[name])["policy"] for name, update in self._updates.items()}
            begun = number if self._on_segments else number * self.rows
            acting = acting._replace(opponents=self._self_play.keep(acting.opponents, newest, begun))
        progress = {name: Progress(training[name], store[name], tally[name], metrics[name]) for name in training}
        learning = {name: progress[name] for name in self._on_replay}
        turns = self._turns(acting, acting.key)
        rows = {name: self._no_rows(turns[name].row) for name in self._on_segments}
        gaps = rows if self._play.has_gaps else {}
        is_there = {name: jnp.zeros(each.start_of_episode.shape, bool) for name, each in gaps.items()}
        first = _Playing(acting, learning, rows, is_there, self.no_episodes(), jnp.array(True), jnp.int32(0))

        def goes_on(now: _Playing) -> Array:
            return now.count < self._length if self._on_segments else now.acting.num_steps < end

        last: _Playing = jax.lax.while_loop(goes_on, lambda now: self._step(now, progress, reset), first)
        progress = progress | last.progress
        for name, each in self._on_segments.items():
            now = progress[name]
            segments = self._segments(name, last.rows[name], last.is_there.get(name), last.acting)
            kept = now.metrics if self._play.has_gaps else None
            progress[name] = each.learn(now.training, now.tally, segments, last.acting.num_steps, kept)
        parts: Any = {field: {name: getattr(progress[name], field) for name in training} for field in Progress._fields}
        return Round(acting=last.acting, episodes=last.episodes, is_finite=last.is_finite, **parts)

    def _step(self, now: _Playing, progress: Mapping[str, Progress], reset: Reset) -> _Playing:
        """Takes a step, and makes the updates that are due after it."""
        of_all = {**progress, **now.progress}
        acting, turns, episodes = self._take_step(
            {name: each.training for name, each in of_all.items()}, now.acting, reset
        )
        is_bad = jnp.any(jnp.stack([each.tally[1] >= 0 for each in of_all.values()]))
        seen = [(turn.row.observation, turn.row.reward, turn.after.observation) for turn in turns.values()]
        out_of_range = jnp.sum(jnp.stack([self._count_out_of_range(name, turn) for name, turn in turns.items()]))
        episodes = episodes._replace(num_out_of_range=episodes.num_out_of_range + out_of_range)
        learnt = {}
        for name, each in self._on_replay.items():
            mine, turn = now.progress[name], turns[name]
            mine = mine._replace(store=each.add(mine.store, turn.before, turn.row, turn.after, turn.is_there))
            learnt[name] = each.learn(mine, acting.num_steps)
        rows = {
            name: jax.tree.map(lambda x, new: x.at[now.count].set(new), rows, turns[name].row)
            for name, rows in now.rows.items()
        }
        is_there = {name: x.at[now.count].set(turns[name].is_there) for name, x in now.is_there.items()}
        return _Playing(
            acting,
            learnt,
            rows,
            is_there,
            jax.tree.map(jnp.add, now.episodes, episodes),
            now.is_finite & (all_finite(seen) | is_bad),
            now.count + 1,
        )

    def _count_out_of_range(self, name: str, turn: Turn) -> Array:
        """Returns how many choices and discounts of a policy's rows no spec allows, and masks that allow nothing."""
        agent_id = self._agent_ids[name][0]  # Whoever shares a policy has its specs.
        observations, discounts = (
            spec()[agent_id] for spec in (self._environment.observation_spec, self._environment.discount_spec)
        )
        acted = jnp.asarray(turn.is_there) & (turn.before.step_type != LAST)
        masks = split_action_mask(turn.row.observation)[1]
        empty = [acted & ~jnp.any((mask != 0).reshape(len(mask), -1), -1) for mask in masks]
        found = count_out_of_range(observations, discounts, turn.row.observation, turn.row.discount)
        return found + sum((jnp.sum(each, dtype=jnp.int32) for each in empty), jnp.int32(0))

    def _take_step(
        self, training: Mapping[str, Nest], acting: Acting, reset: Reset
    ) -> tuple[Acting, dict[str, Turn], Episodes]:
        params = {party.policy_id: party.params for party in self._parties}
        params |= {name: update.variables(training[name])["policy"] for name, update in self._updates.items()}
        return self._play.take_step(params, acting, reset)

    def _turns(self, acting: Acting, key: Array) -> dict[str, Turn]:
        """Returns the shapes and dtypes of a turn of each policy."""
        reset = fill_pool(self._environment, acting, acting.num_steps)
        found: dict[str, Turn] = jax.eval_shape(
            lambda key: self._take_step(self.first_training(key), acting, reset)[1], key
        )
        return found

    def _no_rows(self, row: Step) -> Step:
        """Returns zeros ``[R, A N, ...]`` for the rows of a round."""
        found: Step = jax.tree.map(lambda x: jnp.zeros((self._length, *x.shape), x.dtype), row)
        return found

    def _segments(self, name: str, rows: Step, is_there: Array | None, acting: Acting) -> Step:
        """Returns a policy's rows of a round, of which some may be there, as segments ``[times, A N, T + 1, ...]``."""
        learning, end = self._on_segments[name], self._play.newest(acting, self._agent_ids[name])
        behind = end.observation, end.step_type == FIRST
        if is_there is not None:
            rows, behind = close_up(rows, is_there, end)
        parts = jax.tree.map(lambda x: x.reshape(learning.times, learning.length, *x.shape[1:]), rows)
        following = jax.tree.map(
            lambda x, last: jnp.concatenate([x[1:, 0], last[None]]),
            (parts.observation, parts.start_of_episode),
            behind,
        )
        found: Step = jax.vmap(close_segments)(parts, *following)
        return found
