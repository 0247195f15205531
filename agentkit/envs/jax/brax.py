"""Brax's environments (Freeman et al. 2021, 2106.13281; github.com/google/brax). The one file that imports brax."""

from __future__ import annotations

from typing import Any

import dm_env

from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.foreign import BraxInterface, Settings, keywords_of
from agentkit.envs.jax.pooled import with_reset_pool
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import missing_extra

try:
    import brax.envs as brax_envs
except ImportError as error:
    raise missing_extra("brax", "brax") from error


def make(
    name: str, seed: int = 0, episode_length: int = 1000, reset_pool: int | None = None, **settings: Any
) -> dm_env.Environment:
    """Makes one of brax's environments, behind dm_env's interface.

    Args:
        name: as brax has it, such as ``ant`` or ``inverted_pendulum``.
        seed: of the episodes.
        episode_length: steps after which an episode is cut off.
        reset_pool: see `base.JaxEnvironment`.
        **settings: of its class, such as ``backend="mjx"`` or ``exclude_current_positions_from_observation=False``.

    Raises:
        UnknownNameError: there is no such environment, or no such setting; proposes the nearest one.
        ConfigError: `episode_length` is no whole number of at least 1.
    """
    known = brax_envs._envs  # The only list that brax has.
    check_known("brax", name, known)
    check_settings(
        f"brax:{name}", settings, ["episode_length", "reset_pool", *keywords_of(known[name], brax_envs.PipelineEnv)]
    )
    environment = BraxInterface(_build, (name, Settings(settings)), episode_length)
    return DmEnvironment(with_reset_pool(environment, reset_pool), seed)


def _build(name: str, settings: Settings) -> Any:
    return brax_envs.get_environment(name, **settings.values)
