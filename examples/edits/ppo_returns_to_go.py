"""Other advantages in PPO: returns to go, less the values."""

import jax
import jax.numpy as jnp

from agentkit.agents import ppo


def estimate_advantages(segments, config):
    """Returns the advantages ``[B, T]``; a row without an action ends an episode, and its value is bootstrapped."""

    def add(later, row):
        found = jnp.where(row.mask > 0, row.reward + row.discount * later, row.values)
        return found, found

    values = segments.values[:, :-1]
    rows = jax.tree.map(jnp.transpose, segments._replace(values=values))
    _, returns = jax.lax.scan(add, segments.values[:, -1], rows, reverse=True)
    return returns.T - values


def make_agent(config=ppo.Config()):
    """Returns PPO with these advantages."""
    return ppo.make_agent(config, estimate_advantages=estimate_advantages)
