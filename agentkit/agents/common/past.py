"""Stores the past that views look at, without copies, and takes the views from batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import tree

from agentkit.adders.n_step import NStepRow
from agentkit.agents.common.views import Past, Reach, Views, ages, show
from agentkit.errors import ConfigError
from agentkit.replay.table import FromStep, Layout, Select, number_leaves
from agentkit.types import Array, Nest, Step, Transition


def past_of_transitions(layout: Layout, reach: Reach, n_step: int) -> Layout:
    """Returns the layout of `Transition`s whose observations are each a `Past` of one step.

    Args:
        layout: `NStepAdder.layout` with ``marks_starts``.
        reach: how many steps before theirs they show.
        n_step: of the adder, which says how many steps an item has at most; a Reverb server makes use of that.
    """
    columns: NStepRow = number_leaves(layout.step)
    observation, next_observation = (_past(columns, reach, select) for select in (Select.FIRST, Select.LAST))
    data: Transition = layout.data
    data = data._replace(observation=observation, next_observation=next_observation)
    return dataclasses.replace(layout, data=data, length=2 if n_step == 1 else None, max_length=n_step + 1)


def past_of_sequences(layout: Layout, reach: Reach) -> Layout:
    """Returns the layout of sequences of `Step`s whose observation is a `Past` of all their rows.

    Args:
        layout: `SequenceAdder.layout`.
        reach: how many rows before their first they show.
    """
    data: Step = layout.data
    observation = _past(number_leaves(layout.step), reach, Select.ALL)
    return dataclasses.replace(layout, data=data._replace(observation=observation))


def _past(columns: NStepRow | Step, reach: Reach, select: Select) -> Past:
    def take(nest: Nest, history: int) -> Nest:
        return tree.map_structure(lambda column: FromStep(column, select, history), nest)

    return Past(
        take(columns.observation, reach.observation),
        () if reach.action is None else take(columns.action, reach.action),
        take(columns.start_of_episode, reach.start),
    )


def show_batch(views: Views, data: Nest) -> Transition | Step:
    """Returns a batch as the agent's own update expects it, whose observations are the views.

    Args:
        views: what the model sees.
        data: `Transition`s ``[B, ...]`` or `Step`s ``[B, T, ...]`` as they were stored: those of segments begin with
            the rows from before them.

    Raises:
        ConfigError: it is something else.
    """
    if isinstance(data, Transition) and isinstance(data.observation, Past):
        look = _batched(views, 1)
        shown, next_shown = (
            _first(look(_with_time(past, views))) for past in (data.observation, data.next_observation)
        )
        return data._replace(observation=shown, next_observation=next_shown)
    if isinstance(data, Step):
        start, rows = data.start_of_episode, data.action
        num_steps = start.shape[1]
        if isinstance(data.observation, Past):
            past = data.observation
        else:
            past = Past(data.observation, rows if views.reach.action is not None else (), start)
            num_steps -= views.reach.start
        own: Step = jax.tree.map(lambda leaf: leaf[:, -num_steps:], data._replace(observation=()))
        return own._replace(observation=_batched(views, num_steps)(past))
    raise ConfigError(
        f"Views are taken from transitions, sequences or segments as their agent stored them, found "
        f"`{type(data).__name__}`s without the past. Put with_views around the agent last."
    )


def _batched(views: Views, num_steps: int) -> Callable[[Past], dict[str, Nest]]:
    def look(past: Past) -> dict[str, Nest]:
        return show(views, past.observation, past.action, ages(past.start_of_episode, num_steps))

    return jax.vmap(look)


def _with_time(past: Past, views: Views) -> Past:
    """Gives the columns of a transition that reach back 0 steps an axis of time, ``[B, 1, ...]``."""
    reach = views.reach

    def lengthen(nest: Nest, steps: int | None) -> Nest:
        return nest if steps else jax.tree.map(lambda leaf: leaf[:, None], nest)

    return Past(
        lengthen(past.observation, reach.observation),
        lengthen(past.action, reach.action),
        lengthen(past.start_of_episode, reach.start),
    )


def _first(nest: Nest) -> Nest:
    def first(leaf: Array) -> Array:
        return leaf[:, 0]

    return jax.tree.map(first, nest)
