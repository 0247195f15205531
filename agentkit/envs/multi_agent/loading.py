"""Makes environments of several agents: by name, or of what was handed in."""

from __future__ import annotations

import importlib
import inspect
import sys
from typing import Any

import dm_env

from agentkit.core import MultiAgentEnvironment
from agentkit.envs import given
from agentkit.envs.jax.multi_agent_base import JaxMultiAgentEnvironment
from agentkit.envs.prefixes import OF_SEVERAL_AGENTS, check_settings, module_of, own_class, split_several
from agentkit.errors import ConfigError, SpecError


def make_multi_agent(environment: Any, /, seed: int = 0, *, raw: bool = False, **settings: Any) -> Any:
    """Makes an environment of several agents, ready for agents.

    Args:
        environment: ``agentkit:tic_tac_toe``, ``agentkit:matrix_game`` and the like, ``pettingzoo:FAMILY/NAME`` such
            as ``pettingzoo:classic/tictactoe_v3``, ``openspiel:NAME``, ``jax:connect_four``, ``jaxmarl:NAME``,
            ``pgx:NAME``, or one of these behind ``agent_ids:``; or a class, a function or an instance (which is copied)
            of a `core.MultiAgentEnvironment`, of PettingZoo's kinds, of OpenSpiel's games, of a
            `envs.jax.multi_agent_base.JaxMultiAgentEnvironment`, or of a dm_env or gymnasium environment of one agent,
            whose id is "agent".
        seed: seeds everything; the same seed gives the same episodes for the same actions.
        raw: True gives it behind the interface only; False (the default) with actions in [-1, 1], single precision, and
            `save`/`restore` in mid-episode where it has `reseed`.
        **settings: go to the environment.

    Returns:
        A `core.MultiAgentEnvironment`.

    Raises:
        UnknownNameError: for an unknown name, with the nearest match.
        MissingExtraError: PettingZoo, OpenSpiel, or what the environment needs, is not installed.
        ConfigError: it takes no such setting, needs others, or is an instance that cannot be copied.
        SpecError: what was handed in makes no such environment.
    """
    made = _adapted(_make(environment, seed, settings), seed)
    if raw or getattr(made, "resumable", False):
        return made
    from agentkit.envs.multi_agent.preparing import PreparedEnvironment
    from agentkit.envs.multi_agent.resumable import ResumableMultiAgentEnvironment

    made = PreparedEnvironment(made)
    return ResumableMultiAgentEnvironment(made, seed) if hasattr(made, "reseed") else made


def _make(environment: Any, seed: int, settings: dict[str, Any]) -> Any:
    if isinstance(environment, str):
        prefix, rest = split_several(environment)
        if prefix == "jax":
            return importlib.import_module("agentkit.envs.jax").make_multi_agent(rest, seed, **settings)
        if prefix in OF_SEVERAL_AGENTS:
            return importlib.import_module(module_of(environment)).make(rest, seed, **settings)
        own = own_class(rest)
        check_settings(environment, settings, set(inspect.signature(own).parameters) - {"seed"})
        return own(seed=seed, **settings)
    if isinstance(environment, type) or (callable(environment) and not hasattr(environment, "step")):
        return given.called(environment, seed, settings)
    if settings:
        raise ConfigError(f"environment_settings: an instance takes none any more; found {', '.join(settings)}.")
    return given.copied(environment)


def _adapted(made: Any, seed: int) -> MultiAgentEnvironment:
    if isinstance(made, MultiAgentEnvironment):
        return made
    if isinstance(made, JaxMultiAgentEnvironment):
        from agentkit.envs.jax.multi_agent_host import on_host  # Loads JAX.

        return on_host(made, seed)
    if "pyspiel" in sys.modules and isinstance(made, sys.modules["pyspiel"].Game):
        from agentkit.envs.multi_agent.openspiel import OpenSpiel

        return OpenSpiel(made, seed)
    if "pettingzoo" in sys.modules:  # Else it cannot be one of its environments.
        from agentkit.envs.multi_agent.pettingzoo import adapt, is_pettingzoo

        if is_pettingzoo(made):
            return adapt(made, seed)
    if "gymnasium" in sys.modules and isinstance(made, sys.modules["gymnasium"].Env):
        from agentkit.envs.gymnasium import GymnasiumEnvironment

        made = GymnasiumEnvironment(made, seed)
    if isinstance(made, dm_env.Environment):
        from agentkit.envs.multi_agent.one_agent import OneAgentEnvironment

        return OneAgentEnvironment(made)
    raise SpecError(
        "Expected an environment of several agents (core.MultiAgentEnvironment, or PettingZoo's ParallelEnv or "
        f"AECEnv, a game of OpenSpiel's), or a dm_env or gymnasium environment of one; found {type(made).__name__}."
    )
