"""SAC with a learning rate each for policy, critics and temperature."""

from agentkit.agents import sac
from agentkit.learning import adam


def make_update(networks, losses, config):
    """Builds SAC's update with three optimisers."""
    return sac.make_update(networks, losses, config, sac.Optimizers(adam(1e-4), adam(1e-3), adam(3e-5)))


def make_agent(config=sac.Config()):
    """Returns SAC with these learning rates."""
    return sac.make_agent(config, make_update=make_update)
