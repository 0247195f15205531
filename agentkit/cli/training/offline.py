"""Runs ``agentkit offline``, which trains from a file of episodes, and ``agentkit export``, which writes one."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np

from agentkit.cli.interrupts import interruptible
from agentkit.cli.screen import say
from agentkit.cli.summary import finish
from agentkit.cli.training.new_run import check_fit, import_again, in_new_folder, refuse_given
from agentkit.cli.values.callbacks import callbacks_for_new_run, callbacks_for_resumed_run
from agentkit.cli.values.environments import (
    find_environment,
    find_torso,
    import_packages,
    parse_environment_settings,
    parse_wrappers,
)
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.values.initial_state import check_is_data, parse_initial_state
from agentkit.cli.values.loggers import parse_loggers
from agentkit.cli.values.runs import check_is_run, describe_returns
from agentkit.cli.values.views import find_views
from agentkit.counting import count_of
from agentkit.errors import CheckpointError, ConfigError, SpecError

if TYPE_CHECKING:
    from agentkit.experiment.runs.new_folder import NewFolder

# What --resume takes from the run instead of from the command line: all but --updates, --data, --on-nan and --import.
_OF_A_NEW_RUN = (
    "agent", "env", "config", "env_set", "wrapper", "seed", "set", "torso", "normalize", "view", "out",
    "run_directory", "eval_every", "eval_episodes", "eval_max_steps", "checkpoint_every", "tensorboard", "log",
    "init_from", "init_checkpoint",
)  # fmt: skip


def offline(arguments: argparse.Namespace) -> int:
    """Trains from data and says where the run is kept.

    Returns:
        0, or 130 if Ctrl-C stopped and saved the run.

    Raises:
        ConfigError: for missing or contradicting arguments, or data that cannot be read or do not fit.
        UnknownNameError: for an unknown agent, environment or config field.
    """
    from agentkit import experiment

    refused: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if arguments.resume is None:
        plan, folder = _new_plan(arguments)
        directory, refused = plan.run_directory, folder.removed_if_refused()
    else:
        plan, directory = _resumed_plan(arguments), arguments.resume
    try:
        with refused:
            result = experiment.run_offline(plan, resume=arguments.resume is not None)
    except SpecError as error:
        raise ConfigError(str(error)) from error
    return finish(result, directory, "offline", arguments.imports)


def _new_plan(arguments: argparse.Namespace) -> tuple[Any, NewFolder]:
    needed = (("AGENT", "agent"), ("--data", "data"), ("--env", "env"), ("--updates", "updates"))
    for word, name in needed:
        if getattr(arguments, name) is None:
            raise ConfigError(
                f"{word} is missing. Example: agentkit offline iql --data episodes.hdf5 --env gymnasium:HalfCheetah-v5 "
                "--updates 100_000"
            )
    from agentkit import experiment
    from agentkit.agents import registry
    from agentkit.experiment import train_by_name
    from agentkit.experiment.config.evaluation_plan import evaluation_plan
    from agentkit.experiment.runs import loggers

    imports = import_packages(arguments.imports)
    environment, torso = find_environment(arguments), find_torso(arguments)
    words = parse_settings(arguments.set or [], registry.config_class(arguments.agent), arguments.agent)
    made = registry.make(arguments.agent, words, torso)
    agent = train_by_name.with_addons(made, arguments.normalize or (), find_views(arguments))
    check_is_data(arguments.data)
    tenth = max(arguments.updates // 10, 1)
    given = {
        "seed": arguments.seed,
        "evaluation_period": arguments.eval_every,
        "evaluation_episodes": arguments.eval_episodes,
        "evaluation_max_steps": arguments.eval_max_steps,
        "checkpoint_period": tenth if arguments.checkpoint_every is None else arguments.checkpoint_every,
        "tensorboard": arguments.tensorboard,
        "keep_checkpoints": arguments.keep_checkpoints,
        "callbacks": callbacks_for_new_run(arguments, evaluates=arguments.eval_every != 0),
        "loggers": parse_loggers(arguments.log, imports),
        "on_nan": arguments.on_nan,
        "environment_settings": parse_environment_settings(arguments.env_set, environment),
        **parse_wrappers(arguments),
        **parse_initial_state(arguments),
    }
    settings = {name: value for name, value in given.items() if value is not None}
    plan = experiment.OfflineConfig(agent, arguments.data, arguments.updates, environment, progress=True, **settings)
    import_again(arguments, plan)
    loggers.check_installed(plan.as_experiment())
    check_fit(plan.as_experiment(), holds_replay=False)
    plan, folder = in_new_folder(plan, arguments)
    say(evaluation_plan(plan.as_experiment()).describe(plan.num_updates, "update"))
    return plan, folder


def _resumed_plan(arguments: argparse.Namespace) -> Any:
    refuse_given(
        arguments,
        _OF_A_NEW_RUN,
        "Only --updates, the new total, --data, where they are now, --on-nan, --keep-best, --best-score, "
        "--keep-checkpoints, --stop-at-return and --import may be given with it.",
    )
    check_is_run(arguments.resume)
    if arguments.data is not None:
        check_is_data(arguments.data)
    from agentkit import experiment

    given_changes = {
        "num_updates": arguments.updates,
        "dataset": arguments.data,
        "on_nan": arguments.on_nan,
        "keep_checkpoints": arguments.keep_checkpoints,
    }
    changes = {name: value for name, value in given_changes.items() if value is not None}
    imports = import_packages(arguments.imports)
    own = callbacks_for_resumed_run(arguments, arguments.resume, imports)
    plan = experiment.read_offline_config(arguments.resume, imports=imports, progress=True, callbacks=own, **changes)
    try:
        check_is_data(str(plan.dataset))
    except ConfigError as error:
        raise ConfigError(
            f"The data of {arguments.resume} are not in {plan.dataset} any more. Say where they are now: --data FILE."
        ) from error
    return plan


def export(arguments: argparse.Namespace) -> int:
    """Writes episodes of a run to a file, and prints the number of steps and the returns.

    Raises:
        ConfigError: if there is no run or checkpoint, the file exists, or its episodes cannot be had.
    """
    check_is_run(arguments.run)
    of_playing = (arguments.episodes, arguments.max_steps, arguments.seed, arguments.explore or None)
    if arguments.replay and any(each is not None for each in of_playing):
        raise ConfigError(
            "--replay writes what the run's replay holds; leave out --episodes, --max-steps, --seed and --explore."
        )
    from agentkit import datasets, experiment
    from agentkit.datasets.episode_files import check_new_file

    check_new_file(arguments.out)
    imports = import_packages(arguments.imports)
    try:
        if arguments.replay:
            data = experiment.read_replay(arguments.run, imports=imports)
        else:
            episodes = 100 if arguments.episodes is None else arguments.episodes
            limit = {} if arguments.max_steps is None else {"evaluation_max_steps": arguments.max_steps}
            data = experiment.record_episodes(
                arguments.run, episodes, explore=arguments.explore, seed=arguments.seed or 0, imports=imports, **limit
            )
        with interruptible():
            datasets.write_episodes(arguments.out, data.episodes, data.actions)
    except (CheckpointError, SpecError) as error:
        raise ConfigError(str(error)) from error
    steps = sum(len(episode.rewards) for episode in data.episodes)
    print(f"Wrote {arguments.out}: {count_of(steps, 'step')}.")
    say(describe_returns(np.array([np.sum(episode.rewards) for episode in data.episodes])))
    return 0
