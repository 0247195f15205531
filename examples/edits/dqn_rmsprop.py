"""DQN with the paper's optimiser, RMSProp."""

import optax

from agentkit.agents import dqn
from agentkit.learning import periodic, sgd


def make_update(network, loss, config):
    """Takes a step of RMSProp at each update."""
    return sgd(loss, network.init, optax.rmsprop(2.5e-4, decay=0.95), periodic(config.target_update_period))


def make_agent(config=dqn.Config()):
    """Returns DQN with RMSProp."""
    return dqn.make_agent(config, make_update=make_update)
