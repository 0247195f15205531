"""How target parameters follow the learned ones."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.types import Array, Params

TargetUpdate = Callable[[Params, Params, Array], Params]
"""``(params, target_params, num_updates) -> target_params``."""


def periodic(period: int | jax.Array) -> TargetUpdate:
    """Copies the parameters every `period` updates (Mnih et al. 2015)."""
    if not isinstance(period, jax.Array) and period < 1:  # One that is traced was checked before.
        raise ConfigError(f"The target update period must be at least 1, found {period}.")
    import optax  # Not at import time: actors load this file, and optimise nothing.

    def update(params: Params, target_params: Params, num_updates: Array) -> Params:
        return optax.periodic_update(params, target_params, jnp.asarray(num_updates), period)

    return update


def polyak(tau: float | jax.Array) -> TargetUpdate:
    """Moves the target a fraction `tau` towards the parameters at each update (Lillicrap et al. 2016)."""
    if not isinstance(tau, jax.Array) and not 0 < tau <= 1:
        raise ConfigError(f"The Polyak rate tau must be in (0, 1], found {tau}.")
    import optax

    def update(params: Params, target_params: Params, num_updates: Array) -> Params:
        del num_updates
        return optax.incremental_update(params, target_params, tau)

    return update
