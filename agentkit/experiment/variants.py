"""Agents that differ from another one in a part: a method, replay tables, hindsight, curiosity, imitation."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np
import tree

from agentkit.adders import Hindsight, HindsightAdder
from agentkit.core import Adder, Agent, BatchPlan
from agentkit.datasets import Episode, EpisodeData, read_episodes
from agentkit.datasets.episodes import fit_episodes
from agentkit.errors import ConfigError, unknown_name
from agentkit.learning import (
    GailConfig,
    RndConfig,
    Update,
    generative_adversarial_imitation,
    random_network_distillation,
)
from agentkit.learning.curiosity import check_transitions, novelty_network
from agentkit.learning.imitation import Pairs, make_discriminator
from agentkit.replay import Table
from agentkit.specs import EnvironmentSpec


def with_methods(agent: Agent, **changed: Callable[..., Any]) -> Agent:
    """An agent like `agent`, but for some methods of `core.Agent`.

    Args:
        agent: any.
        **changed: by the method's name, a function that takes `agent` as its first argument, e.g.
            ``make_adder=lambda agent, replay, spec: WithoutExtras(agent.make_adder(replay, spec))``.

    Raises:
        UnknownNameError: an agent has no method of that name.
    """
    for name in changed:
        if name not in _METHODS:
            raise unknown_name("agent method", name, _METHODS)
    return _Variant(agent, changed)


def with_tables(agent: Agent, change: Callable[[Table], Table]) -> Agent:
    """An agent like `agent`, but for its replay tables.

    Args:
        agent: any.
        change: of each table, with its name kept, e.g.
            ``lambda table: dataclasses.replace(table, rate_limiter=Lockstep(64, 100))``.
    """

    def make_tables(agent: Agent, environment_spec: EnvironmentSpec) -> list[Table]:
        return [change(table) for table in agent.make_tables(environment_spec)]

    return _Variant(agent, {"make_tables": make_tables})


def with_hindsight(agent: Agent, hindsight: Hindsight) -> Agent:
    """An agent like `agent`, which also learns from each step as if another goal had been asked for.

    An actor's steps become 1 + k items each, at the end of the episode. An off-policy agent's `updates_per_step`
    counts items, so 1 / (1 + k) of it is one update for a step.

    Args:
        agent: one that learns from `Transition`s in one table, with ``n_step=1``.
        hindsight: which other goals, and what they make of a step.

    Raises:
        ConfigError: the agent sums several rewards. When its tables are made: it learns from no transitions.
    """
    _check_single_steps(agent, "Hindsight relabels")

    def make_tables(agent: Agent, environment_spec: EnvironmentSpec) -> list[Table]:
        layout = HindsightAdder.layout(environment_spec)
        (table,) = agent.make_tables(environment_spec)
        check_transitions(table.layout.data)
        return [dataclasses.replace(table, layout=layout)]

    def make_adder(agent: Agent, replay: Any, environment_spec: EnvironmentSpec) -> Adder:
        return HindsightAdder(
            replay.writer(HindsightAdder.history()),
            environment_spec,
            tables=agent.batch_plan.table,
            discount=agent.config.discount,
            hindsight=hindsight,
        )

    return _Variant(agent, {"make_tables": make_tables, "make_adder": make_adder})


class _Networks(NamedTuple):
    """The agent's networks, and the specs that another update around its own needs."""

    agent: Any
    spec: EnvironmentSpec


def _with_rewards(agent: Agent, around: Callable[[Update, EnvironmentSpec], Update]) -> Agent:
    """An agent like `agent`, but with another update around its own; acting and replay stay the agent's.

    Args:
        agent: one that learns from `Transition`s.
        around: ``(update, environment_spec) -> update``.
    """

    def make_networks(agent: Agent, environment_spec: EnvironmentSpec) -> _Networks:
        for table in agent.make_tables(environment_spec):
            if table.name == agent.batch_plan.table:
                check_transitions(table.layout.data)
        return _Networks(agent.make_networks(environment_spec), environment_spec)

    def make_policy(agent: Agent, networks: _Networks, evaluation: bool = False) -> Any:
        return agent.make_policy(networks.agent, evaluation)

    def make_update(agent: Agent, networks: _Networks) -> Update:
        return around(agent.make_update(networks.agent), networks.spec)

    changed: dict[str, Callable[..., Any]] = {
        "make_networks": make_networks,
        "make_policy": make_policy,
        "make_update": make_update,
    }
    return _Variant(agent, changed)


def with_rnd(agent: Agent, config: RndConfig | None = None) -> Agent:
    """An agent like `agent`, whose learner adds an intrinsic reward for what is new (RND, Burda et al. 2018).

    See `agentkit.learning.random_network_distillation`. Acting, replay and what is published stay the agent's.

    Args:
        agent: one that learns from `Transition`s, on- or offline.
        config: of the intrinsic reward; None for the defaults.

    Raises:
        ConfigError: when its networks are made: it learns from other data than transitions.
    """
    settings = RndConfig() if config is None else config

    def around(update: Update, environment_spec: EnvironmentSpec) -> Update:
        spec = environment_spec.observations
        return random_network_distillation(update, novelty_network(spec, settings), spec, settings)

    return _with_rewards(agent, around)


def with_gail(
    agent: Agent, demonstrations: str | pathlib.Path | Sequence[Episode], config: GailConfig | None = None
) -> Agent:
    """An agent like `agent`, which imitates demonstrations: it never learns from the environment's rewards.

    GAIL (Ho & Ermon 2016), off-policy as in DAC (Kostrikov et al. 2019); see
    `agentkit.learning.generative_adversarial_imitation`. Acting, replay and what is published stay the agent's.

    Args:
        agent: one that learns from `Transition`s, on- or offline, with ``n_step=1``.
        demonstrations: a file or folder for `datasets.read_episodes`, read where the learner is made, or episodes with
            the environment's own actions. Their rewards teach nothing.
        config: of the discriminator; None for the defaults.

    Raises:
        ConfigError: the agent sums several rewards, or there are no demonstrations. When its networks are made: it
            learns from other data than transitions. When its update is made: the file cannot be read.
        SpecError: when its update is made: an episode does not fit the environment.
    """
    _check_single_steps(agent, "GAIL rewards")
    settings = GailConfig() if config is None else config
    if not isinstance(demonstrations, str | pathlib.Path):
        demonstrations = list(demonstrations)
        for episode in demonstrations:
            if not isinstance(episode, Episode):
                raise ConfigError(
                    f"demonstrations: expected a file or a list of datasets.Episode, found a {type(episode).__name__} "
                    "in it. Make episodes of columns of steps with datasets.split_steps."
                )
        if not demonstrations:
            raise ConfigError("demonstrations: expected a file or at least 1 episode, found none.")

    def around(update: Update, environment_spec: EnvironmentSpec) -> Update:
        shown = _read_pairs(demonstrations, environment_spec)
        discriminator = make_discriminator(environment_spec, settings)
        return generative_adversarial_imitation(update, discriminator, shown, environment_spec.observations, settings)

    return _with_rewards(agent, around)


def _check_single_steps(agent: Agent, what: str) -> None:
    n_step = getattr(agent.config, "n_step", 1)
    if n_step != 1:
        raise ConfigError(f"{what} single steps: expected an agent with n_step=1, found {n_step}. Set n_step=1.")


def _read_pairs(demonstrations: str | pathlib.Path | Sequence[Episode], spec: EnvironmentSpec) -> Pairs:
    """The observations and actions of all steps, as an agent for `spec` has them."""
    if isinstance(demonstrations, str | pathlib.Path):
        data = read_episodes(demonstrations)
    else:
        data = EpisodeData(list(demonstrations), None)
    episodes = fit_episodes(data.episodes, spec, data.actions)
    observations = [tree.map_structure(lambda x: x[:-1], episode.observations) for episode in episodes]
    actions = [episode.actions for episode in episodes]
    return Pairs(*(tree.map_structure(_concatenate, *nests) for nests in (observations, actions)))


def _concatenate(*leaves: np.ndarray) -> np.ndarray:
    return np.concatenate(leaves)


_METHODS = ("make_networks", "make_policy", "make_update", "make_tables", "make_adder")


@final
class _Variant:
    """An agent some of whose methods are others, which take it as their first argument; the rest is its own."""

    def __init__(self, agent: Agent, changed: Mapping[str, Callable[..., Any]]):
        self._agent = agent
        self._changed = changed
        self.config = agent.config

    def _call(self, name: str, *arguments: Any) -> Any:
        if name in self._changed:
            return self._changed[name](self._agent, *arguments)
        return getattr(self._agent, name)(*arguments)

    def with_num_envs(self, num_envs: int) -> Agent:
        resize = getattr(self._agent, "with_num_envs", None)  # Optional, as the next one: see `core.Agent`.
        return self if resize is None else _Variant(resize(num_envs), self._changed)

    @property
    def make_batched_adder(self) -> Callable[..., Adder] | None:
        return None if "make_adder" in self._changed else getattr(self._agent, "make_batched_adder", None)

    @property
    def batch_plan(self) -> BatchPlan:
        return self._agent.batch_plan

    def make_networks(self, environment_spec: EnvironmentSpec) -> Any:
        return self._call("make_networks", environment_spec)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Any:
        return self._call("make_policy", networks, evaluation)

    def make_update(self, networks: Any) -> Any:
        return self._call("make_update", networks)

    def make_tables(self, environment_spec: EnvironmentSpec) -> list[Table]:
        return self._call("make_tables", environment_spec)

    def make_adder(self, replay: Any, environment_spec: EnvironmentSpec) -> Adder:
        return self._call("make_adder", replay, environment_spec)
