"""What agents share whose policy and value can have a memory: networks, acting, what is stored with an action.

Policy and value are linear in what one LSTM says. Actors carry its state along and store it with each action; a learner
unrolls the network over a segment from the state of its first row. Without a core_size there is no LSTM and no state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.types import Nest


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        network: its outputs are (distribution, value ``[B]``); the distribution is a `networks.Categorical`, a
            `networks.DiagonalNormal`, or a `networks.Joint` of these.
        to_action: a sample of the distribution, without a batch axis, as the environment takes it.
        observation_spec: nest of the observations' specs.
    """

    network: nets.RecurrentNetwork
    to_action: Callable[[jax.Array], jax.Array]
    observation_spec: Nest

    @property
    def init(self) -> Callable[[jax.Array], Any]:
        """``key -> params``."""
        return self.network.init


class Extras(NamedTuple):
    """What is stored with an action.

    Attributes:
        sampled: what was drawn, and with which probability.
        core: the network's state before it saw the observation.
    """

    sampled: nets.Sampled
    core: Nest


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Any, torso: Callable[[Nest], jax.Array] = nets.torso
) -> Networks:
    """Policy and value for an environment of one discrete, or of one bounded continuous action.

    Args:
        environment_spec: of the environment.
        config: its `hidden_sizes` are of ReLU layers before the LSTM, its `core_size` is the LSTM's (None for none),
            its `initial_std` that of continuous actions.
        torso: from observations ``[B, ...]`` to features ``[B, F]``, before the ReLU layers.
    """
    actions = environment_spec.actions
    nets.check_policy_actions(actions, "A policy-gradient agent")

    def trunk(observation: Nest) -> jax.Array:
        return nets.hidden_layers(observation, config.hidden_sizes, torso)

    def head(features: jax.Array, observation: Nest) -> tuple[Any, jax.Array]:
        value = nets.orthogonal_mlp(features, (), 1)[:, 0]
        return nets.policy_head(features, actions, (), config.initial_std, observation), value

    network = nets.recurrent_network(trunk, head, config.core_size, environment_spec.observations)
    return Networks(network, nets.sample_to_action(actions), environment_spec.observations)


def extras_spec(environment_spec: specs.EnvironmentSpec, networks: Networks) -> Extras:
    """The specs of what the policy emits."""
    return Extras(nets.sampled_spec(environment_spec.actions), nets.state_spec(networks.network))


def make_policy(networks: Networks, config: Any, evaluation: bool = False) -> Policy:
    """Samples the policy; in evaluation takes its mode. Its state is the network's, anew in each episode."""
    del config
    network = networks.network

    def act(params: Any, key: jax.Array, observation: Nest, core: Nest) -> tuple[Nest, Nest, Nest]:
        (distribution, _), next_core = nets.step_one(network, params, observation, core)
        if evaluation:
            return networks.to_action(distribution.mode()), next_core, ()
        sample = distribution.sample(key)
        extras = Extras(nets.Sampled(sample, distribution.log_prob(sample)), core)
        return networks.to_action(sample), next_core, extras

    return Policy(act, init=lambda key: network.initial_state, reset=lambda core: network.initial_state)
