"""Environments written in JAX: pure functions, which the training on the device compiles with the agent.

`make` gives one as an ordinary dm_env environment, which is how every other mode uses it. JAX is loaded with the first
one that is made, not with this package.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import dm_env

from agentkit.core import MultiAgentEnvironment
from agentkit.envs.prefixes import IN_JAX_OF_SEVERAL_AGENTS
from agentkit.errors import unknown_name

_OWN = {
    "cartpole": "cartpole.CartPole",
    "catch": "catch.Catch",
    "memory_chain": "memory_chain.MemoryChain",
    "point_mass": "point_mass.PointMass",
}


def make(name: str, seed: int = 0, **kwargs: Any) -> dm_env.Environment:
    """Makes an environment in JAX by name, behind dm_env's interface.

    Args:
        name: what follows ``jax:``.
        seed: of the episodes.
        **kwargs: settings of the environment; and ``reset_pool``, see `base.JaxEnvironment`.

    Raises:
        UnknownNameError: there is no such environment, or no such setting; proposes the nearest one.
    """
    from agentkit.envs.jax.dm_environment import DmEnvironment  # Loads JAX.
    from agentkit.envs.jax.pooled import with_reset_pool

    if name not in _OWN:
        raise unknown_name("environment", f"jax:{name}", [f"jax:{known}" for known in _OWN])
    pool = kwargs.pop("reset_pool", None)
    return DmEnvironment(with_reset_pool(_make(name, _OWN[name], kwargs, ["reset_pool"]), pool), seed)


def make_multi_agent(name: str, seed: int = 0, **kwargs: Any) -> MultiAgentEnvironment:
    """Makes an environment of several agents in JAX by name, as an ordinary one.

    Args:
        name: what follows ``jax:``, of `IN_JAX_OF_SEVERAL_AGENTS`.
        seed: of the episodes.
        **kwargs: settings of the environment.

    Raises:
        UnknownNameError: there is no such setting; proposes the nearest one.
    """
    from agentkit.envs.jax.multi_agent_host import on_host  # Loads JAX.

    return on_host(_make(name, IN_JAX_OF_SEVERAL_AGENTS[name], kwargs, []), seed)


def _make(name: str, where: str, kwargs: dict[str, Any], others: list[str]) -> Any:
    """Returns an environment of a class; its settings may be called as its parameters, or as `others`."""
    module, attribute = where.split(".")
    cls = getattr(importlib.import_module(f"agentkit.envs.jax.{module}"), attribute)
    known = [*inspect.signature(cls).parameters, *others]
    for key in kwargs:
        if key not in known:
            raise unknown_name(f"setting of jax:{name}", key, known)
    return cls(**kwargs)
