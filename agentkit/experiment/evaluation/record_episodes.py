"""Takes episodes out of a run, for others to learn from: played by its policy, or those that its replay holds."""

from __future__ import annotations

import contextlib
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import tree

from agentkit import checkpoint
from agentkit.actors import ActorIndex
from agentkit.actors.batches import SplitAdder
from agentkit.agents.addons.prior_data import PriorData
from agentkit.agents.common.experience import Sequences, Transitions
from agentkit.agents.common.views import Past, Reach
from agentkit.datasets.episode_files import EpisodeData
from agentkit.datasets.episodes import EpisodeRecorder, describe_actions, in_own_terms, scale_rewards
from agentkit.datasets.replay_contents import join_sequences, join_transitions
from agentkit.errors import CheckpointError, ConfigError
from agentkit.experiment.config.evaluation_plan import evaluation_plan, warn_of_cut
from agentkit.experiment.evaluation.judging import check_num_episodes
from agentkit.experiment.policies.agent_parts import find_policy
from agentkit.experiment.policies.make_actor import make_actor, make_loop
from agentkit.experiment.policies.restore_policy import restore_policy, steps_explored
from agentkit.experiment.runs.config_json import read_config
from agentkit.replay import InProcessReplay
from agentkit.specs import changes_sides, is_batched, make_environment_spec
from agentkit.types import Nest, Step, Transition
from agentkit.variables import VariableClient
from agentkit.wrappers.base import name_of, only_in_training
from agentkit.wrappers.reward_scale import RewardScale, find_scale


def record_episodes(
    run_directory: str | pathlib.Path, num_episodes: int, *, explore: bool = False, seed: int = 0, **options: Any
) -> EpisodeData:
    """Plays episodes with the policy of a run's newest checkpoint.

    Args:
        run_directory: the folder that `agentkit.run`, `run_offline` or `launch` wrote.
        num_episodes: at least 1.
        explore: with the policy that explores, as far as its schedules are, and not the one to be judged by.
        seed: of environment and policy.
        **options: see `read_config`: `imports`, or fields to replace, such as an `environment`, or
            `evaluation_max_steps`, after which an episode is cut off, which is a warning.

    Raises:
        ConfigError: not a run folder, one that cannot be rebuilt, or less than 1 episode.
        CheckpointError: it has no readable checkpoint.
        SpecError: the environment's rewards or discounts are such as files of episodes have no place for.
    """
    check_num_episodes(num_episodes)
    restored = restore_policy(run_directory, **options)
    experiment, store = restored.experiment, restored.store
    policy = find_policy(experiment.agent, restored.networks, evaluation=not explore)
    found, limit = restored.found, evaluation_plan(experiment).max_steps
    explored = steps_explored(found.state, found.step) if explore and found is not None else 0
    sequence = np.random.SeedSequence([experiment.seed, 2, seed])  # Training and evaluation have others.
    environment_seed, key_seed = (int(word >> 1) for word in sequence.generate_state(2))
    with contextlib.closing(experiment.make_environment(environment_seed, evaluation=True)) as environment:
        recorders = [EpisodeRecorder(limit) for _ in range(environment.num_envs if is_batched(environment) else 1)]
        adder = SplitAdder(recorders) if is_batched(environment) else recorders[0]
        key, client = jax.random.PRNGKey(key_seed), VariableClient(store)
        actor = make_actor(environment, policy, key, client, adder, ActorIndex(num_steps=explored))
        actor.update(wait=True)
        loop = make_loop(environment, actor, on_nan=experiment.on_nan, max_episode_steps=limit)
        loop.run(num_episodes=num_episodes)
        warn_of_cut(loop.num_cut, limit)
        spec = make_environment_spec(environment)
    episodes = [episode for recorder in recorders for episode in recorder.episodes][:num_episodes]
    return EpisodeData(in_own_terms(episodes, spec), describe_actions(spec.actions))


def read_replay(run_directory: str | pathlib.Path, **options: Any) -> EpisodeData:
    """Returns the episodes that the replay of a run's newest checkpoint holds, unfinished and cut ones as truncated.

    Rewards are the environment's own: without a `RewardScale`. What else is for training only, such as `ClipReward`, is
    in them still, which is warned of. Where `n_step` is not 1, unfinished ones are left out, since their
    single rewards are not known. Observations are the environment's, too, whatever views the agent had of the past.

    Args:
        run_directory: the run folder.
        **options: see `read_config`.

    Raises:
        ConfigError: not a run folder, or a run whose replay is not in process, or holds neither transitions nor
            sequences, or transitions with a discount of 0, which do not show where an episode terminated, or a game
            that was played from both sides.
        CheckpointError: it has no readable checkpoint.
    """
    experiment = read_config(run_directory, **options)
    found = checkpoint.read_latest(pathlib.Path(run_directory) / "checkpoints", holding="replay")
    if found is None:
        raise CheckpointError(f"The run {run_directory} has no checkpoint with a replay. Record episodes instead.")
    experience: Any = experiment.agent.experience
    if isinstance(experience, PriorData):
        experience = experience.experience
    is_known = isinstance(experience, Transitions | Sequences)
    is_in_process = experiment.replay == "in_process" and not experiment.on_device
    if not is_in_process or found.state.get("launched") or not is_known:
        where = "on the device" if experiment.on_device else f"in {experiment.replay}"
        raise ConfigError(
            "Episodes are read from an in-process replay of transitions or sequences; the run "
            f"{run_directory} has {type(experience).__name__} {where}. Record episodes instead."
        )
    if isinstance(experience, Transitions) and experience.config.discount == 0:
        raise ConfigError(
            f"The transitions of the run {run_directory} have a discount of 0 everywhere, and so do not show where an "
            "episode terminated; expected an agent's discount above 0. Record episodes instead."
        )
    with contextlib.closing(experiment.make_environment(experiment.seed)) as environment:
        spec = make_environment_spec(environment)
        _warn_of_training_only(experiment.wrappers, environment)
    if changes_sides(spec.discounts):
        raise ConfigError(
            f"The run {run_directory} plays both sides of a game (both_sides:), whose discounts of -1 files of "
            "episodes have no place for. Play the game with its policy instead."
        )
    replay = InProcessReplay(experiment.agent.make_tables(spec))
    with replay:
        replay.restore(found.path / "replay")
        items, rows = replay.contents(experiment.agent.batch_plan.table)
    if experience.reach is not None:
        items = _without_past(items, experience.reach)
    if isinstance(experience, Sequences):
        episodes = join_sequences(items, rows)
    else:
        episodes = join_transitions(items, rows, experience.config.n_step, experience.config.discount)
    scale = find_scale(experiment.wrappers)
    unscaled = scale_rewards(episodes, 1.0 if scale is None else 1.0 / scale)
    return EpisodeData(in_own_terms(unscaled, spec), describe_actions(spec.actions))


def _warn_of_training_only(wrappers: Sequence[Any], environment: Any) -> None:
    """Warns where replay may hold other rewards or ends than the environment's own: these cannot be had back."""
    changing = {name_of(each) for each in only_in_training(wrappers) if getattr(each, "func", each) is not RewardScale}
    if changing or (find_scale(wrappers) is None and hasattr(environment, "raw_return")):
        by = ", ".join(sorted(changing)) or "its environment"
        warnings.warn(
            f"Replay holds what the run learned from: rewards and ends as {by} may have made them in training, and not "
            "the environment's own. Record episodes instead to have these (agentkit export without --replay).",
            RuntimeWarning,
            stacklevel=3,
        )


def _without_past(items: Transition | Step, reach: Reach) -> Transition | Step:
    """Returns items with the observations of their own steps, without those before them, which views look at."""

    def present(past: Past) -> Nest:
        if isinstance(items, Step):
            num_rows = items.start_of_episode.shape[1]
            return tree.map_structure(lambda x: x[:, -num_rows:], past.observation)
        # Of transitions, only what reaches back has an axis of time.
        return tree.map_structure(lambda x: x[:, -1], past.observation) if reach.observation else past.observation

    if isinstance(items, Step):
        return items._replace(observation=present(items.observation))
    return items._replace(observation=present(items.observation), next_observation=present(items.next_observation))
