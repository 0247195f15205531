"""Actors: policies (pure) and the objects that make them act and record.

`PolicyActor` and `BatchedPolicyActor` act in their own process, and `RemoteActor` asks an `InferenceServer`.
Only those that compute load JAX, when they are first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agentkit.actors.remote import RemoteActor
from agentkit.actors.remote_protocol import InferenceClosedError

if TYPE_CHECKING:
    from agentkit.actors.actor import BatchedPolicyActor as BatchedPolicyActor
    from agentkit.actors.actor import PolicyActor as PolicyActor
    from agentkit.actors.epsilon_greedy import epsilon_greedy_policy as epsilon_greedy_policy
    from agentkit.actors.epsilon_greedy import epsilon_ladder_policy as epsilon_ladder_policy
    from agentkit.actors.epsilon_greedy import explore as explore
    from agentkit.actors.epsilon_greedy import linear as linear
    from agentkit.actors.exploration import noiseless as noiseless
    from agentkit.actors.exploration import noisy as noisy
    from agentkit.actors.inference_server import InferenceServer as InferenceServer
    from agentkit.actors.on_policy import Acting as Acting
    from agentkit.actors.on_policy import on_normalized as on_normalized
    from agentkit.actors.on_policy import stochastic as stochastic
    from agentkit.actors.policy import ActorIndex as ActorIndex
    from agentkit.actors.policy import Policy as Policy
    from agentkit.actors.policy import stateless_policy as stateless_policy
    from agentkit.actors.sampling import clipped_samples as clipped_samples
    from agentkit.actors.sampling import likeliest as likeliest
    from agentkit.actors.sampling import uniform_then_samples as uniform_then_samples

# No file has the name of what is in it: it would hide it once it is loaded.
_HOMES = {
    "BatchedPolicyActor": "actor",
    "PolicyActor": "actor",
    "InferenceServer": "inference_server",
    **dict.fromkeys(("ActorIndex", "Policy", "stateless_policy"), "policy"),
    **dict.fromkeys(("epsilon_greedy_policy", "epsilon_ladder_policy", "explore", "linear"), "epsilon_greedy"),
    **dict.fromkeys(("noiseless", "noisy"), "exploration"),
    **dict.fromkeys(("Acting", "on_normalized", "stochastic"), "on_policy"),
    **dict.fromkeys(("clipped_samples", "likeliest", "uniform_then_samples"), "sampling"),
}

__all__ = [
    "Acting",
    "ActorIndex",
    "BatchedPolicyActor",
    "InferenceClosedError",
    "InferenceServer",
    "Policy",
    "PolicyActor",
    "RemoteActor",
    "clipped_samples",
    "epsilon_greedy_policy",
    "epsilon_ladder_policy",
    "explore",
    "likeliest",
    "linear",
    "noiseless",
    "noisy",
    "on_normalized",
    "stateless_policy",
    "stochastic",
    "uniform_then_samples",
]


def __getattr__(name: str) -> Any:
    """Loads what needs JAX when it is first asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"agentkit.actors.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
