"""Makes the experiment of a new run from the words of a command, and its folder; or the changes of a resumed one."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentkit.cli.screen import say
from agentkit.cli.values.callbacks import callbacks_for_new_run
from agentkit.cli.values.config_file import show_config
from agentkit.cli.values.environments import (
    find_environment,
    find_torso,
    import_packages,
    parse_environment_settings,
    parse_wrappers,
    refusing_settings,
)
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.values.initial_state import parse_data, parse_initial_state, with_data_share, with_reward_scale
from agentkit.cli.values.loggers import parse_loggers
from agentkit.cli.values.presets import choose_preset, tell_preset
from agentkit.cli.values.runs import check_is_run
from agentkit.cli.values.views import find_views
from agentkit.errors import ConfigError, SpecError

if TYPE_CHECKING:
    from agentkit.experiment.runs.new_folder import NewFolder

_CHANGEABLE = ("devices", "on_nan", "step_timeout", "keep_checkpoints", "workers")
"""Fields of the experiment that a resumed run may change by the options of their names."""

# What a run that goes on takes from its folder and not from the command line: all of `options.add_experiment` but
# --steps, --devices, --workers, --on-nan, --import and those of `options.add_callbacks`.
_OF_A_NEW_RUN = (
    "agent", "env", "env_set", "wrapper", "seed", "seeds", "set", "torso", "normalize", "view", "replay", "num_envs",
    "ready", "out", "run_directory", "eval_every", "eval_episodes", "eval_max_steps", "evaluate_samples", "column",
    "checkpoint_every",
    "tensorboard", "log", "video_every", "config", "preset", "show_config", "init_from", "init_checkpoint", "data",
    "data_share", "on_device", "policies", "opponents", "count_steps_by",
)  # fmt: skip


def show_evaluation(plan: Any) -> None:
    """Says how often and how long the runs of an `ExperimentConfig` evaluate."""
    from agentkit.experiment.config.evaluation_plan import evaluation_plan

    say(evaluation_plan(plan).describe(plan.num_steps))


def new_experiment(arguments: argparse.Namespace, command: str, *, tells_preset: bool = True, **settings: Any) -> Any:
    """Returns the `ExperimentConfig` that the words of a command ask for. It has no run folder yet.

    Args:
        arguments: what `parser.parse` made of the experiment's words.
        command: the words before them, for messages: "train", "launch", "node replay".
        tells_preset: whether to print which preset was chosen.
        **settings: fields of `ExperimentConfig` that this command sets itself.

    Raises:
        ConfigError: for missing or contradicting arguments.
        UnknownNameError: for an unknown agent, environment or config field.
    """
    _check_given(arguments, command)
    from agentkit.agents import registry
    from agentkit.experiment import train_by_name
    from agentkit.experiment.config.experiment_config import refuse_wrong_order
    from agentkit.experiment.runs import loggers
    from agentkit.experiment.training.prior_data import refuse_prior_data

    refuse_wrong_order(arguments.agent, arguments.env)
    imports = import_packages(arguments.imports)
    environment, torso = find_environment(arguments), find_torso(arguments)
    words = parse_settings(arguments.set or [], registry.config_class(arguments.agent), arguments.agent)
    preset = choose_preset(arguments, command)
    plan = train_by_name.plan(
        arguments.agent,
        environment,
        arguments.steps,
        words,
        preset=preset,
        torso=torso,
        normalize=arguments.normalize or (),
        views=find_views(arguments),
        environment_settings=parse_environment_settings(arguments.env_set, environment),
        **parse_wrappers(arguments),
        **_given_fields(arguments, imports),
        **settings,
    )
    import_again(arguments, plan)
    loggers.check_installed(plan)
    plan = with_data_share(with_reward_scale(plan, arguments), arguments)
    train_by_name.warn_without_data(plan, arguments.agent)
    if command != "train":
        refuse_prior_data(plan)
    check_fit(plan)
    if arguments.show_config:
        show_config(plan, arguments)
    if tells_preset:
        tell_preset(preset, plan.agent, plan, arguments)
    return plan


def import_again(arguments: argparse.Namespace, plan: Any) -> None:
    """Adds to ``--import`` what the next command on the run has to name: wrappers that write, loggers that send."""
    from agentkit.experiment.config.trust import logger_modules, packages_outside

    modules = [getattr(wrapper, "func", wrapper).__module__ for wrapper in plan.wrappers]
    own = packages_outside([*modules, *logger_modules(plan.loggers)])
    arguments.imports = [*dict.fromkeys([*(arguments.imports or ()), *own])] or None


def _given_fields(arguments: argparse.Namespace, imports: Sequence[str]) -> dict[str, Any]:
    """Returns the fields of `ExperimentConfig` that the command line gives a value for."""
    evaluates = arguments.eval_every != 0 and getattr(arguments, "evaluators", None) != 0
    fields = {
        "seed": arguments.seed,
        "num_envs": arguments.num_envs,
        "workers": arguments.workers,
        "ready": arguments.ready,
        "evaluation_period": arguments.eval_every,
        "evaluation_episodes": arguments.eval_episodes,
        "evaluation_max_steps": arguments.eval_max_steps,
        "evaluation_samples": arguments.evaluate_samples,
        "columns": arguments.column,
        "on_device": getattr(arguments, "on_device", None),
        "video_period": getattr(arguments, "video_every", None),
        "checkpoint_period": arguments.checkpoint_every,
        "tensorboard": arguments.tensorboard,
        "loggers": parse_loggers(arguments.log, imports),
        "on_nan": arguments.on_nan,
        "devices": arguments.devices,
        "step_timeout": arguments.step_timeout,
        "keep_checkpoints": arguments.keep_checkpoints,
        "callbacks": callbacks_for_new_run(arguments, evaluates=evaluates),
        **parse_initial_state(arguments),
        **parse_data(arguments),
    }
    return {name: value for name, value in fields.items() if value is not None}


def _check_given(arguments: argparse.Namespace, command: str) -> None:
    for option in ("opponents", "count_steps_by"):
        if getattr(arguments, option, None) is not None:
            name = f"--{option.replace('_', '-')}"
            raise ConfigError(f"{name} is for several agents: say who plays whom with --policies shared (or each).")
    for name, value in (("AGENT", arguments.agent), ("--env", arguments.env)):
        if value is None:
            raise ConfigError(
                f"{name} is missing. Example: agentkit {command} sac --env gymnasium:Pendulum-v1 --steps 20k"
            )


def in_new_folder(plan: Any, arguments: argparse.Namespace, ending: str | None = None) -> tuple[Any, NewFolder]:
    """Returns the experiment with its new run folder, which is made, and the folder.

    It is printed by whoever begins the run: until then, the run may be refused.

    Args:
        plan: the experiment.
        arguments: of the command.
        ending: of the folder's name; None for the seed.

    Raises:
        ConfigError: if no folder can be made there.
    """
    from agentkit.experiment.runs.new_folder import RUNS, make_folder, make_this_folder

    if arguments.run_directory is None:
        name = f"seed{plan.seed}" if ending is None else ending
        folder = make_folder(RUNS if arguments.out is None else arguments.out, arguments.agent, arguments.env, name)
    elif arguments.out is None:
        folder = make_this_folder(arguments.run_directory)
    else:
        raise ConfigError("--run-directory is the run folder itself and --out where a new one is made; give one.")
    return dataclasses.replace(plan, run_directory=folder.path), folder


def is_group(directory: str | None) -> bool:
    """Returns True if ``--resume`` names a group of seeds, see `cli.training.seeds`; loads nothing."""
    return directory is not None and (Path(directory) / "group.json").is_file()


def is_of_several(directory: str | None) -> bool:
    """Returns True if ``--resume`` names a run of several agents, see `cli.training.several`; loads no JAX."""
    if directory is None or not (Path(directory) / "config.json").is_file():
        return False
    from agentkit.files import read_json

    with contextlib.suppress(OSError, ValueError):  # Who reads all of it says what is wrong.
        record = read_json(Path(directory) / "config.json")
        return isinstance(record, dict) and "policies" in record
    return False


def changes_of_resumed(arguments: argparse.Namespace, is_group: bool = False) -> dict[str, Any]:
    """Returns the changes of ``--resume RUN`` for `read_config`: packages to import, and fields to replace.

    Args:
        arguments: what `parser.parse` made of them.
        is_group: the folder is one of several seeds.

    Raises:
        ConfigError: if there is no such run, or settings were given that are the run's own.
    """
    # To go on launched or in one process; no run can change to Reverb's replay, as the refusal says.
    changes_kind = getattr(arguments, "replay", None) in ("in_process", "served")
    may = changes_kind and not is_group
    changes = changes_of_existing(arguments, "--resume", (*_CHANGEABLE, "replay") if may else _CHANGEABLE)
    if not is_group:
        check_is_run(arguments.resume)
    return changes


def changes_of_existing(
    arguments: argparse.Namespace, option: str, changeable: Sequence[str] = _CHANGEABLE
) -> dict[str, Any]:
    """Returns the changes of a run that goes on; see `changes_of_resumed`.

    Args:
        arguments: what `parser.parse` made of them.
        option: the words that say that it goes on, for the error.
        changeable: fields of the experiment that may be changed by the options of their names.

    Raises:
        ConfigError: settings were given that are the run's own.
    """
    refuse_given(
        arguments,
        [name for name in _OF_A_NEW_RUN if name not in changeable],
        "Of a new run's options only --steps, the new total, --devices, --workers, --on-nan, --step-timeout, "
        "--keep-best, --best-score, --keep-checkpoints, --stop-at-return and --import may be given.",
        option,
    )
    changes = {name: getattr(arguments, name, None) for name in changeable}
    changes["num_steps"] = arguments.steps
    given_changes = {name: value for name, value in changes.items() if value is not None}
    return {"imports": import_packages(arguments.imports), **given_changes}


def refuse_given(arguments: argparse.Namespace, names: Sequence[str], allowed: str, option: str = "--resume") -> None:
    """Refuses options of a new run beside the one that goes on with a run.

    Args:
        arguments: what `parser.parse` made of them.
        names: of those options.
        allowed: says which may be given.
        option: the words that say that a run goes on.

    Raises:
        ConfigError: one was given.
    """
    given = [name for name in names if getattr(arguments, name, None) is not None]
    if given:
        words = ", ".join("AGENT" if name == "agent" else f"--{name.replace('_', '-')}" for name in given)
        raise ConfigError(f"{option} goes on with the run's own settings; leave out {words}. {allowed}")


def check_fit(plan: Any, holds_replay: bool = True) -> tuple[Any, Any]:
    """Finds an environment that does not exist or suit the agent before a run folder is made.

    Returns the `fit.Parts` that the agent makes of the environment, and the environment's spec.

    Args:
        plan: an `ExperimentConfig`.
        holds_replay: whether the run fills a replay, for which there must be memory.

    Raises:
        ConfigError: it does not suit, or does not take the arguments given, or was not made in the time that a step may
            take.
    """
    from agentkit import specs
    from agentkit.envs.given import name_of
    from agentkit.experiment.checks import agent_fits
    from agentkit.experiment.checks.step_watch import StepTimeoutError, StepWatch
    from agentkit.experiment.training.initial_state import find_initial_state

    name = name_of(plan.environment)
    try:
        with (
            StepWatch(name, plan.step_timeout, beside=True) as watch,
            refusing_settings(name, plan.environment_settings, ValueError, LookupError, ArithmeticError, MemoryError),
        ):
            made = watch.make(lambda: plan.make_environment(seed=0))
    except (SpecError, StepTimeoutError) as error:
        raise ConfigError(str(error)) from error
    with contextlib.closing(made):
        try:
            spec = specs.make_environment_spec(made)
            parts = agent_fits.check_fit(plan, spec)
            if holds_replay:
                agent_fits.check_memory(plan, spec)
            find_initial_state(plan, parts)
        except SpecError as error:
            raise ConfigError(str(error)) from error
    return parts, spec
