"""Reads and writes policy files: one ``.npz`` with parameters, and in JSON the agent and the specs. No pickle."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from agentkit import nests, specs
from agentkit.errors import ConfigError, SpecError
from agentkit.files import MOST_JSON, check_path, open_new, read_npz
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest

_FORMAT = 1
_HEADER = "agentkit_policy"
_OF_OTHERS = "numpy/"
"""Begins the names of arrays that another reader of the same file needs."""

POLICY_FILE = "policy.npz"
"""How the file is called in a folder."""


class PolicyFile(NamedTuple):
    """Holds what a policy file says besides parameters.

    Attributes:
        agent: what `identity.describe_agent` returned.
        environment_spec: what the agent was trained with.
        own_actions: spec of the actions that the environment itself takes.
        num_steps: at which the policy's exploration goes on; None in files from before December 2026.
    """

    agent: dict[str, Any]
    environment_spec: EnvironmentSpec
    own_actions: Nest
    num_steps: int | None = None


def write_policy(
    path: str | pathlib.Path, file: PolicyFile, params: Nest, extra: Mapping[str, np.ndarray] | None = None
) -> None:
    """Writes a policy file; a file of this name is replaced in one step.

    Args:
        path: the file.
        file: what it says besides parameters.
        params: the parameters.
        extra: arrays for other readers, under names with a prefix and a slash; `read_policy` passes them over.

    Raises:
        ConfigError: the name does not end in .npz, its folder is not there, or a parameter is of a dtype that numpy
            cannot write.
    """
    check_path("path", path)
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}. Make it first.")
    if path.suffix != ".npz":
        raise ConfigError(f"Expected the name of a policy file to end in .npz, found {str(path)!r}.")
    arrays = {name: np.asarray(leaf) for name, leaf in nests.flatten_to_paths(params).items()}
    for name, array in arrays.items():
        if array.dtype.kind not in "biufc":
            raise ConfigError(f"Parameter {name} is of dtype {array.dtype}, which numpy cannot write. Use float32.")
    header = {
        "format": _FORMAT,
        "agent": file.agent,
        "environment_spec": encode_spec(file.environment_spec),
        "own_actions": _encode(file.own_actions),
    }
    if file.num_steps is not None:
        header["num_steps"] = file.num_steps
    temporary = path.with_name(f".{path.name}.{os.getpid()}.npz")
    try:
        arrays[_HEADER] = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with open_new(temporary) as opened:
            np.savez(opened, **arrays, **(extra or {}))  # type: ignore[arg-type]
            opened.flush()
            os.fsync(opened.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_policy(path: pathlib.Path) -> tuple[PolicyFile, dict[str, np.ndarray]]:
    """Returns what a policy file says, and its parameters by path.

    Raises:
        ConfigError: it is no policy file, a damaged one, or one of a newer format.
    """
    try:
        arrays = read_npz(path, lambda name: not name.startswith(_OF_OTHERS))
        header = json.loads(arrays.pop(_HEADER)[:MOST_JSON].tobytes())
        if header["format"] != _FORMAT:
            raise ConfigError(f"{path} has format {header['format']}, expected {_FORMAT}. Update agentkit.")
        spec = decode_spec(header["environment_spec"])
        num_steps = None if header.get("num_steps") is None else int(header["num_steps"])
        return PolicyFile(dict(header["agent"]), spec, _decode(header["own_actions"]), num_steps), arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SpecError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{path} is no policy file, or is damaged: {error!r:.200}. Write it with agentkit.load(RUN).save(FILE)."
        ) from error


def encode_spec(spec: EnvironmentSpec) -> dict[str, Any]:
    """Returns an environment's specs as JSON has them."""
    return {name: _encode(part) for name, part in spec._asdict().items() if name != "columns"}


def decode_spec(code: Mapping[str, Any]) -> EnvironmentSpec:
    """Returns what `encode_spec` encoded.

    Raises:
        LookupError, SpecError, TypeError, ValueError: it is damaged.
    """
    return EnvironmentSpec(**{name: _decode(node) for name, node in code.items()})


def _encode(spec: Nest) -> Any:
    """Returns a nest of specs as JSON has it."""

    def encode_leaf(leaf: Any, path: str) -> dict[str, Any]:
        if not (specs.is_spec(leaf) and nests.is_numeric(np.dtype(leaf.dtype))):
            raise SpecError(f"{path}: expected the spec of a numeric array, found {leaf!r}.")
        code: dict[str, Any] = {"array": [np.dtype(leaf.dtype).name, list(leaf.shape)], "name": leaf.name}
        if np.any(specs.start_of(leaf)):
            code["start"] = np.asarray(specs.start_of(leaf)).tolist()
        if isinstance(leaf, specs.Choices):
            return code | {"choices": np.asarray(leaf.maximum).tolist()}
        if isinstance(leaf, specs.DiscreteArray):
            return code | {"num_values": int(leaf.num_values)}
        if isinstance(leaf, specs.BoundedArray):
            return code | {"minimum": np.asarray(leaf.minimum).tolist(), "maximum": np.asarray(leaf.maximum).tolist()}
        return code

    return nests.describe(spec, encode_leaf, "spec")


def _decode(node: Any) -> Nest:
    def decode_leaf(leaf: dict[str, Any]) -> specs.Array:
        dtype, shape = nests.numeric_dtype(leaf["array"][0]), tuple(leaf["array"][1])
        if "num_values" in leaf:
            if "start" in leaf:
                return specs.DiscreteFrom(leaf["num_values"], dtype, leaf["name"], leaf["start"])
            return specs.DiscreteArray(leaf["num_values"], dtype=dtype, name=leaf["name"])
        if "choices" in leaf:
            return specs.Choices(shape, dtype, leaf["choices"], leaf["name"])
        if "minimum" in leaf:
            bounds = leaf["minimum"], leaf["maximum"], leaf["name"]
            if "start" in leaf:
                return specs.BoundedFrom(shape, dtype, *bounds, leaf["start"])
            return specs.BoundedArray(shape, dtype, *bounds)
        return specs.Array(shape, dtype, leaf["name"])

    return nests.build(node, decode_leaf)
