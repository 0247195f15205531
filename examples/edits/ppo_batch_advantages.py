"""PPO whose advantages are normalised once in the whole batch, not in each minibatch."""

import dataclasses

from agentkit.agents import ppo


def make_agent(config=ppo.Config()):
    """Returns PPO with that normalisation."""
    return ppo.make_agent(dataclasses.replace(config, normalize_advantages="batch"))
