"""Describes the network that an agent gets in an environment, for ``agentkit show AGENT --env NAME``."""

from __future__ import annotations

import argparse
import textwrap
from typing import Any

from agentkit.cli.training.new_run import check_fit
from agentkit.cli.values.environments import (
    find_environment,
    find_torso,
    import_packages,
    parse_environment_settings,
    parse_wrappers,
)
from agentkit.cli.values.fields import parse_settings
from agentkit.cli.values.views import find_views

_STEPS = 1_000_000  # Of schedules only.
_INDENT = "    "
_TITLES = ("module", "input", "output", "parameters")
_LEAST = 12


def describe_network(arguments: argparse.Namespace, columns: int | None) -> str:
    """Returns how each part of the observation is encoded, and a table of the networks' modules.

    Args:
        arguments: of ``agentkit show``, with an environment.
        columns: that there are; None for any number.

    Raises:
        AgentkitError: a run would be refused, and with these words.
    """
    from agentkit.networks import summary

    plan = _plan(arguments)
    parts, spec = check_fit(plan, holds_replay=False)
    views = getattr(plan.agent.make_networks, "views", None)  # Of `with_views`.
    lines = ["", f"Network in {arguments.env}:", ""]
    inputs = summary.describe_inputs(spec.observations if views is None else views.spec(spec))
    widths = [max(len(row[i]) for row in inputs) for i in range(2)]
    for name, kind, text in inputs:
        head = f"{_INDENT}{name:{widths[0]}}  {kind:{widths[1]}}  "
        hanging = " " * len(head)
        lines += textwrap.wrap(text, columns or 10_000, initial_indent=head, subsequent_indent=hanging)
    lines += ["", *table_of_layers(summary.layers_of(parts.networks), columns), ""]
    numbers, size = summary.count(parts.state)
    lines.append(
        f"{_INDENT}The learner's state, with targets and optimisers: {numbers:,} numbers, {size / 1e6:,.1f} MB."
    )
    return "\n".join(lines)


def _plan(arguments: argparse.Namespace) -> Any:
    """Returns the `ExperimentConfig` of ``agentkit train`` with these words."""
    from agentkit.agents import registry
    from agentkit.experiment import train_by_name
    from agentkit.experiment.config import presets

    import_packages(arguments.imports)
    environment, torso = find_environment(arguments), find_torso(arguments)
    preset = presets.choose(arguments.agent, arguments.env, arguments.preset or presets.AUTO)
    return train_by_name.plan(
        arguments.agent,
        environment,
        _STEPS if preset is None else preset.num_steps or _STEPS,
        parse_settings(arguments.set or [], registry.config_class(arguments.agent), arguments.agent),
        preset=preset,
        torso=torso,
        views=find_views(arguments),
        environment_settings=parse_environment_settings(arguments.env_set, environment),
        **parse_wrappers(arguments),
    )


def table_of_layers(layers: list[Any], columns: int | None) -> list[str]:
    """Returns a line for each module, under the name of its network where there are several, and the total.

    Names that are too long for the columns lose their beginning.
    """
    from agentkit.networks.summary import shape_text

    rows, part = [_TITLES], ""
    for layer in layers:
        if layer.part != part:
            part = layer.part
            rows.append((f"[{part}]", "", "", ""))
        shapes = [", ".join(shape_text(shape) or "1" for shape in nest) for nest in (layer.inputs, layer.outputs)]
        rows.append((layer.module, *shapes, f"{layer.num_parameters:,}"))
    rows.append(("total", "", "", f"{sum(layer.num_parameters for layer in layers):,}"))
    sizes = [max(len(row[i]) for row in rows) for i in range(4)]
    if columns is not None:
        sizes[0] = max(min(sizes[0], columns - len(_INDENT) - sum(sizes[1:]) - 6), _LEAST)
    return [_line(row, sizes) for row in rows]


def _line(row: tuple[str, ...], sizes: list[int]) -> str:
    name, inputs, outputs, parameters = row
    if len(name) > sizes[0]:
        name = f"…{name[len(name) - sizes[0] + 1 :]}"
    cells = (f"{name:{sizes[0]}}", f"{inputs:{sizes[1]}}", f"{outputs:{sizes[2]}}", f"{parameters:>{sizes[3]}}")
    return (_INDENT + "  ".join(cells)).rstrip()
