"""Writes a policy as TensorFlow's SavedModel, for TensorFlow Serving and its kind; extra ``reverb``."""

from __future__ import annotations

import functools
import inspect
import pathlib
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from agentkit.errors import ConfigError, MissingExtraError
from agentkit.experiment.policies.export.pure_policy import Acting, Arrays


def write_savedmodel(path: pathlib.Path, acting: Acting) -> list[pathlib.Path]:
    """Writes the folder of a SavedModel with the signature ``serving_default``; returns it.

    Raises:
        MissingExtraError: there is no TensorFlow.
    """
    tf = load_tensorflow()
    leaves = {**acting.observations, **acting.state}
    arguments = {
        _plain(name): tf.TensorSpec((None, *leaf.shape), tf.as_dtype(leaf.dtype), name=_plain(name))
        for name, leaf in leaves.items()
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # TensorFlow's own use of what is deprecated.
        for options in _conversions():
            module = tf.Module()
            module.serve = tf.function(_serving(acting, leaves, options), autograph=False)
            try:
                signature = module.serve.get_concrete_function(**arguments)
            except NotImplementedError:
                continue
            tf.saved_model.save(module, str(path), signatures={"serving_default": signature})
            return [path]
    raise ConfigError("jax2tf has no TensorFlow operation for something in this policy. Export it as 'stablehlo'.")


def _conversions() -> list[dict[str, Any]]:
    """Returns the settings of `jax2tf.convert` that are tried, in this order."""
    from jax.experimental import jax2tf

    if "native_serialization" not in inspect.signature(jax2tf.convert).parameters:
        return [{}]
    # TensorFlow 2.15 cannot read the StableHLO of jax 0.4.34: its own operations instead, XLA's where there are none.
    return [{"native_serialization": False, "enable_xla": xla} for xla in (False, True)]


def _serving(acting: Acting, leaves: Mapping[str, Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Returns the policy as a function of tensors under names that TensorFlow takes."""
    from jax.experimental import jax2tf

    shapes = {name: "(batch, " + "".join(f"{size}, " for size in leaf.shape) + ")" for name, leaf in leaves.items()}
    step = functools.partial(acting.step, acting.params)
    converted = jax2tf.convert(step, polymorphic_shapes=[shapes], with_gradient=False, **options)

    def serve(**tensors: Any) -> dict[str, Any]:
        found = converted({name: tensors[_plain(name)] for name in leaves})
        return {_plain(name): tensor for name, tensor in found.items()}

    return serve


def _plain(name: str) -> str:
    """Returns a name that TensorFlow takes as an argument's."""
    return name.replace("/", "_")


def read_savedmodel(path: pathlib.Path, acting: Acting) -> Callable[[Arrays], Arrays]:
    """Returns what the folder does, as a function of named arrays ``[B, ...]``."""
    tf = load_tensorflow()
    module = tf.saved_model.load(str(path))
    serve = module.signatures["serving_default"]

    def step(arrays: Arrays) -> Arrays:
        found = serve(**{_plain(name): tf.constant(array) for name, array in arrays.items()})
        names = [*acting.actions, *(f"next_{name}" for name in acting.state)]
        return {name: found[_plain(name)].numpy() for name in names}

    return step


def load_tensorflow() -> Any:
    """Returns TensorFlow.

    Raises:
        MissingExtraError: there is none.
    """
    try:
        from agentkit.replay.reverb.library import tensorflow
    except MissingExtraError as error:
        raise MissingExtraError(
            f"A SavedModel is written by TensorFlow, which the Reverb stack has. {error}"
        ) from error
    return tensorflow()
