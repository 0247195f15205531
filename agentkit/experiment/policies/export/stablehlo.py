"""Writes a policy as StableHLO, for any of XLA's devices, with a small JSON of what it takes and gives."""

from __future__ import annotations

import functools
import json
import pathlib
from collections.abc import Callable

import jax
from jax import export

from agentkit.errors import ConfigError
from agentkit.experiment.policies.export.pure_policy import Acting, Arrays
from agentkit.files import write_new

PLATFORMS = ("cpu", "cuda", "tpu")


def write_stablehlo(path: pathlib.Path, acting: Acting) -> list[pathlib.Path]:
    """Writes ``NAME.stablehlo``, what `jax.export.deserialize` reads, and ``NAME.stablehlo.json``; returns both."""
    exported = export.export(jax.jit(functools.partial(acting.step, acting.params)), platforms=PLATFORMS)(
        symbolic_inputs(acting)
    )
    write_new(path, bytes(exported.serialize()))
    description = path.with_name(path.name + ".json")
    about = {"platforms": PLATFORMS, "jax": jax.__version__, **acting.describe()}
    write_new(description, json.dumps(about, indent=1) + "\n")
    return [path, description]


def symbolic_inputs(acting: Acting) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns what a policy takes, for a batch of any size."""
    (batch,) = export.symbolic_shape("batch")
    leaves = {**acting.observations, **acting.state}
    return {name: jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for name, leaf in leaves.items()}


def read_stablehlo(path: pathlib.Path) -> Callable[[Arrays], Arrays]:
    """Returns what the file does, as a function of named arrays ``[B, ...]``.

    Raises:
        ConfigError: it is no such file.
    """
    try:
        return export.deserialize(bytearray(path.read_bytes())).call
    except Exception as error:  # Its own errors are of many kinds.
        raise ConfigError(f"{path} is no StableHLO of jax.export, or is damaged: {error!r:.200}.") from error
