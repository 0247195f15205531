"""Rewards of an add-on's own: the steps of a batch, of transitions or of segments, and their new rewards."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, final

import jax
import jax.numpy as jnp

from agentkit import losses  # Loads rlax when one is used.
from agentkit.actors import Policy
from agentkit.agents.common.agent import Agent, PolicyOf
from agentkit.errors import ConfigError
from agentkit.specs import EnvironmentSpec
from agentkit.types import Array, Nest, Step, Transition, has_action

AgentNetworks = TypeVar("AgentNetworks")


class Steps(NamedTuple):
    """Holds the steps of a batch, leaves ``[N, ...]``.

    Attributes:
        observation: o_t.
        action: a_t.
        reward: r_{t+1}, or the n-step sum.
        next_observation: the observation that the step led to, or the last of the n.
        mask: 0 for rows of segments without an action, else 1, ``[N]``; None where all have one.
    """

    observation: Nest
    action: Nest
    reward: Array
    next_observation: Nest
    mask: Array | None


def steps_of(data: Transition | Step) -> Steps:
    """Returns the steps of a batch of `Transition`s ``[N, ...]``, or of segments or sequences ``[B, T + 1, ...]``.

    Raises:
        ConfigError: it is a batch of something else.
    """
    if isinstance(data, Transition):
        return Steps(data.observation, data.action, data.reward, data.next_observation, None)
    if not isinstance(data, Step):
        raise ConfigError(
            "RND, GAIL and normalisation change batches of `Transition`s, as DQN learns from, or of segments of "
            f"`Step`s, as PPO does; found batches of `{type(data).__name__}`s."
        )
    before, after = (jax.tree.map(lambda x, s=s: _merge(x[:, s]), data) for s in (slice(-1), slice(1, None)))
    mask = _merge(has_action(data.start_of_episode))
    return Steps(before.observation, before.action, before.reward, after.observation, mask)


def with_rewards(data: Transition | Step, reward: Array) -> Transition | Step:
    """Returns a batch with other rewards; rows of segments without an action get none.

    Args:
        data: as for `steps_of`.
        reward: of each of its steps ``[N]``.
    """
    if isinstance(data, Transition):
        return data._replace(reward=reward)
    mask = has_action(data.start_of_episode)  # [B, T]
    rewards = jnp.where(mask > 0, reward.reshape(mask.shape), 0.0)
    return data._replace(reward=jnp.pad(rewards, ((0, 0), (0, 1))))  # The last row is only bootstrapped from.


def updates_of(agent: Agent[Any]) -> Iterator[Any]:
    """Yields what makes an agent's update: the outermost add-on's, then what that is around, and so on."""
    part: Any = agent.make_update
    while part is not None:
        yield part
        part = getattr(part, "make_update", None)


def mean(x: Array, mask: Array | None) -> Array:
    """Returns the mean ``[]`` of `x` ``[N]`` where there is an action."""
    return jnp.mean(x) if mask is None else losses.masked_mean(x, mask)


def _merge(x: Array) -> Array:
    return jnp.asarray(x).reshape(-1, *x.shape[2:])


class Networks(NamedTuple, Generic[AgentNetworks]):
    """Holds the agent's networks, and the specs that an add-on's own networks need."""

    agent: AgentNetworks
    environment_spec: EnvironmentSpec


@final
@dataclasses.dataclass(frozen=True)
class MakeNetworks(Generic[AgentNetworks]):
    """Makes the agent's networks and keeps the specs."""

    make_networks: Callable[[EnvironmentSpec], AgentNetworks]

    def __call__(self, environment_spec: EnvironmentSpec) -> Networks[AgentNetworks]:
        """Returns both."""
        return Networks(self.make_networks(environment_spec), environment_spec)


@final
@dataclasses.dataclass(frozen=True)
class MakePolicy(Generic[AgentNetworks]):
    """Makes the agent's policy of `Networks`."""

    make_policy: PolicyOf[AgentNetworks]

    def __call__(self, networks: Networks[AgentNetworks], evaluation: bool = False) -> Policy:
        """Returns the agent's policy."""
        return self.make_policy(networks.agent, evaluation)
