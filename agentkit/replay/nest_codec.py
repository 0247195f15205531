"""Flattening and rebuilding nests of one known structure, fast enough for every environment step.

`tree.flatten` and `tree.unflatten_as` walk any nest; here the walk is prepared once per structure.
Leaves come in `tree.flatten`'s order (dicts by sorted key).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.types import Nest


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
        """The leaves of `value`, each of the spec's shape and dtype.

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
    """The type of numpy scalars that are sure to have this dtype and shape; None where a type does not say so."""
    return dtype.type if shape == () and dtype.isnative and dtype.kind in "biufc" else None


def _collector(spec: Nest) -> Callable[[Any, list[Any]], bool]:
    """A function that appends a nest's leaves to a list and says whether it has `spec`'s structure."""
    if not tree.is_nested(spec):

        def collect_leaf(value: Any, out: list[Any]) -> bool:
            out.append(value)
            return True

        return collect_leaf

    kind = type(spec)
    if kind is dict:
        keys = sorted(spec)
        children = _children([spec[key] for key in keys])
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

    if kind in (tuple, list) or _is_namedtuple(kind):
        size = len(spec)
        children = _children(spec)
        flat = not any(children)
        # A record of leaves that ends with `extras`, of which most agents have none.
        no_extras = size > 1 and not any(children[:-1]) and type(spec[-1]) is tuple and not spec[-1]

        def collect_sequence(value: Any, out: list[Any]) -> bool:
            if type(value) is not kind or len(value) != size:
                return False
            if flat:
                out += value
                return True
            if no_extras:
                out += value[:-1]
                return type(value[-1]) is tuple and not value[-1]
            return _collect_all(children, value, out)

        return collect_sequence

    return lambda value, out: False  # A rarer container: `LeafReader` takes the long way.


_Collector = Callable[[Any, list[Any]], bool]


def _children(nests: Sequence[Nest]) -> list[_Collector | None]:
    """A collector of each, None for a leaf."""
    return [_collector(nest) if tree.is_nested(nest) else None for nest in nests]


def _collect_all(children: Sequence[_Collector | None], values: Sequence[Any], out: list[Any]) -> bool:
    for child, value in zip(children, values, strict=True):
        if child is None:
            out.append(value)
        elif not child(value, out):
            return False
    return True


def make_builder(structure: Nest) -> Callable[[Iterator[Any]], Nest]:
    """A function that builds a nest like `structure` from an iterator over its leaves."""
    if not tree.is_nested(structure):
        return next
    kind = type(structure)
    if kind is dict:
        keys = sorted(structure)
        children = [make_builder(structure[key]) for key in keys]

        def build_dict(leaves: Iterator[Any]) -> Nest:
            return {key: child(leaves) for key, child in zip(keys, children, strict=True)}

        return build_dict
    if kind in (tuple, list) or _is_namedtuple(kind):
        children = [make_builder(child) for child in structure]
        make = kind._make if _is_namedtuple(kind) else kind
        return lambda leaves: make([child(leaves) for child in children])
    size = len(tree.flatten(structure))
    return lambda leaves: tree.unflatten_as(structure, [next(leaves) for _ in range(size)])


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")
