"""What `mutants.py` changes in a line of source: one operator, number, condition, argument or statement at a time."""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator
from typing import Any, NamedTuple

COMPARISONS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
ARITHMETIC: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum", "argmin": "argmax"}
EXTREMES |= {"argmax": "argmin"}
WITHOUT_BEHAVIOUR = ("_LOGGER", "TypeVar", "NewType", "cast", "ParamSpec")
"""Names whose calls are for a log or a type checker; of a log, its methods."""
OF_TEXTS = ("stacklevel", "help", "metavar", "doc")
"""Arguments that only a text hangs on."""


class Mutant(NamedTuple):
    """One change of one file.

    Attributes:
        path: of the file, relative to the repository.
        line: its number, from 1.
        change: what is different, in words.
        source: the whole changed file.
    """

    path: str
    line: int
    change: str
    source: str

    @property
    def name(self) -> str:
        return f"{self.path}:{self.line} {self.change}"


def mutants_of(path: str, source: str) -> list[Mutant]:
    """Returns every mutant of a file that still compiles.

    Left alone is what no behaviour hangs on or what says nothing about the tests: docstrings, annotations, texts,
    messages of errors and logs, what is for type checkers, decorators, class attributes (defaults of settings), and
    ``strict`` of zip, which guards against other faults.
    """
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    found: dict[str, Mutant] = {}
    for node, new, what in _changes(ast.parse(source)):
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
        changed = (source.encode()[:begin] + text.encode() + source.encode()[end:]).decode()
        try:
            compile(changed, path, "exec")
        except SyntaxError:
            continue
        found.setdefault(changed, Mutant(path, node.lineno, what, changed))
    return list(found.values())


def _changes(node: ast.AST, in_class: bool = False) -> Iterator[tuple[Any, ast.AST, str]]:
    """Yields what to replace, by what, and that in words."""
    if isinstance(node, (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom, ast.Delete)):
        if isinstance(node, ast.Raise):
            yield node, ast.Pass(), f"delete {_text(node)}"
        return
    if (in_class and isinstance(node, (ast.Assign, ast.AnnAssign))) or _is_without_behaviour(node):
        return
    yield from _of_node(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_alone(node, child):
                yield from _changes(child, isinstance(node, ast.ClassDef))


def _is_without_behaviour(node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        return _is_without_behaviour(node.value)
    if isinstance(node, ast.If):
        return _text(node.test) == "TYPE_CHECKING"
    if isinstance(node, ast.FunctionDef):
        return node.name in ("__repr__", "__str__")
    return isinstance(node, ast.Call) and _text(node.func).partition(".")[0] in WITHOUT_BEHAVIOUR


def _is_left_alone(node: ast.AST, argument: ast.AST) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(argument, ast.keyword)):
        return False
    return argument.arg in OF_TEXTS or (argument.arg == "strict" and _text(node.func) == "zip")


def _of_node(node: ast.AST) -> Iterator[tuple[Any, ast.AST, str]]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        yield _replaced(node, ops=[COMPARISONS[type(node.ops[0])]()])
    elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in ARITHMETIC:
        yield _replaced(node, op=ARITHMETIC[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield _replaced(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, node.operand, f"{_text(node)} -> {_text(node.operand)}"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield _replaced(node, value=not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield _replaced(node, value=node.value + 1)
        yield _replaced(node, value=node.value - 1)
    elif isinstance(node, ast.Call):
        yield from _of_call(node)
    if isinstance(node, (ast.If, ast.IfExp, ast.While)):
        negated = ast.UnaryOp(ast.Not(), node.test)
        yield node.test, negated, f"{_text(node.test)} -> {_text(negated)}"
    stored = isinstance(node, ast.Assign) and all(isinstance(x, (ast.Attribute, ast.Subscript)) for x in node.targets)
    called = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    if stored or called or isinstance(node, ast.AugAssign):
        yield node, ast.Pass(), f"delete {_text(node)}"


def _of_call(node: ast.Call) -> Iterator[tuple[Any, ast.AST, str]]:
    for number, keyword in enumerate(node.keywords):
        if keyword.arg is not None and not _is_left_alone(node, keyword):
            kept = node.keywords[:number] + node.keywords[number + 1 :]
            changed = ast.Call(node.func, node.args, kept)
            yield node, changed, f"drop {keyword.arg}={_text(keyword.value)} of {_text(node.func)}(...)"
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in EXTREMES:
        function = copy.copy(node.func)
        setattr(function, "attr" if isinstance(function, ast.Attribute) else "id", EXTREMES[name])
        yield node.func, function, f"{_text(node)}: {name} -> {EXTREMES[name]}"


def _replaced(node: Any, **changes: Any) -> tuple[Any, ast.AST, str]:
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return node, new, f"{_text(node)} -> {_text(new)}"


def _text(node: ast.AST) -> str:
    """Returns at most 70 characters of a node's source, on one line."""
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= 70 else text[:67] + "..."
