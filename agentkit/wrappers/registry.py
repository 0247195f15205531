"""Wrappers by short names, for the command line: the name of the file that each is in."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from agentkit.errors import unknown_name

_CLASSES = {
    "action_repeat": "ActionRepeat",
    "atari": "AtariPreprocessing",
    "bound_actions": "BoundActions",
    "canonical_actions": "CanonicalActions",
    "clip_reward": "ClipReward",
    "concat_observations": "ConcatObservations",
    "discretise": "Discretise",
    "flatten_actions": "FlattenActions",
    "frame_stack": "FrameStack",
    "hide": "Hide",
    "observation_action_reward": "ObservationActionReward",
    "one_hot": "OneHot",
    "pixels": "Pixels",
    "reward_scale": "RewardScale",
    "single_precision": "SinglePrecision",
    "soft_horizon": "SoftHorizon",
    "step_limit": "StepLimit",
    "terminations_as_truncations": "TerminationsAsTruncations",
    "video": "VideoRecorder",
}


def classes() -> dict[str, str]:
    """Returns the class's name of each wrapper by its short name."""
    return dict(_CLASSES)


def names() -> tuple[str, ...]:
    """Returns the names of all wrappers."""
    return tuple(_CLASSES)


def find(name: str) -> Callable[..., Any]:
    """Returns the wrapper's class.

    Raises:
        UnknownNameError: there is no such wrapper; proposes the nearest name.
    """
    if name not in _CLASSES:
        advice = "To normalise observations or rewards: --normalize." if "normal" in name.lower() else ""
        raise unknown_name("wrapper", name, _CLASSES, advice)
    cls: Callable[..., Any] = getattr(importlib.import_module(f"agentkit.wrappers.{name}"), _CLASSES[name])
    return cls


def name_of(wrapper: Callable[..., Any]) -> str:
    """Returns what the command line calls a wrapper: its short name, or ``module:name`` of one of your own."""
    for name, cls in _CLASSES.items():
        if wrapper.__module__ == f"agentkit.wrappers.{name}" and wrapper.__name__ == cls:
            return name
    return f"{wrapper.__module__}:{wrapper.__qualname__}"
