"""What a worker process makes its environments of: a message, by which they are found there as they are here."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, final

import cloudpickle

from agentkit.envs import given, named, prefixes
from agentkit.envs.wrapping import Wrapper
from agentkit.errors import ConfigError


@final
class Members:
    """Makes some of the environments of a batch, in this process or, pickled, in another one.

    A registered prefix of `envs.register` and an id of the user's own in gymnasium's registry go along: the other
    process has not run what registered them.

    Attributes:
        name: as for `envs.make`.

    Args:
        name: as for `envs.make`.
        seed: of the whole batch.
        raw: see `envs.make`.
        wrappers: see `envs.make`.
        settings: arguments of the environment.
        evaluation: see `envs.make`.
    """

    def __init__(
        self,
        name: Any,
        seed: int,
        *,
        raw: bool,
        wrappers: Sequence[Wrapper],
        settings: Mapping[str, Any],
        evaluation: bool = False,
    ):
        self.name = name
        self._seed = seed
        self._raw = raw
        self._wrappers = tuple(wrappers)
        self._settings = dict(settings)
        self._evaluation = evaluation
        self._factory = prefixes.registered(name) if isinstance(name, str) else None
        self._gymnasium_spec = _find_gymnasium_spec(name)

    def make(self, members: range) -> Any:
        """Makes the environments of these numbers, as a batch."""
        if not isinstance(self.name, str):
            return given.make_members(self.name, self._seed, members, self._settings, wrappers=self._wrappers)
        if self._factory is not None and prefixes.registered(self.name) is None:
            prefixes.register(self.name.partition(":")[0], self._factory)
        if self._gymnasium_spec is not None:
            from agentkit.envs.gymnasium_loading import add_spec

            add_spec(self._gymnasium_spec)
        return named.make_members(
            self.name, self._seed, members, raw=self._raw, wrappers=self._wrappers, settings=self._settings,
            evaluation=self._evaluation,
        )  # fmt: skip

    def to_bytes(self) -> bytes:
        """Returns it pickled; what the started script defines goes along with its code.

        Raises:
            ConfigError: the environment, its settings or a wrapper hold what another process cannot have.
        """
        try:
            return cloudpickle.dumps(self)
        except Exception as error:  # Whatever its classes raise.
            raise ConfigError(
                f"The environment {given.name_of(self.name)}, its settings or its wrappers cannot be sent to worker "
                f"processes: {type(error).__name__}: {error!s:.150}. Hand in its class, or a function of a module "
                "that makes it there; or leave --workers out."
            ) from error


def _find_gymnasium_spec(name: Any) -> Any:
    """Returns what gymnasium's registry has for a name, whoever has put it there; None for what it does not have."""
    if not isinstance(name, str) or not name.startswith("gymnasium:") or "gymnasium" not in sys.modules:
        return None
    from agentkit.envs.gymnasium_loading import find_spec

    return find_spec(name.partition(":")[2])
