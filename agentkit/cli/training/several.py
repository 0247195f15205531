"""Trains several agents in one environment (``--policies``), or goes on with such a run; makes what is launched."""

from __future__ import annotations

import argparse
import dataclasses
import warnings
from typing import Any

from agentkit.cli.screen import say
from agentkit.cli.summary import finish
from agentkit.cli.training.new_run import changes_of_resumed, in_new_folder, show_evaluation
from agentkit.cli.training.seeds import start_group, take_seeds
from agentkit.cli.values.callbacks import callbacks_for_resumed_run, changed_callbacks
from agentkit.cli.values.environments import (
    find_environment,
    find_torso,
    import_packages,
    parse_environment_settings,
    refusing_settings,
)
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.values.loggers import parse_loggers
from agentkit.cli.values.presets import choose_preset, tell_preset
from agentkit.counting import count_of
from agentkit.errors import ConfigError, SpecError

# What there is not for several agents yet, or has no meaning for them: options by their names, and why.
_REFUSED = (
    (("workers", "ready"), "environments are stepped in the process that acts"),
    (("data", "data_share", "init_from", "init_checkpoint"), "policies begin anew; Frozen in Python plays as it was"),
    (("devices",), "learners share one device"),
    (("wrapper", "column", "view"), "they are of one agent's stream; change the environment itself"),
    (("video_every",), "films of several agents are made afterwards, by 'agentkit watch' or 'evaluate --video'"),
    (("profile", "jax_trace"), "a step has the parts of several policies"),
    (("evaluate_samples",), "evaluations play by the policies to be judged by"),
    (("keep_best", "best_score"), "it keeps one policy; checkpoints hold all"),
    (("config", "show_config"), "files of options describe one agent"),
)
_FIELDS = {
    "seed": "seed",
    "num_envs": "num_envs",
    "on_device": "on_device",
    "count_steps_by": "count_steps_by",
    "replay": "replay",
    "eval_every": "evaluation_period",
    "eval_episodes": "evaluation_episodes",
    "eval_max_steps": "evaluation_max_steps",
    "checkpoint_every": "checkpoint_period",
    "tensorboard": "tensorboard",
    "on_nan": "on_nan",
    "step_timeout": "step_timeout",
    "keep_checkpoints": "keep_checkpoints",
}


def train_several(arguments: argparse.Namespace) -> int:
    """Trains several agents in a new run folder, and says where the run is kept.

    Raises:
        ConfigError: for missing arguments, or those that there are not for several agents.
        UnknownNameError: for an unknown agent, environment or setting.
    """
    seeds = None if arguments.seeds is None else take_seeds(arguments)
    plan = new_several(arguments, "train")
    tell_agents(plan)
    if seeds is not None:
        return start_group(plan, seeds, arguments)
    plan, folder = in_new_folder(plan, arguments)
    show_evaluation(plan)
    from agentkit import experiment

    with folder.removed_if_refused():
        return finish(experiment.run(plan), plan.run_directory, "train", arguments.imports)


def new_several(arguments: argparse.Namespace, command: str, *, tells_preset: bool = True) -> Any:
    """Returns the `MultiAgentConfig` that the words of a command ask for. It has no run folder yet.

    Args:
        arguments: what `parser.parse` made of them.
        command: "train" or "launch", for messages.
        tells_preset: whether to print which preset was chosen.

    Raises:
        ConfigError: for missing arguments, or those that there are not for several agents.
        UnknownNameError: for an unknown agent, environment or setting.
    """
    refuse_of_one_agent(arguments)
    for name, value in (("AGENT", arguments.agent), ("--env", arguments.env)):
        if value is None:
            raise ConfigError(
                f"{name} is missing. Example: agentkit {command} dqn --env pettingzoo:classic/tictactoe_v3 --policies "
                "shared --steps 20k"
            )
    from agentkit import experiment
    from agentkit.agents import registry
    from agentkit.experiment.train_by_name import with_addons

    imports = import_packages(arguments.imports)
    settings = parse_settings(arguments.set or [], registry.config_class(arguments.agent), arguments.agent)
    environment = find_several(arguments)
    environment_settings = parse_environment_settings(arguments.env_set, environment)
    preset, num_steps = choose_preset(arguments, command), arguments.steps
    given = {field: getattr(arguments, name, None) for name, field in _FIELDS.items()}  # Some are of one command.
    if preset is not None:
        num_steps = num_steps or preset.num_steps
        settings = preset.settings_for(num_steps) | settings
        environment_settings = {**preset.environment_settings, **environment_settings}
        given["num_envs"] = given["num_envs"] or preset.num_envs
    if registry.about(arguments.agent).data == "offline":
        warnings.warn(
            f"{arguments.agent} is made to learn from data. Several agents take none yet, so it learns from its own "
            "steps alone.",
            stacklevel=2,
        )
    agent = with_addons(registry.make(arguments.agent, settings, find_torso(arguments)), arguments.normalize or ())
    plan = experiment.MultiAgentConfig(
        agent,
        environment,
        num_steps,
        arguments.policies,
        parse_opponents(arguments.opponents),
        environment_settings=environment_settings,
        loggers=parse_loggers(arguments.log, imports) or (),
        callbacks=changed_callbacks((), arguments),
        progress=True,
        **{"checkpoint_period": max(num_steps // 10, 1)}
        | {field: value for field, value in given.items() if value is not None},
    )
    if tells_preset:
        tell_preset(preset, agent, plan, arguments)
    return plan


def resume_several(arguments: argparse.Namespace) -> int:
    """Goes on with a run of several agents."""
    refuse_of_one_agent(arguments)
    if arguments.seeds is not None:
        raise ConfigError("--seeds is of a group of runs, and this is one run. Leave it out.")
    changes = changes_of_resumed(arguments)
    from agentkit import experiment
    from agentkit.experiment.training.switching import switched

    with switched(arguments.resume, "train", changes.get("replay")):
        own = callbacks_for_resumed_run(arguments, arguments.resume, changes["imports"])
        plan = experiment.read_multi_agent_config(arguments.resume, progress=True, callbacks=own, **changes)
        return finish(experiment.run(plan, resume=True), arguments.resume, "train", changes["imports"])


def parse_opponents(text: str | None) -> Any:
    """Returns the pool of ``--opponents``, such as ``uniform,period=2k``; None where it was not given.

    Raises:
        ConfigError: a setting has no value, or an impossible one.
        UnknownNameError: there is no such setting, or no such way to choose.
    """
    if text is None:
        return None
    from agentkit.experiment import Pool

    choose, *words = text.split(",")
    fields = ", ".join(field.name for field in dataclasses.fields(Pool))
    settings = parse_settings(words, Pool, "the pool", "--opponents", f"It has: {fields}")
    return Pool(choose, **settings)  # type: ignore[arg-type]  # It checks what it is given.


def find_several(arguments: argparse.Namespace) -> Any:
    """Returns the environment of ``--env``: a name of one of several agents, or what ``MODULE:NAME`` stands for."""
    from agentkit.envs.prefixes import has_several_agents

    return arguments.env if has_several_agents(arguments.env) else find_environment(arguments, of_several_agents=True)


def refuse_of_one_agent(arguments: argparse.Namespace) -> None:
    """Refuses options that there are not for several agents.

    Raises:
        ConfigError: it names the option, and why.
    """
    for names, why in _REFUSED:
        for name in names:
            if getattr(arguments, name, None) not in (None, False, []):
                raise ConfigError(
                    f"--{name.replace('_', '-')} is not for several agents (--policies): {why}. Leave it out."
                )


def tell_agents(plan: Any) -> dict[str, list[str]]:
    """Prints who plays and by how many policies; what does not fit is refused before a run folder is made.

    Returns:
        The agents of each policy.
    """
    by_policy = find_agents(plan)
    agents = [agent_id for agent_ids in by_policy.values() for agent_id in agent_ids]
    policies = count_of(len(by_policy), "policy", "policies")
    say(f"{count_of(len(agents), 'agent')} by {policies}: {', '.join(agents)}")
    return by_policy


def find_agents(plan: Any) -> dict[str, list[str]]:
    """Returns the agents of each policy, of an environment that is made for it.

    Raises:
        ConfigError: it does not suit, or does not take the arguments given.
    """
    from agentkit.envs.given import name_of
    from agentkit.experiment.multi_agent.build import check_policies

    try:
        with refusing_settings(name_of(plan.environment), plan.environment_settings):
            return check_policies(dataclasses.replace(plan, run_directory=None))[0]
    except SpecError as error:
        raise ConfigError(str(error)) from error
