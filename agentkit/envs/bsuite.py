"""bsuite's experiments. The one file that imports bsuite."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any, final

import dm_env
import numpy as np

from agentkit.errors import ConfigError, missing_extra, unknown_name
from agentkit.types import Nest

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bsuite 0.3.6 warns on import with newer packages.
        import bsuite
        from bsuite import sweep
except ImportError as error:
    raise missing_extra("bsuite", "bsuite") from error


def make(name: str, seed: int = 0, **kwargs: Any) -> BsuiteEnvironment:
    """Makes the bsuite environment of an id such as ``catch/0``.

    bsuite fixes the problem (its mapping seed, its size) by the id; `seed` seeds the randomness of
    the episodes.

    Raises:
        UnknownNameError: if bsuite has no such id.
        ConfigError: if settings are given; an id has none.
    """
    if name not in sweep.SWEEP:
        known = {bsuite_id.split("/")[0] + "/0" for bsuite_id in sweep.SWEEP}
        raise unknown_name("bsuite id", name, known, "Ids are numbered: experiment/number.")
    if kwargs:
        raise ConfigError(f"A bsuite id fixes its settings, found {sorted(kwargs)}. Choose another id.")
    with contextlib.redirect_stdout(io.StringIO()):  # It prints the id.
        environment = bsuite.load_from_id(name)
    adapted = BsuiteEnvironment(environment)
    adapted.reseed(seed)
    return adapted


@final
class BsuiteEnvironment(dm_env.Environment):
    """Adds `reseed` to a bsuite environment, which is a dm_env environment already.

    bsuite's own tallies over episodes (`bsuite_info`) are not part of what is saved and resumed.

    Args:
        environment: what ``bsuite.load_from_id`` gives.
    """

    def __init__(self, environment: dm_env.Environment):
        self._environment = environment

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self._environment, name)

    def reseed(self, seed: int) -> None:
        """Makes the next reset begin an episode that depends on `seed` alone.

        Every layer (noise and scale wrappers, the game) has a generator of its own.
        """
        layer: Any = self._environment
        depth = 0
        while layer is not None:
            parts = vars(layer)
            if isinstance(parts.get("_rng"), np.random.RandomState):
                parts["_rng"].seed([seed, depth])
            layer = parts.get("_env")
            depth += 1

    def reset(self) -> dm_env.TimeStep:
        """Starts an episode."""
        return self._environment.reset()

    def step(self, action: Nest) -> dm_env.TimeStep:
        """Takes an action; after LAST it starts an episode instead."""
        return self._environment.step(action)

    def observation_spec(self) -> Nest:
        """Returns an array spec, float32."""
        return self._environment.observation_spec()

    def action_spec(self) -> Nest:
        """Returns a DiscreteArray."""
        return self._environment.action_spec()

    def reward_spec(self) -> Nest:
        """Returns float64 scalar."""
        return self._environment.reward_spec()

    def discount_spec(self) -> Nest:
        """Returns float64 scalar."""
        return self._environment.discount_spec()

    def close(self) -> None:
        """Closes the environment."""
        self._environment.close()
