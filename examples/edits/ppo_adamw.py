"""Another optimiser for PPO: AdamW, whose learning rate is its own."""

import functools

import optax

from agentkit.agents import ppo


def make_agent(config=ppo.Config()):
    """Returns PPO with AdamW."""
    return ppo.make_agent(config, optimizer=functools.partial(optax.adamw, 3e-4))
