"""`make_network` turns a function that uses Haiku modules into two pure functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import haiku as hk
import jax

from agentkit import specs
from agentkit.networks.torsos import encode_inputs
from agentkit.types import Array, Nest, Params


class Network(NamedTuple):
    """Holds the pure functions of a network that needs no randomness once it has parameters.

    Attributes:
        init: ``key -> params``.
        apply: ``(params, *inputs [B, ...]) -> outputs [B, ...]``.
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[..., Array]


class PolicyCritic(NamedTuple):
    """Pairs a policy's part with its critic's: parameters, ``key -> parameters``, optimisers, optimiser states."""

    policy: Params
    critic: Params


def make_network(function: Callable[..., Array], *input_specs: Nest) -> Network:
    """Makes a `Network` of a function that uses Haiku modules, and that gets its inputs by `torsos.encode_inputs`.

    Args:
        function: of inputs ``[B, ...]``.
        input_specs: of one input each, without the batch axis.
    """

    def encoded(*inputs: Nest) -> Array:
        return function(*(encode_inputs(spec, x) for spec, x in zip(input_specs, inputs, strict=True)))

    transformed: hk.Transformed = hk.without_apply_rng(hk.transform(encoded))
    examples = jax.tree.map(lambda x: x[None], [specs.zeros(spec) for spec in input_specs])
    return Network(lambda key: transformed.init(key, *examples), transformed.apply)
