"""The steps that an actor has taken, as the state of a policy that changes with them.

A count is one array, int32 ``[2]``: the steps of all environments of the actor together, and how many these are, each
of which takes one more at every call (decision 56). As two arrays, or as an object, it made a small network's action
10 % slower. What passes `MOST_STEPS` stays there: schedules by steps have long ended by then.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from agentkit.counting import MOST_STEPS
from agentkit.types import Array


def no_steps(key: Any) -> Array:
    """Returns the count of an actor of one environment that has taken no step."""
    del key
    return jnp.array([0, 1], jnp.int32)


def count_from(count: Array, num_steps: Any, num_envs: int) -> Array:
    """Returns the count of an actor whose `num_envs` environments have taken `num_steps` together."""
    more = jnp.minimum(num_steps, MOST_STEPS - count[0])
    return jnp.stack([count[0] + more, jnp.asarray(num_envs, jnp.int32)])


def steps_taken(count: Array) -> Array:
    """Returns the steps of all environments together, int32 ``[]``."""
    return count[0]


def count_one_more(count: Array) -> Array:
    """Returns the count after one more step of each environment."""
    more = jnp.minimum(count[1], MOST_STEPS - count[0])
    return count + more * jnp.array([1, 0], jnp.int32)  # One fused operation; `count.at[0].add` is two.
