"""Acts with an exported policy; needs numpy and nothing else. Copy this file to where the policy is to act.

    policy = Policy("policy.npz")
    action, state = policy(observation, state)  # None begins an episode

Observations and actions are the environment's own; both may have a batch axis in front. Written by `agentkit`, whose
licence (Apache-2.0) is this file's, too.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

FORMAT = 1
PREFIX = "numpy/"

_FUNCTIONS: dict[str, Any] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.logical_and,
    "ceil": np.ceil,
    "cos": np.cos,
    "div": np.divide,
    "eq": np.equal,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "ge": np.greater_equal,
    "gt": np.greater,
    "is_finite": np.isfinite,
    "le": np.less_equal,
    "log": np.log,
    "log1p": np.log1p,
    "logistic": lambda x: 0.5 * (np.tanh(0.5 * x) + 1),  # exp would overflow.
    "lt": np.less,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "ne": np.not_equal,
    "neg": np.negative,
    "not": np.logical_not,
    "or": np.logical_or,
    "pow": np.power,
    "rem": np.fmod,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "sub": np.subtract,
    "tanh": np.tanh,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "select": lambda which, no, yes: np.where(which, yes, no),
}
_REDUCTIONS: dict[str, Any] = {
    "reduce_and": np.all,
    "reduce_max": np.max,
    "reduce_min": np.min,
    "reduce_or": np.any,
    "reduce_prod": np.prod,
    "reduce_sum": np.sum,
}
_OTHERS = ("argmax", "argmin", "broadcast", "cast", "concatenate", "cumsum", "einsum", "reshape", "slice", "transpose")
OPERATIONS = (*_FUNCTIONS, *_REDUCTIONS, *_OTHERS)


class Policy:
    """Acts: ``action, state = policy(observation, state)``; without a memory, ``policy.select_action(observation)``.

    Attributes:
        description: names, shapes, dtypes and bounds of observations, actions and state.
    """

    def __init__(self, path: Any) -> None:
        """Reads the file; nothing in it is executed."""
        with np.load(path, allow_pickle=False) as file:
            sizes = [(info.file_size, info.compress_size) for info in file.zip.infolist()]
            if sum(size for size, _ in sizes) > max(2**30, 100 * sum(size for _, size in sizes)):
                raise ValueError(f"{path} says that it holds more than 100 times its size, and more than 1 GiB.")
            if PREFIX + "program" not in file.files:
                raise ValueError(
                    f"{path} has no program for numpy. Write it with: agentkit export-policy --format numpy"
                )
            header = json.loads(file[PREFIX + "program"].tobytes())
            if header["format"] != FORMAT:
                raise ValueError(f"{path} has format {header['format']}, expected {FORMAT}.")
            self._constants = {name: file[key] for name, key in header["constants"].items()}
        self._steps, self._outputs, self.description = header["steps"], header["outputs"], header["description"]
        unknown = {step["op"] for step in self._steps} - set(OPERATIONS)
        if unknown:
            raise ValueError(f"{path} has operations that this reader does not know: {sorted(unknown)}.")

    def __call__(self, observation: Any, state: Any = None) -> tuple[Any, dict[str, np.ndarray]]:
        """Returns the action, and the state for the next call.

        Where there are several observations (or actions), they are dicts by the names in `description`.
        """
        specs = self.description["observations"]
        if not isinstance(observation, dict) and len(specs) == 1:
            observation = dict.fromkeys(specs, observation)
        given = list(observation) if isinstance(observation, dict) else [type(observation).__name__]
        if lacking := [name for name in specs if name not in given]:
            raise ValueError(f"observation: expected a dict with {', '.join(lacking)}, found {given}.")
        arrays = {name: np.asarray(observation[name]) for name in specs}
        single = all(arrays[name].shape == tuple(spec["shape"]) for name, spec in specs.items())
        if single:
            arrays = {name: array[None] for name, array in arrays.items()}
        rows = next(iter(arrays.values())).shape[:1]
        for name, spec in specs.items():
            if arrays[name].shape != (*rows, *spec["shape"]):
                raise ValueError(f"{name}: expected shape {spec['shape']}, or a batch, found {arrays[name].shape}.")
            arrays[name] = _take(arrays[name], spec, name)
        (size,) = rows
        for name, spec in self.description["state"].items():
            first = np.broadcast_to(np.array(spec["first"], spec["dtype"]), (size, *spec["shape"]))
            arrays[name] = first if state is None else state[name][None] if single else state[name]
        found = self._run(arrays, size)
        found = {name: array[0] if single else array for name, array in found.items()}
        state = {name: found[f"next_{name}"] for name in self.description["state"]}
        actions = {name: found[name].astype(spec["dtype"]) for name, spec in self.description["actions"].items()}
        return (actions if len(actions) > 1 else next(iter(actions.values()))), state

    def select_action(self, observation: Any) -> Any:
        """Returns the action alone, of a policy without a memory."""
        if self.description["state"]:
            raise ValueError("This policy has a memory. Call: action, state = policy(observation, state).")
        return self(observation)[0]

    def _run(self, arrays: dict[str, Any], size: int) -> dict[str, Any]:
        values = {**self._constants, **arrays}
        with np.errstate(all="ignore"):
            for step in self._steps:
                values[step["output"]] = _compute(step, [values[name] for name in step["inputs"]], size)
        return {name: values[key] for name, key in self._outputs.items()}


def _take(array: Any, spec: dict[str, Any], name: str) -> Any:
    """Returns an observation in the dtype of the policy's training; refuses what would become something else."""
    dtype = np.dtype(spec["dtype"])
    kinds = "biuf" if dtype.kind == "f" else "biu"
    if array.dtype.kind not in kinds:
        raise ValueError(f"{name}: expected {dtype}, found {array.dtype} {array.flat[0]!r:.60}.")
    with np.errstate(over="ignore"):
        taken = array.astype(dtype)
    if dtype.kind == "f":
        low, high, bad = -np.inf, np.inf, ~np.isfinite(taken)
    else:
        ends = np.iinfo(dtype) if dtype.kind != "b" else None
        low, high = spec.get("minimum", ends.min if ends else 0), spec.get("maximum", ends.max if ends else 1)
        bad = (array.astype(float) < low) | (array.astype(float) > high)
    if bad.any():
        raise ValueError(f"{name}: expected {dtype} from {low} to {high}, found {array[bad].flat[0]}.")
    return taken


def _compute(step: dict[str, Any], inputs: list[Any], size: int) -> Any:
    """Computes one operation; None in a shape is the size of the batch."""
    op, x = step["op"], inputs[0]
    if op in _FUNCTIONS:
        return _FUNCTIONS[op](*inputs).astype(step["dtype"], copy=False)
    if op in _REDUCTIONS:
        return _REDUCTIONS[op](x, axis=tuple(step["axes"])).astype(step["dtype"], copy=False)
    if op in ("argmax", "argmin"):
        return getattr(np, op)(x, axis=step["axes"][0]).astype(step["dtype"])
    if op == "cast":
        return x.astype(step["dtype"])
    if op == "einsum":
        return x @ inputs[1] if step["equation"] == "ab,bc->ac" else np.einsum(step["equation"], *inputs)
    if op == "concatenate":
        return np.concatenate(inputs, axis=step["axis"])
    if op == "cumsum":
        return np.cumsum(x, axis=step["axis"], dtype=step["dtype"])
    if op == "transpose":
        return np.transpose(x, step["axes"])
    if op == "slice":
        parts = [slice(None)] * x.ndim
        for axis, start, stop, stride in zip(step["axes"], step["starts"], step["stops"], step["steps"], strict=True):
            parts[axis] = slice(start, stop, stride)
        return x[tuple(parts)]
    x = x.reshape([size if length is None else length for length in step.get("through", step["shape"])])
    return (
        x if op == "reshape" else np.broadcast_to(x, [size if length is None else length for length in step["shape"]])
    )
