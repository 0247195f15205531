"""GTrXL: an attention memory as a recurrent core (Parisotto et al. 2019, "Stabilizing Transformers", 1910.06764).

Each layer attends to its inputs at this row and at the last M rows of the episode. Layer normalisation is inside of the
branches (identity map reordering, section 3.1), and GRU-type gates take the place of residual sums (section 3.2).

Differences from the paper:
  * A row at a time, in acting and in learning: gradients flow through the memory, as far as a sequence goes.
  * Positions are learned, one for each age of a row (0 to M), in the place of Transformer-XL's sinusoids.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.errors import ConfigError
from agentkit.types import Array

_WIDENING = 4


@dataclasses.dataclass(frozen=True)
class GTrXL:
    """Describes an attention memory, whose units are those of the agent's memory (`core_size`).

    Its state is ``memory_length * num_layers * units`` numbers for each row.

    Attributes:
        memory_length: rows before this one that a layer sees, M.
        num_layers: each sees M rows further back than the one below.
        num_heads: of the attention; divides the units.
        gate_bias: b_g; the larger, the closer is a layer at first to the identity.
    """

    memory_length: int = 16
    num_layers: int = 1
    num_heads: int = 2
    gate_bias: float = 2.0

    def __post_init__(self) -> None:
        """Refuses a memory without rows, layers or heads."""
        for name in ("memory_length", "num_layers", "num_heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} of gtrxl must be a whole number of at least 1, found {value!r}.")
        if not isinstance(self.gate_bias, (int, float)) or not abs(self.gate_bias) < float("inf"):
            raise ConfigError(f"gate_bias of gtrxl must be a finite number, found {self.gate_bias!r}.")


class GTrXLState(NamedTuple):
    """Holds the last inputs of each layer.

    Attributes:
        inputs: float32 ``[..., L, M, D]``, the latest last; what is older than the episode is not looked at.
        count: how many of the M rows are of this episode, int32 ``[...]``.
    """

    inputs: Array
    count: Array


class GTrXLCore(hk.RNNCore):
    """Applies a `GTrXL` of `size` units to one row after the other."""

    def __init__(self, size: int, config: GTrXL, name: str = "core"):
        super().__init__(name=name)
        self._size = size
        self._config = config

    def __call__(self, inputs: Array, state: GTrXLState) -> tuple[Array, GTrXLState]:
        """Returns outputs ``[B, D]`` of a row ``[B, F]``, and the state ``[B, ...]`` after it."""
        config, layers = self._config, []
        x = hk.Linear(self._size, name="embedding")(inputs)
        for i in range(config.num_layers):
            rows = jnp.concatenate([_row(state.inputs, i), x[:, None]], axis=1)  # [B, M + 1, D]
            layers.append(rows[:, 1:])
            seen = _attend(_normalized(rows, f"attention_norm_{i}"), state.count, config.num_heads, f"attention_{i}")
            x = _gate(x, jax.nn.relu(seen), config.gate_bias, f"attention_gate_{i}")
            hidden = hk.Linear(_WIDENING * self._size, name=f"widen_{i}")(_normalized(x, f"mlp_norm_{i}"))
            moved = hk.Linear(self._size, name=f"narrow_{i}")(jax.nn.relu(hidden))
            x = _gate(x, jax.nn.relu(moved), config.gate_bias, f"mlp_gate_{i}")
        count = jnp.minimum(state.count + 1, config.memory_length)
        return x, GTrXLState(jnp.stack(layers, axis=1), count)

    def initial_state(self, batch_size: int | None) -> GTrXLState:
        """Returns the state of an episode's start, with a batch axis if there is a `batch_size`."""
        leading = () if batch_size is None else (batch_size,)
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (*leading, *x.shape)), empty_memory(self._size, self._config))


def empty_memory(size: int, config: GTrXL) -> GTrXLState:
    """Returns the state of an episode's start, without a batch axis; it needs no Haiku transformation.

    Raises:
        ConfigError: the heads do not divide the units.
    """
    if size % config.num_heads:
        raise ConfigError(
            f"num_heads of gtrxl must divide the {size} units of the memory, found {config}. "
            "Choose another num_heads, or another core_size."
        )
    return GTrXLState(jnp.zeros((config.num_layers, config.memory_length, size)), jnp.zeros((), jnp.int32))


def _row(x: Array, i: int) -> jax.Array:
    """Returns ``x[:, i]`` as a slice: older versions of JAX gather, which no exporter has."""
    return jax.lax.index_in_dim(x, i, axis=1, keepdims=False)


def _normalized(x: Array, name: str) -> jax.Array:
    return hk.LayerNorm(axis=-1, create_scale=True, create_offset=True, name=name)(x)


def _attend(rows: Array, count: Array, num_heads: int, name: str) -> jax.Array:
    """Returns what the last row sees of itself and of the rows before it, ``[B, D]``.

    Scores have the four terms of Transformer-XL (Dai et al. 2019, 1901.02860, section 3.3).

    Args:
        rows: ``[B, M + 1, D]``.
        count: how many of the M before the last may be looked at, ``[B]``.
        num_heads: of the attention.
        name: of its parameters.
    """
    _, num_rows, size = rows.shape
    key_size = size // num_heads

    def heads(x: Array, part: str, with_bias: bool = True) -> jax.Array:
        return hk.Linear(size, with_bias, name=f"{name}_{part}")(x).reshape(*x.shape[:-1], num_heads, key_size)

    query, keys, values = heads(_row(rows, -1), "query"), heads(rows, "key", False), heads(rows, "value")
    init = hk.initializers.TruncatedNormal(key_size**-0.5)
    positions = hk.get_parameter(f"{name}_positions", (num_rows, num_heads, key_size), init=init)  # Oldest first.
    content_bias, position_bias = (
        hk.get_parameter(f"{name}_{part}_bias", (num_heads, key_size), init=jnp.zeros)
        for part in ("content", "position")
    )
    scores = jnp.einsum("bhk,bmhk->bhm", query + content_bias[None], keys)
    scores += jnp.einsum("bhk,mhk->bhm", query + position_bias[None], positions)
    age = jnp.arange(num_rows - 1, -1, -1)
    is_seen = age[None] <= count[:, None]  # [B, M + 1]; a row always sees itself.
    scores = jnp.where(is_seen[:, None], scores * key_size**-0.5, -jnp.inf)
    found = jnp.einsum("bhm,bmhk->bhk", jax.nn.softmax(scores, axis=-1), values).reshape(-1, size)
    return hk.Linear(size, name=f"{name}_output")(found)


def _gate(x: Array, y: Array, bias: float, name: str) -> jax.Array:
    """Returns the GRU-type gate of a stream `x` and a branch's output `y`, both ``[B, D]`` (section 3.2)."""
    size = x.shape[-1]

    def linear(value: Array, part: str) -> jax.Array:
        return hk.Linear(size, with_bias=False, name=f"{name}_{part}")(value)

    reset = jax.nn.sigmoid(linear(y, "w_r") + linear(x, "u_r"))
    update = jax.nn.sigmoid(linear(y, "w_z") + linear(x, "u_z") - bias)
    candidate = jnp.tanh(linear(y, "w_g") + linear(reset * x, "u_g"))
    gated: jax.Array = (1.0 - update) * x + update * candidate
    return gated
