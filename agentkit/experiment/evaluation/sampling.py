"""Samples steps or episodes of a policy, as arrays, without a learner: `agentkit.sample`."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, final

import dm_env
import jax
import numpy as np
import tree

from agentkit import core, nests
from agentkit.actors import ActorIndex, CompiledPolicy, Policy
from agentkit.actors.batches import SplitAdder
from agentkit.adders.base import make_cast
from agentkit.errors import ConfigError, says_what_was_meant
from agentkit.experiment.config.evaluation_plan import LONGEST_LIMIT, evaluation_plan, warn_of_cut
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.policies.agent_parts import find_policy, make_parts
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.loading import load
from agentkit.experiment.policies.make_actor import add_columns, make_actor, make_loop
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.experiment.policies.restore_policy import check_fits, restore_policy
from agentkit.specs import is_batched, make_environment_spec
from agentkit.types import Array, Nest
from agentkit.variables import VariableClient, VariableStore


class Samples(NamedTuple):
    """Holds N steps; every leaf is ``[N, ...]``.

    The steps of an episode stand together, in their order, and episodes in the order in which they began.

    Attributes:
        observation: o_t.
        action: a_t, as the policy emits it: bounded continuous ones in [-1, 1], discrete ones from 0.
        reward: r_{t+1}, that a_t led to.
        termination: bool ``[N]``, whether the episode terminated there: nothing follows, nothing is bootstrapped.
        truncation: bool ``[N]``, whether it was truncated there: something would have followed. The last step of an
            episode that the number of steps has cut off has neither.
        next_observation: o_{t+1}, the final one of an episode, too.
        extras: what the policy emitted with a_t (its log-probability, its memory before), or ``()``.
        episode: int64 ``[N]``, from 0.
        environment: int64 ``[N]``, which of the environments, from 0.
        t: int64 ``[N]``, steps of the episode before this one.
    """

    observation: Nest
    action: Nest
    reward: Nest
    termination: Array
    truncation: Array
    next_observation: Nest
    extras: Nest
    episode: Array
    environment: Array
    t: Array

    def by_episode(self) -> list[Samples]:
        """Returns the steps of each episode apart."""
        starts = np.flatnonzero(np.diff(self.episode)) + 1
        bounds = itertools.pairwise([0, *starts.tolist(), len(self.episode)])
        return [tree.map_structure(lambda x, part=slice(*pair): x[part], self) for pair in bounds]


@says_what_was_meant
def sample(
    source: str | pathlib.Path | LoadedPolicy | ExperimentConfig,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    num_envs: int | None = None,
    seed: int = 0,
    explore: bool = False,
    checkpoint: str | int = "newest",
    environment: Any = None,
    **options: Any,
) -> Samples:
    """Returns steps or episodes that a policy plays; the same call gives the same arrays.

    Args:
        source: a run folder; a policy of `agentkit.load`, or its file; or an experiment: that of its run folder's
            checkpoint, or without a run folder the policy that its training would begin with.
        steps: N steps, exactly; or
        episodes: N whole episodes. Of several environments each plays its share, so that none is favoured for being
            short. One is cut off, as truncated, after `evaluation_max_steps`, which is a warning.
        num_envs: environments that step together; None for one.
        seed: of the environments and of what the policy draws.
        explore: whether to act as in training (samples of a stochastic policy, exploration), in the environment as it
            is in training; else as in evaluation (the mode). A policy that is handed in acts as it was loaded.
        checkpoint: of a run: "newest", "best", or a step that has one.
        environment: to play in, with the run's wrappers around it; None for the run's. A policy of a file needs one.
        **options: fields of `ExperimentConfig` to replace, such as `environment_settings` or `wrappers`; for a folder
            `imports`, too: see `experiment.read_config`.

    Raises:
        ConfigError: not exactly one of `steps` and `episodes`, or no whole number of them; no run folder, or one
            that cannot be rebuilt; no environment.
        CheckpointError: the run has no readable checkpoint.
        SpecError: the environment is not one that the policy was made for.
    """
    _check_number(steps, episodes)
    if environment is not None:
        options["environment"] = environment
    with _acting(source, checkpoint, explore, options) as (experiment, policy, store, taken):
        environment_seed, key_seed = np.random.SeedSequence([experiment.seed, 3, seed]).generate_state(2) >> 1
        made = experiment.make_environment(int(environment_seed), num_envs, evaluation=not explore)
        with contextlib.closing(made) as played:
            return _play(experiment, played, policy, store, (int(key_seed), taken), steps, episodes)


def _check_number(steps: int | None, episodes: int | None) -> None:
    if (steps is None) == (episodes is None):
        raise ConfigError(f"Expected either steps=N or episodes=N, found {steps=} and {episodes=}.")
    number = steps if episodes is None else episodes
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1:
        raise ConfigError(
            f"Expected a whole number of {'steps' if episodes is None else 'episodes'}, found {number!r}."
        )


@contextlib.contextmanager
def _acting(
    source: Any, checkpoint: str | int, explore: bool, options: dict[str, Any]
) -> Iterator[tuple[ExperimentConfig, Policy | CompiledPolicy | OwnActing, VariableStore, int]]:
    """Yields what acts and in what: experiment, policy, where the parameters are, and the steps of its training."""
    is_file = isinstance(source, str | pathlib.Path) and (pathlib.Path(source).is_file() or str(source)[:3] == "hf:")
    if is_file:
        source = load(source, explore=explore, imports=options.pop("imports", ()))
    store = VariableStore()
    if isinstance(source, LoadedPolicy):
        if explore and not is_file:
            raise ConfigError("A policy acts as it was loaded. Load it with load(..., explore=True) instead.")
        if source.origin is None and "environment" not in options:
            raise ConfigError("The policy's file names no environment to play in. Give one, as environment=.")
        store.publish(0, {"policy": source.arrays})
        if source.origin is not None and "environment" in options:
            options = {"wrappers": source.origin.experiment.wrappers} | options
        if source.origin is None or "environment" in options:
            options = {"evaluation_max_steps": LONGEST_LIMIT} | options  # Nobody knows of a run.
            experiment = ExperimentConfig(source.agent, num_steps=1, **options)
        else:
            experiment = dataclasses.replace(source.origin.experiment, **options)
        with contextlib.closing(experiment.make_environment(0)) as made:
            check_fits(make_environment_spec(made), source.agent_observation_spec, source.agent_action_spec)
        yield experiment, source.acting, store, 0
    elif isinstance(source, ExperimentConfig) and source.run_directory is None:
        experiment = ExperimentConfig(**{**vars(source), **options})
        with contextlib.closing(experiment.make_environment(experiment.seed)) as made:
            parts = make_parts(experiment.agent, make_environment_spec(made))
        learner_key, _ = jax.random.split(jax.random.PRNGKey(experiment.seed))  # As the run would begin.
        store.publish(0, parts.compiled_update.variables(parts.compiled_update.init(learner_key)))
        yield experiment, parts.policy(evaluation=not explore), store, 0
    else:
        restored = restore_policy(source, checkpoint, **options)
        policy = find_policy(restored.experiment.agent, restored.networks, evaluation=not explore)
        yield restored.experiment, policy, restored.store, 0 if restored.found is None else restored.found.step


def _play(
    experiment: ExperimentConfig,
    environment: Any,
    policy: Policy | CompiledPolicy | OwnActing,
    store: VariableStore,
    start: tuple[int, int],
    steps: int | None,
    episodes: int | None,
) -> Samples:
    """Plays until there are enough steps or episodes; `start` is the seed of the policy and where its schedules are."""
    spec, batched = make_environment_spec(environment), is_batched(environment)
    num_envs = environment.num_envs if batched else 1
    cast, order = make_cast(spec.rewards, "reward"), itertools.count()
    limit = None if episodes is None else evaluation_plan(experiment).max_steps
    recorders = [_Recorder(i, order, cast, limit) for i in range(num_envs)]
    client = VariableClient(store)
    key, index = jax.random.PRNGKey(start[0]), ActorIndex(num_steps=start[1])  # Of exploration on a schedule.
    adder = add_columns(environment, spec, SplitAdder(recorders) if batched else recorders[0])
    actor = make_actor(environment, policy, key, client, adder, index)
    actor.update(wait=True)
    loop = make_loop(environment, actor, on_nan=experiment.on_nan, max_episode_steps=limit)
    if episodes is None:
        assert steps is not None, "_check_number has seen it"
        while sum(len(recorder.rows) for recorder in recorders) < steps:
            loop.step()
        rows = sorted((row for recorder in recorders for row in recorder.rows), key=lambda row: row.order)[:steps]
    else:
        shares = [episodes // num_envs + (i < episodes % num_envs) for i in range(num_envs)]
        while any(recorder.num_ended < share for recorder, share in zip(recorders, shares, strict=True)):
            loop.step()
        rows = [row for recorder, share in zip(recorders, shares, strict=True) for row in recorder.first(share)]
        if limit is not None:
            warn_of_cut(loop.num_cut, limit)
    return _stack(rows)


class _Row(NamedTuple):
    order: int  # Of all steps and beginnings of all environments, in time.
    began: int  # The order of the beginning of its episode.
    data: Samples


@final
class _Recorder(core.Adder):
    """Keeps the steps of one environment."""

    def __init__(self, environment: int, order: Iterator[int], cast: Callable[[Nest], Nest], max_steps: int | None):
        self.rows: list[_Row] = []
        self.num_ended = 0
        self._environment = environment
        self._order = order
        self._cast = cast
        self._max_steps = max_steps
        self._beginnings: list[int] = []
        self._observation: Nest = None
        self._t = 0

    def first(self, num_episodes: int) -> list[_Row]:
        """Returns the rows of the first episodes."""
        wanted = set(self._beginnings[:num_episodes])
        return [row for row in self.rows if row.began in wanted]

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        self._beginnings.append(next(self._order))
        self._observation, self._t = nests.copy_nest(timestep.observation), 0

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        next_observation = nests.copy_nest(next_timestep.observation)
        is_last = next_timestep.last() or self._t + 1 == self._max_steps
        terminates = is_last and not any(np.any(leaf) for leaf in tree.flatten(next_timestep.discount))
        step = Samples(
            self._observation,
            nests.copy_nest(action),
            self._cast(next_timestep.reward),
            np.bool_(terminates),
            np.bool_(is_last and not terminates),
            next_observation,
            nests.copy_nest(extras),
            np.int64(self._beginnings[-1]),
            np.int64(self._environment),
            np.int64(self._t),
        )
        self.rows.append(_Row(next(self._order), self._beginnings[-1], step))
        self._observation, self._t = next_observation, self._t + 1
        self.num_ended += is_last
        if is_last and not next_timestep.last():  # Cut off, in a batch, whose environments go on.
            self.add_first(next_timestep)

    def reset(self) -> None:
        raise NotImplementedError("Samples are taken to the end.")

    def close(self) -> None:
        """Has nothing to free."""


def _stack(rows: list[_Row]) -> Samples:
    """Returns rows as arrays, episode by episode, with the episodes numbered."""
    ordered = [row.data for row in sorted(rows, key=lambda row: (row.began, row.order))]
    samples = tree.map_structure(lambda *leaves: np.stack(leaves), *ordered)
    return samples._replace(episode=np.unique(samples.episode, return_inverse=True)[1].astype(np.int64))
