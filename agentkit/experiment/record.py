"""Takes episodes out of a run, for others to learn from: played by its policy, or those that its replay holds."""

from __future__ import annotations

import contextlib
import pathlib
from typing import Any

import jax
import numpy as np
import tree

from agentkit import checkpoint
from agentkit.actors.batches import SplitAdder
from agentkit.datasets.episode_files import EpisodeData
from agentkit.datasets.episodes import Episode, EpisodeRecorder, describe_actions
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.acting import make_actor, make_loop
from agentkit.experiment.config import read_config
from agentkit.experiment.evaluate import restore_policy
from agentkit.replay import InProcessReplay
from agentkit.specs import is_batched, make_environment_spec
from agentkit.types import Transition
from agentkit.variables import VariableClient


def record_episodes(
    run_directory: str | pathlib.Path, num_episodes: int, *, explore: bool = False, seed: int = 0, **options: Any
) -> EpisodeData:
    """Plays episodes with the policy of a run's newest checkpoint.

    Args:
        run_directory: the folder that `agentkit.run`, `run_offline` or `launch` wrote.
        num_episodes: at least 1.
        explore: with the policy that explores, and not the one to be judged by.
        seed: of environment and policy.
        **options: see `read_config`: `imports`, or fields to replace, such as an `environment`.

    Raises:
        ConfigError: not a run folder, one that cannot be rebuilt, or less than 1 episode.
        CheckpointError: it has no readable checkpoint.
        SpecError: the environment's rewards or discounts are such as files of episodes have no place for.
    """
    if num_episodes < 1:
        raise ConfigError(f"Expected at least 1 episode, found {num_episodes}.")
    restored = restore_policy(run_directory, **options)
    experiment, store = restored.experiment, restored.store
    policy = experiment.agent.make_policy(restored.networks, evaluation=not explore)
    sequence = np.random.SeedSequence([experiment.seed, 2, seed])  # Training and evaluation have others.
    environment_seed, key_seed = (int(word >> 1) for word in sequence.generate_state(2))
    with contextlib.closing(experiment.make_environment(environment_seed, evaluation=True)) as environment:
        recorders = [EpisodeRecorder() for _ in range(environment.num_envs if is_batched(environment) else 1)]
        adder = SplitAdder(recorders) if is_batched(environment) else recorders[0]
        actor = make_actor(environment, policy, jax.random.PRNGKey(key_seed), VariableClient(store), adder)
        actor.update(wait=True)
        make_loop(environment, actor, on_nan=experiment.on_nan).run(num_episodes=num_episodes)
        actions = describe_actions(environment.action_spec())
    episodes = [episode for recorder in recorders for episode in recorder.episodes]
    return EpisodeData(episodes[:num_episodes], actions)


def read_replay(run_directory: str | pathlib.Path, **options: Any) -> EpisodeData:
    """Returns the episodes that the replay of a run's newest checkpoint holds, unfinished and cut ones as truncated.

    Args:
        run_directory: the run folder.
        **options: see `read_config`.

    Raises:
        ConfigError: not a run folder, or a run whose replay is not in process, or holds other items than
            transitions of one step.
        CheckpointError: it has no readable checkpoint.
    """
    experiment = read_config(run_directory, **options)
    found = checkpoint.read_latest(pathlib.Path(run_directory) / "checkpoints", holding="replay")
    if found is None:
        raise CheckpointError(f"The run {run_directory} has no checkpoint with a replay. Record episodes instead.")
    config = experiment.agent.config
    one_step = getattr(config, "n_step", None) == 1
    if experiment.replay != "in_process" or found.state.get("launched") or not one_step:
        raise ConfigError(
            f"Episodes are read from an in-process replay with n_step=1; the run {run_directory} has "
            f"{experiment.replay} and n_step={getattr(config, 'n_step', None)}. Record episodes instead."
        )
    with contextlib.closing(experiment.make_environment(experiment.seed)) as environment:
        spec = make_environment_spec(environment)
    replay = InProcessReplay(experiment.agent.make_tables(spec))
    with replay:
        replay.restore(found.path / "replay")
        items, rows = replay.contents(experiment.agent.batch_plan.table)
    return EpisodeData(_join(items, rows, config.discount), describe_actions(spec.actions))


def _join(items: Transition, rows: np.ndarray, discount: float) -> list[Episode]:
    """Joins transitions ``[N, ...]`` to episodes: one follows another where it begins in the row that that ended in.

    Args:
        items: of one step each.
        rows: of the first and the last step of each, ``[N, 2]``.
        discount: gamma, above 0, which the transitions' discounts have in them.
    """
    starting_in = {int(first): index for index, first in enumerate(rows[:, 0])}
    next_of = [starting_in.get(int(last), -1) for last in rows[:, 1]]
    episodes: list[Episode] = []
    for start in sorted(set(range(len(rows))) - set(next_of)):
        chain = [start]
        while next_of[chain[-1]] >= 0:
            chain.append(next_of[chain[-1]])
        ended = np.zeros((2, len(chain)), bool)
        ended[0 if discount > 0 and items.discount[chain[-1]] == 0 else 1, -1] = True
        observations = tree.map_structure(
            lambda before, after, chain=chain: np.concatenate([before[chain], after[chain[-1:]]]),
            items.observation,
            items.next_observation,
        )
        actions = tree.map_structure(lambda x, chain=chain: x[chain], items.action)
        episodes.append(Episode(observations, actions, np.asarray(items.reward[chain], np.float64), *ended))
    return episodes
