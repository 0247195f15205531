"""Exports a policy in any format, and compares what was written with the policy itself."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tempfile
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from agentkit import nests, specs
from agentkit.errors import AgentkitError, ConfigError, unknown_name
from agentkit.experiment.policies.export.pure_policy import (
    NEXT,
    Acting,
    Arrays,
    Exportable,
    acting_of,
    first_states,
    named,
    some_observations,
)
from agentkit.experiment.policies.policy_file import PolicyFile, read_policy
from agentkit.files import refusing_unwritable

SUFFIXES = {"policy": ".npz", "numpy": ".npz", "stablehlo": ".stablehlo", "onnx": ".onnx", "savedmodel": ""}
"""How the names of a format's files end."""

_BATCH, _STEPS = 64, 4
_KEY = np.zeros(2, np.uint32)
_ROUNDS = 32
"""Of keys of their own for each of a batch's rows: a chance of 1 in 100 is missed once in 10^8 times."""
_RELATIVE = 1e-4
_TIES = 0.02
_REPORT = "Nothing was written. This is a mistake of agentkit's: please report it."


class DifferentActionsError(AgentkitError, RuntimeError):
    """Says that an exported policy does not act as the policy does; nothing was written."""


def export(policy: Exportable, path: str | pathlib.Path, format: str | None = None) -> list[pathlib.Path]:
    """Writes a policy; see `LoadedPolicy.export`. Where that fails, what had its name is still there.

    Raises:
        ConfigError: the format cannot hold this policy, the name is not the format's, or the file cannot be written.
        MissingExtraError: it needs a package that is not installed.
        DifferentActionsError: what was written acts otherwise.
    """
    format = check_format(path, format)
    path = pathlib.Path(path)
    if not path.parent.is_dir():
        raise ConfigError(f"{str(path.parent)!r} is no folder. Make it, or name another file.")
    if format == "savedmodel" and path.exists():
        raise ConfigError(f"{str(path)!r} exists already. Name a new folder for the SavedModel.")
    write, read = _load_format(format)
    acting = None if format == "policy" else acting_of(policy)
    with contextlib.ExitStack() as stack:
        with refusing_unwritable(path):  # Beside its place, so that it gets there in one step, once it is compared.
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix=".export-", dir=path.parent, ignore_cleanup_errors=True)
            )
            written = write(pathlib.Path(folder) / path.name, policy, acting)
        found = read(written[0], acting)
        if acting is None:
            _compare_file(policy, path.name, *found)
        else:
            compare(acting, found)
            _compare_with(policy, acting)
        with refusing_unwritable(path):
            return _put(written, path.parent)


def check_format(path: str | pathlib.Path | None, format: str | None) -> str:
    """Returns the format that a name and a word ask for; without either, "policy".

    Raises:
        ConfigError: the name does not end as the format's files do.
        UnknownNameError: there is no such format.
    """
    suffix = None if path is None else pathlib.Path(path).suffix
    if format is None:
        by_suffix = {None: "policy", ".npz": "policy", ".stablehlo": "stablehlo", ".onnx": "onnx"}
        if suffix not in by_suffix:
            raise ConfigError(
                f"Expected a name that ends in .npz, .stablehlo or .onnx, or a format, found {str(path)!r}."
            )
        return by_suffix[suffix]
    if format not in SUFFIXES:
        raise unknown_name("format", format, SUFFIXES)
    if suffix is not None and SUFFIXES[format] and suffix != SUFFIXES[format]:
        raise ConfigError(f"Expected the name of a file of format {format} to end in {SUFFIXES[format]}, found {path}.")
    return format


def input_names(policy: Exportable) -> list[str]:
    """Returns the names under which an exported policy takes observations."""
    return list(named("observation", policy.observation_spec))


def _put(files: list[pathlib.Path], folder: pathlib.Path) -> list[pathlib.Path]:
    """Moves files into a folder, in the place of those of their names; returns where they are."""
    places = [folder / file.name for file in files]
    for place in places:
        if place.is_dir():
            raise ConfigError(f"{place} is a folder. Name another file, or move the folder away.")
    for file, place in zip(files, places, strict=True):
        os.replace(file, place)
    return places


def _load_format(format: str) -> tuple[Callable[..., list[pathlib.Path]], Callable[..., Any]]:
    """Loads a format's library; returns what writes path, policy and acting, and what reads path and acting back."""
    if format == "policy":
        return _write_policy_file, lambda path, _: read_policy(path)
    if format == "numpy":
        from agentkit.experiment.policies.export.numpy_file import read_numpy, write_numpy

        return write_numpy, lambda path, _: read_numpy(path)
    if format == "stablehlo":
        from agentkit.experiment.policies.export.stablehlo import read_stablehlo, write_stablehlo

        return lambda path, _, acting: write_stablehlo(path, acting), lambda path, _: read_stablehlo(path)
    if format == "onnx":
        from agentkit.experiment.policies.export.onnx_file import read_onnx, write_onnx

        return lambda path, _, acting: write_onnx(path, acting), lambda path, _: read_onnx(path)
    from agentkit.experiment.policies.export.savedmodel import load_tensorflow, read_savedmodel, write_savedmodel

    load_tensorflow()
    return lambda path, _, acting: write_savedmodel(path, acting), read_savedmodel


def _write_policy_file(path: pathlib.Path, policy: Exportable, _: None) -> list[pathlib.Path]:
    policy.save(path)
    return [path]


def compare(acting: Acting, read: Callable[[Arrays], Arrays]) -> None:
    """Compares a written policy with the original over some steps of 64 episodes, and one step of one.

    Raises:
        ConfigError: the policy chooses at random.
        DifferentActionsError: continuous actions differ by more than 0.0001 of their range, or discrete ones more often
            than where two values are all but equal.
    """
    step = jax.jit(acting.step)
    state = found_state = first_states(acting, _BATCH)
    for number in range(_STEPS):
        observations = some_observations(acting, _BATCH, seed=number)
        expected, found = step(acting.params, observations | state, _KEY), read(observations | found_state)
        if number == 0:
            _refuse_chance(acting, observations | state)
            one = read({name: x[:1] for name, x in (observations | state).items()})
            _compare_all(acting, {name: np.asarray(x)[:1] for name, x in expected.items()}, one)
        _compare_all(acting, expected, found)
        state = {name: np.asarray(expected[NEXT + name]) for name in acting.state}
        found_state = {name: np.asarray(found[NEXT + name]) for name in acting.state}


def _compare_with(policy: Exportable, acting: Acting) -> None:
    """Compares the function that was written with what the loaded policy does, in the environment's own terms."""
    observations = some_observations(acting, _BATCH)
    structure = jax.tree.structure(policy.observation_spec, is_leaf=specs.is_spec)
    action, _ = policy(jax.tree.unflatten(structure, list(observations.values())))
    found = jax.jit(acting.step)(acting.params, observations | first_states(acting, _BATCH))
    for name, leaf in named("action", action).items():
        _compare(leaf, np.asarray(found[name]), name)


def _refuse_chance(acting: Acting, arrays: Arrays) -> None:
    def act(row: Arrays, key: Any) -> list[Any]:
        found = acting.step(acting.params, {name: x[None] for name, x in row.items()}, key)
        return [found[name] for name in acting.actions]

    act_all = jax.jit(jax.vmap(act))
    seen = [act_all(arrays, jax.random.split(jax.random.PRNGKey(number), _BATCH)) for number in range(_ROUNDS)]
    if any(not np.array_equal(*pair) for again in seen[1:] for pair in zip(seen[0], again, strict=True)):
        raise ConfigError(
            "The policy chooses at random, also to be judged by (its epsilon_evaluation may be above 0, or it samples "
            "quantiles); an exported function has no random numbers. Load it with agentkit.load, or save it as a "
            "policy file (--format policy)."
        )


def _compare_all(acting: Acting, expected: Arrays, found: Arrays) -> None:
    for name in (*acting.actions, *(NEXT + name for name in acting.state)):
        _compare(np.asarray(expected[name]), np.asarray(found[name]), name)


def _compare(expected: np.ndarray, found: np.ndarray, name: str) -> None:
    if expected.shape != found.shape:
        raise DifferentActionsError(f"{name}: expected shape {expected.shape}, found {found.shape}. {_REPORT}")
    if expected.dtype.kind == "f":
        scale = 1.0 + np.abs(expected).max(initial=0.0)
        if not np.allclose(expected / scale, found / scale, atol=_RELATIVE, rtol=0, equal_nan=True):
            raise DifferentActionsError(f"{name} differs by up to {np.abs(expected - found).max():.4f}. {_REPORT}")
    elif (share := np.mean(expected != found)) > _TIES:
        raise DifferentActionsError(f"{name} differs in {share:.0%} of the rows. {_REPORT}")


def _compare_file(policy: Exportable, name: str, file: PolicyFile, arrays: Arrays) -> None:
    """Compares what a policy file holds with the policy that it was written of."""
    own = nests.flatten_to_paths(policy.arrays)
    same = own.keys() == arrays.keys() and all(np.array_equal(own[path], arrays[path]) for path in own)
    if not same or specs.in_own_terms(file.own_actions) != policy.action_spec:
        raise DifferentActionsError(f"{name} does not hold the policy's own parameters and actions. {_REPORT}")
