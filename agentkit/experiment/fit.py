"""Checks that an agent and an environment go together, before the first step and before a run folder is made."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import identity, recipes
from agentkit.learning import Update
from agentkit.replay import Table
from agentkit.replay.base import index_tables
from agentkit.types import Nest

_OF_ACTION_VALUES = ("dqn", "munchausen_dqn", "discrete_cql")
"""Agents whose network returns action values ``[B, A]``."""


class Parts(NamedTuple):
    """Holds what an agent makes of an environment's spec.

    Attributes:
        networks: the agent's.
        update: on them.
        state: shapes of the training state.
    """

    networks: Any
    update: Update
    state: Nest


def check_fit(experiment: Any, spec: specs.EnvironmentSpec) -> Parts:
    """Makes what a run makes of the environment's spec, so that what cannot work is refused here; returns it.

    Args:
        experiment: an `ExperimentConfig`.
        spec: of its environment.

    Raises:
        SpecError: the spec is impossible, or none that the agent takes.
        ConfigError: the agent's settings contradict each other.
    """
    agent = experiment.agent
    check_spec(spec)
    described = identity.describe_agent(agent, 1)
    own_parts = set(described["agent_parts"]) - {"experience"}
    if described["agent"] is not None and _is_agentkits(described["agent_parts"]):
        _check_scalars(described["agent"], spec)
    networks = agent.make_networks(spec)
    if described["agent"] in _OF_ACTION_VALUES and own_parts == {"make_networks"}:
        _check_own_networks(described["agent"], spec, networks)
    update = agent.make_update(networks)
    tables, plan = agent.make_tables(spec), agent.batch_plan
    index_tables(tables)[plan.table].check_batch(plan.num_own)
    return Parts(networks, update, state_shapes(update))


def state_shapes(update: Update) -> Nest:
    """Returns the shapes and dtypes of an update's training state, without computing it."""
    return jax.eval_shape(update.init, jax.ShapeDtypeStruct((2,), np.uint32))


def check_memory(experiment: Any, spec: specs.EnvironmentSpec) -> None:
    """Refuses an in-process replay that will not fit into the machine's memory when the run ends.

    Raises:
        ConfigError: it says how large which table will be.
    """
    if experiment.replay == "in_process":
        for table in experiment.agent.make_tables(spec):
            _check_memory(table, experiment.num_steps)


def check_spec(spec: specs.EnvironmentSpec) -> None:
    """Refuses a spec that no environment can keep, or that says nothing.

    Raises:
        SpecError: which leaf, what was expected and found.
    """
    for part, nest in spec._asdict().items():
        for name, leaf in tree.flatten_with_path(nest):
            label = "/".join([part.removesuffix("s"), *map(str, name)])
            if leaf.dtype.kind not in "fiub":
                raise SpecError(f"{label}: expected numbers, found dtype {leaf.dtype}. Encode them as numbers.")
            if isinstance(leaf, specs.BoundedArray) and not np.all(leaf.minimum <= leaf.maximum):  # NaN, too.
                raise SpecError(
                    f"{label}: expected a minimum of at most the maximum, found {leaf.minimum} and {leaf.maximum}. "
                    "Correct the bounds in the environment's spec."
                )
    for part in ("observations", "actions"):
        leaves = tree.flatten(getattr(spec, part))
        if not sum(math.prod(leaf.shape) for leaf in leaves):
            raise SpecError(
                f"The environment's {part} have no numbers: expected at least 1, found {leaves or 'no leaves'}. "
                "Give them one that is always 0 if there is nothing to say."
            )


def _check_scalars(name: str, spec: specs.EnvironmentSpec) -> None:
    """Agentkit's own agents learn from one reward; an agent with an update of the user's may take others."""
    for what, leaf in (("reward", spec.rewards), ("discount", spec.discounts)):
        if not specs.is_spec(leaf) or leaf.shape != ():
            raise SpecError(
                f"{name} needs one {what}, a number at each step, found the {what} spec {leaf}. Add the "
                "numbers up in a wrapper, or give the agent a make_loss of your own."
            )


def _is_agentkits(parts: Mapping[str, Any]) -> bool:
    """Returns whether nothing of an agent but its networks and experience is a user's; add-ons may be around it."""
    codes = [code for name, code in parts.items() if name not in ("experience", "make_networks")]
    modules = [module for code in codes for module in recipes.named_modules(code)]
    return not any(list(recipes.unnamed(code, "")) for code in codes) and all(
        module.partition(".")[0] == "agentkit" for module in modules
    )


def _check_own_networks(name: str, spec: specs.EnvironmentSpec, networks: Any) -> None:
    """Refuses networks of the user's own whose action values are not those of an agent that is otherwise stock."""
    from agentkit.networks import Network  # Loads Haiku, which not every command needs.

    actions = spec.actions
    if not isinstance(actions, specs.DiscreteArray) or not isinstance(networks, Network):
        return
    observation = jax.tree.map(lambda x: x[None], specs.zeros(spec.observations))
    params = jax.eval_shape(networks.init, jax.ShapeDtypeStruct((2,), np.uint32))
    found = jax.tree.map(lambda x: list(x.shape), jax.eval_shape(networks.apply, params, observation))
    if found != [1, actions.num_values]:
        raise SpecError(
            f"{name} needs networks that return a value for each action, [B, A], for one observation here "
            f"[1, {actions.num_values}]; found {found} from those of your own. Give them as many outputs as "
            "environment_spec.actions.num_values."
        )


def _check_memory(table: Table, num_steps: int) -> None:
    step = sum(_num_bytes(leaf) for leaf in tree.flatten(table.layout.step))
    item = sum(_num_bytes(leaf) for leaf in tree.flatten(table.layout.inline))
    num_items = min(table.max_size, num_steps)
    needed, there = num_items * (step + item), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise ConfigError(
            f"Replay table {table.name!r} will hold {num_items:,} items of {step + item:,} bytes, "
            f"{needed / 1e9:,.1f} GB; this machine has {there / 1e9:,.1f} GB of memory. Lower replay_size, or store "
            "smaller observations."
        )


def _num_bytes(leaf: specs.Array) -> int:
    size = math.prod(leaf.shape) * leaf.dtype.itemsize
    # Stacked frames are stored once each: at best a row adds one.
    return (
        size // max(min(leaf.shape[0], leaf.shape[-1]), 1) if leaf.dtype == np.uint8 and len(leaf.shape) == 3 else size
    )
