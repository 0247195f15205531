"""dm_env wrappers. Each keeps the difference between termination and truncation.

Wrappers go inside the resumable layer: ``envs.make(name, wrappers=[StepLimit, ...])``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentkit.wrappers import registry

if TYPE_CHECKING:
    from agentkit.wrappers.action_repeat import ActionRepeat as ActionRepeat
    from agentkit.wrappers.atari import AtariPreprocessing as AtariPreprocessing
    from agentkit.wrappers.base import EnvironmentWrapper as EnvironmentWrapper
    from agentkit.wrappers.bound_actions import BoundActions as BoundActions
    from agentkit.wrappers.canonical_actions import CanonicalActions as CanonicalActions
    from agentkit.wrappers.clip_reward import ClipReward as ClipReward
    from agentkit.wrappers.concat_observations import ConcatObservations as ConcatObservations
    from agentkit.wrappers.discretise import Discretise as Discretise
    from agentkit.wrappers.flatten_actions import FlattenActions as FlattenActions
    from agentkit.wrappers.frame_stack import FrameStack as FrameStack
    from agentkit.wrappers.hide import Hide as Hide
    from agentkit.wrappers.observation_action_reward import ObservationActionReward as ObservationActionReward
    from agentkit.wrappers.one_hot import OneHot as OneHot
    from agentkit.wrappers.pixels import Pixels as Pixels
    from agentkit.wrappers.reward_scale import RewardScale as RewardScale
    from agentkit.wrappers.single_precision import SinglePrecision as SinglePrecision
    from agentkit.wrappers.soft_horizon import SoftHorizon as SoftHorizon
    from agentkit.wrappers.step_limit import StepLimit as StepLimit
    from agentkit.wrappers.terminations_as_truncations import TerminationsAsTruncations as TerminationsAsTruncations
    from agentkit.wrappers.video import VideoRecorder as VideoRecorder

_MODULES = {"EnvironmentWrapper": "base"} | {cls: module for module, cls in registry.classes().items()}

__all__ = sorted(_MODULES)  # Their names are in the registry, once.


def __getattr__(name: str) -> Any:
    """Loads a wrapper when it is first used (PEP 562): some need packages of their own."""
    if name in _MODULES:
        return getattr(importlib.import_module(f"agentkit.wrappers.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'agentkit.wrappers' has no attribute {name!r}. It has: {', '.join(__all__)}")
