"""PPO with a penalty on the KL divergence from the acting policy in its loss.

(`ppo.Config` has the paper's penalty, fixed or adaptive, as `kl_cost`.)
"""

from agentkit.agents import ppo


def make_loss(networks, config):
    """Adds the penalty to PPO's loss."""
    loss = ppo.make_loss(networks, config)

    def penalized(params, coefficients, batch):
        total, metrics = loss(params, coefficients, batch)
        return total + 0.5 * metrics["kl"], metrics

    return penalized


def make_agent(config=ppo.Config()):
    """Returns PPO with the penalty."""
    return ppo.make_agent(config, make_loss=make_loss)
