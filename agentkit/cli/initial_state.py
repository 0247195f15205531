"""Reads what says with which other run's training state a new run begins."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import math
from typing import Any

from agentkit.cli.evaluate import check_is_run
from agentkit.errors import ConfigError


def parse_initial_state(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields `init_from` and `init_checkpoint` of an experiment; those that were given.

    Raises:
        ConfigError: there is no such run, or a checkpoint was given without one.
    """
    if arguments.init_from is None:
        if arguments.init_checkpoint is not None:
            raise ConfigError("--init-checkpoint is of the run in --init-from, which is missing. Add --init-from RUN.")
        return {}
    check_is_run(arguments.init_from)
    which = "newest" if arguments.init_checkpoint is None else arguments.init_checkpoint
    return {"init_from": arguments.init_from, "init_checkpoint": int(which) if which.isdecimal() else which}


def with_reward_scale(plan: Any) -> Any:
    """Returns an `ExperimentConfig` whose rewards are multiplied as those were that its initial state has learned from.

    Raises:
        ConfigError: that run has no such checkpoint.
    """
    from agentkit.experiment.initial_state import reward_scale_of, scales_rewards
    from agentkit.wrappers.reward_scale import RewardScale

    scale = reward_scale_of(plan)
    if math.isclose(scale, 1.0) or scales_rewards(plan):
        return plan
    print(
        f"Rewards in training are multiplied by {scale:.6g}, as those that the run in --init-from has learned from; "
        f"evaluations show the environment's own. For others: --wrapper 'reward_scale(scale=1.0)'",
        flush=True,
    )
    return dataclasses.replace(plan, wrappers=(*plan.wrappers, functools.partial(RewardScale, scale=scale)))
