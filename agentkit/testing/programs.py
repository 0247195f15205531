"""Traces and compiles programs for contracts: as text that can be compared, and quickly for a few calls."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr


def trace(function: Callable[..., Any], *args: Any) -> tuple[str, list[Any]]:
    """Returns what JAX traces of a function of these arguments: the program as text, and its constants."""
    traced = jax.make_jaxpr(function)(*args)
    constants = [np.asarray(constant) for constant in _constants(traced)]
    # Functions that are parts of a program, such as rules of derivatives, are shown with their addresses.
    return re.sub(r"0x[0-9a-f]+", "", str(traced)), [(x.dtype, x.shape, x.tobytes()) for x in constants]


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
    """Compiles a function without most of XLA's optimisations, for a few calls."""
    compiled = jax.jit(function)

    def run(*args: Any) -> Any:
        jax.config.update("jax_disable_most_optimizations", True)
        try:
            return compiled(*args)
        finally:
            jax.config.update("jax_disable_most_optimizations", False)

    return run
