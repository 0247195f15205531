"""SAC with another term in its critics' loss: values are pulled towards 0."""

import jax.numpy as jnp

from agentkit.agents import sac


def make_losses(networks, config):
    """Adds a penalty on squared values to SAC's losses."""
    losses = sac.make_losses(networks, config)

    def critic_loss(critics, state, batch, key):
        output = losses.critic(critics, state, batch, key)
        q = networks.critic.apply(critics[0], batch.data.observation, batch.data.action)
        return output._replace(loss=output.loss + 1e-3 * jnp.mean(jnp.square(q)))

    return losses._replace(critic=critic_loss)


def make_agent(config=sac.Config()):
    """Returns SAC with that loss."""
    return sac.make_agent(config, make_losses=make_losses)
