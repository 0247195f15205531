"""Takes Flax modules as torsos: Linen's as they are, NNX's by a function that makes one. The extra `flax` brings it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, final

import jax

from agentkit.errors import ConfigError, SpecError, missing_extra
from agentkit.networks.foreign import ForeignModule, snake_case
from agentkit.types import Nest


@final
@dataclasses.dataclass(frozen=True)
class LinenModule:
    """Says how a Linen module is made; applied, it is that module, with its parameters among the agent's.

    Attributes:
        module: its class.
        settings: those of its fields that are not as its class has them; modules among them are `LinenModule`s.
    """

    module: type
    settings: dict[str, Any]

    def __call__(self, observation: Nest) -> Any:
        """Returns the module's outputs.

        Raises:
            SpecError: the module has other variables than parameters.
        """
        module: Any = _module_of(self)

        def init(key: jax.Array, observation: Nest) -> Any:
            variables = module.init(key, observation)
            if others := sorted(variables.keys() - {"params"}):
                raise SpecError(
                    f"The Flax module {self.module.__qualname__} has variables beside its parameters, "
                    f"{', '.join(others)}: networks here are pure functions of parameters. Leave out what keeps such "
                    "a state, e.g. take LayerNorm instead of BatchNorm."
                )
            return variables.get("params", {})

        def apply(params: Any, observation: Nest) -> Any:
            return module.apply({"params": params}, observation)

        return ForeignModule(init, apply, snake_case(self.module.__qualname__.rpartition(".")[2]))(observation)


@final
@dataclasses.dataclass(frozen=True)
class NnxModule:
    """Applies the NNX module that a function makes, with its parameters among the agent's.

    Attributes:
        make: ``(observation, rngs) -> module``; see `from_flax`.
    """

    make: Callable[..., Any]

    def __call__(self, observation: Nest) -> Any:
        """Returns the module's outputs.

        Raises:
            SpecError: the module has variables that are no `nnx.Param`, such as the keys of random numbers.
        """
        nnx = _flax().nnx
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), observation)

        def split(key: jax.Array) -> tuple[Any, Any]:
            graph, params, keys, rest = nnx.split(self.make(shapes, nnx.Rngs(key)), nnx.Param, nnx.RngState, ...)
            if jax.tree.leaves(keys):  # It would draw the same numbers at each call, in evaluations, too.
                raise SpecError(
                    f"The NNX module of {self.make.__qualname__} keeps keys of random numbers: networks here are pure "
                    "functions of parameters. Leave out what draws, e.g. Dropout, and keep no rngs in the module."
                )
            if others := jax.tree.leaves(rest):
                raise SpecError(
                    f"The NNX module of {self.make.__qualname__} has {len(others)} variables that are no nnx.Param: "
                    "networks here are pure functions of parameters. Leave out what keeps such a state."
                )
            return graph, params

        def init(key: jax.Array, observation: Nest) -> Any:
            del observation
            return nnx.to_pure_dict(split(key)[1])

        def apply(params: Any, observation: Nest) -> Any:
            graph, state = split(jax.random.PRNGKey(0))  # What it is made of; its parameters are replaced.
            nnx.replace_by_pure_dict(state, params)
            return nnx.merge(graph, state)(observation)

        return ForeignModule(init, apply, snake_case(getattr(self.make, "__name__", "nnx")))(observation)


def from_flax(module: Any) -> LinenModule | NnxModule:
    """Returns a torso that applies a Flax module, for ``make_agent(torso=networks.from_flax(MyTorso()))``.

    A run with it is resumed from its folder if the module's class, and what its fields hold, can be imported by name.

    Args:
        module: a Linen module, from an observation ``[B, ...]`` (see `OwnTorso`) to features ``[B, D]``; or a function
            ``(observation, rngs) -> module`` that makes one of NNX, where `observation` has the shapes of one
            observation, without a batch axis, and `rngs` are `nnx.Rngs`.

    Raises:
        ConfigError: it is neither.
        MissingExtraError: Flax is not installed.
    """
    flax = _flax()
    if isinstance(module, flax.linen.Module):
        return _recipe(module, flax.linen.Module)
    is_linen_class = isinstance(module, type) and issubclass(module, flax.linen.Module)
    if is_linen_class or isinstance(module, flax.nnx.Module) or not callable(module):
        raise ConfigError(
            f"Expected a Linen module, such as from_flax(MyTorso()), or a function (observation, rngs) that makes one "
            f"of NNX, found {module!r:.80}."
        )
    return NnxModule(module)


def _recipe(value: Any, module_class: type) -> Any:
    """Returns a value with each Linen module in it written as how it is made."""
    if isinstance(value, list | tuple):
        return type(value)(_recipe(child, module_class) for child in value)
    if not isinstance(value, module_class):
        return value
    fields = [f for f in dataclasses.fields(value) if f.init and f.name not in ("parent", "name")]  # type: ignore[arg-type]
    given = {f.name: getattr(value, f.name) for f in fields if getattr(value, f.name) is not f.default}
    return LinenModule(type(value), {name: _recipe(child, module_class) for name, child in given.items()})


def _module_of(value: Any) -> Any:
    """Returns what `_recipe` was given."""
    if isinstance(value, list | tuple):
        return type(value)(map(_module_of, value))
    if not isinstance(value, LinenModule):
        return value
    return value.module(**{name: _module_of(child) for name, child in value.settings.items()})


def _flax() -> Any:
    try:
        import flax.linen
        import flax.nnx
    except ImportError as error:
        raise missing_extra("flax", "flax") from error
    return flax
