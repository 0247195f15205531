"""Reads ``--import``, ``--env-set`` and ``--wrapper``: whose code may be used, and how an environment is made."""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from agentkit.cli.values.fields import parse_value, type_name
from agentkit.errors import AgentkitError, ConfigError, unknown_name
from agentkit.importing import import_callable


def import_packages(packages: Sequence[str] | None) -> tuple[str, ...]:
    """Imports the packages of ``--import``, found in the working directory, too; returns their names.

    Raises:
        ConfigError: one cannot be imported.
    """
    if not packages:
        return ()
    _look_in_working_directory()
    from agentkit.experiment.config.trust import import_named

    import_named(packages)
    return tuple(packages)


def _look_in_working_directory() -> None:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # Last: nothing in it hides an installed package.


def find_environment(arguments: argparse.Namespace, of_several_agents: bool = False) -> Any:
    """Returns the environment of ``--env``: a name, or for ``MODULE:NAME`` the class or function that is there.

    Its package is added to the packages of ``--import``, which the next command has to name.

    Args:
        arguments: what `parser.parse` made of them.
        of_several_agents: see `given.find`.

    Raises:
        ConfigError: the module cannot be imported, or has nothing there that can be called.
        UnknownNameError: the module has no such name; proposes the nearest one.
    """
    from agentkit.envs import given, prefixes

    if ":" in arguments.env and arguments.env.partition(":")[0] not in prefixes.prefixes():
        _look_in_working_directory()
    found = given.find(arguments.env, of_several_agents)
    if not isinstance(found, str):
        package = getattr(found, "__module__", arguments.env).partition(":")[0].partition(".")[0]
        arguments.imports = [*dict.fromkeys([*(arguments.imports or ()), package])]
    return found


def find_torso(arguments: argparse.Namespace) -> Any:
    """Returns the torso of ``--torso``: a name of agentkit's, or for ``MODULE:NAME`` what is there; None for none.

    Its package is added to the packages of ``--import``, which the next command has to name.

    Raises:
        ConfigError: the module cannot be imported, or has nothing there that can be called.
        UnknownNameError: the module has no such name; proposes the nearest one.
    """
    if arguments.torso is None or ":" not in arguments.torso:
        return arguments.torso
    _look_in_working_directory()
    found = import_callable(arguments.torso, "torso", "torso")
    package = arguments.torso.partition(":")[0].partition(".")[0]
    arguments.imports = [*dict.fromkeys([*(arguments.imports or ()), package])]
    return found


def parse_environment_settings(words: Sequence[str] | None, environment: Any) -> dict[str, Any]:
    """Reads the arguments of an environment from words such as ``rows=8``.

    Agentkit's own environments say which they take and of which type; for others, values are read as Python's, and
    what is none is text.

    Raises:
        ConfigError: for a word without "=", a value of another type, or an argument given twice.
        UnknownNameError: for an argument that agentkit's own environment does not take.
    """
    from agentkit.envs.prefixes import settings_of

    types = settings_of(environment) if words and isinstance(environment, str) else None
    settings: dict[str, Any] = {}
    for word in words or ():
        name, equals, text = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"--env-set: expected NAME=VALUE, such as render_mode=rgb_array, found {word!r}.")
        if name in settings:
            raise ConfigError(f"--env-set {name} is given twice; give it once.")
        if types is None:
            settings[name] = parse_plain(text)
            continue
        if name not in types:
            raise unknown_name(f"argument of {environment}", name, types)
        try:
            settings[name] = parse_value(text, types[name])
        except (ValueError, TypeError) as error:
            raise ConfigError(f"--env-set {name} ({type_name(types[name])}): {error}.") from error
    return settings


def parse_plain(text: str) -> Any:
    """Returns the number, truth value, None, tuple or dict that a text is, else the text.

    >>> parse_plain("100_000"), parse_plain("true"), parse_plain("none"), parse_plain("rgb_array")
    (100000, True, None, 'rgb_array')
    """
    if text.lower() in ("true", "false", "none"):
        return {"true": True, "false": False, "none": None}[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def plain_text(value: Any) -> str:
    """Returns an environment's argument such that `parse_plain` gives it back.

    >>> plain_text([4]), plain_text("rgb_array"), plain_text("none"), plain_text(None)
    ('[4]', 'rgb_array', "'none'", 'None')
    """
    return value if isinstance(value, str) and parse_plain(value) == value else repr(value)


def parse_wrapper(text: str, imports: Sequence[str] = ()) -> Callable[[Any], Any]:
    """Returns the wrapper that a text such as ``frame_stack(num_frames=4)`` names.

    Args:
        text: a name of `agentkit.wrappers.registry`, or ``module:name`` of a module that `imports` cover; with
            arguments in brackets, by name.
        imports: packages that the user named.

    Raises:
        ConfigError: it is no call with arguments by name, or the wrapper cannot be made with these.
        UnknownNameError: there is no such wrapper, or it has no such argument; proposes the nearest name.
    """
    name, bracket, rest = text.partition("(")
    settings = _parse_arguments(text, bracket + rest) if bracket else {}
    function = _find(name.strip(), imports)
    _, *known = inspect.signature(function).parameters.values()  # The first is the environment.
    for label in settings:
        if label not in {parameter.name for parameter in known}:
            raise unknown_name(f"argument of wrapper {name!r}", label, [parameter.name for parameter in known])
    missing = [p.name for p in known if p.default is p.empty and p.name not in settings]
    if missing:
        raise ConfigError(f"--wrapper: {name} needs {', '.join(missing)}. Example: {name}({missing[0]}=4)")
    return functools.partial(function, **settings) if settings else function


def parse_wrappers(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the field `wrappers` that ``--wrapper`` gives; none where it is not given, and a preset's are meant."""
    found = [parse_wrapper(text, arguments.imports or ()) for text in arguments.wrapper or ()]
    return {"wrappers": found} if found else {}


def _parse_arguments(text: str, call: str) -> dict[str, Any]:
    try:
        parsed = ast.parse(f"f{call}", mode="eval").body
        if not isinstance(parsed, ast.Call) or parsed.args:
            raise ValueError(text)
        return {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in parsed.keywords}
    except (ValueError, SyntaxError) as error:
        raise ConfigError(
            f"--wrapper: expected NAME or NAME(argument=value, ...), such as frame_stack(num_frames=4), found {text!r}."
        ) from error


def _find(name: str, imports: Sequence[str]) -> Callable[..., Any]:
    if ":" not in name:
        from agentkit.wrappers import registry

        return registry.find(name)
    from agentkit.experiment.config.trust import check_trusted

    check_trusted([name.partition(":")[0]], imports, f"asked for with --wrapper {name}")
    wrapper: Callable[..., Any] = import_callable(name, "wrapper", "wrapper")
    return wrapper


@contextlib.contextmanager
def refusing_settings(environment: str | None, settings: Collection[str], *errors: type[Exception]) -> Iterator[None]:
    """Refuses settings of ``--env-set`` with which the environment cannot be made; it is made inside.

    Args:
        environment: its name, for messages.
        settings: that were given.
        *errors: by which the environment refuses values; none but TypeError where more than making it is inside.

    Raises:
        ConfigError: in the place of the environment's own error, where there are settings.
    """
    try:
        yield
    except Exception as error:
        if not settings or isinstance(error, AgentkitError) or not isinstance(error, (TypeError, *errors)):
            raise
        given = ", ".join(settings)
        raise ConfigError(
            f"--env-set: {environment or 'the environment'} cannot be made with {given}: {error}."
        ) from error
