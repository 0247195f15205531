"""Digests of source code: whether a function or class is still the one that a run was made with."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import io
import sys
import textwrap
import tokenize
import types
from collections.abc import Iterator
from typing import Any

_WORDS_ONLY = "@checks_parts\n"  # It changes the words of errors, and nothing that a run does.
_PLAIN = bool | int | float | str | tuple | None


@functools.cache
def digest(thing: Any) -> str | None:
    """Returns a digest of a function's or class's source; None where there is no source to read.

    Functions, classes and CONSTANTS of its own file that it names count, too; with a user's package, those of the whole
    package. Comments, docstrings and blank lines do not. The answer is kept: it is of the code that was loaded.
    """
    sources: dict[str, str] = {}
    _collect(thing, sources)
    if not sources:
        return None
    text = "\n".join(f"{name}\n{sources[name]}" for name in sorted(sources))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _collect(thing: Any, sources: dict[str, str]) -> None:
    """Adds the source of a function or class, and of what it names in its own file or package."""
    thing = inspect.unwrap(thing)
    module = getattr(thing, "__module__", None)
    name = f"{module}:{getattr(thing, '__qualname__', '')}"
    if name in sources:
        return
    try:
        source = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):  # Written at a prompt, or in C.
        return
    sources[name] = normalise(source).removeprefix(_WORDS_ONLY)
    home = sys.modules.get(str(module))
    if home is None:
        return
    for label, other in _named_in(source, vars(home)):
        if isinstance(other, type) or inspect.isroutine(inspect.unwrap(other) if callable(other) else other):
            if _together(str(module), str(getattr(other, "__module__", ""))):
                _collect(other, sources)
        elif isinstance(other, _PLAIN) and label.lstrip("_").isupper():
            sources[f"{module}:{label}"] = repr(other)


def _together(module: str, other: str) -> bool:
    """Returns whether code of one module, when it changes, changes what the other does as far as a run is concerned."""
    package = module.partition(".")[0]
    return module == other or (package != "agentkit" and package == other.partition(".")[0])


def _named_in(source: str, found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yields the globals that a source names, and the attributes of modules among them."""
    try:
        tree = ast.parse(source)
    except SyntaxError:  # A lambda in the middle of a statement.
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in found:
            yield node.id, found[node.id]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            home = found.get(node.value.id)
            if isinstance(home, types.ModuleType) and node.attr in vars(home):
                yield f"{node.value.id}.{node.attr}", vars(home)[node.attr]


def normalise(source: str) -> str:
    r"""Returns a source without its comments, docstrings and blank lines.

    >>> print(normalise('def f(x):  # twice\n    "Doubles."\n\n    return 2 * x'))
    def f(x):
        return 2 * x
    """
    lines = source.splitlines()
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 1] = lines[row - 1][:column]
        tree = ast.parse(source)
    except (SyntaxError, tokenize.TokenError):
        return source.strip()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and ast.get_docstring(node):
            doc = node.body[0]
            if doc.lineno > node.lineno and doc.end_lineno is not None:
                lines[doc.lineno - 1 : doc.end_lineno] = [""] * (doc.end_lineno - doc.lineno + 1)
    return "\n".join(line.rstrip() for line in lines if line.strip())
