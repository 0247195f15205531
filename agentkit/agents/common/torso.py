"""Lets any agent have another torso: what turns observations into features, in front of its own layers.

A torso is an argument that each `make_networks` hands on, where a reader sees it. It is no setting: those are plain
values, which are listed, swept and compared.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar, final

from agentkit import networks as nets
from agentkit.agents.common.agent import Configured
from agentkit.errors import ConfigError
from agentkit.specs import EnvironmentSpec

Networks = TypeVar("Networks")
Config = TypeVar("Config")


@final
@dataclasses.dataclass(frozen=True)
class WithTorso(Generic[Networks, Config]):
    """Makes an agent's networks behind a user's torso; can be compared, pickled, and named in config.json.

    Attributes:
        make_networks: ``(environment_spec, config, torso) -> networks``.
        config: the settings.
        torso: as `networks.OwnTorso` takes it.
    """

    make_networks: Callable[..., Networks]
    config: Config
    torso: Callable[..., Any]

    def __call__(self, environment_spec: EnvironmentSpec) -> Networks:
        """Returns the networks."""
        return self.make_networks(environment_spec, self.config, torso=nets.OwnTorso(self.torso))


class NetworkParts(NamedTuple):
    """Holds what an agent's networks are made of; `torso` is None for the agent's own."""

    make_networks: Callable[..., Any]
    config: Any
    torso: Callable[..., Any] | None


def parts_of(make_networks: Callable[..., Any]) -> NetworkParts | None:
    """Returns the parts of what `with_torso` made; None where its networks take no torso, or another made it."""
    if isinstance(make_networks, WithTorso):
        return NetworkParts(make_networks.make_networks, make_networks.config, make_networks.torso)
    if isinstance(make_networks, Configured) and _takes_torso(make_networks.function):
        return NetworkParts(make_networks.function, make_networks.config, None)
    return None


def _takes_torso(make_networks: Callable[..., Any]) -> bool:
    return "torso" in inspect.signature(make_networks).parameters


def with_torso(
    make_networks: Callable[..., Networks], config: Config, torso: Callable[..., Any] | str | None
) -> Callable[[EnvironmentSpec], Networks]:
    """Returns an agent's `make_networks`: as it is without a `torso`, else one whose networks begin with that.

    Args:
        make_networks: ``(environment_spec, config) -> networks``; for a `torso` it takes ``torso=``, too.
        config: the settings.
        torso: from observations to features; a name of `networks.TORSOS`, or as `networks.OwnTorso` takes it.

    Raises:
        ConfigError: `torso` cannot be called, or `make_networks` takes none.
        UnknownNameError: there is no torso of this name; proposes the nearest one.
    """
    if torso is None:
        return Configured(make_networks, config)
    if isinstance(torso, str):
        torso = nets.torso_named(torso)
    if not callable(torso):
        raise ConfigError(
            f"Expected torso= to be a function from observations to features [B, D], or one of the names "
            f"{', '.join(nets.TORSOS)}; found {torso!r:.80}."
        )
    if not _takes_torso(make_networks):
        raise ConfigError(
            f"Expected make_networks to take a torso, found {getattr(make_networks, '__qualname__', make_networks)} "
            "without such a parameter. Give it one (torso=networks.torso), or leave torso= out."
        )
    return WithTorso(make_networks, config, torso)
