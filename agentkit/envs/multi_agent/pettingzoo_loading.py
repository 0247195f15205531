"""PettingZoo's environments by their names: finds them, makes them, and explains why one cannot be made.

The one file that imports pettingzoo, and mpe2, which has its family ``mpe``.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil
import re
from collections.abc import Callable
from typing import Any

from agentkit.errors import ConfigError, MissingExtraError, missing_extra, unknown_name

try:
    import pettingzoo
    from pettingzoo.env_registry.exceptions import FailedToImport
except ImportError as error:
    raise missing_extra("pettingzoo", "pettingzoo") from error

__all__ = ["load", "pettingzoo"]


def load(name: str, *, turns: bool | None = None, **kwargs: Any) -> Any:
    """Makes an environment of PettingZoo's registry, or of mpe2: a ``ParallelEnv`` or an ``AECEnv``.

    Args:
        name: the family and the environment, such as ``classic/tictactoe_v3`` or ``mpe/simple_spread_v3``.
        turns: whether agents act in turns, by PettingZoo's AEC interface; None where they cannot act together.
        **kwargs: of the environment, such as ``max_cycles=25``.

    Raises:
        UnknownNameError: there is no such environment.
        MissingExtraError: it needs a package that is not installed.
        ConfigError: it takes no such argument, or its agents can only act in turns.
    """
    makers = _find_mpe(name) if name.startswith("mpe/") else _find_registered(name)
    if turns is False and "parallel" not in makers:
        raise ConfigError(f"turns=False: agents of pettingzoo:{name} can only act in turns. Leave it out.")
    maker = makers["aec"] if turns or "parallel" not in makers else makers["parallel"]
    try:
        return maker(**kwargs)
    except (ImportError, FailedToImport) as error:
        lacks = getattr(error.__cause__, "name", None) or getattr(error, "name", None) or "a package"
        raise MissingExtraError(
            f"pettingzoo:{name} needs {lacks!r}, which is not installed. Install it with: pip install "
            f"'pettingzoo[{name.partition('/')[0]}]'"
        ) from error
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        raise ConfigError(f"pettingzoo:{name}: {error}. Leave it out, or correct its name.") from error


def _find_registered(name: str) -> dict[str, Callable[..., Any]]:
    """Returns what makes an environment of PettingZoo's registry, by its kinds, "aec" and "parallel"."""
    own_id = re.sub(r"_v(?=\d+$)", "-v", name)
    registries = {"aec": pettingzoo.aec_registry, "parallel": pettingzoo.parallel_registry}
    found: dict[str, Callable[..., Any]] = {
        kind: functools.partial(pettingzoo.make, kind, own_id) for kind in registries if own_id in registries[kind]
    }
    if not found:
        near = difflib.get_close_matches(own_id, pettingzoo.aec_registry, n=5)
        raise unknown_name("PettingZoo environment", name, near, "Expected FAMILY/NAME, such as classic/tictactoe_v3.")
    return found


def _find_mpe(name: str) -> dict[str, Callable[..., Any]]:
    """Returns what makes an environment of mpe2, by its kinds."""
    try:
        import mpe2
    except ImportError as error:
        raise missing_extra("mpe2", "pettingzoo") from error
    known = [found.name for found in pkgutil.iter_modules(mpe2.__path__) if "_v" in found.name]
    if (rest := name.removeprefix("mpe/").replace("-v", "_v")) not in known:
        raise unknown_name("PettingZoo environment", name, [f"mpe/{each}" for each in known])
    module = importlib.import_module(f"mpe2.{rest}")
    return {"aec": module.env, "parallel": module.parallel_env}
