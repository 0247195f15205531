"""Makes environments of a name, or of what was handed in: one, or some of a batch, here or in a worker's process."""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentkit import specs
from agentkit.envs import given, prefixes
from agentkit.envs.wrapping import Wrapper, prepare, wrap, wrap_inside
from agentkit.errors import ConfigError, RawFramesWarning


@final
class Members:
    """Makes environments, in this process or, pickled, in another one.

    A registered prefix of `envs.register` and an id of the user's own in gymnasium's registry go along: the other
    process has not run what registered them.

    Attributes:
        name: as for `envs.make`.

    Args:
        name: as for `envs.make`.
        seed: of the whole batch, or of the single environment.
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
        """Makes the environments of these numbers, as a batch; equal to those of ``envs.make(..., num_envs=N)``."""
        if not isinstance(self.name, str):
            return given.make_members(self.name, self._seed, members, self._settings, wrappers=self._wrappers)
        from agentkit.envs.batched import BatchedEnvironment
        from agentkit.envs.resumable import episode_seed

        # What every environment needs costs less around all of them; a user's wrappers are for a single one.
        each = bool(self._wrappers)
        made = [self.make_named(episode_seed(self._seed, i), fit_out=each) for i in members]
        batch = BatchedEnvironment(made, members.start)
        return batch if each else self.fit_out(batch)

    def make_named(self, seed: int, fit_out: bool = True) -> Any:
        """Makes one environment of a name; with `fit_out` ready for an agent, but for `raw`."""
        prefix, rest = self.name.split(":", 1)
        self._register(prefix)
        factory, settings = prefixes.factory_of(prefix), self._settings
        if self._evaluation and "evaluation" in inspect.signature(factory).parameters:
            settings = {**settings, "evaluation": True}
        environment: Any = factory(rest, seed, **settings)
        if specs.is_batched(environment):
            raise ConfigError(
                f"The factory of {prefix!r} gave a batch of {environment.num_envs} environments; expected one. "
                "Return one environment and let make(num_envs=N) batch it."
            )
        if fit_out:
            environment = self.fit_out(environment)
        if hasattr(environment, "reseed"):
            environment.reseed(seed)
            if not self._raw:
                from agentkit.envs.resumable import ResumableEnvironment

                environment = ResumableEnvironment(environment, seed)
        return environment

    def fit_out(self, environment: Any) -> Any:
        """Makes an environment of a name ready for an agent, with its wrappers around it; see `envs.make`."""
        environment, wrappers = wrap_inside(environment, self._wrappers)
        if not self._raw:
            environment = prepare(environment, concatenate=self.name.startswith("dm_control:"))
        environment = wrap(environment, wrappers)
        if not self._raw:
            _warn_of_raw_frames(self.name, environment.observation_spec())
        return environment

    def _register(self, prefix: str) -> None:
        """Registers in another process what the process that made this has registered."""
        if self._factory is not None and prefixes.registered(self.name) is None:
            prefixes.register(prefix, self._factory)
        if self._gymnasium_spec is not None:
            from agentkit.envs.gymnasium_loading import add_spec

            add_spec(self._gymnasium_spec)

    def to_bytes(self) -> bytes:
        """Returns it pickled; what the started script defines goes along with its code.

        Raises:
            ConfigError: the environment, its settings or a wrapper hold what another process cannot have.
        """
        import cloudpickle

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


def _warn_of_raw_frames(name: str, observation: Any) -> None:
    """Warns of an agent that would see an Atari game's frames as the screen has them, one at a time."""
    game = re.fullmatch(r"gymnasium:ALE/(\w+?)(-v\d+)?", name)
    if game and specs.is_spec(observation) and observation.shape == (210, 160, 3):
        warnings.warn(
            f"{name} gives single frames of 210 x 160 x 3, in which nothing is seen to move. Take --env "
            f"atari:{game[1]}, the standard protocol (84 x 84 grey, 4 stacked), unless you mean to.",
            RawFramesWarning,
            stacklevel=1,  # Always this line: Python then says it once, however many environments are made.
        )
