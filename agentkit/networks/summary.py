"""Says what a network is made of: each module with its inputs, outputs and parameters, and how inputs are encoded."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, final

import haiku as hk
import jax
import numpy as np

from agentkit import specs
from agentkit.networks.foreign import key_label
from agentkit.networks.torsos import describe_input
from agentkit.types import Nest

Shape = tuple[int, ...]


@final
class Layer(NamedTuple):
    """Describes a module that has parameters of its own.

    Attributes:
        part: which of an agent's networks it is in, such as "policy"; "" where there is only one.
        module: its name in the parameters.
        inputs: shapes of what it is applied to, without the batch axis.
        outputs: likewise; () for parameters that belong to no module.
        num_parameters: how many numbers it has.
    """

    part: str
    module: str
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]
    num_parameters: int


def layers_of(networks: Any) -> list[Layer]:
    """Returns the modules of an agent's networks, each network's in the order in which they are applied.

    Args:
        networks: of an `Agent`: ``init`` makes its parameters, or those of each of its fields do, or of theirs.
            Nothing is computed.
    """
    return [layer for part, init in _inits_of(networks) for layer in _layers(part, init)]


def _inits_of(networks: Any, part: str = "") -> list[tuple[str, Callable[[jax.Array], Any]]]:
    """Returns the name of each network among `networks`, and what makes its parameters."""
    if hasattr(networks, "init"):
        return [(part, networks.init)]
    inner = {"/".join(filter(None, [part, field])): field for field in getattr(networks, "_fields", ())}
    return [found for name, field in inner.items() for found in _inits_of(getattr(networks, field), name)]


class _Call(NamedTuple):
    module: str
    parameters: dict[str, Shape]
    inputs: tuple[Shape, ...]
    outputs: tuple[Shape, ...]


def _layers(part: str, init: Callable[[jax.Array], Any]) -> list[Layer]:
    calls: list[_Call] = []

    def note(apply: Callable[..., Any], args: Any, kwargs: Any, context: hk.MethodContext) -> Any:
        outputs = apply(*args, **kwargs)
        if context.method_name == "__call__":
            name = context.module.module_name
            own = {key: value for key, value in context.module.params_dict().items() if key.rpartition("/")[0] == name}
            parameters = {key.rpartition("/")[2]: value.shape for key, value in own.items()}
            calls.append(_Call(name, parameters, _shapes((args, kwargs)), _shapes(outputs)))
        return outputs

    with hk.intercept_methods(note):
        # JAX does not trace a function again that it has seen; this one is new.
        params = jax.eval_shape(lambda key: init(key), jax.ShapeDtypeStruct((2,), np.uint32))

    bundles: dict[tuple[str, str], dict[str, Shape]] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(params)[0]:
        *prefix, module, name = map(key_label, path)
        bundles.setdefault(("/".join(filter(None, [part, *prefix])), module), {})[name] = leaf.shape
    found: list[tuple[int, Layer]] = []
    taken: set[int] = set()
    for (where, module), parameters in bundles.items():
        number = sum(map(math.prod, parameters.values()))
        same = [i for i, call in enumerate(calls) if (call.module, call.parameters) == (module, parameters)]
        if not same:  # Running statistics, which are beside the parameters of their module.
            same = [i for i, call in enumerate(calls) if call.module == module]
        # Several networks may have modules of the same name and size: each takes a call of its own.
        index = next((i for i in same if i not in taken), same[-1] if same else len(calls))
        taken.add(index)
        inputs, outputs = (calls[index].inputs, calls[index].outputs) if same else ((), ())
        found.append((index, Layer(where, module, inputs, outputs, number)))
    order = list(dict.fromkeys(layer.part for _, layer in found))
    return [layer for _, layer in sorted(found, key=lambda row: (order.index(row[1].part), row[0]))]


def _shapes(nest: Any) -> tuple[Shape, ...]:
    """Returns the shapes of a nest's arrays without their first axis, that of a batch of one."""
    return tuple(tuple(leaf.shape[1:]) for leaf in jax.tree.leaves(nest) if hasattr(leaf, "shape"))


def describe_inputs(observation_spec: Nest) -> list[tuple[str, str, str]]:
    """Returns for each part of an observation its name, its shape and dtype, and what the networks make of it."""
    found = []
    for path, leaf in jax.tree_util.tree_flatten_with_path(observation_spec, is_leaf=specs.is_spec)[0]:
        names = [key_label(key) for key in path]
        kind = f"{leaf.dtype.name} {shape_text(leaf.shape)}".strip()
        text = "which actions are legal" if names[-1:] == [specs.ACTION_MASK] else describe_input(leaf)
        found.append(("/".join(names) or "observation", kind, text))
    return found


def shape_text(shape: Shape) -> str:
    """Returns a shape as it is read aloud.

    >>> shape_text((84, 84, 4)), shape_text(())
    ('84x84x4', '')
    """
    return "x".join(map(str, shape))


def count(nest: Nest) -> tuple[int, int]:
    """Returns how many numbers a nest of arrays, or of their shapes, has, and how many bytes they take."""
    leaves = jax.tree.leaves(nest)
    sizes = [math.prod(leaf.shape) for leaf in leaves]
    return sum(sizes), sum(size * leaf.dtype.itemsize for size, leaf in zip(sizes, leaves, strict=True))
