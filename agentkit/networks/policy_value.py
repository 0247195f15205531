"""Networks of policy and value, with and without a memory, behind one interface.

Actors step them and carry their state along, which is stored with each action; learners look at each row alone, or
unroll segments from the state that the actor had at their first row. Without a memory the state is ``()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.networks.cores import Core
from agentkit.networks.distributions import Distribution
from agentkit.networks.mlp import orthogonal_mlp
from agentkit.networks.network import PolicyCritic, make_network
from agentkit.networks.policy_heads import (
    PolicyExtras,
    check_policy_actions,
    policy_extras_spec,
    policy_head,
    sample_to_action,
)
from agentkit.networks.recurrent import RecurrentNetwork, as_recurrent, hidden_layers, recurrent_network, state_spec
from agentkit.networks.torsos import Torso, torso
from agentkit.types import Array, Nest, Params, Step


class Memory(NamedTuple):
    """Holds the data of segments, beside the observations, that networks with a memory need.

    Attributes:
        start_of_episode: where it begins anew, bool ``[B, T]``.
        core: the networks' state before the first rows, ``[B, ...]``.
    """

    start_of_episode: Array
    core: Nest


class PolicyValue(NamedTuple):
    """Holds networks of policy and value for an environment.

    Attributes:
        network: its outputs are (distribution, value ``[B]``); the distribution is a `Categorical`, a
            `DiagonalNormal`, or a `Joint` of these.
        to_action: a sample of the distribution, without a batch axis, as the environment takes it.
        observation_spec: nest of the observations' specs.
        extras_spec: specs of the policy's `PolicyExtras`.
    """

    network: RecurrentNetwork
    to_action: Callable[[Any], Nest]
    observation_spec: Nest
    extras_spec: PolicyExtras

    @property
    def init(self) -> Callable[[jax.Array], Params]:
        """Returns the initialiser, ``key -> params``."""
        return self.network.init

    @property
    def has_memory(self) -> bool:
        """Returns whether the outputs at a row depend on the rows before it."""
        return bool(jax.tree.leaves(self.network.initial_state))

    def apply(self, params: Params, observation: Nest, memory: Memory | None = None) -> tuple[Distribution, Array]:
        """Returns (distribution, value) of rows ``[B, ...]``, or with a `memory` of segments ``[B, T, ...]``."""
        if memory is None:
            return self.network.step(params, observation, ())[0]
        return self.network.unroll(params, observation, memory.start_of_episode, memory.core)[0]


def stored_memory(segments: Step) -> Memory:
    """Returns the episodes' starts in segments ``[B, T, ...]`` and the states stored with their first rows."""
    return Memory(jnp.asarray(segments.start_of_episode), jax.tree.map(lambda x: x[:, 0], segments.extras.core))


def policy_value(
    environment_spec: specs.EnvironmentSpec, hidden_sizes: Sequence[int], initial_std: float, torso: Torso = torso
) -> PolicyValue:
    """Builds tanh layers for the policy and others for the value, behind one torso.

    Args:
        environment_spec: of the environment.
        hidden_sizes: units of each layer.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
        torso: from observations ``[B, ...]`` to features ``[B, F]``.

    Raises:
        SpecError: actions that `policy_head` is not for.
    """

    def heads(features: Array, observation: Nest) -> tuple[Distribution, Array]:
        value = orthogonal_mlp(features, hidden_sizes, 1, activation=jnp.tanh)[:, 0]
        actions = environment_spec.actions
        return policy_head(features, actions, hidden_sizes, initial_std, observation), value

    return _from_recurrent(environment_spec, recurrent_network(torso, heads, None, environment_spec.observations))


def recurrent_policy_value(
    environment_spec: specs.EnvironmentSpec,
    hidden_sizes: Sequence[int],
    initial_std: float,
    core_size: int | None,
    torso: Torso = torso,
    core: Core = "lstm",
) -> PolicyValue:
    """Builds ReLU layers and a memory that policy and value share, with a linear head each.

    Args:
        environment_spec: of the environment.
        hidden_sizes: units of each layer.
        initial_std: as for `policy_value`.
        core_size: units of the memory; None for none.
        torso: from observations ``[B, ...]`` to features ``[B, F]``, before the ReLU layers.
        core: the kind of memory, as `recurrent_network` takes it.

    Raises:
        SpecError: actions that `policy_head` is not for.
        ConfigError: a memory of less than one unit, or one whose heads do not divide its units.
        UnknownNameError: there is no such kind.
    """

    def trunk(observation: Nest) -> jax.Array:
        return hidden_layers(observation, hidden_sizes, torso)

    def heads(features: Array, observation: Nest) -> tuple[Distribution, Array]:
        value = orthogonal_mlp(features, (), 1)[:, 0]
        return policy_head(features, environment_spec.actions, (), initial_std, observation), value

    return _from_recurrent(
        environment_spec, recurrent_network(trunk, heads, core_size, environment_spec.observations, core)
    )


def separate_policy_value(
    environment_spec: specs.EnvironmentSpec, hidden_sizes: Sequence[int], initial_std: float, torso: Torso = torso
) -> PolicyValue:
    """Builds tanh layers for policy and value that share nothing, so that one can learn and leave the other as it is.

    Their parameters are a `PolicyCritic`, whose critic is the value network. Arguments are those of `policy_value`.

    Raises:
        SpecError: actions that `policy_head` is not for.
    """

    def distribution(observation: Nest) -> Distribution:
        actions = environment_spec.actions
        return policy_head(torso(observation), actions, hidden_sizes, initial_std, observation)

    def value(observation: Nest) -> jax.Array:
        return orthogonal_mlp(torso(observation), hidden_sizes, 1, activation=jnp.tanh)[:, 0]

    both = PolicyCritic(*(make_network(function, environment_spec.observations) for function in (distribution, value)))

    def init(key: jax.Array) -> PolicyCritic:
        policy_key, value_key = jax.random.split(key)
        return PolicyCritic(both.policy.init(policy_key), both.critic.init(value_key))

    def apply(params: PolicyCritic, observation: Nest) -> tuple[Distribution, Array]:
        return both.policy.apply(params.policy, observation), both.critic.apply(params.critic, observation)

    return _from_recurrent(environment_spec, as_recurrent(init, apply))


def _from_recurrent(environment_spec: specs.EnvironmentSpec, network: RecurrentNetwork) -> PolicyValue:
    """Returns a network of policy and value with what actors need to use it."""
    actions = environment_spec.actions
    check_policy_actions(actions, "A policy-gradient agent")
    stored = policy_extras_spec(actions)._replace(core=state_spec(network))
    return PolicyValue(network, sample_to_action(actions), environment_spec.observations, stored)
