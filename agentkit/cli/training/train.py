"""Runs ``agentkit train``: starts a run, or goes on with one."""

from __future__ import annotations

import argparse
from typing import Any

from agentkit.cli.summary import finish
from agentkit.cli.training.new_run import (
    changes_of_resumed,
    in_new_folder,
    is_group,
    is_of_several,
    new_experiment,
    show_evaluation,
)
from agentkit.cli.values.callbacks import callbacks_for_resumed_run
from agentkit.errors import ConfigError


def train(arguments: argparse.Namespace) -> int:
    """Trains and says where the run is kept.

    Returns:
        0, or 130 if Ctrl-C stopped and saved the run.

    Raises:
        ConfigError: for missing or contradicting arguments.
        UnknownNameError: for an unknown agent, environment or config field.
    """
    if arguments.jobs is not None and arguments.seeds is None and not is_group(arguments.resume):
        raise ConfigError("--jobs is of --seeds, such as --seeds 0:5 --jobs 2; one run is one process.")
    if arguments.policies is not None or is_of_several(arguments.resume):
        from agentkit.cli.training import several

        return several.train_several(arguments) if arguments.resume is None else several.resume_several(arguments)
    if arguments.seeds is not None or is_group(arguments.resume):
        from agentkit.cli.training import seeds

        return seeds.train_seeds(arguments) if arguments.resume is None else seeds.resume_seeds(arguments)
    if arguments.resume is not None:
        changes = changes_of_resumed(arguments)
        from agentkit import experiment
        from agentkit.experiment.training.switching import switched

        with switched(arguments.resume, "train", changes.get("replay")):
            own = callbacks_for_resumed_run(arguments, arguments.resume, changes["imports"])
            plan = experiment.read_config(arguments.resume, progress=True, callbacks=own, **changes)
            return finish(_run(plan, arguments, resume=True), arguments.resume, "train", changes["imports"])
    replay = "in_process" if arguments.replay is None else arguments.replay
    plan = new_experiment(arguments, "train", replay=replay, progress=True)
    plan, folder = in_new_folder(plan, arguments)
    show_evaluation(plan)
    with folder.removed_if_refused():
        return finish(_run(plan, arguments), plan.run_directory, "train", arguments.imports)


def _run(plan: Any, arguments: argparse.Namespace, resume: bool = False) -> Any:
    """Runs it; prints the profile that was asked for, however the run ends."""
    from agentkit import experiment

    if not (arguments.profile or arguments.jax_trace):
        return experiment.run(plan, resume=resume)
    from agentkit.experiment.profiling import table

    profile = experiment.Profile(arguments.jax_trace)
    try:
        return experiment.run(plan, resume=resume, profile=profile)
    finally:
        if profile.num_steps:  # Else an error says why.
            print(table.describe(profile, plan.agent), flush=True)
