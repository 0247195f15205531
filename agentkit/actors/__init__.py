"""Actors: policies (pure) and the objects that make them act and record.

`PolicyActor`, `BatchedPolicyActor` and `ReadyPolicyActor` act in their own process, and `RemoteActor` asks an
`InferenceServer`. Each is loaded when it is first asked for, and `RemoteActor` needs no JAX (decision 25).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit.actors.actor import BatchedPolicyActor as BatchedPolicyActor
    from agentkit.actors.actor import PolicyActor as PolicyActor
    from agentkit.actors.compiled import CompiledPolicy as CompiledPolicy
    from agentkit.actors.epsilon_greedy import epsilon_greedy_policy as epsilon_greedy_policy
    from agentkit.actors.epsilon_greedy import epsilon_ladder_policy as epsilon_ladder_policy
    from agentkit.actors.epsilon_greedy import explore as explore
    from agentkit.actors.epsilon_greedy import fixed_epsilon_policy as fixed_epsilon_policy
    from agentkit.actors.gaussian_noise import deterministic_policy as deterministic_policy
    from agentkit.actors.gaussian_noise import gaussian_noise_policy as gaussian_noise_policy
    from agentkit.actors.inference_server import InferenceServer as InferenceServer
    from agentkit.actors.inference_server import ServedPolicy as ServedPolicy
    from agentkit.actors.on_policy import PolicyVariables as PolicyVariables
    from agentkit.actors.on_policy import stochastic_policy as stochastic_policy
    from agentkit.actors.on_policy import with_normalized_observations as with_normalized_observations
    from agentkit.actors.policy import ActorIndex as ActorIndex
    from agentkit.actors.policy import Policy as Policy
    from agentkit.actors.policy import stateless_policy as stateless_policy
    from agentkit.actors.ready import ReadyPolicyActor as ReadyPolicyActor
    from agentkit.actors.remote import InferenceClient as InferenceClient
    from agentkit.actors.remote import InferenceClosedError as InferenceClosedError
    from agentkit.actors.remote import RemoteActor as RemoteActor
    from agentkit.actors.sampling import clipped_gaussian_policy as clipped_gaussian_policy
    from agentkit.actors.sampling import mode_policy as mode_policy
    from agentkit.actors.sampling import sampling_policy as sampling_policy
    from agentkit.actors.sampling import uniform_action as uniform_action

# No module may share a name with what it exports: importing the module would shadow the export.
_HOMES = {
    "BatchedPolicyActor": "actor",
    "PolicyActor": "actor",
    "CompiledPolicy": "compiled",
    "ReadyPolicyActor": "ready",
    **dict.fromkeys(("InferenceServer", "ServedPolicy"), "inference_server"),
    **dict.fromkeys(("InferenceClient", "InferenceClosedError", "RemoteActor"), "remote"),
    **dict.fromkeys(("ActorIndex", "Policy", "stateless_policy"), "policy"),
    **dict.fromkeys(
        ("epsilon_greedy_policy", "epsilon_ladder_policy", "explore", "fixed_epsilon_policy"), "epsilon_greedy"
    ),
    **dict.fromkeys(("deterministic_policy", "gaussian_noise_policy"), "gaussian_noise"),
    **dict.fromkeys(("PolicyVariables", "with_normalized_observations", "stochastic_policy"), "on_policy"),
    **dict.fromkeys(("clipped_gaussian_policy", "mode_policy", "uniform_action", "sampling_policy"), "sampling"),
}

__all__ = [
    "ActorIndex",
    "BatchedPolicyActor",
    "CompiledPolicy",
    "InferenceClient",
    "InferenceClosedError",
    "InferenceServer",
    "Policy",
    "PolicyActor",
    "PolicyVariables",
    "ReadyPolicyActor",
    "RemoteActor",
    "ServedPolicy",
    "clipped_gaussian_policy",
    "deterministic_policy",
    "epsilon_greedy_policy",
    "epsilon_ladder_policy",
    "explore",
    "fixed_epsilon_policy",
    "gaussian_noise_policy",
    "mode_policy",
    "sampling_policy",
    "stateless_policy",
    "stochastic_policy",
    "uniform_action",
    "with_normalized_observations",
]


def __getattr__(name: str) -> Any:
    """Loads what needs JAX, or the wire, when it is first asked for."""
    if name in _HOMES:
        return getattr(importlib.import_module(f"agentkit.actors.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
