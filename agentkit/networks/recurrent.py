"""Networks with a memory: a core, such as an LSTM, that actors step and learners unroll, as pure functions.

State goes along as an argument. Actors begin an episode with `RecurrentNetwork.initial_state` (a `Policy`'s `reset`);
`unroll` does so by itself at every row with ``start_of_episode``, wherever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.networks.cores import Core, check_core, initial_core_state, make_core
from agentkit.networks.torsos import Torso, encode_inputs, torso
from agentkit.types import Array, Nest


class RecurrentNetwork(NamedTuple):
    """Holds a network with a memory; `unroll` returns for all rows the outputs of `step` one after the other.

    Attributes:
        init: ``key -> params``.
        step: ``(params, observation [B, ...], state [B, ...]) -> (outputs [B, ...], state [B, ...])``.
        unroll: ``(params, observation [B, T, ...], start_of_episode bool [B, T], state [B, ...]) ->
            (outputs [B, T, ...], state [B, ...])``; the state is the one before the first row, and after the last.
        initial_state: of an episode, without a batch axis; ``()`` of a network without memory.
    """

    init: Callable[[jax.Array], Any]
    step: Callable[[Any, Nest, Nest], tuple[Any, Nest]]
    unroll: Callable[[Any, Nest, Array, Nest], tuple[Any, Nest]]
    initial_state: Nest


def recurrent_network(
    trunk: Callable[[Nest], Array],
    head: Callable[[Array, Nest], Nest],
    core_size: int | None,
    observation_spec: Nest,
    core: Core = "lstm",
) -> RecurrentNetwork:
    """Builds trunk, memory and head, in this order.

    Args:
        trunk: observations ``[B, ...]``, by `torsos.encode_inputs`, to features ``[B, F]``; uses Haiku modules.
        head: features ``[B, core_size]`` (without a memory, those of the trunk) and observations ``[B, ...]``, which
            may have an action mask, to outputs ``[B, ...]``; likewise.
        core_size: units of the memory; None for a network without one, whose `unroll` treats each row alone.
        observation_spec: nest of specs, without a batch axis.
        core: the kind of memory: "lstm", "gru", "gtrxl" or a `GTrXL`.

    Raises:
        ConfigError: a memory of less than one unit, or one whose heads do not divide its units.
        UnknownNameError: there is no such kind.
    """
    check_core(core)
    if core_size is not None and core_size < 1:
        raise ConfigError(f"core_size must be None or at least 1, found {core_size}.")

    def step(observation: Nest, state: Nest) -> tuple[Any, Nest]:
        features = trunk(encode_inputs(observation_spec, observation))
        if core_size is not None:
            features, state = make_core(core, core_size)(features, state)
        return head(features, observation), state

    def unroll(observation: Nest, start_of_episode: Array, state: Nest) -> tuple[Any, Nest]:
        shape = start_of_episode.shape
        observation = jax.tree.map(_merge, observation)
        features = trunk(encode_inputs(observation_spec, observation))  # [B T, F]
        if core_size is not None:
            beginning_anew = hk.ResetCore(make_core(core, core_size))
            rows = (features.reshape(*shape, -1), start_of_episode)
            features, state = hk.dynamic_unroll(beginning_anew, rows, state, time_major=False)  # [B, T, core_size]
            features = _merge(features)
        return jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), head(features, observation)), state

    network: Any = hk.without_apply_rng(hk.multi_transform(lambda: (step, (step, unroll))))
    initial_state = () if core_size is None else initial_core_state(core, core_size)
    example, states = _batch_of_one((specs.zeros(observation_spec), initial_state))
    apply_step, apply_unroll = network.apply
    return RecurrentNetwork(lambda key: network.init(key, example, states), apply_step, apply_unroll, initial_state)


def as_recurrent(init: Callable[[jax.Array], Any], apply: Callable[[Any, Nest], Any]) -> RecurrentNetwork:
    """Wraps a network that treats each row alone as one whose state is ``()``.

    Args:
        init: ``key -> params``.
        apply: ``(params, observation [B, ...]) -> outputs [B, ...]``.
    """

    def unroll(params: Any, observation: Nest, start_of_episode: Array, state: Nest) -> tuple[Any, Nest]:
        outputs = apply(params, jax.tree.map(_merge, observation))
        return jax.tree.map(lambda x: x.reshape(*start_of_episode.shape, *x.shape[1:]), outputs), state

    return RecurrentNetwork(init, lambda params, observation, state: (apply(params, observation), state), unroll, ())


def hidden_layers(observation: Nest, hidden_sizes: Sequence[int], torso: Torso = torso) -> jax.Array:
    """Applies a torso, from observations to features, and ReLU layers of `hidden_sizes`; returns ``[B, F]``."""
    features = torso(observation)
    for size in hidden_sizes:
        features = jax.nn.relu(hk.Linear(size)(features))
    return features


def state_spec(network: RecurrentNetwork) -> Nest:
    """Returns the specs of a network's state, for the extras that are stored beside an action."""
    return jax.tree.map(lambda x: specs.Array(x.shape, x.dtype, "core"), network.initial_state)


def step_one(network: RecurrentNetwork, params: Any, observation: Nest, state: Nest) -> tuple[Any, Nest]:
    """Applies `RecurrentNetwork.step` to one observation, without batch axes, as a `Policy` needs."""
    return jax.tree.map(lambda x: x[0], network.step(params, *_batch_of_one((observation, state))))


def unroll_after_burn_in(
    network: RecurrentNetwork, params: Any, observation: Nest, start_of_episode: Array, state: Nest, burn_in: int
) -> Any:
    """Returns the outputs ``[B, T, ...]`` of all rows, where the first `burn_in` only set the state of the others.

    A stored state was computed by older parameters; burn-in brings it closer to the present ones' (Kapturowski et al.
    2019, section 3). No gradient goes back through it, since the rows before have no loss. Where an episode starts in
    these rows, its state is exact, and gradients go back as far as to that row.

    Args:
        network: to unroll.
        params: its parameters.
        observation: ``[B, T, ...]``.
        start_of_episode: bool ``[B, T]``.
        state: as stored with the first row, ``[B, ...]``.
        burn_in: from 0 to T - 1.
    """
    if burn_in == 0:
        return network.unroll(params, observation, start_of_episode, state)[0]
    before, after = (jax.tree.map(lambda x, s=s: x[:, s], observation) for s in (slice(burn_in), slice(burn_in, None)))
    outputs, state = network.unroll(params, before, start_of_episode[:, :burn_in], state)
    exact = jnp.any(start_of_episode[:, :burn_in], axis=1)  # [B]
    state = jax.tree.map(lambda x: jnp.where(_like(exact, x), x, jax.lax.stop_gradient(x)), state)
    later, _ = network.unroll(params, after, start_of_episode[:, burn_in:], state)
    return jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), outputs, later)


def _merge(x: Array) -> jax.Array:
    """Reshapes ``[B, T, ...]`` to ``[B T, ...]``."""
    return x.reshape(-1, *x.shape[2:])


def _like(mask: Array, x: Array) -> jax.Array:
    """Reshapes ``[B]`` to as many axes as `x` ``[B, ...]`` has."""
    return mask.reshape(-1, *[1] * (x.ndim - 1))


def _batch_of_one(nest: Nest) -> Nest:
    return jax.tree.map(lambda x: x[None], nest)
