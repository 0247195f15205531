"""MuJoCo Playground's environments (Zakka et al. 2025, 2502.08844). The one file that imports mujoco_playground."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from typing import Any

import dm_env

from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.foreign import BraxInterface, Settings
from agentkit.envs.jax.pooled import with_reset_pool
from agentkit.envs.prefixes import check_known, check_settings
from agentkit.errors import ConfigError, missing_extra

try:
    from mujoco_playground import registry
except ImportError as error:
    raise missing_extra("mujoco_playground", "playground") from error


def make(
    name: str, seed: int = 0, observed: str | None = "state", reset_pool: int | None = None, **settings: Any
) -> dm_env.Environment:
    """Makes one of MuJoCo Playground's environments, behind dm_env's interface.

    Args:
        name: as Playground has it, such as ``CartpoleBalance`` or ``Go1JoystickFlatTerrain``.
        seed: of the episodes.
        observed: the one observation that is given where there are several by name, as for a robot, whose
            ``privileged_state`` is for critics; None gives all, in a dict.
        reset_pool: see `base.JaxEnvironment`.
        **settings: of its config, such as ``episode_length=500``; of the configs in it as dicts, or by names with dots,
            such as ``reward_config.scales.energy=-0.1`` on the command line. Where it has `impl`, that is ``"jax"``
            unless it is given: Playground's own choice, ``"warp"``, needs CUDA, and evaluations run on a CPU.

    Raises:
        UnknownNameError: there is no such environment, or no such setting; proposes the nearest one.
        ConfigError: it is a robot, whose model cannot be downloaded; actions are to be repeated; or `episode_length` is
            no whole number of at least 1.
    """
    check_known("playground", name, registry.ALL_ENVS)
    config = registry.get_default_config(name)
    settings = _with_dots(settings)
    known = [setting for setting, value in _with_dots(config.to_dict()).items() if value != {}]
    check_settings(f"playground:{name}", settings, ["observed", "reset_pool", *known])
    if settings.get("action_repeat", 1) != 1:
        raise ConfigError(
            f"playground:{name}: action_repeat={settings['action_repeat']} would change nothing, since it is read by a "
            "wrapper of Playground's own training. Leave it out."
        )
    if "impl" in config:
        settings = {"impl": "jax", **settings}
    episode_length = settings.get("episode_length", config.episode_length)
    environment = BraxInterface(_build, (name, Settings(settings)), episode_length, observed)
    return DmEnvironment(with_reset_pool(environment, reset_pool), seed)


def _build(name: str, settings: Settings) -> Any:
    try:
        return registry.load(name, config_overrides=settings.values)
    except subprocess.CalledProcessError as error:
        raise ConfigError(
            f"playground:{name}: Playground gets the models of robots from MuJoCo Menagerie by git when one is first "
            "made, and could not. Make one where there is a network, then copy what it has put beside its own files."
        ) from error


def _with_dots(settings: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Returns settings in dicts under names with dots, as Playground takes them; an empty dict under its own."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inside = isinstance(value, Mapping) and value
        found |= _with_dots(value, f"{before}{name}.") if inside else {before + name: value}
    return found
