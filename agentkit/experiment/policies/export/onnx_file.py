"""Writes a policy as an ONNX graph. The one file that imports onnx; extra ``onnx``."""

from __future__ import annotations

import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from agentkit.errors import ConfigError, missing_extra
from agentkit.experiment.policies.export.lowering import Program, Shape, Step
from agentkit.experiment.policies.export.pure_policy import Acting, Arrays
from agentkit.files import write_new
from agentkit.version import __version__

try:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import onnx
        from onnx import helper, numpy_helper
        from onnx.reference import ReferenceEvaluator
except ImportError as import_error:
    raise missing_extra("onnx", "onnx") from import_error

_OPSET = 17
_IR_VERSION = 8
"""What runtimes since 2022 read."""

BATCH = "batch"

# JAX's names and ONNX's, where one operation is one node.
_NODES = {
    "abs": "Abs", "add": "Add", "and": "And", "ceil": "Ceil", "concatenate": "Concat", "cos": "Cos", "div": "Div",
    "eq": "Equal", "erf": "Erf", "exp": "Exp", "floor": "Floor", "ge": "GreaterOrEqual", "gt": "Greater",
    "integer_div": "Div", "le": "LessOrEqual", "log": "Log", "logistic": "Sigmoid", "lt": "Less", "max": "Max",
    "min": "Min", "mul": "Mul", "neg": "Neg", "not": "Not", "or": "Or", "pow": "Pow", "sign": "Sign", "sin": "Sin",
    "sqrt": "Sqrt", "sub": "Sub", "tanh": "Tanh",
}  # fmt: skip
_REDUCTIONS = {"reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd"}


def write_onnx(path: pathlib.Path, acting: Acting) -> list[pathlib.Path]:
    """Writes a graph whose batch axis is free; returns its file.

    Raises:
        ConfigError: the policy has operations that this writer has not, such as the loops of a search.
    """
    program = acting.program
    specs = dict(acting.observations) | dict(acting.state)
    graph = _Graph(program, next(iter(acting.observations)))
    for step in program.steps:
        graph.add(step)
    shapes = {name: (list(spec.shape), spec.dtype) for name, spec in specs.items()}
    made = {output: (shape, dtype) for s in program.steps for output, shape, dtype in _outputs(s)}
    results = []
    for name, source in program.outputs.items():
        dtype = np.dtype(made[source][1]) if source in made else np.asarray(program.constants.get(source, 0)).dtype
        wanted = acting.actions[name].dtype if name in acting.actions else dtype
        graph.cast(source, wanted, name)
        results.append(
            _value(name, acting.actions[name].shape if name in acting.actions else made[source][0][1:], wanted)
        )
    inputs = [_value(name, shape, dtype) for name, (shape, dtype) in shapes.items()]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "policy", inputs, results, graph.initializers),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
        producer_name="agentkit",
        producer_version=__version__,
    )
    onnx.checker.check_model(model)
    write_new(path, model.SerializeToString())
    return [path]


def read_onnx(path: pathlib.Path) -> Callable[[Arrays], Arrays]:
    """Returns what a graph does, as a function of named arrays, by ONNX's own slow evaluator."""
    evaluator = ReferenceEvaluator(str(path))
    return lambda arrays: dict(zip(evaluator.output_names, evaluator.run(None, arrays), strict=True))


def _outputs(step: Step) -> Sequence[tuple[str, Shape, str]]:
    return list(zip(step.outputs, step.shapes, step.dtypes, strict=True))


def _value(name: str, shape: Sequence[Any], dtype: Any) -> Any:
    return helper.make_tensor_value_info(name, _type(dtype), [BATCH, *shape])


def _type(dtype: Any) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


@final
class _Graph:
    """Collects nodes and constants."""

    def __init__(self, program: Program, first_input: str):
        self.nodes: list[Any] = []
        self.initializers: list[Any] = []
        self._program = program
        self._first_input = first_input
        self._count = 0
        self._batch_size: str | None = None
        for name, array in program.constants.items():
            self.initializers.append(numpy_helper.from_array(np.asarray(array), name))

    def add(self, step: Step) -> None:
        """Adds the nodes of one step."""
        op, inputs, (output, *others), attributes = step.op, list(step.inputs), step.outputs, step.attributes
        if op in _NODES:
            self._node(_NODES[op], inputs, output, **attributes)
        elif op in _REDUCTIONS:
            self._node(_REDUCTIONS[op], inputs, output, axes=attributes["axes"], keepdims=0)
        elif others or (write := getattr(self, f"_{op}", None)) is None:
            raise ConfigError(
                f"The policy computes {op.removeprefix('unknown ')!r}, which the writer for ONNX has not. Export it as "
                "'stablehlo' or 'savedmodel', which hold any policy."
            )
        else:
            write(inputs, output, step)

    def cast(self, source: str, dtype: Any, output: str) -> None:
        """Names an array as a result, in a dtype."""
        self._node("Cast", [source], output, to=_type(dtype))

    def _node(self, kind: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        if output is None:
            self._count += 1
            output = f"n{self._count}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def _constant(self, values: Any, dtype: Any = np.int64) -> str:
        self._count += 1
        self.initializers.append(numpy_helper.from_array(np.asarray(values, dtype), f"c{self._count}"))
        return f"c{self._count}"

    def _sizes(self, shape: Shape) -> str:
        """Returns the name of a shape as an array, with the batch's size where it is None."""
        if None not in shape:
            return self._constant(shape)
        if self._batch_size is None:
            self._batch_size = self._node("Shape", [self._first_input], start=0, end=1)
        parts = [self._batch_size if size is None else self._constant([size]) for size in shape]
        return self._node("Concat", parts, axis=0)

    def _reshape(self, inputs: list[str], output: str, step: Step) -> None:
        sizes = [-1 if size is None else size for size in step.attributes["shape"]]
        shape = self._constant(sizes) if sizes.count(-1) < 2 else self._sizes(step.attributes["shape"])
        self._node("Reshape", [inputs[0], shape], output)

    def _broadcast(self, inputs: list[str], output: str, step: Step) -> None:
        through = self._node("Reshape", [inputs[0], self._sizes(step.attributes["through"])])
        self._node("Expand", [through, self._sizes(step.attributes["shape"])], output)

    def _cast(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Cast", inputs, output, to=_type(step.dtypes[0]))

    def _select(self, inputs: list[str], output: str, step: Step) -> None:
        which, no, yes = inputs
        self._node("Where", [which, yes, no], output)

    def _clamp(self, inputs: list[str], output: str, step: Step) -> None:
        low, x, high = inputs
        self._node("Min", [self._node("Max", [x, low]), high], output)

    def _einsum(self, inputs: list[str], output: str, step: Step) -> None:
        if step.attributes["equation"] == "ab,bc->ac":
            self._node("MatMul", inputs, output)
        else:
            self._node("Einsum", inputs, output, equation=step.attributes["equation"])

    def _reduce_sum(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("ReduceSum", [inputs[0], self._constant(step.attributes["axes"])], output, keepdims=0)

    def _reduce_or(self, inputs: list[str], output: str, step: Step, kind: str = "ReduceMax") -> None:
        number = self._node("Cast", inputs, to=_type(np.int32))
        found = self._node(kind, [number], axes=step.attributes["axes"], keepdims=0)
        self._node("Cast", [found], output, to=_type(np.bool_))

    def _reduce_and(self, inputs: list[str], output: str, step: Step) -> None:
        self._reduce_or(inputs, output, step, "ReduceMin")

    def _argmax(self, inputs: list[str], output: str, step: Step, kind: str = "ArgMax") -> None:
        found = self._node(kind, inputs, axis=step.attributes["axes"][0], keepdims=0)
        self._node("Cast", [found], output, to=_type(step.dtypes[0]))

    def _argmin(self, inputs: list[str], output: str, step: Step) -> None:
        self._argmax(inputs, output, step, "ArgMin")

    def _transpose(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Transpose", inputs, output, perm=step.attributes["axes"])

    def _cumsum(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("CumSum", [inputs[0], self._constant(step.attributes["axis"])], output)

    def _slice(self, inputs: list[str], output: str, step: Step) -> None:
        parts = [self._constant(step.attributes[name]) for name in ("starts", "stops", "axes", "steps")]
        self._node("Slice", [inputs[0], *parts], output)

    def _log1p(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Log", [self._node("Add", [inputs[0], self._constant(1, step.dtypes[0])])], output)

    def _expm1(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Sub", [self._node("Exp", inputs), self._constant(1, step.dtypes[0])], output)

    def _rsqrt(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Reciprocal", [self._node("Sqrt", inputs)], output)

    def _square(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Mul", inputs * 2, output)

    def _rem(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Mod", inputs, output, fmod=1)

    def _integer_rem(self, inputs: list[str], output: str, step: Step) -> None:
        self._rem(inputs, output, step)

    def _ne(self, inputs: list[str], output: str, step: Step) -> None:
        self._node("Not", [self._node("Equal", inputs)], output)

    def _is_finite(self, inputs: list[str], output: str, step: Step) -> None:
        strange = self._node("Or", [self._node("IsNaN", inputs), self._node("IsInf", inputs)])
        self._node("Not", [strange], output)

    def _conv_general_dilated(self, inputs: list[str], output: str, step: Step) -> None:
        """Transposes to ONNX's order of axes (batch, channels, space), and back."""
        a = step.attributes
        x = self._node("Transpose", [inputs[0]], perm=a["input"])
        kernel = self._node("Transpose", [inputs[1]], perm=a["kernel"])
        pads = [low for low, _ in a["padding"]] + [high for _, high in a["padding"]]
        found = self._node(
            "Conv", [x, kernel], strides=a["strides"], dilations=a["dilation"], group=a["groups"], pads=pads
        )
        self._node("Transpose", [found], output, perm=[a["output"].index(i) for i in range(len(a["output"]))])
