"""Checks a user's own networks of an agent that is otherwise agentkit's, by shapes alone, before anything starts."""

from __future__ import annotations

import contextlib
import functools
import math
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tree
from jax.tree_util import keystr, tree_flatten_with_path

from agentkit import specs
from agentkit.agents import registry
from agentkit.agents.common.agent import Agent, check_is_jax
from agentkit.errors import AgentkitError, SpecError
from agentkit.experiment.checks.user_tracebacks import is_users
from agentkit.replay import Table
from agentkit.types import Nest, ReplaySample, SampleInfo

_KEY = jax.ShapeDtypeStruct((2,), np.uint32)
_PACKAGE = Path(__file__).resolve().parents[2]
_NUM_QUANTILES = 8
_COUNTS = {"steps", "updates", "updates_per_second", "seconds", "replay_size", "samples_per_insert"}
"""Columns of a learner's log, which a metric of the same name would replace or be lost in."""
_METHODS = ("apply", "logits", "outputs", "q_values", "behaviour", "critic", "mix")


def check_own_networks(name: str, agent: Agent[Any], spec: specs.EnvironmentSpec, networks: Any) -> None:
    """Refuses networks whose type, parts or outputs are not those of the agent's own networks.

    Args:
        name: of the registered agent.
        agent: with the `make_networks` of the user's.
        spec: of the environment.
        networks: what `make_networks` made of it.

    Raises:
        SpecError: it says which part, what the agent needs, and what was found.
    """
    # Without a torso among its arguments, the user's function has no encoder of images around its networks.
    stock = registry.module(name).make_agent(agent.config).make_networks(spec)
    if hasattr(stock, "encoder") and not hasattr(networks, "encoder"):
        stock = registry.module(name).make_agent(agent.config).make_networks.of_features(spec)
    for made in (networks, *(networks if isinstance(networks, tuple) else ())):
        check_is_jax("make_networks", made)
    if not isinstance(networks, type(stock)):
        raise SpecError(
            f"{name} needs networks of the type {_name(stock)}, found {_name(networks)} from the make_networks of your "
            f"own. Return what agentkit.agents.{name}.make_networks returns, with your functions in it."
        )
    observation = _one(spec.observations)
    found = dict(_outputs(networks, observation, spec.actions, stock))
    for part, expected in _outputs(stock, observation, spec.actions, stock):
        if _shapes(found[part]) != _shapes(expected):
            of_part = f" whose {part} returns" if part else " that return"
            hint = ", a value for each action [B, A]" if _is_values(expected, spec.actions) else ""
            raise SpecError(
                f"{name} needs networks{of_part} {_shapes(expected)} for one observation{hint}; found "
                f"{_shapes(found[part])} from those of your own. Change the make_networks, or replace make_loss, too."
            )


def own_code(code: Any) -> Iterator[str]:
    """Yields the names of a user's own functions and classes in what `recipes.encode` wrote of a part."""
    if isinstance(code, Mapping):
        name = code.get("function", code.get("type", code.get("name")))
        if isinstance(name, str) and ":" in name and not name.startswith("agentkit."):
            yield name
        elif "unnamed" in code and name is None and "array" not in code["unnamed"]:
            yield code["unnamed"]
    children = code.values() if isinstance(code, Mapping) else code if isinstance(code, list) else ()
    for child in children:
        yield from own_code(child)


def check_works(
    name: str,
    agent: Agent[Any],
    spec: specs.EnvironmentSpec,
    parts: Any,
    table: Table,
    own: Sequence[str] = (),
    *,
    saved: bool = False,
) -> None:
    """Refuses parts with which the agent cannot act or learn: both are traced on shapes, without computing.

    Args:
        name: of the agent.
        agent: with parts of the user's.
        spec: of the environment.
        parts: networks, update and the shapes of the training state.
        table: that the learner draws its batches from.
        own: the user's functions, by name; none where the networks are all that is the user's.
        saved: whether the training state goes into checkpoints, of which none with another dtype could be restored.

    Raises:
        SpecError: it has what the agent's own function said of these parts.
    """
    whose = "the networks" if not own else ", ".join(own)
    advice = f"Compare your make_networks with agentkit.agents.{name}.make_networks."
    if own:
        advice = "docs/composing.md says what each part takes and returns."
    size = agent.batch_plan.batch_size

    def batched(leaf: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((size, *leaf.shape), leaf.dtype)

    data = tree.map_structure(batched, table.signature)
    count = jax.ShapeDtypeStruct((), np.int32)
    info = SampleInfo(*[jax.ShapeDtypeStruct((size,), dtype) for dtype in (np.float64, np.int64, np.float64, np.int32)])

    def learn() -> None:
        new, output = jax.eval_shape(parts.update.update, parts.state, ReplaySample(info, data, count, count))
        if _shapes(new) != _shapes(parts.state):
            raise SpecError("the training state changes its shape")
        for (path, leaf), after in zip(tree_flatten_with_path(parts.state)[0], jax.tree.leaves(new), strict=True):
            if saved and leaf.dtype != after.dtype:
                raise SpecError(
                    f"the training state's {keystr(path)} begins as {leaf.dtype} and becomes {after.dtype}: cast it"
                )
        if output.priorities is not None and output.priorities.shape != (size,):
            raise SpecError(f"priorities have the shape {list(output.priorities.shape)}, not [{size}]")
        if taken := _COUNTS & output.metrics.keys():
            raise SpecError(f"the metric {min(taken)!r} has the name of a count that the log keeps: give it another")
        for name, metric in output.metrics.items() if agent.batch_plan.num_updates == 1 else ():  # Else it is averaged.
            if not isinstance(shape := _shapes(metric), list) or math.prod(shape) != 1:
                raise SpecError(f"the metric {name!r} has the shape {_shapes(metric)}, not []: take its mean")

    def act(evaluation: bool) -> None:
        policy = agent.make_policy(parts.networks, evaluation)
        params = jax.eval_shape(parts.update.variables, parts.state)["policy"]
        state = jax.eval_shape(policy.init, _KEY)
        observation = tree.map_structure(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), spec.observations)
        acted = jax.eval_shape(policy.act, params, _KEY, observation, state)
        if not isinstance(acted, tuple) or len(acted) != 3:
            raise SpecError(f"act returns {type(acted).__name__}, not (action, state, extras)")
        action = acted[0]
        expected = tree.map_structure(lambda leaf: list(leaf.shape), spec.actions)
        if _shapes(action) != _shapes(spec.actions):
            raise SpecError(f"actions have the shape {_shapes(action)}, not {expected}")
        for leaf, each in zip(tree.flatten(action), tree.flatten(spec.actions), strict=True):
            if leaf.dtype.kind == "f" and each.dtype.kind in "iu":
                raise SpecError(f"actions are {leaf.dtype}, not {each.dtype}")

    acts = [("acting", functools.partial(act, False)), ("evaluating", functools.partial(act, True))]
    traced = acts * (agent.make_actor is None) + [("learning", learn)]
    for what, function in traced * (agent.make_learner is None):  # What a learner of one's own has, only it knows.
        _trace(f"{name} does not work with {whose} of your own: {what} fails", advice, function, strict=not own)


def _trace(label: str, advice: str, function: Callable[[], None], strict: bool) -> None:
    """Calls a function; where `strict`, arrays of other ranks than formulas expect, which broadcast, are errors."""
    try:
        try:
            with jax.numpy_rank_promotion("raise") if strict else contextlib.nullcontext():
                function()
        except ValueError as error:
            if "rank_promotion" not in str(error) or _is_ours(error):
                raise
            function()  # In the user's own code, which may do so.
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SpecError(f"{label} with {said!r}{_where(error)}. {_about_torch(error) or advice}") from error


def _where(error: BaseException) -> str:
    """Returns the innermost line of the user's own code."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def _about_torch(error: BaseException) -> str:
    """Returns a sentence for an error that PyTorch has raised; else nothing."""
    files = [Path(frame.filename).parts for frame in traceback.extract_tb(error.__traceback__)]
    if "torch" not in str(error) and not any("torch" in parts for parts in files):
        return ""
    return "PyTorch cannot be used here, which JAX can neither compile nor differentiate: take Haiku, Flax or Equinox."


def _is_ours(error: BaseException) -> bool:
    """Returns whether the innermost code that is not a library's is agentkit's."""
    files = [Path(frame.filename).resolve() for frame in traceback.extract_tb(error.__traceback__)]
    own = [file for file in files if "site-packages" not in file.parts or file.is_relative_to(_PACKAGE)]
    return bool(own) and own[-1].is_relative_to(_PACKAGE)


def _outputs(networks: Any, observation: Nest, actions: Nest, stock: Any, label: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the shapes of what each network returns for one observation, by its name in `networks`.

    `stock` is the agent's own: a network takes what that takes.
    """
    from agentkit.networks import Network, PolicyValue, RecurrentNetwork  # Loads Haiku, which not every command needs.

    if isinstance(stock, RecurrentNetwork):
        if not _takes(stock.step, stock.init, observation, _one(stock.initial_state)):
            return  # A critic's, whose inputs its agent alone knows.
        state = _one(networks.initial_state)
        rows = jax.tree.map(lambda x: jax.ShapeDtypeStruct((1, 2, *x.shape[1:]), x.dtype), observation)
        begins = jax.ShapeDtypeStruct((1, 2), np.bool_)
        step, unroll = (label, f"{label}.unroll") if label else ("step", "unroll")
        yield step, _call(step, networks.init, lambda *x: networks.step(*x)[0], observation, state)
        yield unroll, _call(unroll, networks.init, lambda *x: networks.unroll(*x)[0], rows, begins, state)
    elif isinstance(stock, PolicyValue):
        yield from _outputs(networks.network, observation, actions, stock.network)
    elif hasattr(stock, "represent"):
        hidden = _call("represent", networks.init, networks.represent, observation)
        yield "predict", _call("predict", networks.init, networks.predict, hidden)
    elif hasattr(stock, "init"):
        for method in filter(stock._fields.__contains__, _METHODS):
            inputs = _inputs_of(getattr(stock, method), stock, observation, _one(actions))
            if inputs is not None:
                part = label if method == "apply" else method
                yield part, _call(part, networks.init, getattr(networks, method), *inputs)
    else:
        for field in stock._fields:
            own = getattr(stock, field)
            if isinstance(own, Network | RecurrentNetwork) and field != "encoder":  # Whose features are of any size.
                mine = getattr(networks, field)
                if not isinstance(mine, type(own)):
                    raise SpecError(f"networks.{field}: expected a networks.{type(own).__name__}, found {_name(mine)}.")
                yield from _outputs(mine, observation, actions, own, field)


def _inputs_of(apply: Callable[..., Any], stock: Any, observation: Nest, action: Nest) -> Any:
    """Returns the inputs that an agent's own network takes, behind its parameters; None for others than are known."""
    of_team: list[tuple[Any, ...]] = []
    if team := getattr(stock, "team", None):
        values, vectors = (1, len(team.ids)), (1, len(team.ids), team.num_outputs)
        of_team = [(_floats(values), observation), (observation, _floats(vectors))]
    fractions = _floats((1, _NUM_QUANTILES))
    without_key: list[tuple[Any, ...]] = [(observation,), (observation, action), (observation, fractions)]
    for inputs in (*of_team, *without_key, (_KEY, observation), (_KEY, observation, action)):
        if _takes(apply, stock.init, *inputs):
            return inputs
    return None


def _floats(shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.float32)


def _takes(apply: Callable[..., Any], init: Callable[..., Any], *inputs: Any) -> bool:
    """Returns whether an agent's own network takes inputs of these shapes."""
    try:
        jax.eval_shape(apply, jax.eval_shape(init, _KEY), *inputs)
    except Exception:
        return False
    return True


def _call(label: str, init: Callable[..., Any], apply: Callable[..., Any], *inputs: Any) -> Any:
    try:
        return jax.eval_shape(apply, jax.eval_shape(init, _KEY), *inputs)
    except AgentkitError:
        raise
    except Exception as error:
        said = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SpecError(
            f"The {label or 'network'} of your own fails on inputs of the shapes {_shapes(inputs)}: {said}"
            f"{_where(error)}. {_about_torch(error)}".rstrip()
        ) from error


def _one(nest: Nest) -> Nest:
    return tree.map_structure(lambda leaf: jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype), nest)


def _shapes(nest: Nest) -> Any:
    """Returns the shapes in a nest, in lists, for comparisons and messages."""
    return jax.tree.map(lambda x: list(x.shape), nest, is_leaf=specs.is_spec)


def _is_values(expected: Any, actions: Nest) -> bool:
    return isinstance(actions, specs.DiscreteArray) and _shapes(expected) == [1, actions.num_values]


def _name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
