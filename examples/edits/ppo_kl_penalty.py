"""PPO with a penalty on the KL divergence from the acting policy in its loss.

(`ppo.Config` has the paper's penalty, fixed or adaptive, as `kl_cost`.)
"""

from agentkit.agents import ppo


def make_loss(networks, config):
    """Adds the penalty to PPO's loss."""
    loss = ppo.make_loss(networks, config)

    def penalized(params, state, batch, key):
        output = loss(params, state, batch, key)
        return output._replace(loss=output.loss + 0.5 * output.metrics["kl"])

    return penalized


def make_agent(config=ppo.Config()):
    """Returns PPO with the penalty."""
    return ppo.make_agent(config, make_loss=make_loss)
