"""Data of others in a run's replay: read and checked before the run begins, and added before its first step."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import tree

from agentkit.actors import Policy
from agentkit.agents.addons import gail
from agentkit.agents.addons.prior_data import TABLE as PRIOR_TABLE
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.addons.rewards import updates_of
from agentkit.agents.common.agent import Agent
from agentkit.core import Adder
from agentkit.counting import count_of
from agentkit.datasets import Episode, EpisodeData, fill_replay, read_episodes
from agentkit.datasets.episodes import fit_episodes
from agentkit.datasets.training_wrappers import as_in_training
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec, is_spec, zeros
from agentkit.types import Nest
from agentkit.wrappers.canonical_actions import is_bounded_continuous

_ROUNDING = 1e-3  # Of actions, beside bounds.


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


def read_fillings(
    experiment: ExperimentConfig, spec: EnvironmentSpec, policy: Policy | None, own: Nest = ()
) -> list[Filling]:
    """Reads the data that a run's replay begins with, and checks them against the environment and the agent.

    It warns of GAIL's demonstrations, too, where these seem to be in other terms than the agent's.

    Args:
        experiment: with `data`, or with an agent of `addons.with_prior_data`; else there are none.
        spec: of its environment.
        policy: the agent's, to explore with.
        own: see `warn_of_own_bounds`; ``()`` looks at no bounds.

    Raises:
        ConfigError: the data cannot be read or are of another environment, the agent does not learn from them, or a
            table of theirs alone would be empty.
    """
    agent, plan = experiment.agent, experiment.agent.batch_plan
    warn_of_demonstrations(agent, own)
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
    found = [
        Filling(table, _name(data), _read(experiment, data, spec, own), make, extras) for table, data, make in fillings
    ]
    for filling in found:
        if filling.table == PRIOR_TABLE:  # In the other table the run's own steps follow.
            _refuse_too_few(filling, tables[PRIOR_TABLE])
    return found


def warn_of_own_bounds(data: EpisodeData, own: Nest, source: str) -> None:
    """Warns of actions that seem to be in the environment's own bounds, and are taken as an agent's, from -1 to 1.

    Looks at those numbers of an action whose own bounds are narrower than an agent's on either side. All of them must
    stay within their own bounds (up to 1e-3, for rounding), and use less than an agent's range.

    Args:
        data: with the action space that its file tells of; where it does, nothing can be mistaken.
        own: spec of the actions that the environment itself takes.
        source: of the data, for the message.
    """
    low, high, narrower = _narrower(own)
    if data.actions is not None or not np.any(narrower):
        return  # An agent's own actions are within wider bounds, too; others than these are refused.
    low, high = low[narrower], high[narrower]
    least, most = np.full(low.shape, np.inf), np.full(low.shape, -np.inf)
    for episode in data.episodes:
        if tree.is_nested(episode.actions):
            return  # These are refused elsewhere, and so are those below.
        actions = np.asarray(episode.actions)
        if actions.dtype.kind not in "iuf" or not actions.size or actions[:1].size != narrower.size:
            return
        used = actions.reshape(len(actions), -1)[:, narrower]
        least, most = np.minimum(least, used.min(axis=0)), np.maximum(most, used.max(axis=0))
    within = (least >= low - _ROUNDING) & (most <= high + _ROUNDING)
    if not np.all(within & (most - least < 2.0 - _ROUNDING)):
        return
    warnings.warn(
        f"All actions of {source} are within the environment's own bounds, {low.min():g} to {high.max():g}, and are "
        "taken as an agent's, from -1 to 1. If they are the environment's own, write them with their action space: "
        "datasets.write_episodes(path, episodes, {'type': 'Box', 'low': [...], 'high': [...]}).",
        RuntimeWarning,
        stacklevel=2,
    )


def warn_of_demonstrations(agent: Agent, own: Nest) -> None:
    """Warns as `warn_of_own_bounds` does, of the demonstrations of an agent with GAIL."""
    for part in updates_of(agent):
        if isinstance(part, gail.MakeUpdate) and np.any(_narrower(own)[2]):  # Else there is no need to read them.
            path = f" {part.demonstrations}" if isinstance(part.demonstrations, str | pathlib.Path) else ""
            warn_of_own_bounds(gail.read_demonstrations(part.demonstrations), own, f"the demonstrations{path}")


def _narrower(own: Nest) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns both bounds of each number of an action, and whether one is narrower than an agent's; nothing of none."""
    if not is_spec(own) or not is_bounded_continuous(own):
        return np.zeros(0), np.zeros(0), np.zeros(0, bool)
    low, high = (np.broadcast_to(bound, own.shape).ravel() for bound in (own.minimum, own.maximum))
    return low, high, (low > -1.0 + _ROUNDING) | (high < 1.0 - _ROUNDING)


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


def _read(experiment: ExperimentConfig, data: Any, spec: EnvironmentSpec, own: Nest) -> list[Episode]:
    try:
        read = read_episodes(data) if isinstance(data, str | pathlib.Path) else EpisodeData(list(data), None)
        episodes = fit_episodes(read.episodes, spec, read.actions)
    except (ConfigError, SpecError) as error:
        raise ConfigError(f"data (--data): {error}") from error
    warn_of_own_bounds(read, own, _name(data))
    return as_in_training(episodes, spec, experiment.wrappers)


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
