"""What named parameters look like, as plain data: transports carry arrays and JSON, and never pickle.

A description is a dict by variable name of what `nests.describe` returns; a leaf is ``{"array": [dtype, shape]}``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentkit import nests
from agentkit.errors import SpecError, unknown_name
from agentkit.types import Nest

Description = dict[str, Any]
"""By variable name, a node."""


def describe(variables: Mapping[str, Nest]) -> tuple[Description, list[np.ndarray]]:
    """Takes parameters apart.

    Args:
        variables: by name, nests of dicts with string keys, lists, tuples, named tuples and None, whose
            leaves are arrays (of JAX or numpy; waits for a device) or numbers.

    Returns:
        The description, and the leaves as numpy arrays in its order.

    Raises:
        SpecError: something else is in there; the message says where.
    """
    found: list[tuple[str, Any, dict[str, Any]]] = []

    def describe_leaf(leaf: Any, path: str) -> dict[str, Any]:
        found.append((path, leaf, {}))
        return found[-1][2]

    nests.describe(dict.fromkeys(variables), describe_leaf, "the variables")  # refuses names that are no strings
    description = {name: nests.describe(nest, describe_leaf, name) for name, nest in variables.items()}
    for _, leaf, _ in found:  # All on their way from the device before the first is waited for.
        start_copy = getattr(leaf, "copy_to_host_async", None)
        if start_copy is not None:
            start_copy()
    leaves = []
    for path, leaf, node in found:
        array = _as_array(leaf, path)
        node["array"] = [dtype_name(array.dtype, path), list(array.shape)]
        leaves.append(array)
    return description, leaves


def build(node: Any, leaves: Iterator[np.ndarray]) -> Nest:
    """Puts one variable together again; leaves become numpy arrays, whatever they were.

    Raises:
        SpecError: no such node, or a named tuple whose class is not loaded in this process.
    """
    return nests.build(node, lambda _: next(leaves))


def arrays_of(node: Any) -> Iterator[tuple[np.dtype, tuple[int, ...]]]:
    """Yields dtype and shape of each leaf below a node, in order.

    Raises:
        SpecError: no dtype, or no shape.
    """
    if isinstance(node, Mapping) and "array" in node:
        name, shape = node["array"]
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise SpecError(f"Expected a shape, found {shape!r}.")
        yield nests.numeric_dtype(name), tuple(shape)
    elif isinstance(node, Mapping):
        for container in ("dict", "list", "tuple", "fields"):
            children = node.get(container, ())
            for child in children.values() if isinstance(children, Mapping) else children:
                yield from arrays_of(child)


def num_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """Returns the number of an array's bytes."""
    return dtype.itemsize * math.prod(shape)


def check_names(names: Sequence[str], description: Mapping[str, Any]) -> None:
    """Refuses names that were not published.

    Raises:
        UnknownNameError: naming the nearest.
    """
    for name in names:
        if name not in description:
            raise unknown_name("variable", name, description)


def dtype_name(dtype: np.dtype, path: str) -> str:
    """Returns a name that `nests.numeric_dtype` understands; `path` is for the error.

    Raises:
        SpecError: objects, strings, dates: not numbers.
    """
    if not nests.is_numeric(dtype):
        raise SpecError(f"{path}: parameters are arrays of numbers, found dtype {dtype}. Publish numbers only.")
    return dtype.name if dtype.isbuiltin == 2 else dtype.str  # bfloat16 and its kind have no other name


def _as_array(leaf: Any, path: str) -> np.ndarray:
    try:
        return np.asarray(leaf, order="C")
    except (TypeError, ValueError) as error:  # such as JAX's typed PRNG keys
        raise SpecError(f"{path}: expected an array, found {type(leaf).__name__}. {error}") from error
