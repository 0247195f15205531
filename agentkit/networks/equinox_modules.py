"""Takes Equinox modules as torsos, by a function that makes one. The extra `equinox` brings it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

import jax

from agentkit.errors import ConfigError, missing_extra
from agentkit.networks.foreign import ForeignModule, snake_case
from agentkit.types import Nest


@final
@dataclasses.dataclass(frozen=True)
class EquinoxModule:
    """Applies the Equinox module that a function makes, with its arrays among the agent's parameters.

    Attributes:
        make: ``(observation, key) -> module``; see `from_equinox`.
    """

    make: Callable[..., Any]

    def __call__(self, observation: Nest) -> Any:
        """Returns the module's outputs for each observation of a batch."""
        eqx = _equinox()
        one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation)

        def init(key: jax.Array, observation: Nest) -> Any:
            del observation
            return eqx.filter(self.make(one, key), eqx.is_array)

        def apply(params: Any, observation: Nest) -> Any:
            shapes = eqx.filter_eval_shape(self.make, one, jax.random.PRNGKey(0))
            static = eqx.filter(shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct), inverse=True)
            return jax.vmap(eqx.combine(params, static))(observation)

        return ForeignModule(init, apply, snake_case(getattr(self.make, "__name__", "equinox")))(observation)


def from_equinox(make: Callable[..., Any]) -> EquinoxModule:
    """Returns a torso that applies an Equinox module, for ``make_agent(torso=networks.from_equinox(make_mine))``.

    A run with it is resumed from its folder where `make` is a function or class of a module that can be imported.

    Args:
        make: ``(observation, key) -> module``. `observation` has the shapes of one observation, without a batch axis
            (see `OwnTorso`); the module takes one such observation to features ``[D]``.

    Raises:
        ConfigError: `make` is a module itself, or cannot be called.
        MissingExtraError: Equinox is not installed.
    """
    if isinstance(make, _equinox().Module) or not callable(make):
        raise ConfigError(
            f"Expected a function (observation, key) that makes an Equinox module, found {make!r:.80}. Parameters are "
            "drawn from the run's seed, by that function."
        )
    return EquinoxModule(make)


def _equinox() -> Any:
    try:
        import equinox
    except ImportError as error:
        raise missing_extra("equinox", "equinox") from error
    return equinox
