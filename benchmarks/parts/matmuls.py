"""The matrix products of a JAX function, found in its jaxpr, and the same products run bare."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


class Product(NamedTuple):
    """One `dot_general`.

    Attributes:
        left: shape of the left operand.
        right: shape of the right one.
        dimensions: contracting and batch dimensions, as `jax.lax.dot_general` takes them.
        repeats: how often loops run it, one time after the other.
    """

    left: tuple[int, ...]
    right: tuple[int, ...]
    dimensions: Any
    repeats: int

    @property
    def flops(self) -> int:
        """Multiplications and additions of one run."""
        (contracting, _), (batch, _) = self.dimensions
        shared = math.prod(self.left[i] for i in (*contracting, *batch))
        batched = math.prod(self.left[i] for i in batch)
        free = math.prod(self.left) // shared * (math.prod(self.right) // shared)
        return 2 * batched * math.prod(self.left[i] for i in contracting) * free


def find_products(function: Callable, *args: Any, choose: Callable = max) -> list[Product]:
    """Every matrix product that `function` runs on these arguments, those in loops and inner calls included.

    Of a `cond` the dearest branch counts, with `choose=min` the cheapest. Products whose results nobody uses are no
    work: the compiler drops them.
    """
    closed = jax.make_jaxpr(function)(*args)
    return list(_walk(_without_dead_code(closed.jaxpr), 1, choose))


def _without_dead_code(jaxpr: Any) -> Any:
    from jax.interpreters import partial_eval

    return partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]


def _walk(jaxpr: Any, repeats: int, choose: Callable) -> Iterator[Product]:
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            left, right = (tuple(x.aval.shape) for x in equation.invars)
            yield Product(left, right, params["dimension_numbers"], repeats)
        elif name == "cond":
            branches = [list(_walk(branch.jaxpr, repeats, choose)) for branch in params["branches"]]
            yield from choose(branches, key=lambda found: sum(x.flops * x.repeats for x in found))
        elif name == "while":
            inner = [x for key in ("cond_jaxpr", "body_jaxpr") for x in _walk(params[key].jaxpr, repeats, choose)]
            if inner:
                raise ValueError(f"{inner} are in a while loop, which does not say how often it runs.")
        elif name == "conv_general_dilated":
            raise ValueError("Convolutions are not counted here: measure an update without them.")
        else:
            times = repeats * (params["length"] if name == "scan" else 1)
            for value in params.values():
                if hasattr(value, "eqns"):
                    yield from _walk(value, times, choose)
                elif hasattr(value, "jaxpr"):
                    yield from _walk(value.jaxpr, times, choose)


def total_gigaflop(products: list[Product]) -> float:
    """Of all, loops included."""
    return sum(x.flops * x.repeats for x in products) / 1e9


def bare_products(products: list[Product], seed: int = 0) -> Callable[[], Any]:
    """A call that runs just these products, as often, in one compiled function.

    One number of each result goes into the next product's operand: so they run one after the other, as those of a
    forward and backward pass do, and none is the same as another or can be left out. The results are returned whole.
    """
    groups = collections.defaultdict(list)
    for product in products:
        groups[product.repeats].append(product)
    rng = np.random.default_rng(seed)
    operands = {
        repeats: [tuple(jnp.asarray(_random(rng, shape)) for shape in (x.left, x.right)) for x in group]
        for repeats, group in groups.items()
    }

    def run(operands: dict[int, list[Any]]) -> tuple[dict[int, list[Any]], dict[int, list[jax.Array]]]:
        link, after, results = jnp.float32(0), {}, {}
        for repeats, group in groups.items():
            shapes = [_result_shape(x) for x in group]
            start = (operands[repeats], [jnp.zeros(shape) for shape in shapes], link)
            if repeats == 1:
                after[repeats], results[repeats], link = _chain(group, start)
            else:

                def body(_: Any, carry: Any, group: list[Product] = group) -> Any:
                    return _chain(group, carry)

                after[repeats], results[repeats], link = lax.fori_loop(0, repeats, body, start)
        return after, results

    compiled = jax.jit(run, donate_argnums=0)
    held = [operands]

    def call() -> Any:
        held[0], results = compiled(held[0])
        return results

    return call


def _chain(group: list[Product], carry: Any) -> Any:
    operands, _, link = carry
    changed, results = [], []
    for product, (left, right) in zip(group, operands, strict=True):
        left = left.at[(0,) * left.ndim].set(link)
        result = lax.dot_general(left, right, product.dimensions)
        link = jnp.tanh(result[(0,) * result.ndim])  # between -1 and 1, however long the chain is
        changed.append((left, right))
        results.append(result)
    return changed, results, link


def _random(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def _result_shape(product: Product) -> tuple[int, ...]:
    shapes = [jax.ShapeDtypeStruct(shape, np.float32) for shape in (product.left, product.right)]
    return jax.eval_shape(lambda a, b: lax.dot_general(a, b, product.dimensions), *shapes).shape
