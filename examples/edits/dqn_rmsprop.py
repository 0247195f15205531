"""DQN with the paper's optimiser, RMSProp."""

import optax

from agentkit.agents import dqn


def make_update(network, loss, config):
    """Takes a step of RMSProp at each update."""
    return dqn.make_update(network, loss, config, optax.rmsprop(2.5e-4, decay=0.95))


def make_agent(config=dqn.Config()):
    """Returns DQN with RMSProp."""
    return dqn.make_agent(config, make_update=make_update)
