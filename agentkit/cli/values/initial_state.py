"""Reads what a new run begins with: the training state of another run, and data in its replay."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

from agentkit.cli.screen import say
from agentkit.cli.values.runs import check_is_run
from agentkit.errors import ConfigError


def parse_initial_state(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields `init_from` and `init_checkpoint` of an experiment; those that were given.

    Raises:
        ConfigError: there is no such run, a checkpoint was given without one, or it is neither a word nor a step.
    """
    if arguments.init_from is None:
        if arguments.init_checkpoint is not None:
            raise ConfigError("--init-checkpoint is of the run in --init-from, which is missing. Add --init-from RUN.")
        return {}
    check_is_run(arguments.init_from)
    which: str | int = "newest" if arguments.init_checkpoint is None else arguments.init_checkpoint
    if which not in ("newest", "best"):
        from agentkit.experiment.policies.restore_policy import parse_step

        which = parse_step(which, "--init-checkpoint")
    return {"init_from": arguments.init_from, "init_checkpoint": which}


def with_reward_scale(plan: Any, arguments: argparse.Namespace) -> Any:
    """Returns an `ExperimentConfig` whose rewards are multiplied as those were that its initial state has learned from.

    It says so, but not where a config alone is to be shown, which names the wrapper.

    Raises:
        ConfigError: that run has no such checkpoint.
    """
    from agentkit.experiment.training.initial_state import reward_scale_of
    from agentkit.wrappers.reward_scale import RewardScale, find_scale

    scale = reward_scale_of(plan)
    if math.isclose(scale, 1.0) or find_scale(plan.wrappers) is not None:
        return plan
    if not arguments.show_config:
        say(
            f"Rewards in training are multiplied by {scale:.6g}, as those that the run in --init-from has learned "
            "from; evaluations show the environment's own. For others: --wrapper 'reward_scale(scale=1.0)'"
        )
    return dataclasses.replace(plan, wrappers=(*plan.wrappers, functools.partial(RewardScale, scale=scale)))


def parse_data(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the field `data` of an experiment, if replay is to begin with a file.

    Raises:
        ConfigError: there is no such file; or a share of batches was given without one, or is none.
    """
    if arguments.data is None:
        if arguments.data_share is not None:
            raise ConfigError("--data-share is of the file in --data, which is missing. Add --data FILE.")
        return {}
    check_is_data(arguments.data)
    return {"data": arguments.data} if arguments.data_share is None else {}


def check_is_data(data: str) -> None:
    """Refuses a path where there is nothing.

    Raises:
        ConfigError: saying what to do.
    """
    from agentkit.datasets import minari_sets, rlds_sets

    if data.startswith(rlds_sets.PREFIX):
        rlds_sets.check_is_set(data.removeprefix(rlds_sets.PREFIX))
    elif not data.startswith(minari_sets.PREFIX) and not Path(data).exists():
        raise ConfigError(f"--data: there is no file {data!r}. 'agentkit export RUN' writes one.")


def with_data_share(plan: Any, arguments: argparse.Namespace) -> Any:
    """Returns an `ExperimentConfig` of which each batch has its share of data, if that was asked for.

    Raises:
        ConfigError: the agent cannot draw so.
    """
    if arguments.data is None or arguments.data_share is None:
        return plan
    from agentkit.agents.addons import with_prior_data

    return dataclasses.replace(plan, agent=with_prior_data(plan.agent, arguments.data, arguments.data_share))
