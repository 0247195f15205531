"""Checks that an agent and an environment go together, before the first step and before a run folder is made."""

from __future__ import annotations

import math
import os
from typing import Any

import jax
import numpy as np
import tree

from agentkit import specs
from agentkit.agents import registry
from agentkit.agents.common.agent import Agent
from agentkit.errors import AgentkitError, ConfigError, SpecError
from agentkit.experiment.checks.own_boxes import check_own_boxes
from agentkit.experiment.checks.own_networks import check_own_networks, check_works, own_code
from agentkit.experiment.config import identity
from agentkit.experiment.policies.agent_parts import AgentParts, is_agentkits, make_parts
from agentkit.replay import Table
from agentkit.replay.base import index_tables
from agentkit.replay.in_process.frame_column import bytes_per_step
from agentkit.types import Nest

_EXCHANGED = {"experience", "make_networks"}
_TRACED = {"make_networks", "make_policy", "make_update"}


def check_fit(experiment: Any, spec: specs.EnvironmentSpec) -> AgentParts:
    """Makes what a run makes of the environment's spec, so that what cannot work is refused here; returns it.

    Args:
        experiment: an `ExperimentConfig`.
        spec: of its environment.

    Raises:
        SpecError: the spec is impossible, or none that the agent takes; or networks, losses, updates or policies of the
            user's own return other things than the agent needs; or an experience has other data than it learns from.
        ConfigError: the agent's settings contradict each other.
    """
    agent = experiment.agent
    check_spec(spec)
    check_own_boxes(experiment)
    described = identity.describe_agent(agent, 1)
    name, code = described["agent"], described["agent_parts"]
    if name is not None and is_agentkits({part: code[part] for part in code.keys() - _EXCHANGED}):
        _check_scalars(name, spec)
    has_own_networks = name is not None and code.keys() - {"experience"} == {"make_networks"}
    own = sorted({label for part in code.keys() & _TRACED for label in own_code(code[part])})
    parts = make_parts(agent, spec)
    if has_own_networks:
        check_own_networks(name, agent, spec, parts.networks)
    table = check_table(agent, spec)
    saved = experiment.run_directory is not None
    if agent.make_learner is None:
        parts.make_update()
        if saved:
            _check_can_be_written(parts.state)
    if has_own_networks:
        check_works(name, agent, spec, parts, table, saved=saved)
        return parts
    if name is not None and code.keys() == {"experience"} and _differs(table, name, agent, spec):
        own = ["the experience"]
    if own and not jax.config.jax_disable_jit:  # type: ignore[attr-defined]
        check_works(name or "The agent", agent, spec, parts, table, own, saved=saved)
    return parts


def _check_can_be_written(state: Nest) -> None:
    """Refuses a training state with typed PRNG keys, which no checkpoint could hold."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(state)[0]:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended):
            raise SpecError(
                f"The training state has a key of jax.random.key at {jax.tree_util.keystr(path)}, which a checkpoint "
                "cannot hold. Keep one of jax.random.PRNGKey, or jax.random.key_data(key)."
            )


def _differs(table: Table, name: str, agent: Agent[Any], spec: specs.EnvironmentSpec) -> bool:
    """Returns whether what is drawn has other names, dtypes or ranks than with the agent's own experience."""

    def form(table: Table) -> list[tuple[str, Any, int]]:
        leaves = zip(specs.leaf_names(table.signature), tree.flatten(table.signature), strict=True)
        return [(label, leaf.dtype, len(leaf.shape)) for label, leaf in leaves]

    stock = registry.module(name).make_agent(agent.config)
    if type(agent.experience) is type(stock.experience):
        return False
    try:
        own = index_tables(stock.make_tables(spec))[stock.batch_plan.table]
    except AgentkitError:  # With these settings it is for more environments than one.
        return False
    return form(table) != form(own)


def check_table(agent: Agent[Any], spec: specs.EnvironmentSpec) -> Table:
    """Returns the table that an agent learns from.

    Raises:
        ConfigError: the settings of its tables contradict each other, or it could never serve the agent's batches.
    """
    plan = agent.batch_plan
    table = index_tables(agent.make_tables(spec))[plan.table]
    table.check_batch(plan.num_own)
    return table


def check_memory(experiment: Any, spec: specs.EnvironmentSpec) -> None:
    """Refuses an in-process replay that will not fit into the machine's memory when the run ends.

    Raises:
        ConfigError: it says how large the largest table will be.
    """
    if experiment.replay != "in_process":
        return
    agent, there = experiment.agent, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Sequences share their steps with those before them, but for so many.
    steps_per_item = getattr(agent.config, "sequence_period", 1)
    own = [table for table in agent.make_tables(spec) if table.name != agent.batch_plan.prior_table]  # Data are there.
    needed, held = max(_bytes_of(table, experiment.num_steps, steps_per_item) for table in own)
    if needed > there:
        raise ConfigError(
            f"{held}, {needed / 1e9:,.1f} GB; this machine has {there / 1e9:,.1f} GB of memory. Lower replay_size, or "
            "store smaller observations."
        )


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


def _bytes_of(table: Table, num_steps: int, steps_per_item: int) -> tuple[int, str]:
    """Returns how large a table will be, and what it will hold, in words."""
    step = sum(map(bytes_per_step, tree.flatten(table.layout.step)))
    inline = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in tree.flatten(table.layout.inline))
    num_steps = min(num_steps, table.max_size * steps_per_item)
    num_items = -(-num_steps // steps_per_item)
    held = f"{num_steps:,} steps of {step:,} bytes" + (f" and {num_items:,} items of {inline:,}" if inline else "")
    return num_steps * step + num_items * inline, f"Replay table {table.name!r} will hold {held}"
