"""Reads codes, which is how `recipes.encode` writes values: one walk, which refuses all that it does not write.

Whoever asks which names a code has, and whoever makes the value again, go over the same `Code`: nothing is used that
was not seen before. Nothing is imported here.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, final

from agentkit.errors import ConfigError

MAX_ARRAY = 10_000
"""Numbers of an array; one of more is no setting."""
_MAX_DEPTH = 100
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 100

# Of each form, the keys that it has and those that it may have. A mapping is of one form alone.
_KEYS: dict[str, tuple[set[str], set[str]]] = {
    "list": ({"list"}, set()),
    "dict": ({"dict"}, set()),
    "function": ({"function"}, {"digest"}),
    "type": ({"type", "fields"}, {"digest"}),
    "partial": ({"partial", "args", "keywords"}, set()),
    "path": ({"path"}, set()),
    "array": ({"array", "dtype"}, set()),
    "same_as": ({"same_as"}, set()),
    "unnamed": ({"unnamed"}, {"name", "digest", "fields"}),
}


@final
@dataclasses.dataclass(frozen=True)
class Code:
    """Holds a code that was read.

    Attributes:
        form: "plain", "tuple", or one of the forms in `recipes`.
        value: the plain value, the name, the path, an array and its dtype, or why there is no name.
        children: the codes directly inside, each with what to add to its path: ``[0]`` of sequences and arguments,
            ``.name`` of fields and keywords; of a dict its pairs, each as a tuple.
        digest: of the source of a function or class.
        known: the name of what cannot be found under it.
    """

    form: str
    value: Any = None
    children: tuple[tuple[str, Code], ...] = ()
    digest: str | None = None
    known: str | None = None

    def names(self) -> Iterator[str]:
        """Yields the names of the functions and classes, as ``module:name``: making the value imports no others."""
        if self.form in ("function", "type"):
            yield self.value
        for _, child in self.children:
            yield from child.names()

    def modules(self) -> Iterator[str]:
        """Yields the modules of the functions and classes."""
        return (name.partition(":")[0] for name in self.names())

    def unnamed(self, path: str) -> Iterator[tuple[str, str]]:
        """Yields the path of each part that cannot be made again, and why."""
        if self.form == "unnamed":
            yield path, self.value
        for label, child in self.children:
            yield from child.unnamed(path + label)

    def same(self, now: Code) -> bool:
        """Returns whether `now` names the same. An unnamed part may be any function or object: `changed` yields it."""
        if self.form == "unnamed":
            return now.form in ("function", "type", "partial", "unnamed")
        found, others = dict(self.children), dict(now.children)
        if (self.form, self.value) != (now.form, now.value) or found.keys() != others.keys():
            return False
        return all(child.same(others[label]) for label, child in found.items())

    def changed(self, now: Code) -> Iterator[str]:
        """Yields the name of each function and class whose source is another in `now`, or cannot be compared."""
        one, other = (code.value if code.form in ("function", "type") else code.known for code in (self, now))
        if self.form == "unnamed" and one != other:
            yield str(one or self.value)
        elif one is not None and one == other and None not in (self.digest, now.digest) and self.digest != now.digest:
            yield one
        found, others = dict(self.children), dict(now.children)
        for label in found.keys() & others.keys():
            yield from found[label].changed(others[label])


def in_short(found: Any) -> str:
    """Returns how a value is written, cut short however large and deep it is."""
    return _SHORT.repr(found)[:200]


def parse(code: Any, path: str = "") -> Code:
    """Reads a code.

    Args:
        code: what `recipes.encode` returned, maybe by way of JSON.
        path: where it is, for the error.

    Raises:
        ConfigError: it is nothing that `encode` writes.
    """
    return _parse(code, path, 0)


def _parse(code: Any, path: str, depth: int) -> Code:
    if depth > _MAX_DEPTH:
        raise ConfigError(f"{path[:200]}: expected codes at most {_MAX_DEPTH} deep inside of one another, found more.")
    if code is None or type(code) in (bool, int, float, str):
        return Code("plain", code)
    if type(code) in (list, tuple):
        return Code("tuple", None, _items(code, path, depth))
    if not isinstance(code, Mapping):
        raise _refusal(path, code)
    forms = [form for form in _KEYS if form in code]
    if len(forms) != 1:
        raise _refusal(path, code)
    (form,) = forms
    needed, allowed = _KEYS[form]
    if not needed <= code.keys() <= needed | allowed or not _is_text(code.get("digest"), or_none=True):
        raise _refusal(path, code)
    return _READERS[form](code, path, depth)


def _refusal(path: str, found: Any) -> ConfigError:
    where = f"{path}: expected" if path else "Expected"
    return ConfigError(f"{where} a value as agentkit writes it, found {in_short(found)}: restore the file.")


def _is_text(value: Any, or_none: bool = False) -> bool:
    return type(value) is str or (or_none and value is None)


def _items(codes: Any, path: str, depth: int) -> tuple[tuple[str, Code], ...]:
    if type(codes) not in (list, tuple):
        raise _refusal(path, codes)
    return tuple((f"[{i}]", _parse(child, f"{path}[{i}]", depth + 1)) for i, child in enumerate(codes))


def _fields(codes: Any, path: str, depth: int) -> tuple[tuple[str, Code], ...]:
    if not isinstance(codes, Mapping) or not all(_is_text(name) for name in codes):
        raise _refusal(path, codes)
    return tuple((f".{name}", _parse(child, f"{path}.{name}", depth + 1)) for name, child in codes.items())


def _name(name: Any, path: str) -> str:
    """Returns ``module:name`` if both are identifiers with dots between: neither relative nor an expression."""
    parts = name.split(":") if _is_text(name) else ()
    if len(parts) != 2 or not all(word.isidentifier() for part in parts for word in part.split(".")):
        where = f"{path}: expected" if path else "Expected"
        raise ConfigError(f"{where} the name of a function or class as MODULE:NAME, found {in_short(name)}.")
    return str(name)


def _read_list(code: Mapping[str, Any], path: str, depth: int) -> Code:
    return Code("list", None, _items(code["list"], path, depth))


def _read_dict(code: Mapping[str, Any], path: str, depth: int) -> Code:
    pairs = _items(code["dict"], path, depth)
    if not all(pair.form == "tuple" and len(pair.children) == 2 for _, pair in pairs):
        raise _refusal(path, code)
    return Code("dict", None, pairs)


def _read_function(code: Mapping[str, Any], path: str, _depth: int) -> Code:
    return Code("function", _name(code["function"], path), digest=code.get("digest"))


def _read_type(code: Mapping[str, Any], path: str, depth: int) -> Code:
    return Code("type", _name(code["type"], path), _fields(code["fields"], path, depth), code.get("digest"))


def _read_partial(code: Mapping[str, Any], path: str, depth: int) -> Code:
    function = _parse(code["partial"], path, depth + 1)
    if function.form not in ("function", "partial", "type", "unnamed"):
        raise _refusal(path, code)
    inside = (*_items(code["args"], path, depth), *_fields(code["keywords"], path, depth))
    return Code("partial", None, (("", function), *inside))


def _read_path(code: Mapping[str, Any], path: str, _depth: int) -> Code:
    if not _is_text(code["path"]):
        raise _refusal(path, code)
    return Code("path", code["path"])


def _read_array(code: Mapping[str, Any], path: str, _depth: int) -> Code:
    numbers, dtype = code["array"], code["dtype"]
    if not _is_text(dtype) or _shape(numbers) is None:
        raise _refusal(path, code)
    return Code("array", (numbers, dtype))


def _shape(numbers: Any, most: int = MAX_ARRAY, depth: int = 0) -> tuple[int, ...] | None:
    """Returns the shape of nested lists of numbers; None if they are no array, or one of too many numbers."""
    if type(numbers) in (bool, int, float):
        return ()
    if type(numbers) is not list or len(numbers) > most or depth > 32:
        return None
    shapes = {_shape(row, most // max(len(numbers), 1), depth + 1) for row in numbers}
    if None in shapes or len(shapes) > 1:
        return None
    (inner,) = shapes or {()}
    shape = (len(numbers), *inner)  # type: ignore[misc]
    return shape if math.prod(shape) <= most else None


def _read_same_as(code: Mapping[str, Any], path: str, _depth: int) -> Code:
    if code["same_as"] != "config":
        raise _refusal(path, code)
    return Code("same_as", "config")


def _read_unnamed(code: Mapping[str, Any], path: str, depth: int) -> Code:
    if not (_is_text(code["unnamed"]) and _is_text(code.get("name"), or_none=True)):
        raise _refusal(path, code)
    inside = _fields(code.get("fields", {}), path, depth)
    return Code("unnamed", code["unnamed"], inside, code.get("digest"), code.get("name"))


_READERS: dict[str, Callable[[Mapping[str, Any], str, int], Code]] = {
    "list": _read_list,
    "dict": _read_dict,
    "function": _read_function,
    "type": _read_type,
    "partial": _read_partial,
    "path": _read_path,
    "array": _read_array,
    "same_as": _read_same_as,
    "unnamed": _read_unnamed,
}
