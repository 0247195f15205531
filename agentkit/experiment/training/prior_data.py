"""Data of others in a run's replay: read and checked before the run begins, and added before its first step."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import dm_env
import jax
import numpy as np

from agentkit.actors import Policy
from agentkit.agents.addons.prior_data import TABLE as PRIOR_TABLE
from agentkit.agents.addons.prior_data import PriorData
from agentkit.core import Adder
from agentkit.counting import count_of
from agentkit.datasets import Episode, EpisodeData, fill_replay, read_episodes
from agentkit.datasets.episodes import fit_episodes
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec, zeros
from agentkit.types import Nest
from agentkit.wrappers.base import without_training_only


class Filling(NamedTuple):
    """Holds episodes that are to be in a table when a run begins.

    Attributes:
        table: its name.
        source: where they are from, for messages.
        episodes: as the agent would have seen them in training.
        make_adder: for a replay with the table.
        extras: of the policy, for each step.
    """

    table: str
    source: str
    episodes: list[Episode]
    make_adder: Callable[[Replay], Adder]
    extras: Nest


def read_fillings(experiment: ExperimentConfig, spec: EnvironmentSpec, policy: Policy | None) -> list[Filling]:
    """Reads the data that a run's replay begins with, and checks them against the environment and the agent.

    Args:
        experiment: with `data`, or with an agent of `addons.with_prior_data`; else there are none.
        spec: of its environment.
        policy: the agent's, to explore with.

    Raises:
        ConfigError: the data cannot be read or are of another environment, the agent does not learn from them, or a
            table of theirs alone would be empty.
    """
    agent, plan = experiment.agent, experiment.agent.batch_plan
    fillings: list[tuple[str, Any, Callable[[Replay], Adder]]] = []
    if experiment.data is not None:

        def make_adder(replay: Replay) -> Adder:
            return agent.make_adder(replay, spec)

        fillings.append((plan.table, experiment.data, make_adder))
    if isinstance(agent.experience, PriorData):
        prior = agent.experience

        def make_prior_adder(replay: Replay) -> Adder:
            return prior.make_prior_adder(replay, spec, () if policy is None else policy.extras_spec)

        fillings.append((PRIOR_TABLE, prior.data, make_prior_adder))
    if not fillings:
        return []
    tables = {table.name: table for table in agent.make_tables(spec)}
    extras = _extras(tables[plan.table], policy)
    found = [Filling(table, _name(data), _read(experiment, data, spec), make, extras) for table, data, make in fillings]
    for filling in found:
        if filling.table == PRIOR_TABLE:  # In the other table the run's own steps follow.
            _refuse_too_few(filling, tables[PRIOR_TABLE])
    return found


def fill(replay: Replay, fillings: Sequence[Filling]) -> list[str]:
    """Adds the data to a new replay; returns a message for each."""
    messages = []
    for filling in fillings:
        adder = filling.make_adder(replay)
        steps, items = fill_replay(replay, filling.table, adder, filling.episodes, filling.extras)
        held = replay.info(filling.table).size
        kept = f", of which it keeps the newest {held:,}" if held < items else ""
        messages.append(
            f"Replay table {filling.table!r} begins with {count_of(len(filling.episodes), 'episode')} of "
            f"{filling.source}: {count_of(steps, 'step')}, {count_of(items, 'item')}{kept}."
        )
    return messages


def refuse_prior_data(experiment: ExperimentConfig) -> None:
    """Refuses an experiment with data in its replay, for programs of many processes.

    Raises:
        ConfigError: it has some.
    """
    if experiment.data is not None or isinstance(experiment.agent.experience, PriorData):
        raise ConfigError(
            "A launched program's replay begins empty: data (--data) and addons.with_prior_data are of runs in one "
            "process. Use agentkit.run (agentkit train), or begin with an offline run: init_from (--init-from)."
        )


def _name(data: Any) -> str:
    return str(data) if isinstance(data, str | pathlib.Path) else "the program"


def _read(experiment: ExperimentConfig, data: Any, spec: EnvironmentSpec) -> list[Episode]:
    try:
        read = read_episodes(data) if isinstance(data, str | pathlib.Path) else EpisodeData(list(data), None)
        episodes = fit_episodes(read.episodes, spec, read.actions)
    except (ConfigError, SpecError) as error:
        raise ConfigError(f"data (--data): {error}") from error
    kept = {id(wrapper) for wrapper in without_training_only(experiment.wrappers)}
    wrappers = [wrapper for wrapper in experiment.wrappers if id(wrapper) not in kept]
    return [_as_in_training(episode, spec, wrappers) for episode in episodes] if wrappers else episodes


def _as_in_training(episode: Episode, spec: EnvironmentSpec, wrappers: Sequence[Callable[[Any], Any]]) -> Episode:
    """Returns the episode with the rewards that wrappers for training only, such as `RewardScale`, make of its own."""
    environment: Any = _Played(episode, spec)
    for wrapper in wrappers:
        environment = wrapper(environment)
    environment.reset()
    rewards = [environment.step(None).reward for _ in range(len(episode.rewards))]
    return episode._replace(rewards=np.asarray(rewards, np.float64))


@final
class _Played(dm_env.Environment):
    """Plays one episode's rewards, whatever the actions; its observations mean nothing."""

    def __init__(self, episode: Episode, spec: EnvironmentSpec):
        self._rewards = np.asarray(episode.rewards, np.float64)
        self._spec = spec
        self._step = 0

    def reset(self) -> dm_env.TimeStep:
        """Begins."""
        return dm_env.restart(zeros(self._spec.observations))

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Returns the next reward."""
        reward = self._rewards[self._step]
        self._step += 1
        return dm_env.transition(reward, zeros(self._spec.observations))

    def observation_spec(self) -> Nest:
        """Returns the environment's."""
        return self._spec.observations

    def action_spec(self) -> Nest:
        """Returns the environment's."""
        return self._spec.actions


def _refuse_too_few(filling: Filling, table: Table) -> None:
    """Refuses data that make no item, for which the first batch would be waited for in vain."""
    num_episodes, num_steps = len(filling.episodes), sum(len(episode.rewards) for episode in filling.episodes)
    length = table.layout.length  # Rows of an item, which may be of several episodes; of L steps there are L + 1.
    if length is not None and num_steps + num_episodes < length:
        raise ConfigError(
            f"data (--data): an item of replay table {table.name!r} takes {length - num_episodes} steps of as many "
            f"episodes as {filling.source} has ({num_episodes}), found {num_steps}. Give more data, or have the agent "
            "learn from shorter sequences (sequence_length)."
        )


def _extras(table: Table, policy: Policy | None) -> Nest:
    """Returns what the data have in the place of a policy's extras: a memory that has seen nothing.

    Raises:
        ConfigError: the agent learns from its own steps alone.
    """
    if table.max_times_sampled:
        raise ConfigError(
            "data (--data): the agent learns once from each of its own steps, and keeps none. Give data to an agent "
            "with replay, such as dqn, sac or r2d2."
        )
    if policy is None or not jax.tree.leaves(policy.extras_spec):
        return ()
    state = jax.eval_shape(policy.init, jax.ShapeDtypeStruct((2,), np.uint32))
    kinds = [(leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state)]
    if any((tuple(leaf.shape), leaf.dtype) not in kinds for leaf in jax.tree.leaves(policy.extras_spec)):
        raise ConfigError(
            "data (--data): the agent learns from what its policy says beside each action, which data of others do "
            "not have. Use an agent that learns from steps alone, such as dqn, sac or r2d2."
        )
    return zeros(policy.extras_spec)
