"""SAC with a model of rewards beside it, which has parameters and an optimiser of its own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit.agents import sac
from agentkit.learning import Update, adam, optimizer_step


class State(NamedTuple):
    """Holds the training state of SAC, and the model."""

    sac: sac.State
    model: Any
    opt_state: Any


def make_update(networks, losses, config):
    """Takes SAC's update, and a step of the model on the squared error of its rewards."""
    inner, optimizer = sac.make_update(networks, losses, config), adam(1e-3)

    def init(key):
        model = networks.critic.init(jax.random.fold_in(key, 1))  # Its form fits: observation, action -> a number.
        return State(inner.init(key), model, optimizer.init(model))

    def update(state, batch):
        def error(model):
            predicted = networks.critic.apply(model, batch.data.observation, batch.data.action)
            return jnp.mean(jnp.square(predicted - batch.data.reward))

        learned, output = inner.update(state.sac, batch)
        loss, grads = jax.value_and_grad(error)(state.model)
        model, opt_state = optimizer_step(optimizer, grads, state.model, state.opt_state)
        return State(learned, model, opt_state), output._replace(metrics={**output.metrics, "model_loss": loss})

    return Update(init, update, lambda state: inner.variables(state.sac))


def make_agent(config=sac.Config()):
    """Returns SAC with the model."""
    return sac.make_agent(config, make_update=make_update)
