"""Rounds of agents that learn from replay: steps in N environments, and after each the updates that are due."""

from __future__ import annotations

from collections.abc import Mapping
from typing import final

import jax
import jax.numpy as jnp

from agentkit.actors.policy import Policy
from agentkit.agents.common.experience import Sequences, Transitions
from agentkit.envs.jax.base import JaxEnvironment
from agentkit.experiment.on_device.acting import (
    Acting,
    Episodes,
    Reset,
    all_finite,
    fill_pool,
    make_pool,
    no_episodes,
    start,
    take_step,
)
from agentkit.experiment.on_device.members import ALONE, Members
from agentkit.experiment.on_device.replay.learning import ReplayLearning
from agentkit.experiment.on_device.replay.store import Store
from agentkit.experiment.on_device.rounds import Progress, Round, Scratch, end_of_round
from agentkit.learning import Update
from agentkit.types import Array, Nest

STEPS = 32
"""Of a round in each environment: as many share a row of the training's log."""


@final
class ReplayRounds:
    """Takes steps in N environments, and after each the updates that are due, on items drawn from a ring.

    A round is of `STEPS` steps in each environment, or of fewer where it reaches the target; see `end_of_round`.

    Attributes:
        rows: of a round, at most.
    """

    def __init__(
        self,
        environment: JaxEnvironment,
        policy: Policy,
        update: Update,
        experience: Transitions | Sequences,
        num_envs: int,
        members: Members = ALONE,
    ):
        """Computes nothing yet; `checks` has looked at the settings."""
        self._environment, self._policy, self._update = environment, policy, update
        self._num_envs, self._members = num_envs, members
        self._learning = ReplayLearning(update, experience, num_envs, members)
        self.rows = STEPS * num_envs

    def start(self, key: Array) -> Acting:
        """Returns the state in which environments and policy begin; see `rounds.Rounds`."""
        return start(self._environment, self._policy, self._num_envs, key)

    def first_training(self, key: Array) -> Nest:
        """Returns the training state that the update begins with."""
        return self._update.init(key)

    def first_store(self, acting: Acting, key: Array) -> Store:
        """Returns an empty store; see `rounds.Rounds`."""
        params = jax.eval_shape(lambda: self._update.variables(self._update.init(key))["policy"])
        reset = fill_pool(self._environment, acting, acting.num_steps)
        step = jax.eval_shape(
            lambda params: take_step(self._environment, self._policy, params, acting, reset, self._members)[1], params
        )
        return self._learning.start(step, acting.timestep.observation, key)

    def first_metrics(self, training: Nest, acting: Acting, store: Store) -> Mapping[str, Array]:
        """Returns metrics of an update, for their shapes."""
        del acting
        return self._learning.first_metrics(training, store)

    def scratch(self, key: Array) -> Scratch:
        """Returns the pool of a round's resets; see `rounds.Rounds`."""
        return Scratch((), make_pool(self._environment, key))

    def no_episodes(self) -> Episodes:
        """Returns the sums over no episodes."""
        return no_episodes()

    def run(
        self, training: Nest, acting: Acting, store: Store, tally: Array, metrics: Mapping[str, Array], target: Array
    ) -> Round:
        """Runs a round; see `rounds.Rounds`."""
        end = end_of_round(acting.num_steps, target, self.rows)
        reset = fill_pool(self._environment, acting, acting.num_steps // self.rows)

        def has_time(now: Round) -> Array:
            return now.acting.num_steps < end

        def is_due(now: Round) -> Array:
            return self._learning.is_due(now.tally, now.store)

        def may_act(now: Round) -> Array:
            return has_time(now) & ~is_due(now)

        def is_open(now: Round) -> Array:
            return self._members.any(has_time(now) | is_due(now))

        def act(now: Round) -> Round:
            return self._step(now, may_act(now), reset)

        def go_on(now: Round) -> Round:
            # One that is to learn waits until all are: else an update would be computed whenever one member is.
            now = jax.lax.while_loop(lambda now: self._members.any(may_act(now)), act, now)
            progress = Progress(now.training, now.store, now.tally, now.metrics)
            return now._replace(**self._learning.learn(progress, now.acting.num_steps)._asdict())

        first = Round(training, acting, store, tally, metrics, no_episodes(), jnp.array(True))
        last: Round = jax.lax.while_loop(is_open, go_on, first)
        return last

    def _step(self, now: Round, acts: Array, reset: Reset) -> Round:
        """Takes a step, but in a member that waits."""
        params = self._update.variables(now.training)["policy"]
        acting, row, episodes = take_step(self._environment, self._policy, params, now.acting, reset, self._members)
        seen = row.observation, row.reward, acting.timestep.observation
        is_finite = now.is_finite & (all_finite(seen) | (now.tally[1] >= 0))
        is_taken = acts if self._members.are_many else True
        store = self._learning.add(now.store, now.acting.timestep, row, acting.timestep, is_taken)
        new = acting, jax.tree.map(jnp.add, now.episodes, episodes), is_finite
        acting, episodes, is_finite = self._members.choose(acts, new, (now.acting, now.episodes, now.is_finite))
        return now._replace(acting=acting, store=store, episodes=episodes, is_finite=is_finite)
