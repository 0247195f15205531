"""What named parameters look like, as plain data: transports carry arrays and JSON, and never pickle.

A description is a dict by variable name of nodes. A node is ``{"array": [dtype, shape]}``,
``{"dict": {key: node}}``, ``{"list": [node]}``, ``{"tuple": [node]}``,
``{"namedtuple": [module, name], "fields": {field: node}}``, or None.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from agentkit.errors import SpecError, unknown_name
from agentkit.types import Nest

Description = dict[str, Any]
"""By variable name, a node."""

_PLAIN_KINDS = "biufc"


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
    description = {_key(name, "the variables"): _walk(nest, name, found) for name, nest in variables.items()}
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
    if node is None:
        return None
    if not isinstance(node, dict):
        raise SpecError(f"Expected the description of a nest, found {node!r}.")
    if "array" in node:
        return next(leaves)
    if "dict" in node:
        return {key: build(child, leaves) for key, child in node["dict"].items()}
    if "list" in node:
        return [build(child, leaves) for child in node["list"]]
    if "tuple" in node:
        return tuple(build(child, leaves) for child in node["tuple"])
    if "namedtuple" in node:
        make = _named_tuple(node["namedtuple"], list(node["fields"]))
        return make._make([build(child, leaves) for child in node["fields"].values()])
    raise SpecError(f"Expected the description of a nest, found {node!r}.")


def arrays_of(node: Any) -> Iterator[tuple[np.dtype, tuple[int, ...]]]:
    """Dtype and shape of each leaf below a node, in order.

    Raises:
        SpecError: no dtype, or no shape.
    """
    if isinstance(node, Mapping) and "array" in node:
        name, shape = node["array"]
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise SpecError(f"Expected a shape, found {shape!r}.")
        yield dtype_of(name), tuple(shape)
    elif isinstance(node, Mapping):
        for container in ("dict", "list", "tuple", "fields"):
            children = node.get(container, ())
            for child in children.values() if isinstance(children, Mapping) else children:
                yield from arrays_of(child)


def num_bytes(dtype: np.dtype, shape: tuple[int, ...]) -> int:
    """How many bytes an array has."""
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
    """A name that `dtype_of` understands; `path` is for the error.

    Raises:
        SpecError: objects, strings, dates: not numbers.
    """
    if dtype.isbuiltin == 1 and dtype.kind in _PLAIN_KINDS:
        return dtype.str
    if dtype.isbuiltin == 2 and hasattr(_ml_dtypes(), dtype.name):  # bfloat16 and its kind
        return dtype.name
    raise SpecError(f"{path}: parameters are arrays of numbers, found dtype {dtype}. Publish numbers only.")


def dtype_of(name: str) -> np.dtype:
    """The dtype that `dtype_name` named.

    Raises:
        SpecError: there is none.
    """
    kind = getattr(_ml_dtypes(), name, None) if name.isidentifier() else name
    try:
        dtype = np.dtype(kind)
    except TypeError as error:
        raise SpecError(f"Expected the name of a numeric dtype, found {name!r}.") from error
    if kind is None or dtype.hasobject:
        raise SpecError(f"Expected the name of a numeric dtype, found {name!r}.")
    return dtype


def _ml_dtypes() -> Any:
    import ml_dtypes  # comes with JAX; not needed where all is float32

    return ml_dtypes


def _walk(nest: Any, path: str, found: list[tuple[str, Any, dict[str, Any]]]) -> Any:
    """The node of a nest. Leaves go to `found`, with their nodes, which are still empty."""
    if nest is None:
        return None
    kind = type(nest)
    if kind is dict:
        return {"dict": {_key(key, path): _walk(child, f"{path}/{key}", found) for key, child in nest.items()}}
    if kind in (list, tuple):
        return {kind.__name__: [_walk(child, f"{path}/{i}", found) for i, child in enumerate(nest)]}
    if isinstance(nest, tuple) and hasattr(nest, "_fields"):
        fields = {key: _walk(getattr(nest, key), f"{path}/{key}", found) for key in nest._fields}
        return {"namedtuple": [kind.__module__, kind.__qualname__], "fields": fields}
    if isinstance(nest, Mapping | Sequence | set | frozenset) and not isinstance(nest, str | bytes):
        raise SpecError(
            f"{path}: expected a dict, list, tuple, named tuple or array, found {kind.__module__}.{kind.__qualname__}. "
            "Publish a plain container, such as dict(x)."
        )
    node: dict[str, Any] = {}
    found.append((path, nest, node))
    return node


def _key(key: Any, path: str) -> str:
    if not isinstance(key, str):
        raise SpecError(f"{path}: keys are strings, found {key!r} of type {type(key).__name__}.")
    return key


def _as_array(leaf: Any, path: str) -> np.ndarray:
    try:
        return np.asarray(leaf, order="C")
    except (TypeError, ValueError) as error:  # such as JAX's typed PRNG keys
        raise SpecError(f"{path}: expected an array, found {type(leaf).__name__}. {error}") from error


def _named_tuple(place: Any, fields: list[str]) -> Any:
    """The class, if this process has loaded it: nothing is imported because data says so."""
    module, name = place
    found: Any = sys.modules.get(module)
    for part in str(name).split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, tuple) and list(getattr(found, "_fields", ())) == fields):
        raise SpecError(
            f"The parameters hold a named tuple {module}.{name} with fields {fields}, which is not known here. "
            "Import its module before fetching, or publish a dict."
        )
    return found
