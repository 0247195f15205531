"""Takes nests apart and puts them together again: for checkpoints, for transports, and at every environment step.

A nest is a tree of dicts, tuples, lists and NamedTuples whose leaves are arrays (`agentkit.types.Nest`). Dicts are
flattened by sorted key, as `tree` and JAX do. There are four ways to write a nest down:

* `flatten_to_paths`: leaves by the path that leads to each, such as ``".params['linear']['w']"``, as JAX names it;
  `restore_from_paths` checks them against a nest like the one that was saved.
* `number_leaves`: leaves by their number, "0", "1", ...; `restore_from_numbers` checks them against specs.
* `describe`: the structure as JSON; `build` makes the nest from that. Nothing is pickled.
* `LeafReader` and `make_builder`: leaves in a list, for one structure that is known before.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, SpecError
from agentkit.types import Nest


def copy_nest(nest: Nest) -> Nest:
    """Copies a nest's arrays, so that whoever made them may reuse their memory."""
    if isinstance(nest, np.ndarray):
        return nest.copy()
    return tree.map_structure(np.array, nest)


# Leaves by path ---------------------------------------------------------------------------------------


def flatten_to_paths(nest: Nest) -> dict[str, Any]:
    """Returns the leaves of a nest, each under its path; None has no leaves.

    Raises:
        SpecError: something is in there that is neither a plain container nor an array.
    """
    found: dict[str, Any] = {}

    def visit(node: Nest, path: str) -> None:
        children = _children(node, path)
        if children is None:
            found[path] = node
        else:
            for name, child in children:
                visit(child, path + name)

    visit(nest, "")
    return found


def restore_from_paths(like: Nest, leaves: Mapping[str, np.ndarray], what: str) -> Nest:
    """Returns the nest that `flatten_to_paths` made `leaves` of.

    Args:
        like: a nest of the same structure, whose leaves have the shapes and dtypes that are expected.
        leaves: arrays by path.
        what: the nest's name in errors.

    Raises:
        CheckpointError: an array is missing, unknown, or of another shape or dtype than in `like`.
    """
    remaining = dict(leaves)

    def visit(node: Nest, path: str) -> Nest:
        children = _children(node, path)
        if children is not None:
            return _rebuild(node, [visit(child, path + name) for name, child in children])
        found = remaining.pop(path, None)
        if found is None or found.shape != node.shape or found.dtype != node.dtype:
            said = "nothing" if found is None else f"{found.dtype}{list(found.shape)}"
            raise CheckpointError(
                f"{what} {path}: expected {node.dtype}{list(node.shape)}, found {said}. "
                "Resume with the agent, networks and config it was saved with."
            )
        return found

    nest = visit(like, "")
    if remaining:
        raise CheckpointError(f"{what}: the checkpoint has parts that this agent lacks: {sorted(remaining)}.")
    return nest


def _children(node: Nest, path: str) -> list[tuple[str, Nest]] | None:
    """Returns a container's children with their parts of the path, None for a leaf."""
    if node is None:
        return []
    if isinstance(node, dict):
        return [(f"[{key!r}]", node[key]) for key in sorted(node)]
    if is_namedtuple(type(node)):
        return [(f".{name}", getattr(node, name)) for name in node._fields]
    if isinstance(node, tuple | list):
        return [(f"[{i}]", child) for i, child in enumerate(node)]
    if not hasattr(node, "__array__") and not isinstance(node, bool | int | float | complex):
        raise SpecError(
            f"{path or 'A nest'}: expected a dict, list, tuple, NamedTuple or array, found {type(node).__name__}. "
            "Use one of these containers."
        )
    return None


def _rebuild(node: Nest, children: list[Nest]) -> Nest:
    """Returns a container like `node` with other children, in the order of `_children`."""
    if node is None:
        return None
    if isinstance(node, dict):
        return dict(zip(sorted(node), children, strict=True))
    return type(node)._make(children) if is_namedtuple(type(node)) else type(node)(children)


# Leaves by number -------------------------------------------------------------------------------------


def number_leaves(nest: Nest) -> dict[str, np.ndarray]:
    """Returns the leaves of a nest as a dict with keys "0", "1", ..., which a checkpoint can hold."""
    return {str(i): np.asarray(leaf) for i, leaf in enumerate(tree.flatten(nest))}


def restore_from_numbers(state: Mapping[str, Any], spec: Nest, what: str) -> Nest:
    """Returns the nest that `number_leaves` made `state` of.

    Args:
        state: arrays by number.
        spec: nest of array specs.
        what: the nest's name in errors.

    Raises:
        CheckpointError: the leaves are not those of `spec`.
    """
    try:
        nest = tree.unflatten_as(spec, [np.asarray(state[str(i)]) for i in range(len(state))])
        specs.validate(nest, spec, what)
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"The saved {what} does not fit its spec: {error}") from error
    return nest


# The structure as JSON --------------------------------------------------------------------------------


def describe(nest: Nest, describe_leaf: Callable[[Any, str], dict[str, Any]], path: str) -> Any:
    """Returns the structure of a nest as plain data for JSON; `build` makes a nest of it.

    A node is ``{"dict": {key: node}}``, ``{"list": [node]}``, ``{"tuple": [node]}``, None, a leaf's own dict, or
    ``{"namedtuple": [module, name], "fields": {field: node}}``. Dicts keep their order.

    Args:
        nest: keys of dicts are strings.
        describe_leaf: from a leaf and its path to a dict; called in the order in which `build` asks for leaves.
        path: where the nest is, for errors.

    Raises:
        SpecError: another container, or a key that is no string; the message says where.
    """
    if nest is None:
        return None
    kind = type(nest)
    if kind is np.ndarray:  # The most of them; what follows takes a microsecond.
        return describe_leaf(nest, path)
    if kind is dict:
        for key in nest:
            if not isinstance(key, str):
                raise SpecError(f"{path}: keys are strings, found {key!r} of type {type(key).__name__}.")
        return {"dict": {key: describe(child, describe_leaf, f"{path}/{key}") for key, child in nest.items()}}
    if kind in (list, tuple):
        return {kind.__name__: [describe(child, describe_leaf, f"{path}/{i}") for i, child in enumerate(nest)]}
    if is_namedtuple(kind):
        fields = {key: describe(getattr(nest, key), describe_leaf, f"{path}/{key}") for key in nest._fields}
        return {"namedtuple": [kind.__module__, kind.__qualname__], "fields": fields}
    if isinstance(nest, Mapping | Sequence | set | frozenset) and not isinstance(nest, str | bytes):
        raise SpecError(
            f"{path}: expected a dict, list, tuple, named tuple or array, found {kind.__module__}.{kind.__qualname__}. "
            "Use a plain container, such as dict(x)."
        )
    return describe_leaf(nest, path)


def build(node: Any, build_leaf: Callable[[dict[str, Any]], Any]) -> Nest:
    """Returns the nest that `describe` described.

    Args:
        node: a description, perhaps from another process.
        build_leaf: from what `describe_leaf` returned to a leaf.

    Raises:
        SpecError: no description, or a named tuple whose class is not loaded in this process.
    """
    match node:
        case None:
            return None
        case {"dict": dict(children)}:
            return {key: build(child, build_leaf) for key, child in children.items()}
        case {"list": list(children)}:
            return [build(child, build_leaf) for child in children]
        case {"tuple": list(children)}:
            return tuple(build(child, build_leaf) for child in children)
        case {"namedtuple": [str(module), str(name)], "fields": dict(fields)}:
            make = _loaded_namedtuple(module, name, list(fields))
            return make._make([build(child, build_leaf) for child in fields.values()])
        case {"array": _}:
            return build_leaf(node)
    raise SpecError(f"Expected the description of a nest, found {node!r}.")


def _loaded_namedtuple(module: str, name: str, fields: list[str]) -> Any:
    """Returns the class, if this process has loaded it: nothing is imported because data says so."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = vars(found).get(part) if isinstance(found, ModuleType | type) else None  # No module's __getattr__.
    if not (isinstance(found, type) and is_namedtuple(found) and list(getattr(found, "_fields", ())) == fields):
        raise SpecError(
            f"The nest holds a named tuple {module}.{name} with fields {fields}, which is not known here. "
            "Import its module first, or use a dict."
        )
    return found


def numeric_dtype(name: Any) -> np.dtype:
    """Returns the dtype of a name; bfloat16 and its kind, which come with JAX, are found too.

    Raises:
        SpecError: there is none, or none of numbers.
    """
    kind: Any = name if isinstance(name, str) and name.lstrip("<>=|").isidentifier() else None
    if kind is not None and kind.isidentifier() and kind not in np.sctypeDict:
        kind = getattr(ml_dtypes(), kind, None)
        kind = kind if isinstance(kind, type) else None
    try:
        dtype = None if kind is None else np.dtype(kind)
    except (TypeError, ValueError) as error:
        raise SpecError(f"Expected the name of a numeric dtype, found {name!r}.") from error
    if dtype is None or not is_numeric(dtype):
        raise SpecError(f"Expected the name of a numeric dtype, found {name!r}.")
    return dtype


def is_numeric(dtype: np.dtype) -> bool:
    """Returns whether a dtype is of bools or numbers in native byte order: numpy's, or bfloat16 and its kind."""
    if dtype.kind in "biufc":
        return dtype.isnative  # Not isbuiltin: that is 0 of a dtype that was pickled.
    return dtype.isbuiltin == 2 and hasattr(ml_dtypes(), dtype.name)


def ml_dtypes() -> Any:
    """Returns the module of dtypes that numpy lacks; loaded when it is first needed."""
    import ml_dtypes as module

    return module


# One structure that is known before -------------------------------------------------------------------


class LeafReader:
    """Takes the leaves out of nests that must match one spec, and refuses all others.

    Args:
        spec: nest of array specs.
        what: how errors call the value, e.g. "step".
    """

    def __init__(self, spec: Nest, what: str):
        self._spec = spec
        self._what = what
        self._collect = _collector(spec)
        flat = [(np.dtype(s.dtype), tuple(s.shape)) for s in tree.flatten(spec)]
        self._expected = [(_scalar_type(dtype, shape), dtype, shape) for dtype, shape in flat]

    def __call__(self, value: Nest) -> Sequence[Any]:
        """Returns the leaves of `value`, each of the spec's shape and dtype.

        Raises:
            SpecError: naming the leaf, what was expected there and what was found.
        """
        leaves: list[Any] = []
        if self._collect(value, leaves):
            for leaf, (scalar, dtype, shape) in zip(leaves, self._expected, strict=True):
                kind = type(leaf)
                if kind is scalar:
                    continue
                if kind is not np.ndarray or leaf.shape != shape:
                    break
                if leaf.dtype is not dtype and leaf.dtype != dtype:  # most dtypes are one object each
                    break
            else:
                return leaves
        # Something else than plain numpy arrays: lists for tuples, JAX arrays, or an error to name.
        specs.validate(value, self._spec, self._what)
        return [np.asarray(leaf) for leaf in tree.flatten(value)]


def _scalar_type(dtype: np.dtype, shape: tuple[int, ...]) -> type | None:
    """Returns the type of numpy scalars sure to have this dtype and shape; None where a type does not say so."""
    return dtype.type if shape == () and dtype.isnative and dtype.kind in "biufc" else None


def _collector(spec: Nest) -> Callable[[Any, list[Any]], bool]:
    """Returns a function that appends a nest's leaves to a list and says whether it has `spec`'s structure."""
    if not tree.is_nested(spec):

        def collect_leaf(value: Any, out: list[Any]) -> bool:
            out.append(value)
            return True

        return collect_leaf

    kind = type(spec)
    if kind is dict:
        keys = sorted(spec)
        children = _collectors([spec[key] for key in keys])
        flat = not any(children)

        def collect_dict(value: Any, out: list[Any]) -> bool:
            if type(value) is not dict or len(value) != len(keys):
                return False
            try:
                items = [value[key] for key in keys]
            except KeyError:
                return False
            if flat:
                out += items
                return True
            return _collect_all(children, items, out)

        return collect_dict

    if kind in (tuple, list) or is_namedtuple(kind):
        size = len(spec)
        children = _collectors(spec)
        flat = not any(children)
        # A record of leaves that ends with what most agents have none of, such as `extras`.
        num_leaves = size
        while num_leaves and type(spec[num_leaves - 1]) is tuple and not spec[num_leaves - 1]:
            num_leaves -= 1
        leaves_first = not any(children[:num_leaves])

        def collect_sequence(value: Any, out: list[Any]) -> bool:
            if type(value) is not kind or len(value) != size:
                return False
            if flat:
                out += value
                return True
            if leaves_first:
                out += value[:num_leaves]
                return all(type(empty) is tuple and not empty for empty in value[num_leaves:])
            return _collect_all(children, value, out)

        return collect_sequence

    return lambda value, out: False  # A rarer container: `LeafReader` takes the long way.


_Collector = Callable[[Any, list[Any]], bool]


def _collectors(nests: Sequence[Nest]) -> list[_Collector | None]:
    """Returns a collector of each, None for a leaf."""
    return [_collector(nest) if tree.is_nested(nest) else None for nest in nests]


def _collect_all(children: Sequence[_Collector | None], values: Sequence[Any], out: list[Any]) -> bool:
    for child, value in zip(children, values, strict=True):
        if child is None:
            out.append(value)
        elif not child(value, out):
            return False
    return True


def make_builder(structure: Nest) -> Callable[[Iterator[Any]], Nest]:
    """Returns a function that builds a nest like `structure` from an iterator over its leaves."""
    if not tree.is_nested(structure):
        return next
    kind = type(structure)
    if kind is dict:
        keys = sorted(structure)
        children = [make_builder(structure[key]) for key in keys]

        def build_dict(leaves: Iterator[Any]) -> Nest:
            return {key: child(leaves) for key, child in zip(keys, children, strict=True)}

        return build_dict
    if kind in (tuple, list) or is_namedtuple(kind):
        children = [make_builder(child) for child in structure]
        make = kind._make if is_namedtuple(kind) else kind
        return lambda leaves: make([child(leaves) for child in children])
    size = len(tree.flatten(structure))
    return lambda leaves: tree.unflatten_as(structure, [next(leaves) for _ in range(size)])


def is_namedtuple(kind: type) -> bool:
    """Returns whether a class is a NamedTuple's."""
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
