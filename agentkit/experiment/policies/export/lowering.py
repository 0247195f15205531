"""Reads a JAX function as a plain list of array operations, which other formats are written from.

Calls are inlined, what depends on constants alone is computed here, and what no output needs is dropped: a greedy
policy's random numbers vanish with it. No converter serves both stacks: jax2onnx wants one version of jax, tf2onnx
TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import string
from collections.abc import Callable, Mapping
from typing import Any, final

import jax
import numpy as np
from jax import export

from agentkit import nests
from agentkit.errors import ConfigError
from agentkit.types import Nest

Shape = list[int | None]
"""Sizes of an array's axes; None is the size of the batch."""

# Primitives that compute each element from the elements in its place, in JAX's own names.
# fmt: off
ELEMENTWISE = frozenset([
    "abs", "add", "and", "ceil", "clamp", "cos", "div", "eq", "erf", "exp", "expm1", "floor", "ge", "gt", "is_finite",
    "le", "log", "log1p", "logistic", "lt", "max", "min", "mul", "ne", "neg", "not", "or", "pow", "rem", "rsqrt",
    "sign", "sin", "sqrt", "square", "sub", "tanh",
])
_REDUCTIONS = frozenset([
    "argmax", "argmin", "reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_prod", "reduce_sum",
])
# fmt: on
_SLICE = ("axes", "starts", "stops", "steps")
_SAME = frozenset(["copy", "optimization_barrier", "stop_gradient"])
_CALLS = ("jaxpr", "call_jaxpr", "fun_jaxpr")


@dataclasses.dataclass(frozen=True)
class Step:
    """Holds one operation.

    Attributes:
        op: JAX's name of it, or one of "broadcast", "cast", "einsum", "reshape", "select".
        inputs: names of arrays: inputs, constants or outputs of earlier steps.
        outputs: names of what it computes.
        shapes: of the outputs.
        dtypes: of the outputs.
        attributes: numbers, words and lists that say more, by name.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Program:
    """Holds a function of a batch as steps.

    Attributes:
        inputs: names in the order of the function's arguments.
        constants: arrays by name.
        steps: in an order in which they can be computed.
        outputs: names of the results, by their names in the function.
    """

    inputs: tuple[str, ...]
    constants: Mapping[str, np.ndarray]
    steps: tuple[Step, ...]
    outputs: Mapping[str, str]

    def only(self, outputs: Mapping[str, str]) -> Program:
        """Returns the part of the program that computes some of its outputs."""
        wanted, kept = set(outputs.values()), []
        for step in reversed(self.steps):
            if wanted & set(step.outputs):
                kept.append(step)
                wanted |= set(step.inputs)
        constants = {name: array for name, array in self.constants.items() if name in wanted}
        inputs = tuple(name for name in self.inputs if name in wanted)
        return Program(inputs, constants, tuple(reversed(kept)), outputs)


def lower(
    function: Callable[[Nest, dict[str, Any]], dict[str, Any]],
    params: Nest,
    inputs: Mapping[str, tuple[tuple[int, ...], Any]],
) -> Program:
    """Returns a function as a program.

    Args:
        function: of parameters, and of arrays by name, each with a batch axis in front; returns arrays by name.
        params: its parameters, which become constants named by their paths (`nests.flatten_to_paths`).
        inputs: shape without the batch axis, and dtype, of each array.
    """
    (batch,) = export.symbolic_shape("batch")
    arguments = {name: jax.ShapeDtypeStruct((batch, *shape), dtype) for name, (shape, dtype) in inputs.items()}
    closed, results = jax.make_jaxpr(function, return_shape=True)(params, arguments)
    paths = nests.flatten_to_paths(params)
    reader = _Reader(batch, paths)
    consts = [reader.constant(value) for value in closed.consts]
    names = sorted(inputs)  # The order in which JAX flattens a dict.
    results_found = reader.read(closed.jaxpr, consts, [*paths, *names])
    outputs = dict(zip(sorted(results), results_found, strict=True))
    found = Program(tuple(names), reader.constants, tuple(reader.steps), outputs).only(outputs)
    constants = {name: np.asarray(reader.value(name)) for name in found.constants}
    return dataclasses.replace(found, constants=constants)


@final
class _Reader:
    """Collects the steps of a jaxpr and of those that it calls."""

    def __init__(self, batch: Any, constants: Mapping[str, Any]):
        self.steps: list[Step] = []
        self.constants = dict(constants)
        self._made_by: dict[str, Step] = {}
        self._batch = batch
        self._count = 0

    def constant(self, value: Any) -> str:
        """Returns the name of a new constant, an array or a function that computes it when it is needed."""
        name = self._new()
        self.constants[name] = value
        return name

    def value(self, name: str) -> Any:
        """Returns a constant."""
        if callable(self.constants[name]):
            self.constants[name] = self.constants[name]()
        return self.constants[name]

    def read(self, jaxpr: Any, consts: list[str], arguments: list[str]) -> list[str]:
        """Adds the steps of a jaxpr; returns the names of its results."""
        env: dict[Any, str] = dict(zip(jaxpr.constvars, consts, strict=True))
        env |= dict(zip(jaxpr.invars, arguments, strict=True))
        for equation in jaxpr.eqns:
            names = [self._name(variable, env) for variable in equation.invars]
            env |= dict(zip(equation.outvars, self._add(equation, names), strict=True))
        return [self._name(variable, env) for variable in jaxpr.outvars]

    def _name(self, variable: Any, env: dict[Any, str]) -> str:
        if hasattr(variable, "val"):  # A literal.
            return self.constant(np.asarray(variable.val, variable.aval.dtype))
        return env[variable]

    def _add(self, equation: Any, inputs: list[str]) -> list[str]:
        """Adds what an equation computes; returns the names of its results."""
        name, params = equation.primitive.name, equation.params
        inner = next((params[key] for key in _CALLS if key in params), None)
        if inner is not None and name not in ("scan", "while"):
            consts = [self.constant(value) for value in getattr(inner, "consts", ())]
            return self.read(getattr(inner, "jaxpr", inner), consts, inputs)
        shapes = [self._shape(v.aval.shape) for v in equation.outvars]
        if all(i in self.constants for i in inputs) and not any(None in shape for shape in shapes):
            compute = functools.cache(
                lambda: equation.primitive.bind(
                    *(self.value(i) for i in inputs), **params
                )  # A list of several results.
            )
            if not equation.primitive.multiple_results:
                return [self.constant(compute)]
            return [self.constant(functools.partial(lambda k: compute()[k], k)) for k in range(len(shapes))]
        if name in _SAME:
            return inputs
        if name == "select_n" and (chosen := self._known(inputs[0])) is not None:
            return [inputs[1 + chosen]]
        return self._write(equation, inputs, shapes)

    def _known(self, name: str) -> int | None:
        """Returns the one value that a constant has in all places; None for another one."""
        if name not in self.constants:
            step = self._made_by.get(name)
            return self._known(step.inputs[0]) if step is not None and step.op == "broadcast" else None
        values = np.asarray(self.value(name))
        return int(values.flat[0]) if values.size and (values == values.flat[0]).all() else None

    def _write(self, equation: Any, inputs: list[str], shapes: list[Shape]) -> list[str]:
        params, name = equation.params, equation.primitive.name
        dtypes = tuple(str(v.aval.dtype) for v in equation.outvars)
        operands = [self._shape(v.aval.shape) for v in equation.invars]

        def step(op: str, **attributes: Any) -> list[str]:
            return self._append(op, inputs, shapes, dtypes, attributes)

        if name in ("div", "rem") and np.dtype(dtypes[0]).kind in "iu":
            return step(f"integer_{name}")  # Rounds towards 0, which others do not.
        if name in ELEMENTWISE:
            return step(name)
        if name == "convert_element_type":
            return step("cast")
        if name == "integer_pow":
            inputs = [inputs[0], self.constant(np.asarray(params["y"], dtypes[0]))]
            return step("pow")
        if name in ("reshape", "squeeze", "expand_dims") and params.get("dimensions") != ():
            return step("reshape", shape=shapes[0])
        if name == "broadcast_in_dim":
            places = params["broadcast_dimensions"]
            ones = [operands[0][places.index(i)] if i in places else 1 for i in range(len(shapes[0]))]
            return step("broadcast", through=ones, shape=shapes[0])
        if name == "select_n" and equation.invars[0].aval.dtype == np.bool_:
            return step("select")
        if name == "dot_general":
            return step("einsum", equation=_einsum(params["dimension_numbers"], operands))
        if name in _REDUCTIONS:
            return step(name, axes=[int(axis) for axis in params["axes"]])
        if name == "split":
            return self._split(inputs, shapes, dtypes, params)
        if name == "stack":
            return self._stack(inputs, shapes[0], dtypes, params["axis"])
        attributes = _attributes(name, params, operands)
        return step(f"unknown {name}") if attributes is None else step(name, **attributes)

    def _split(
        self, inputs: list[str], shapes: list[Shape], dtypes: tuple[str, ...], params: dict[str, Any]
    ) -> list[str]:
        """Writes a split as slices."""
        found, start, axis = [], 0, params["axis"]
        for shape, dtype in zip(shapes, dtypes, strict=True):
            stop = start + int(shape[axis] or 0)
            attributes = {"axes": [axis], "starts": [start], "stops": [stop], "steps": [1]}
            found += self._append("slice", inputs, [shape], (dtype,), attributes)
            start = stop
        return found

    def _stack(self, inputs: list[str], shape: Shape, dtypes: tuple[str, ...], axis: int) -> list[str]:
        """Writes a stack, which newer versions of JAX compute in one, as a concatenation along a new axis."""
        row = [*shape[:axis], 1, *shape[axis + 1 :]]
        rows = [self._append("reshape", [name], [row], dtypes, {"shape": row})[0] for name in inputs]
        return self._append("concatenate", rows, [shape], dtypes, {"axis": axis})

    def _append(
        self, op: str, inputs: list[str], shapes: list[Shape], dtypes: tuple[str, ...], attributes: dict[str, Any]
    ) -> list[str]:
        outputs = tuple(self._new() for _ in shapes)
        self.steps.append(Step(op, tuple(inputs), outputs, tuple(shapes), dtypes, attributes))
        self._made_by |= dict.fromkeys(outputs, self.steps[-1])
        return list(outputs)

    def _shape(self, shape: tuple[Any, ...]) -> Shape:
        found: Shape = []
        for size in shape:
            if isinstance(size, int | np.integer):
                found.append(int(size))
            elif size == self._batch:
                found.append(None)
            else:
                raise ConfigError(
                    f"The policy computes with an axis of size {size}, where batch is the number of observations; only "
                    "the formats 'policy', 'stablehlo' and 'savedmodel' hold such a one."
                )
        return found

    def _new(self) -> str:
        self._count += 1
        return f"v{self._count}"


def _attributes(name: str, params: dict[str, Any], operands: list[Shape]) -> dict[str, Any] | None:
    """Returns what an operation needs beside its inputs; None for one that is not known here."""
    if name == "transpose":
        return {"axes": [int(axis) for axis in params["permutation"]]}
    if name == "concatenate":
        return {"axis": int(params["dimension"])}
    if name == "cumsum" and not params["reverse"]:
        return {"axis": int(params["axis"])}
    if name == "slice":
        return _slice(params, operands[0])
    if name == "conv_general_dilated" and set(params["lhs_dilation"]) == {1} and params["batch_group_count"] == 1:
        numbers = params["dimension_numbers"]
        return {
            "input": list(numbers.lhs_spec),
            "kernel": list(numbers.rhs_spec),
            "output": list(numbers.out_spec),
            "strides": list(params["window_strides"]),
            "padding": [list(pair) for pair in params["padding"]],
            "dilation": list(params["rhs_dilation"]),
            "groups": int(params["feature_group_count"]),
        }
    return None


def _slice(params: dict[str, Any], operand: Shape) -> dict[str, Any] | None:
    """Returns the axes of which a slice keeps a part; None where that is the batch's."""
    axes = []
    strides = params["strides"] or [1] * len(operand)
    for axis, (start, stop, stride) in enumerate(
        zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    ):
        if operand[axis] is None and (not isinstance(start, int) or start or isinstance(stop, int) or stride != 1):
            return None
        if operand[axis] is not None:
            axes.append((axis, int(start), int(stop), int(stride)))
    return {name: list(numbers) for name, numbers in zip(_SLICE, zip(*axes, strict=True), strict=True)}


def _einsum(numbers: Any, operands: list[Shape]) -> str:
    """Returns a dot product's dimension numbers as an equation: "ab,bc->ac"."""
    (contract_x, contract_y), (batch_x, batch_y) = numbers
    letters = iter(string.ascii_lowercase)
    x = [next(letters) for _ in operands[0]]
    y = ["" for _ in operands[1]]
    for i, j in (*zip(contract_x, contract_y, strict=True), *zip(batch_x, batch_y, strict=True)):
        y[j] = x[i]
    y = [letter or next(letters) for letter in y]
    free_x = [letter for i, letter in enumerate(x) if i not in (*contract_x, *batch_x)]
    free_y = [letter for j, letter in enumerate(y) if j not in (*contract_y, *batch_y)]
    return f"{''.join(x)},{''.join(y)}->{''.join([x[i] for i in batch_x] + free_x + free_y)}"
