"""Takes a user's own optimisers in the place of those that an agent's file builds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from agentkit.errors import ConfigError, unknown_name

if TYPE_CHECKING:
    import optax

Optimizer: TypeAlias = "optax.GradientTransformation | Callable[..., optax.GradientTransformation]"
"""An optax transformation, or a function of the settings (or of nothing) that returns one."""

Optimizers: TypeAlias = "Optimizer | Mapping[str, Optimizer] | Callable[..., Mapping[str, Optimizer]]"
"""One for all losses, or some by the losses' names; or a function of the settings (or of nothing) that returns it."""


def optimizer_of(
    own: Optimizer | None, config: object, default: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Returns the user's optimiser as it is, or the agent's.

    Args:
        own: of the user; None for none.
        config: the settings, for a function of them.
        default: the agent's.

    Raises:
        ConfigError: `own` is no optimiser and makes none.
    """
    return default if own is None else _transformation(_called(own, config), own)


def optimizers_of(
    own: Optimizers | None, config: object, **defaults: optax.GradientTransformation
) -> dict[str, optax.GradientTransformation]:
    """Returns an optimiser for each loss: the user's as they are, and the agent's for losses without one.

    Args:
        own: of the user; None for none.
        config: the settings, for functions of them.
        defaults: the agent's, by the losses' names.

    Raises:
        ConfigError: `own` has something that is no optimiser and makes none, or one for an unknown loss.
    """
    if own is None:
        return defaults
    found = _called(own, config)
    if not isinstance(found, Mapping):
        return dict.fromkeys(defaults, _transformation(found, own))
    for name in found:
        if name not in defaults:
            raise unknown_name("optimizer", str(name), defaults)
    return defaults | {name: optimizer_of(each, config, defaults[name]) for name, each in found.items()}


def check_optimizer(own: object) -> None:
    """Refuses what can be no optimiser of `make_agent`, before there are networks.

    Raises:
        ConfigError: it says what is taken.
    """
    for each in own.values() if isinstance(own, Mapping) else (own,):
        if callable(each):
            _required(each)
        else:
            _transformation(each, each)


def _called(own: Any, config: object) -> Any:
    """Returns what a function makes of the settings, if it has an argument for them; anything else as it is."""
    if not callable(own):
        return own
    return own(config) if _required(own) else own()


def _required(function: Callable[..., Any]) -> list[str]:
    """Returns the names of the arguments that a function must be given: one at most."""
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and p.kind in kinds]
    if len(names) > 1 or names == ["learning_rate"]:
        name = getattr(function, "__qualname__", repr(function))
        raise ConfigError(
            f"optimizer: expected an optimiser, or a function of the config, found {name} itself, which needs "
            f"{', '.join(names)}. Call it, as in optax.adamw(3e-4); functools.partial(optax.adamw, 3e-4) can be named "
            "in a run's config.json, too."
        )
    return names


def _transformation(found: Any, own: object) -> Any:
    if not (hasattr(found, "init") and hasattr(found, "update")):
        made = "" if found is own else f" from {getattr(own, '__qualname__', repr(own))}"
        raise ConfigError(
            f"optimizer: expected an optax.GradientTransformation such as optax.adamw(3e-4), a function of the config "
            f"that returns one, or, for an agent of several losses, a dict of these by the losses' names; found "
            f"{found!r:.80}{made}. A learning rate is a setting: make_agent(Config(learning_rate=...))."
        )
    return found
