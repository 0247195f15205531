"""Time steps as arrays: dm_env's, in compiled functions."""

from __future__ import annotations

from collections.abc import Mapping

import dm_env
import jax.numpy as jnp

from agentkit.types import FIRST, LAST, MID, AgentId, Array, Nest


def first_step(observation: Nest) -> dm_env.TimeStep:
    """Returns the time step with which an episode begins: reward 0 and discount 1, as in every batch."""
    return dm_env.TimeStep(jnp.int32(FIRST), jnp.float32(0.0), jnp.float32(1.0), observation)


def next_step(
    observation: Nest, reward: Array | float, terminated: Array | bool = False, truncated: Array | bool = False
) -> dm_env.TimeStep:
    """Returns the time step that follows an action.

    Args:
        observation: at an episode's end its final one.
        reward: ``[]``.
        terminated: whether nothing comes after it, bool ``[]``: then the discount is 0.
        truncated: whether the episode is cut off here, bool ``[]``.
    """
    is_last = jnp.logical_or(terminated, truncated)
    return dm_env.TimeStep(
        jnp.where(is_last, LAST, MID).astype(jnp.int32),
        jnp.asarray(reward, jnp.float32),
        1.0 - jnp.asarray(terminated, jnp.float32),
        observation,
    )


def first_step_of(observations: Mapping[AgentId, Nest]) -> dm_env.TimeStep:
    """Returns the time step with which an episode of several agents begins, see `JaxMultiAgentEnvironment`."""
    step = first_step(dict(observations))
    reward, discount = (dict.fromkeys(observations, each) for each in (step.reward, step.discount))
    return step._replace(reward=reward, discount=discount)


def next_step_of(
    observations: Mapping[AgentId, Nest],
    rewards: Mapping[AgentId, Array],
    terminated: Array | bool = False,
    truncated: Array | bool = False,
) -> dm_env.TimeStep:
    """Returns the time step that follows the actions of several agents, see `JaxMultiAgentEnvironment`.

    Args:
        observations: by agent id; at the episode's end final ones.
        rewards: ``[]`` by agent id.
        terminated: whether nothing comes after it for anybody, bool ``[]``: then all discounts are 0.
        truncated: whether the episode is cut off here, bool ``[]``.
    """
    step = next_step(dict(observations), 0.0, terminated, truncated)
    reward = {agent_id: jnp.asarray(rewards[agent_id], jnp.float32) for agent_id in observations}
    return step._replace(reward=reward, discount=dict.fromkeys(observations, step.discount))
