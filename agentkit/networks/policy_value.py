"""Policy and value of agents that sample their actions: networks with and without a memory, behind one interface.

Actors step them and carry their state along, which is stored with each action; learners look at each row alone, or
unroll segments from the state that the actor had at their first row. Without a memory the state is ``()``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.networks.mlp import orthogonal_mlp, torso
from agentkit.networks.network import PolicyCritic, make_network
from agentkit.networks.policy_heads import Sampled, check_policy_actions, policy_head, sample_to_action, sampled_spec
from agentkit.networks.recurrent import RecurrentNetwork, hidden_layers, recurrent_network, state_spec, without_memory
from agentkit.types import Array, Nest, Step


class Memory(NamedTuple):
    """What networks with a memory need of segments, beside the observations.

    Attributes:
        start_of_episode: where it begins anew, bool ``[B, T]``.
        core: the networks' state before the first rows, ``[B, ...]``.
    """

    start_of_episode: Array
    core: Nest


class PolicyValue(NamedTuple):
    """Policy and value for an environment.

    Attributes:
        network: its outputs are (distribution, value ``[B]``); the distribution is a `Categorical`, a
            `DiagonalNormal`, or a `Joint` of these.
        to_action: a sample of the distribution, without a batch axis, as the environment takes it.
        observation_spec: nest of the observations' specs.
        sampled_spec: what is stored with an action, a `Sampled` of specs.
    """

    network: RecurrentNetwork
    to_action: Callable[[Any], Nest]
    observation_spec: Nest
    sampled_spec: Sampled

    @property
    def init(self) -> Callable[[jax.Array], Any]:
        """``key -> params``."""
        return self.network.init

    @property
    def has_memory(self) -> bool:
        """Whether what they say of a row depends on those before it."""
        return bool(jax.tree.leaves(self.network.initial_state))

    def apply(self, params: Any, observation: Nest, memory: Memory | None = None) -> tuple[Any, Array]:
        """(distribution, value) of observations: of rows ``[B, ...]``, or with `memory` of segments ``[B, T, ...]``."""
        if memory is None:
            return self.network.step(params, observation, ())[0]
        return self.network.unroll(params, observation, memory.start_of_episode, memory.core)[0]


def stored_memory(segments: Step) -> Memory:
    """Where the episodes of segments ``[B, T, ...]`` start, and the states that were stored with their first rows."""
    return Memory(jnp.asarray(segments.start_of_episode), jax.tree.map(lambda x: x[:, 0], segments.extras.core))


def policy_value(
    environment_spec: specs.EnvironmentSpec, hidden_sizes: Sequence[int], initial_std: float
) -> PolicyValue:
    """Tanh layers for the policy and others for the value, behind one torso.

    Args:
        environment_spec: of the environment.
        hidden_sizes: units of each layer.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.

    Raises:
        SpecError: actions that `policy_head` is not for.
    """

    def heads(features: Array, observation: Nest) -> tuple[Any, Array]:
        value = orthogonal_mlp(features, hidden_sizes, 1, activation=jnp.tanh)[:, 0]
        actions = environment_spec.actions
        return policy_head(features, actions, hidden_sizes, initial_std, observation), value

    return _of(environment_spec, recurrent_network(torso, heads, None, environment_spec.observations))


def recurrent_policy_value(
    environment_spec: specs.EnvironmentSpec,
    hidden_sizes: Sequence[int],
    initial_std: float,
    core_size: int | None,
    torso: Callable[[Nest], Array] = torso,
) -> PolicyValue:
    """ReLU layers and an LSTM that policy and value share; both are linear in what it says.

    Args:
        environment_spec: of the environment.
        hidden_sizes: units of each layer.
        initial_std: as for `policy_value`.
        core_size: units of the LSTM; None for none, and no memory.
        torso: from observations ``[B, ...]`` to features ``[B, F]``, before the ReLU layers.

    Raises:
        SpecError: actions that `policy_head` is not for.
        ConfigError: a core of less than one unit.
    """

    def trunk(observation: Nest) -> Array:
        return hidden_layers(observation, hidden_sizes, torso)

    def heads(features: Array, observation: Nest) -> tuple[Any, Array]:
        value = orthogonal_mlp(features, (), 1)[:, 0]
        return policy_head(features, environment_spec.actions, (), initial_std, observation), value

    return _of(environment_spec, recurrent_network(trunk, heads, core_size, environment_spec.observations))


def independent_policy_value(
    environment_spec: specs.EnvironmentSpec, hidden_sizes: Sequence[int], initial_std: float
) -> PolicyValue:
    """As `policy_value`, but that policy and value share nothing, so that one can learn and leave the other as it is.

    Their parameters are an `PolicyCritic`, whose critic is the value network. Arguments are those of `policy_value`.

    Raises:
        SpecError: actions that `policy_head` is not for.
    """

    def distribution(observation: Nest) -> Any:
        actions = environment_spec.actions
        return policy_head(torso(observation), actions, hidden_sizes, initial_std, observation)

    def value(observation: Nest) -> Array:
        return orthogonal_mlp(torso(observation), hidden_sizes, 1, activation=jnp.tanh)[:, 0]

    both = PolicyCritic(*(make_network(function, environment_spec.observations) for function in (distribution, value)))

    def init(key: jax.Array) -> PolicyCritic:
        policy_key, value_key = jax.random.split(key)
        return PolicyCritic(both.policy.init(policy_key), both.critic.init(value_key))

    def apply(params: PolicyCritic, observation: Nest) -> tuple[Any, Array]:
        return both.policy.apply(params.policy, observation), both.critic.apply(params.critic, observation)

    return _of(environment_spec, without_memory(init, apply))


def _of(environment_spec: specs.EnvironmentSpec, network: RecurrentNetwork) -> PolicyValue:
    actions = environment_spec.actions
    check_policy_actions(actions, "A policy-gradient agent")
    stored = sampled_spec(actions)._replace(core=state_spec(network))
    return PolicyValue(network, sample_to_action(actions), environment_spec.observations, stored)
