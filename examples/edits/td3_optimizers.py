"""Another optimiser for each loss of TD3."""

from functools import partial

import optax

from agentkit.agents import td3


def make_agent(config=td3.Config()):
    """Returns TD3 with Adam for its policy, and AdamW for its critics."""
    return td3.make_agent(config, optimizer={"policy": partial(optax.adam, 1e-4), "critic": partial(optax.adamw, 1e-3)})
