"""Runs ``agentkit train``: starts a run, or goes on with one."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agentkit.cli.environments import (
    import_packages,
    parse_environment_settings,
    parse_wrapper,
    refuse_settings,
)
from agentkit.cli.evaluate import check_is_run
from agentkit.cli.logs import parse_loggers
from agentkit.cli.summary import finish
from agentkit.cli.values import parse_settings
from agentkit.errors import AgentkitError, ConfigError, SpecError

# What --resume takes from the run instead of from the command line: all of `parser._add_experiment` but --steps,
# --devices, --on-nan and --import.
_OF_A_NEW_RUN = (
    "agent", "env", "env_set", "wrapper", "seed", "set", "replay", "num_envs", "out",
    "eval_every", "eval_episodes", "checkpoint_every", "tensorboard", "log",
)  # fmt: skip


def train(arguments: argparse.Namespace) -> int:
    """Trains and says where the run is kept.

    Returns:
        0, or 130 if Ctrl-C stopped and saved the run.

    Raises:
        ConfigError: for missing or contradicting arguments.
        UnknownNameError: for an unknown agent, environment or config field.
    """
    if arguments.resume is not None:
        changes = changes_of_resumed(arguments)
        from agentkit import experiment

        plan = experiment.read_config(arguments.resume, progress=True, **changes)
        return finish(_run(plan, arguments, resume=True), arguments.resume, "train", changes["imports"])
    plan = new_experiment(arguments, "train", replay=_or(arguments.replay, "in_process"), progress=True)
    plan = in_new_folder(plan, arguments)
    with nothing_left(plan, arguments):
        return finish(_run(plan, arguments), plan.run_directory, "train", arguments.imports)


def _run(plan: Any, arguments: argparse.Namespace, resume: bool = False) -> Any:
    """Runs it; prints the profile that was asked for, however the run ends."""
    from agentkit import experiment

    if not (arguments.profile or arguments.jax_trace):
        return experiment.run(plan, resume=resume)
    from agentkit.experiment import profile_table

    profile = experiment.Profile(arguments.jax_trace)
    try:
        return experiment.run(plan, resume=resume, profile=profile)
    finally:
        if profile.num_steps:  # Else an error says why.
            print(profile_table.describe(profile, plan.agent), flush=True)


def new_experiment(arguments: argparse.Namespace, command: str, **settings: Any) -> Any:
    """Returns the `ExperimentConfig` that the words of a command ask for. It has no run folder yet.

    Args:
        arguments: what `parser.parse` made of the experiment's words.
        command: the words before them, for messages: "train", "launch", "node replay".
        **settings: fields of `ExperimentConfig` that this command sets itself.

    Raises:
        ConfigError: for missing or contradicting arguments.
        UnknownNameError: for an unknown agent, environment or config field.
    """
    for name, value in (("AGENT", arguments.agent), ("--env", arguments.env), ("--steps", arguments.steps)):
        if value is None:
            raise ConfigError(
                f"{name} is missing. Example: agentkit {command} sac --env gymnasium:Pendulum-v1 --steps 20_000"
            )
    from agentkit import experiment
    from agentkit.agents import registry
    from agentkit.experiment import run_loggers

    imports = import_packages(arguments.imports)
    words = parse_settings(arguments.set or [], registry.config_class(arguments.agent), arguments.agent)
    agent = registry.make(arguments.agent, words)
    tenth = max(arguments.steps // 10, 1)
    for name in ("devices", "step_timeout"):
        if getattr(arguments, name) is not None:
            settings[name] = getattr(arguments, name)
    plan = experiment.ExperimentConfig(
        agent,
        arguments.env,
        arguments.steps,
        seed=_or(arguments.seed, 0),
        num_envs=arguments.num_envs,
        evaluation_period=_or(arguments.eval_every, tenth),
        evaluation_episodes=_or(arguments.eval_episodes, 10),
        checkpoint_period=_or(arguments.checkpoint_every, tenth),
        tensorboard=arguments.tensorboard is True,
        loggers=parse_loggers(arguments.log, imports),
        on_nan=_or(arguments.on_nan, "stop"),
        environment_settings=parse_environment_settings(arguments.env_set, arguments.env),
        wrappers=[parse_wrapper(text, imports) for text in arguments.wrapper or ()],
        **settings,
    )
    run_loggers.check_installed(plan)
    check_fit(plan)
    return plan


def in_new_folder(plan: Any, arguments: argparse.Namespace) -> Any:
    """Returns the experiment with a new run folder, which is made and printed.

    Raises:
        ConfigError: if no folder can be made there.
    """
    directory = make_run_directory(_or(arguments.out, "runs"), arguments.agent, arguments.env, plan.seed)
    print(f"Run folder: {directory}", flush=True)
    return dataclasses.replace(plan, run_directory=directory)


@contextlib.contextmanager
def nothing_left(plan: Any, arguments: argparse.Namespace) -> Iterator[None]:
    """Deletes the new run folder where the command is refused before anything was written to it."""
    try:
        yield
    except AgentkitError:
        with contextlib.suppress(OSError):  # There is something in it.
            with contextlib.suppress(FileNotFoundError):  # Who gave its lock back has deleted it.
                Path(plan.run_directory).rmdir()
            if arguments.out is None:
                Path(plan.run_directory).parent.rmdir()
        raise


def changes_of_resumed(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the changes of ``--resume RUN`` for `read_config`: packages to import, and fields to replace.

    Raises:
        ConfigError: if there is no such run, or settings were given that are the run's own.
    """
    given = [name for name in _OF_A_NEW_RUN if getattr(arguments, name, None) is not None]
    if given:
        names = ", ".join("AGENT" if name == "agent" else f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(
            f"--resume goes on with the run's own settings; leave out {names}. Of these only --steps, the new "
            "total, --devices, --on-nan, --step-timeout and --import may be given."
        )
    check_is_run(arguments.resume)
    changes = {name: getattr(arguments, name, None) for name in ("devices", "on_nan", "step_timeout")}
    changes["num_steps"] = arguments.steps
    given_changes = {name: value for name, value in changes.items() if value is not None}
    return {"imports": import_packages(arguments.imports), **given_changes}


def make_run_directory(out: str | os.PathLike[str], agent: str, environment: str, seed: int) -> Path:
    """Makes a new, empty folder in `out`, named after agent, environment and seed.

    A run that has the name already keeps it: the new one gets ``-2``, ``-3``, ...

    Raises:
        ConfigError: if no folder can be made there.
    """
    name = f"{agent}-{re.sub(r'[^A-Za-z0-9._-]+', '_', environment)}-seed{seed}"
    for number in itertools.count(1):
        directory = Path(out) / (name if number == 1 else f"{name}-{number}")
        try:
            directory.mkdir(parents=True)
        except FileExistsError:
            if not directory.is_dir():
                raise ConfigError(f"--out: {directory} cannot be made: a file is in the way.") from None
        except OSError as error:
            raise ConfigError(f"--out: {directory} cannot be made: {error.strerror}.") from error
        else:
            return directory
    raise AssertionError("itertools.count ended")


def check_fit(plan: Any, holds_replay: bool = True) -> None:
    """Finds an environment that does not exist or suit the agent before a run folder is made.

    Args:
        plan: an `ExperimentConfig`.
        holds_replay: whether the run fills a replay, for which there must be memory.

    Raises:
        ConfigError: it does not suit, or does not take the arguments given.
    """
    from agentkit import specs
    from agentkit.experiment import fit

    try:
        made = plan.make_environment(seed=0)
    except TypeError as error:
        if not plan.environment_settings:
            raise
        raise refuse_settings(error, plan.environment, list(plan.environment_settings)) from error
    except SpecError as error:
        raise ConfigError(str(error)) from error
    with contextlib.closing(made):
        try:
            spec = specs.make_environment_spec(made)
            fit.check_fit(plan, spec)
            if holds_replay:
                fit.check_memory(plan, spec)
        except SpecError as error:
            raise ConfigError(str(error)) from error


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value
