"""The network of an agent that learns what each discrete action is worth."""

from __future__ import annotations

from collections.abc import Callable

from agentkit import specs
from agentkit.networks.network import Network, make_network
from agentkit.types import Array, Nest


def value_network(
    environment_spec: specs.EnvironmentSpec, agent: str, function: Callable[..., Array], *more_inputs: Nest
) -> Network:
    """Builds a network from observations to outputs for each discrete action.

    Args:
        environment_spec: of the environment.
        agent: who needs it, for the error.
        function: ``(observation [B, ...], num_actions, *more [B, ...]) -> outputs [B, ...]``, such as action values
            ``[B, A]``; uses Haiku modules.
        more_inputs: specs of what `function` takes beside the observation, without the batch axis.

    Raises:
        SpecError: actions that are not one discrete choice.
    """
    num_actions = specs.num_discrete_actions(environment_spec.actions, agent)

    def outputs(observation: Nest, *more: Array) -> Array:
        return function(observation, num_actions, *more)

    return make_network(outputs, environment_spec.observations, *more_inputs)
