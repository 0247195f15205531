"""Another optimiser for DQN: the paper's RMSProp."""

import functools

import optax

from agentkit.agents import dqn


def make_agent(config=dqn.Config()):
    """Returns DQN with RMSProp."""
    return dqn.make_agent(config, optimizer=functools.partial(optax.rmsprop, 2.5e-4, decay=0.95))
