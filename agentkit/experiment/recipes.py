"""Values as JSON and back: a function or class by its name, a frozen dataclass by its fields.

    a plain value              itself; a tuple is a list, and a list is {"list": [...]}
    a dict                     {"dict": [[key, value], ...]}
    a function or class        {"function": "module:name", "digest": "..."}
    functools.partial          {"partial": ..., "args": [...], "keywords": {...}}
    a frozen dataclass,        {"type": "module:name", "digest": "...", "fields": {...}}
      or a NamedTuple
    a path                     {"path": "..."}
    a small array              {"array": [...], "dtype": "..."}
    the agent's settings       {"same_as": "config"}
    anything else              {"unnamed": "a lambda", ...}: it can be compared, and not be made again

Nothing is called to make a value again but partial and the classes that are named.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pathlib
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from agentkit.errors import ConfigError
from agentkit.experiment.sources import digest

_MAX_ARRAY = 10_000
_MISSING = object()


def encode(value: Any, config: Any = _MISSING) -> Any:
    """Encodes a value as JSON has it.

    Args:
        value: any.
        config: the agent's settings, which are written elsewhere and here only referred to.
    """
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.generic) and isinstance(value.item(), bool | int | float | str):
        return value.item()
    if type(value) is type(config) and dataclasses.is_dataclass(config) and _same_fields(value, config):
        return {"same_as": "config"}
    if type(value) is tuple:
        return [encode(child, config) for child in value]
    if type(value) is list:
        return {"list": [encode(child, config) for child in value]}
    if type(value) is dict:
        return {"dict": [[encode(key, config), encode(child, config)] for key, child in value.items()]}
    if isinstance(value, pathlib.PurePath):
        return {"path": str(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        if value.size > _MAX_ARRAY:
            return {"unnamed": f"an array of {value.size:,} numbers, more than config.json holds: keep it in a file"}
        return {"array": value.tolist(), "dtype": value.dtype.name}
    if type(value) is functools.partial:
        keywords = {name: encode(child, config) for name, child in value.keywords.items()}
        args = [encode(child, config) for child in value.args]
        return {"partial": encode(value.func, config), "args": args, "keywords": keywords}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _encode_fields(value, value._fields, config)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _encode_dataclass(value, config)
    return encode_name("function", value)


def _same_fields(value: Any, config: Any) -> bool:
    names = [field.name for field in dataclasses.fields(config)]
    return all(encode(getattr(value, name)) == encode(getattr(config, name)) for name in names)


def _encode_dataclass(value: Any, config: Any) -> Any:
    fields = dataclasses.fields(value)
    if not type(value).__dataclass_params__.frozen:
        return {"unnamed": f"a {type(value).__qualname__}, which is no frozen dataclass"}
    if not all(field.init for field in fields):
        return {"unnamed": f"a {type(value).__qualname__}, which has fields that its __init__ does not take"}
    return _encode_fields(value, [field.name for field in fields], config)


def _encode_fields(value: Any, names: Any, config: Any) -> Any:
    code: dict[str, Any] = encode_name("type", type(value))
    return code | {"fields": {name: encode(getattr(value, name), config) for name in names}}


def encode_name(kind: str, thing: Any) -> dict[str, Any]:
    """Returns a function's or class's name; where another program would not find it there, the reason."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not callable(thing) or not isinstance(module, str) or not isinstance(name, str):
        return {"unnamed": f"a value of type {type(thing).__module__}.{type(thing).__qualname__}"}
    known = {"name": f"{module}:{name}", "digest": digest(thing)}
    if "<lambda>" in name:
        return {"unnamed": "a lambda", **known}
    if "<locals>" in name:
        what = "a class" if isinstance(thing, type) else "a function"
        return {"unnamed": f"{what} that was made inside of a function ({name})", **known}
    if module == "__main__":
        return {"unnamed": f"{name} of the script that was started (__main__)", **known}
    if _look_up(module, name) is not thing:
        return {"unnamed": f"{module}.{name} under whose name another object is found", **known}
    return {kind: f"{module}:{name}", "digest": digest(thing)}


def _look_up(module: str, name: str) -> Any:
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def named_modules(code: Any) -> Iterator[str]:
    """Yields the modules of the functions and classes that a code names."""
    if isinstance(code, Mapping) and isinstance(name := code.get("function", code.get("type")), str):
        yield name.partition(":")[0]
    for _, child in _children(code):
        yield from named_modules(child)


def unnamed(code: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yields the path of each part that cannot be made again, and why."""
    if isinstance(code, Mapping) and "unnamed" in code:
        yield path, str(code["unnamed"])
    for label, child in _children(code):
        yield from unnamed(child, path + label)


def names_only(code: Any) -> Any:
    """Returns a code without its digests, to compare by name."""
    if isinstance(code, list):
        return [names_only(child) for child in code]
    if not isinstance(code, Mapping):
        return code
    plain = {key: names_only(value) for key, value in code.items() if key in ("partial", "args", "list", "dict")}
    named = {
        key: {name: names_only(child) for name, child in code[key].items()}
        for key in ("fields", "keywords")
        if key in code
    }
    return {key: value for key, value in code.items() if key != "digest"} | plain | named


def same(saved: Any, now: Any) -> bool:
    """Returns whether two codes name the same. An unnamed part may be any function or object: `changed` yields it."""
    if isinstance(saved, Mapping) and "unnamed" in saved:
        return isinstance(now, Mapping) and bool({"function", "type", "partial", "unnamed"} & now.keys())
    found, others = dict(_children(saved)), dict(_children(now))
    if _head(saved) != _head(now) or found.keys() != others.keys():
        return False
    return all(same(child, others[label]) for label, child in found.items())


def _head(code: Any) -> Any:
    """Returns a code without the codes inside of it, and without its digest."""
    if isinstance(code, Mapping):
        inside = ("fields", "keywords", "args", "list", "dict", "partial")
        return {key: None if key in inside else value for key, value in code.items() if key != "digest"}
    return list if isinstance(code, list) else code


def changed(saved: Any, now: Any) -> Iterator[str]:
    """Yields the name of each function and class whose source is another than the saved one, or cannot be compared."""
    if isinstance(saved, Mapping) and isinstance(now, Mapping):
        names = [code.get("function", code.get("type", code.get("name"))) for code in (saved, now)]
        digests = [code.get("digest") for code in (saved, now)]
        if "unnamed" in saved and names[0] != names[1]:
            yield str(names[0] or saved["unnamed"])
        elif isinstance(names[0], str) and names[0] == names[1] and None not in digests and digests[0] != digests[1]:
            yield names[0]
    found, others = dict(_children(saved)), dict(_children(now))
    for label in found.keys() & others.keys():
        yield from changed(found[label], others[label])


def _children(code: Any) -> list[tuple[str, Any]]:
    """Returns the codes directly inside of one, each with what to add to its path."""
    if isinstance(code, list):
        return [(f"[{index}]", child) for index, child in enumerate(code)]
    found: list[tuple[str, Any]] = []
    if isinstance(code, Mapping):
        for key in ("fields", "keywords"):
            found += [(f".{name}", child) for name, child in dict(code.get(key, {})).items()]
        for key in ("args", "list", "dict"):
            found += _children(code.get(key))
        if "partial" in code:
            found.append(("", code["partial"]))
    return found


def decode(code: Any, config: Any = _MISSING) -> Any:
    """Makes a value again. Imports the modules that are named: ask `trust.check_trusted` before.

    Args:
        code: what `encode` returned, maybe by way of JSON.
        config: the agent's settings.

    Raises:
        ConfigError: a name is not found, a class does not take its fields, or the code is damaged.
    """
    if isinstance(code, list):
        return tuple(decode(child, config) for child in code)
    if not isinstance(code, Mapping):
        return code
    try:
        return _decode(code, config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{str(dict(code))[:200]} cannot be made again: {error!r}.") from error


def _decode(code: Mapping[str, Any], config: Any) -> Any:
    if "function" in code:
        return find(code["function"])
    if "type" in code:
        cls = find(code["type"])
        if not isinstance(cls, type) or not (dataclasses.is_dataclass(cls) or issubclass(cls, tuple)):
            raise ConfigError(f"Expected a dataclass or NamedTuple at {code['type']}, found {cls!r}.")
        return cls(**{name: decode(child, config) for name, child in code["fields"].items()})
    if "partial" in code:
        keywords = {name: decode(child, config) for name, child in code["keywords"].items()}
        return functools.partial(decode(code["partial"], config), *decode(code["args"], config), **keywords)
    if "list" in code:
        return list(decode(code["list"], config))
    if "dict" in code:
        return {decode(key, config): decode(child, config) for key, child in code["dict"]}
    if "path" in code:
        return pathlib.Path(code["path"])
    if "array" in code:
        return np.asarray(code["array"], np.dtype(code["dtype"]))
    if code.get("same_as") == "config" and config is not _MISSING:
        return config
    raise ConfigError(f"Expected a value as agentkit writes it, found {str(dict(code))[:200]}.")


def find(name: str) -> Any:
    """Returns the function or class of a name, imported; only one that is defined under this very name."""
    module, _, path = name.partition(":")
    try:
        importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{name} cannot be imported: {error}. Install it, or run from the folder that it is in."
        ) from error
    found = _look_up(module, path)
    if not callable(found) or (found.__module__, getattr(found, "__qualname__", None)) != (module, path):
        raise ConfigError(f"{module} has no function or class {path!r} of its own. Was it renamed or moved?")
    return found
