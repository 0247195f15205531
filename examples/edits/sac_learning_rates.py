"""SAC with a learning rate each for policy, critics and temperature."""

from functools import partial

from agentkit.agents import sac
from agentkit.learning import adam


def make_agent(config=sac.Config()):
    """Returns SAC with these learning rates."""
    rates = {"policy": partial(adam, 1e-4), "critic": partial(adam, 1e-3), "temperature": partial(adam, 3e-5)}
    return sac.make_agent(config, optimizer=rates)
