"""Traces and compiles programs for contracts: as text that can be compared, and quickly for a few calls."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal


def trace(function: Callable[..., Any], *args: Any) -> tuple[str, list[Any]]:
    """Returns what JAX traces of a function of these arguments: the program as text, and its constants."""
    traced = jax.make_jaxpr(function)(*args)
    constants = [np.asarray(constant) for constant in _constants(traced)]
    # Functions that are parts of a program, such as rules of derivatives, are shown with their addresses.
    text = re.sub(r"0x[0-9a-f]+", "", _text(traced, {}))
    return text, [(x.dtype, x.shape, x.tobytes()) for x in constants]


def _text(part: Any, numbers: dict[Any, int]) -> str:
    """Returns a part of a program as text, its variables by their numbers; JAX takes as long to print as to trace."""
    if isinstance(part, ClosedJaxpr):
        part = part.jaxpr
    if isinstance(part, Jaxpr):
        lines = [_variables([*part.constvars, *part.invars], numbers)]
        for equation in part.eqns:
            read = _variables(equation.invars, numbers)
            settings = [f"{name}={_text(value, numbers)}" for name, value in sorted(equation.params.items())]
            written = _variables(equation.outvars, numbers)
            lines.append(f"{written} = {equation.primitive} {read} {' '.join(settings)}")
        return "\n".join([*lines, _variables(part.outvars, numbers)])
    if isinstance(part, list | tuple):
        return f"({', '.join(_text(each, numbers) for each in part)})"
    return str(part)


def _variables(variables: Sequence[Any], numbers: dict[Any, int]) -> str:
    """Returns variables by number and type; literals, which cannot be hashed, by their values."""
    shown = (v.val if isinstance(v, Literal) else numbers.setdefault(v, len(numbers)) for v in variables)
    return " ".join(f"{name}:{v.aval}" for name, v in zip(shown, variables, strict=True))


def _constants(program: Any) -> Iterator[Any]:
    """Yields the constants of a traced program and of the programs in it, which its text does not show."""
    if isinstance(program, ClosedJaxpr):
        yield from program.consts
        program = program.jaxpr
    if isinstance(program, Jaxpr):
        yield from _constants([list(equation.params.values()) for equation in program.eqns])
    elif isinstance(program, list | tuple):
        yield from itertools.chain.from_iterable(map(_constants, program))


def quickly_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a function without most of XLA's optimisations, for a few calls; JAX traces it as it is."""
    compiled = jax.jit(function, **_quick_settings())

    def run(*args: Any) -> Any:
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return function(*args)  # JAX takes no options for a part of a program.
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            return compiled(*args)
        finally:
            jax.config.update("jax_disable_most_optimizations", False)

    return run


@functools.cache
def _quick_settings() -> dict[str, Any]:
    """Returns what `jax.jit` is given to leave out XLA's fusion emitters, which take most of the time; {} without."""
    settings: dict[str, Any] = {"compiler_options": {"xla_cpu_use_fusion_emitters": False}}
    try:
        jax.jit(lambda x: x, **settings)(0)
    except (TypeError, jax.errors.JaxRuntimeError):  # Of an older jax's jit, or of an XLA without it.
        return {}
    return settings
