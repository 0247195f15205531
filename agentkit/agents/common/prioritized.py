"""The mean of a loss over a batch, corrected where replay is prioritised (Schaul et al. 2016)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.agents.common.experience import ReplayConfig
from agentkit.learning import value_in_update
from agentkit.types import LossOutput, Nest, ReplaySample

PRIORITY_EPSILON = 1e-6
"""Added to an item's error to make its priority, so that it can be drawn again at an error of 0 (decision 54)."""


def importance_weights(probability: jax.Array, table_size: jax.Array, exponent: jax.Array | float) -> jax.Array:
    """Returns the weights ``[B]`` that undo the bias of prioritised sampling (Schaul et al. 2016, section 3.4).

    (N P(i))^-beta, divided by the largest in the batch so that they only scale updates down.

    Args:
        probability: P(i), ``[B]``.
        table_size: N, ``[B]``.
        exponent: beta; 1 undoes the bias in full, 0 not at all.
    """
    weights = (probability * table_size) ** -exponent
    return weights / jnp.max(weights)


def importance_weighted_loss(
    per_item: jax.Array,
    metrics: dict[str, jax.Array],
    batch: ReplaySample[Nest],
    config: ReplayConfig,
    priorities: jax.Array | None = None,
) -> LossOutput:
    """Averages per-item losses, importance-weighted and with new priorities if replay is prioritised.

    Priorities are clipped at 0 (a divergence of nearly 0 may be negative in float32) and raised by
    `PRIORITY_EPSILON`, so that no item is never drawn again (Schaul et al. 2016, section 3.3).

    Args:
        per_item: losses ``[B]``.
        metrics: scalars to log.
        batch: what `per_item` is the loss of.
        config: says whether replay is prioritised.
        priorities: new priorities of the items ``[B]``, such as absolute errors; None for `per_item`.
    """
    if not config.prioritized:
        return LossOutput(jnp.mean(per_item), metrics)
    info = batch.info
    exponent = value_in_update(config.importance_exponent, batch)
    weights = importance_weights(info.probability, info.table_size, exponent)
    priorities = jnp.maximum(per_item if priorities is None else priorities, 0.0) + PRIORITY_EPSILON
    return LossOutput(jnp.mean(weights * per_item), metrics, priorities)
