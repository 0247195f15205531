"""Gradients from elsewhere: an update for a learner whose actors differentiate."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.learning.optimizers import global_norm
from agentkit.learning.update import Update, UpdateOutput
from agentkit.types import Nest, Params, ReplaySample


def apply_gradients(update: Update) -> Update:
    """Makes `update` apply gradients that others computed, as actors do in A3C (Mnih et al. 2016).

    A batch's data have the structure of the parameters, ``[B, ...]``; their mean is one step.

    Raises:
        ConfigError: `update` cannot take gradients from outside.
    """
    apply = update.apply
    if apply is None:
        raise ConfigError(
            "This update keeps its gradients to itself. Expected one of `sgd` without a target network, or an `Update` "
            "with `gradient` and `apply`, which one that normalises by running statistics has not."
        )

    def step(state: Nest, batch: ReplaySample[Params]) -> tuple[Nest, UpdateOutput]:
        grads = jax.tree.map(lambda grad: jnp.mean(grad, axis=0), batch.data)
        return apply(state, grads), UpdateOutput({"grad_norm": global_norm(grads)})

    return Update(update.init, step, update.variables)
