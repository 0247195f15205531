"""Another loss of SAC's temperature: the paper's, of the temperature itself and not of its logarithm."""

import jax.numpy as jnp

from agentkit.agents import sac
from agentkit.types import LossOutput


def make_losses(networks, config):
    """Replaces the temperature's loss, of an entropy that the policy's loss has found."""
    losses = sac.make_losses(networks, config)

    def temperature_loss(log_alpha, state, batch, entropy):
        return LossOutput(jnp.exp(log_alpha) * (entropy + networks.action_shape[0]), {})

    return losses._replace(temperature=temperature_loss)


def make_agent(config=sac.Config()):
    """Returns SAC with that loss."""
    return sac.make_agent(config, make_losses=make_losses)
