"""Writes a policy for numpy alone: a policy file with the policy as operations in it, and the module that reads it."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import jax
import numpy as np

from agentkit import nests
from agentkit.errors import ConfigError
from agentkit.experiment.policies.export import numpy_policy
from agentkit.experiment.policies.export.pure_policy import Acting, Arrays, Exportable
from agentkit.files import write_new


def write_numpy(path: pathlib.Path, policy: Exportable, acting: Acting) -> list[pathlib.Path]:
    """Writes ``NAME.npz``, which `agentkit.load` reads as well, and ``numpy_policy.py`` beside it; returns both.

    Raises:
        ConfigError: the policy has operations that the reader has not, such as convolutions or a search.
    """
    program = acting.program
    unknown = sorted({step.op.removeprefix("unknown ") for step in program.steps} - set(numpy_policy.OPERATIONS))
    if unknown:
        raise ConfigError(
            f"The policy is no MLP: it computes {', '.join(unknown)}, which the reader for numpy has not. Export it as "
            "'stablehlo', 'savedmodel', or, without a search, as 'onnx'."
        )
    own = nests.flatten_to_paths(policy.arrays)
    keys = {name: name if name in own else numpy_policy.PREFIX + name for name in program.constants}
    extra = {keys[name]: np.asarray(array) for name, array in program.constants.items() if name not in own}
    header = {
        "format": numpy_policy.FORMAT,
        "description": acting.describe(),
        "constants": keys,
        "outputs": dict(program.outputs),
        "steps": [
            {
                "op": step.op,
                "inputs": step.inputs,
                "output": step.outputs[0],
                "dtype": step.dtypes[0],
                **step.attributes,
            }
            for step in program.steps
        ],
    }
    extra[numpy_policy.PREFIX + "program"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    policy.save(path, extra=extra)
    reader = path.with_name("numpy_policy.py")
    write_new(reader, pathlib.Path(numpy_policy.__file__).read_text())
    return [path, reader]


def read_numpy(path: pathlib.Path) -> Any:
    """Returns what the file does, as a function of named arrays ``[B, ...]``."""
    policy = numpy_policy.Policy(path)

    def step(arrays: Arrays) -> Arrays:
        return policy._run(arrays, len(jax.tree.leaves(arrays)[0]))

    return step
