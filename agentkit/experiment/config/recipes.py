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

`codes.parse` reads a code; `check` refuses names of modules that are not trusted; a value is made again from what that
returns, and from nothing else. Nothing is called for it but partial and the classes that are named.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, final

import numpy as np

from agentkit.errors import ConfigError
from agentkit.experiment.config.codes import MAX_ARRAY, Code, parse
from agentkit.experiment.config.source_code import digest
from agentkit.experiment.config.trust import check_trusted
from agentkit.nests import is_namedtuple

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
        if value.size > MAX_ARRAY:
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
    if not _is_frozen(type(value)):
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


@final
@dataclasses.dataclass(frozen=True)
class Checked:
    """Holds a code all of whose names are trusted; made by `check` alone."""

    code: Code

    def build(self, config: Any = _MISSING, kind: type | None = None) -> Any:
        """Makes the value again, which imports the modules that are named.

        Args:
            config: the agent's settings.
            kind: of which the value has to be an instance, made by its class whichever that is; None for any value,
                whose class is a frozen dataclass or a NamedTuple.

        Raises:
            ConfigError: a name is not found, or a class does not take its fields.
        """
        return _build(self.code, config, kind)


def check(codes: Sequence[Code], imports: Sequence[str], run: object) -> list[Checked]:
    """Refuses codes that name code which is neither agentkit's, nor loaded, nor named by the user: all for one.

    Args:
        codes: what `parse` returned.
        imports: packages that the user named.
        run: the run folder, for messages.

    Raises:
        UntrustedCodeError: it says what to name.
    """
    check_trusted([module for code in codes for module in code.modules()], imports, run)
    return [Checked(code) for code in codes]


def decode(code: Any, config: Any = _MISSING, imports: Sequence[str] = (), run: object = "that is read") -> Any:
    """Makes a value again from its code, if all that this names is trusted: see `parse`, `check`, `Checked.build`."""
    (checked,) = check([parse(code)], imports, run)
    return checked.build(config)


def _build(code: Code, config: Any, kind: type | None = None) -> Any:
    try:
        return _build_form(code, config, kind)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        what = f"{code.value} with its fields" if code.form == "type" else f"A {code.form}"
        raise ConfigError(f"{what} cannot be made again: {error!r:.200}.") from error


def _build_form(code: Code, config: Any, kind: type | None) -> Any:
    children = [(label, _build(child, config)) for label, child in code.children]
    values = [value for _, value in children]
    match code.form:
        case "plain":
            return code.value
        case "tuple":
            return tuple(values)
        case "list":
            return values
        case "dict":
            return dict(values)
        case "function":
            return _find(code.value)
        case "type":
            return _find_class(code.value, kind)(**{label.removeprefix("."): value for label, value in children})
        case "partial":
            function, *rest = values
            args = [value for (label, _), value in zip(children[1:], rest, strict=True) if label.startswith("[")]
            named = {label[1:]: value for label, value in children[1:] if label.startswith(".")}
            return functools.partial(function, *args, **named)
        case "path":
            return pathlib.Path(code.value)
        case "array":
            return _array(*code.value)
        case "same_as" if config is not _MISSING:
            return config
    raise ConfigError(f"Expected a value that can be made again, found {code.value}.")


def _array(numbers: Any, dtype: str) -> np.ndarray:
    found = np.dtype(dtype)
    if found.kind not in "biuf" or found.name != dtype:
        raise ConfigError(f"Expected an array of bools or numbers, found the dtype {dtype!r}.")
    return np.asarray(numbers, found)


def _find_class(name: str, kind: type | None) -> Any:
    cls = _find(name)
    if kind is not None:
        if not (isinstance(cls, type) and issubclass(cls, kind)):
            raise ConfigError(f"Expected a {kind.__name__} at {name}, found {cls!r}.")
    elif not isinstance(cls, type) or not (_is_frozen(cls) or is_namedtuple(cls)):
        raise ConfigError(f"Expected a frozen dataclass or NamedTuple at {name}, found {cls!r}.")
    return cls


def _is_frozen(cls: Any) -> bool:
    return bool(getattr(getattr(cls, "__dataclass_params__", None), "frozen", False))


def _find(name: str) -> Any:
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
