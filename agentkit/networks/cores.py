"""The cores that a network with a memory can have, by name: an LSTM, a GRU, or an attention memory."""

from __future__ import annotations

from typing import Literal, get_args

import haiku as hk
import jax.numpy as jnp

from agentkit.errors import unknown_name
from agentkit.networks.gtrxl import GTrXL, GTrXLCore, empty_memory
from agentkit.types import Nest

CoreName = Literal["lstm", "gru", "gtrxl"]
"""Hochreiter & Schmidhuber 1997; Cho et al. 2014, 1406.1078; `GTrXL` with its defaults."""

Core = CoreName | GTrXL
"""The kind of a memory; the number of its units is a setting of its own."""


def check_core(core: Core) -> None:
    """Refuses what is no `Core`.

    Raises:
        UnknownNameError: there is no core of this name; proposes the nearest one.
    """
    if not isinstance(core, GTrXL) and core not in get_args(CoreName):
        raise unknown_name("core", str(core), get_args(CoreName))


def make_core(core: Core, size: int) -> hk.RNNCore:
    """Makes a core of `size` units, as a Haiku module with the name "core".

    Raises:
        ConfigError: an attention memory whose heads do not divide its units.
    """
    if core == "lstm":
        return hk.LSTM(size, name="core")
    if core == "gru":
        return hk.GRU(size, name="core")
    return GTrXLCore(size, _attention(core))


def initial_core_state(core: Core, size: int) -> Nest:
    """Returns the state of an episode's start, without a batch axis; needs no Haiku transformation."""
    if core == "lstm":
        return hk.LSTMState(jnp.zeros(size), jnp.zeros(size))
    return jnp.zeros(size) if core == "gru" else empty_memory(size, _attention(core))


def _attention(core: Core) -> GTrXL:
    return core if isinstance(core, GTrXL) else GTrXL()
