"""Decides whose code a run folder may name: it may come from a stranger; its word alone imports and calls nothing.

Calling any function of any loaded module would be enough to do harm (``subprocess`` is always loaded), so a library
counts as unknown like a module that nobody has imported, until the user names it (decision 53).
"""

from __future__ import annotations

import importlib
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, final

from agentkit.envs.prefixes import GYMNASIUM_PREFIXES
from agentkit.errors import ConfigError

# What runs are made of. Other parts of agentkit are not: `envs.make` can import, `checkpoint` can write.
_PARTS = (
    "agentkit.actors",
    "agentkit.adders",
    "agentkit.agents",
    *(f"agentkit.callbacks.{name}" for name in ("best", "curricula", "metrics", "stopping")),
    "agentkit.core",
    "agentkit.datasets.episodes",
    "agentkit.learning",
    "agentkit.losses",
    "agentkit.networks",
    "agentkit.replay.rate_limiter",
    "agentkit.replay.table",
    "agentkit.types",
    "agentkit.wrappers",
    "optax._src.alias",  # The optimisers; all that is defined there makes one of its arguments, and does nothing else.
    *(f"agentkit.envs.{name}" for name in ("bandit", "catch", "deep_sea", "memory_chain", "point_mass", "reach_goal")),
)
# Modules beside those that connect to an address, start a program, or write where their settings say.
_NO_PARTS = (
    *(f"agentkit.actors.{name}" for name in ("inference_server", "remote", "remote_ready")),
    *(f"agentkit.wrappers.{name}" for name in ("film", "video")),
)


@final
class UntrustedCodeError(ConfigError):
    """Says that a run folder names code that this program has not loaded, and that the user has not named.

    Attributes:
        packages: what to name, with ``--import`` or ``imports=``.
    """

    def __init__(self, message: str, packages: Sequence[str]):
        """Keeps the packages beside the message."""
        super().__init__(message)
        self.packages = tuple(packages)


def import_named(imports: Iterable[str]) -> None:
    """Imports the packages that the user named.

    Raises:
        ConfigError: one cannot be imported.
    """
    for name in imports:
        try:
            importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"{name!r} was named to be imported, and cannot be: {error}. Run from the folder that it is in, or "
                "install it."
            ) from error


def check_trusted(modules: Iterable[str], imports: Sequence[str], run: object) -> None:
    """Refuses modules that neither are agentkit's parts, nor the program's own and loaded, nor named by the user.

    Args:
        modules: full names.
        imports: packages that the user named; their submodules are covered.
        run: the run folder, for the message.

    Raises:
        UntrustedCodeError: it says what to name.
    """
    unknown = [name for name in modules if not (_is_part(name) or _covered(name, imports) or _loaded_by_the_user(name))]
    if unknown:
        packages = sorted({_package(name) for name in unknown})
        options = " ".join(f"--import {name}" for name in packages)
        raise UntrustedCodeError(
            f"The run {run} names code of {', '.join(sorted(set(unknown)))}, which is not imported on a folder's word. "
            f"If you trust it, say so: {options} on the command line, imports={tuple(packages)!r} in Python.",
            packages,
        )


def check_gymnasium_name(environment: str, imports: Sequence[str], run: object) -> None:
    """Refuses a name ``PREFIX:MODULE:NAME`` with which gymnasium would import a module that nobody asked for.

    Raises:
        UntrustedCodeError: it says what to name.
    """
    prefix, _, rest = environment.partition(":")
    if prefix not in GYMNASIUM_PREFIXES:
        return
    module, colon, _ = rest.rpartition(":")
    if colon and module not in sys.modules:
        check_trusted([module], imports, run)
    name = rest.removeprefix(f"{module}:").rpartition("/")[2]
    if name.startswith("GymV"):  # Its arguments name another environment, of any module.
        check_trusted(["shimmy"], imports, run)


def check_logger_name(name: str, imports: Sequence[str], run: object) -> None:
    """Refuses the name of a logger that sends the run's rows from the user's own account.

    Raises:
        UntrustedCodeError: it says what to name.
    """
    for module in logger_modules([name]):
        if not _covered(module, imports):
            raise UntrustedCodeError(
                f"The run {run} logs to {name}, and nothing is sent from your account on a folder's word. If you trust "
                f"it, say so: --import {module} on the command line, imports={(module,)!r} in Python.",
                (module,),
            )


def logger_modules(loggers: Iterable[Any]) -> list[str]:
    """Returns the modules of those named loggers that send rows from the user's own account."""
    return [f"agentkit.loggers.{name}" for name in loggers if name in ("mlflow", "wandb")]


def packages_outside(modules: Iterable[str]) -> list[str]:
    """Returns the packages that a user who has loaded nothing has to name, to have all of these modules."""
    return sorted({_package(name) for name in modules if not _is_part(name)})


def _package(module: str) -> str:
    """Returns what to name for a module: the package it is in; of agentkit, itself."""
    package = module.partition(".")[0]
    return module if package == "agentkit" else package


def _is_part(module: str) -> bool:
    return _covered(module, _PARTS) and not _covered(module, _NO_PARTS)


def _covered(module: str, packages: Iterable[str]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _loaded_by_the_user(module: str) -> bool:
    """Returns whether a module is loaded and part of no library: no folder for installed packages holds it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    package = module.partition(".")[0]
    if file is None or package in ("agentkit", "__main__") or package in sys.stdlib_module_names:
        return False
    return not {"site-packages", "dist-packages"} & set(pathlib.Path(file).parts)
