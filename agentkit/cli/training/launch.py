"""Runs ``agentkit launch``: trains with many processes, or goes on with such a run."""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

from agentkit import ports
from agentkit.cli.screen import command_line, say
from agentkit.cli.summary import finish
from agentkit.cli.training.new_run import changes_of_resumed, in_new_folder, is_of_several, new_experiment
from agentkit.cli.training.several import new_several, refuse_of_one_agent, tell_agents
from agentkit.cli.values.callbacks import callbacks_for_resumed_run
from agentkit.errors import ConfigError, missing_extra

# Fields of `LaunchConfig`, and the options that set them.
_SETTINGS = {
    "num_actors": "actors",
    "num_evaluators": "evaluators",
    "num_inference": "inference",
    "engine": "engine",
    "ray_address": "ray_address",
    "listen": "listen",
    "max_parameter_age_seconds": "max_parameter_age",
    "max_restarts": "max_restarts",
    "learner_gpus": "learner_gpus",
}


def launch(arguments: argparse.Namespace) -> int:
    """Runs the program, shows its progress, and says where the run is kept.

    Returns:
        0; 130 if Ctrl-C, SIGTERM or ``agentkit stop`` stopped and saved it; 1 if a node failed for good.

    Raises:
        ConfigError: for missing or contradicting arguments.
        MissingExtraError: if the replay's or the engine's package is not installed.
        UnknownNameError: for an unknown agent, environment or config field.
    """
    chosen = {name: getattr(arguments, option) for name, option in _SETTINGS.items()}
    chosen = {name: value for name, value in chosen.items() if value is not None}
    if arguments.engine != "ray":  # Whose nodes may be on machines with other devices.
        ports.check_device("lo" if arguments.listen is None else arguments.listen)
    several = arguments.policies is not None or is_of_several(arguments.resume)
    if arguments.resume is not None:
        changes = changes_of_resumed(arguments)
        check_installed(arguments.engine)
        from agentkit import experiment

        if several:
            refuse_of_one_agent(arguments)
        own = callbacks_for_resumed_run(arguments, arguments.resume, changes["imports"])
        resume = functools.partial(experiment.resume_launch, arguments.resume, callbacks=own, **changes, **chosen)
        return _show(resume, arguments.resume, arguments)
    of_evaluations = {
        "--stop-at-return": arguments.stop_at_return, "--eval-every": arguments.eval_every or None,
        "--eval-episodes": arguments.eval_episodes, "--eval-max-steps": arguments.eval_max_steps,
        "--evaluate-samples": arguments.evaluate_samples, "--keep-best": arguments.keep_best or None,
        "--best-score": arguments.best_score,
    }  # fmt: skip
    given = [word for word, value in of_evaluations.items() if value is not None]
    if arguments.evaluators == 0 and given:
        raise ConfigError(f"{given[0]} is of evaluations, and --evaluators 0 makes none. Leave one of them out.")
    if arguments.evaluators and arguments.eval_every == 0:
        say("--evaluators: none is started, since --eval-every 0 asks for no evaluation.")
    if several:
        plan = new_several(arguments, "launch")
        by_policy = tell_agents(plan)
    else:
        plan = new_experiment(arguments, "launch", **chosen_replay(arguments))
    from agentkit import experiment
    from agentkit.experiment.checks.short_runs import warnings_of
    from agentkit.experiment.multi_agent.parts import short_runs_of

    config = experiment.LaunchConfig(**chosen)  # Refuses what is impossible before a folder is made.
    check_installed(arguments.engine, arguments.replay)
    plan, folder = in_new_folder(plan, arguments)
    print(f"Run folder: {folder.path}", flush=True)
    short = short_runs_of(plan, by_policy, config.num_actors) if several else warnings_of(plan, config.num_actors)
    for line in short:
        say(line)
    with folder.removed_if_refused():
        return _show(functools.partial(experiment.launch, plan, **chosen), plan.run_directory, arguments)


def chosen_replay(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns what ``--replay`` says of an experiment's replay; nothing where it is not given."""
    return {} if arguments.replay is None else {"replay": arguments.replay}


def check_installed(engine: str | None = None, replay: str | None = None) -> None:
    """Looks for the packages that a program of many processes needs, before anything is made.

    Raises:
        MissingExtraError: naming the extra.
    """
    if replay == "reverb":
        from agentkit.replay import reverb

        reverb.check_installed()
    if engine == "ray" and importlib.util.find_spec("ray") is None:
        raise missing_extra("ray", "ray")


def _show(run: Callable[..., Any], directory: Any, arguments: argparse.Namespace) -> int:
    """Calls ``run(on_status=...)`` under a live table, and says how it ended."""
    from agentkit.distributed import ProgramError
    from agentkit.loggers.program_table import ProgramTable

    named = (("--listen", arguments.listen), ("--ray-address", arguments.ray_address))
    again = [word for option, value in named if value is not None for word in (option, value)]
    try:
        with ProgramTable() as table:

            def show(status: dict[str, Any]) -> None:
                with contextlib.suppress(OSError):  # Output into a file on a full disk ends no program.
                    table.write(status)

            result = run(on_status=show)
    except ProgramError as error:
        # The traceback in it is the node's own; this process's would say nothing.
        print(f"agentkit: {error}", file=sys.stderr)
        go_on = command_line("launch", "--resume", directory, *again, imports=arguments.imports)
        say(f"Mend it, and go on with:\n  {go_on}", sys.stderr)
        return 1
    return finish(result, directory, "launch", arguments.imports, again)
