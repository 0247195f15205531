"""Gymnasium's environments by their names: makes them, finds them, and explains why one cannot be made.

The one file that imports gymnasium.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from agentkit.envs.base import NO_LIMIT, check_max_episode_steps
from agentkit.envs.rendering import explain_import, prepare_pygame
from agentkit.errors import (
    DISTRIBUTION,
    AgentkitError,
    ConfigError,
    MissingExtraError,
    missing_extra,
    unknown_name,
)

try:
    import gymnasium
    from gymnasium import spaces
except ImportError as error:
    raise missing_extra("gymnasium", "gymnasium") from error

__all__ = [
    "add_spec", "explain_missing", "film_settings", "find", "find_spec", "gymnasium", "load", "load_vector", "register",
    "register_atari", "registered_names", "spaces",
]  # fmt: skip

_EXTRAS = {"box2d": "box2d"} | dict.fromkeys(
    ("classic_control", "mujoco", "phys2d", "tabular", "toy_text"), "gymnasium"
)
"""This project's extra for each of gymnasium's families; the games of ALE have `register_atari`."""


def load(name: str, **kwargs: Any) -> gymnasium.Env:
    """Calls `gymnasium.make(name, **kwargs)` and explains its errors.

    Gymnasium's environment checker is off unless ``disable_env_checker=False`` is given; it costs
    time at every step and only warns. Names that begin with ``ALE/`` load ale-py.

    ``max_episode_steps`` is the time limit in the place of the environment's own, shorter or longer; -1 is for none.

    Raises:
        UnknownNameError: if gymnasium has no environment of this name, or it takes no such argument.
        ConfigError: `max_episode_steps` is no number of steps.
        MissingExtraError: if the environment needs a package that is not installed.
    """
    _register(name)
    kwargs.setdefault("disable_env_checker", True)
    return _made(gymnasium.make, name, kwargs)


def load_vector(name: str, num_envs: int, *, evaluation: bool = False, **kwargs: Any) -> gymnasium.vector.VectorEnv:
    """Calls `gymnasium.make_vec(name, num_envs, **kwargs)` and explains its errors, as `load` does.

    In an `evaluation` ALE's own vector environment neither clips rewards, as it does by default, nor takes a lost life
    for an end, whatever the arguments say of its training.

    ``max_episode_steps`` is as in `load`, whether gymnasium or the environment's own vector class counts the steps.

    Raises:
        ConfigError: a setting is impossible; and what `load` raises.
    """
    _register(name)
    spec = gymnasium.registry.get(name.rpartition(":")[2])
    own_class = getattr(spec, "vector_entry_point", None)
    if kwargs.get("vectorization_mode") in ("sync", "async") or own_class is None:
        kwargs.setdefault("disable_env_checker", True)  # A class of its own has no such argument.
    else:
        if kwargs.get("max_episode_steps") == -1:
            kwargs["max_episode_steps"] = NO_LIMIT  # Such a class would end every episode at its first step.
        if evaluation and str(own_class).startswith("ale_py."):
            kwargs |= {"reward_clipping": False, "episodic_life": False}
    try:
        vector: gymnasium.vector.VectorEnv = _made(
            functools.partial(gymnasium.make_vec, num_envs=num_envs), name, kwargs
        )
    except AgentkitError:
        raise
    except ValueError as error:  # The name of a mode.
        raise ConfigError(f"gymnasium_vector:{name}: {error}.") from error
    return vector


def _made(make_it: Callable[..., Any], name: str, kwargs: dict[str, Any]) -> Any:
    """Returns what a function of gymnasium's makes; see `load`."""
    check_max_episode_steps(kwargs.get("max_episode_steps"))
    try:
        with _quiet_mujoco():
            return make_it(name, **kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        near = difflib.get_close_matches(name, list(gymnasium.registry), n=5, cutoff=0.4)
        own = "One of your own is found once the module that registers it is imported (--import MODULE)."
        raise unknown_name("gymnasium environment", name, near, f"Gymnasium says: {error} {own}") from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise explain_missing(name, error) from error
    except gymnasium.error.Error as error:  # A version that is no more.
        raise ConfigError(f"gymnasium:{name}: {error}") from error
    except TypeError as error:
        _explain(error, name, kwargs)
        raise
    except ModuleNotFoundError as error:
        module, colon, _ = name.partition(":")
        missing = {error.name, getattr(error.__cause__, "name", None)}  # Gymnasium raises one of its own.
        if colon and any(module == name or module.startswith(f"{name}.") for name in missing):
            raise ConfigError(
                f"gymnasium:{name} names the module {module!r}, which cannot be imported here. Install it, run from "
                "the folder that it is in, or correct the name."
            ) from error
        raise
    except ImportError as error:  # MuJoCo's v2 and v3 are in another package now.
        raise explain_missing(name, error) from error


def explain_missing(name: str, error: Exception) -> MissingExtraError:
    """Returns the error for a package that an environment needs: which extra brings it, and gymnasium's own words."""
    spec = gymnasium.registry.get(name.partition(":")[2] or name)
    family = re.search(r"^gymnasium\.envs\.(\w+)", str(getattr(spec, "entry_point", "")))
    advice = re.search(r"gymnasium\[(\w+)\]", str(error).replace("-", "_"))
    extras = [_EXTRAS[match[1]] for match in (family, advice) if match is not None and match[1] in _EXTRAS]
    how = f": pip install '{DISTRIBUTION}[{extras[0]}]'" if extras else ""
    return MissingExtraError(f"gymnasium:{name} needs a package that is not installed{how}. Gymnasium says: {error}")


def registered_names() -> list[str]:
    """Returns the names that gymnasium knows, the newest version of each."""
    newest: dict[str, tuple[int, str]] = {}
    for name, spec in gymnasium.registry.items():
        key = f"{spec.namespace or ''}/{spec.name}"
        newest[key] = max(newest.get(key, (-1, "")), (spec.version or 0, name))
    return sorted(name for _, name in newest.values())


def find(package: str, name: str, kind: str, prefix: str = "") -> str:
    """Returns gymnasium's name of an environment that a package has registered.

    Args:
        package: whose environments are meant, by where their classes are.
        name: what follows `prefix`, with a version or without one, for the newest.
        kind: what to call it in the error.
        prefix: what gymnasium's names have before it, such as ``ALE/``.

    Raises:
        UnknownNameError: the package has none of this name; proposes the nearest.
    """
    ids = [i for i, spec in gymnasium.registry.items() if str(spec.entry_point).partition(".")[0] == package]
    ids = [known for known in ids if known.startswith(prefix)]
    newest = {known.removeprefix(prefix).rpartition("-v")[0]: known for known in registered_names() if known in ids}
    if f"{prefix}{name}" in ids:
        return f"{prefix}{name}"
    if name not in newest:
        raise unknown_name(kind, name, difflib.get_close_matches(name, newest, n=8, cutoff=0.4) or newest)
    return newest[name]


def find_spec(name: str) -> Any:
    """Returns what gymnasium has registered under a name, for `add_spec` in another process; None for nothing."""
    return gymnasium.registry.get(name)


def add_spec(spec: Any) -> None:
    """Registers the environment of a record, unless gymnasium knows the name."""
    gymnasium.registry.setdefault(spec.id, spec)


def _explain(error: TypeError, name: str, kwargs: dict[str, Any]) -> None:
    """Raises an error with the nearest match, if an argument that the environment's class does not have is why."""
    unexpected = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if unexpected is None or unexpected[1] not in kwargs:
        return
    entry_point = gymnasium.spec(name).entry_point
    made = gymnasium.envs.registration.load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    classes = made.__mro__ if isinstance(made, type) else (made,)
    known = {key for cls in classes if callable(cls) for key in _parameters(cls)} - {"self", "args", "kwargs"}
    raise unknown_name(f"argument of gymnasium:{name}", unexpected[1], known) from error


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(function).parameters)
    except (ValueError, TypeError):  # Some classes written in C have none.
        return []


def film_settings(name: str, size: int | None) -> dict[str, Any]:
    """Returns the arguments with which gymnasium's environment `name` draws images of a height, as far as it can."""
    prepare_pygame()
    settings: dict[str, Any] = {"render_mode": "rgb_array"}
    spec = gymnasium.registry.get(name.partition(":")[2] or name)
    if size is not None and spec is not None and "envs.mujoco" in str(spec.entry_point):
        settings |= {"width": size * 4 // 3 // 2 * 2, "height": size}
    return settings


@contextlib.contextmanager
def _quiet_mujoco() -> Iterator[None]:
    """Drops MuJoCo's complaints about gymnasium's model files.

    It would print them and write a file MUJOCO_LOG.TXT into the working directory.
    """
    try:
        import mujoco  # type: ignore[import-untyped]
    except Exception as error:
        explain_import(error, "mujoco")
        if not isinstance(error, ImportError):
            raise
        yield  # Then no model is loaded either.
        return
    handler = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(handler)


def _register(name: str) -> None:
    if name.rpartition(":")[2].startswith("ALE/"):  # Also of ale_py:ALE/Pong-v5.
        register_atari()


def register_atari() -> None:
    """Makes ALE's games known to gymnasium.

    Raises:
        MissingExtraError: ale-py is not installed.
    """
    try:
        import ale_py
    except ImportError as error:
        raise missing_extra("ale-py", "atari") from error
    register(ale_py)


def register(package: ModuleType) -> None:
    """Makes the environments of an imported package known to gymnasium; some do so themselves."""
    gymnasium.register_envs(package)
