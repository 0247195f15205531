"""Columns of steps in RLDS's terms, cut into episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

from agentkit.datasets.episodes import Episode, read_flags, read_rewards
from agentkit.errors import SpecError

_FLAGS = ("is_first", "is_last", "is_terminal")

STEP_COLUMNS = ("observation", "action", "reward", *_FLAGS)
"""Names of the columns, all of which are needed."""


def split_steps(columns: Mapping[str, Any]) -> list[Episode]:
    """Cuts columns of many episodes' steps, in RLDS's terms (Ramos et al. 2021, 2111.02767), into episodes.

    Row t has o_t, a_t, and the reward and the end that followed a_t; the last row of an episode has its final
    observation, and its action and reward mean nothing.

    Args:
        columns: ``observation`` and ``action``, nests of ``[N, ...]``; ``reward`` ``[N]``; bools ``is_first``,
            ``is_last`` and ``is_terminal`` ``[N]``, the latter True in the last rows of episodes that terminated.

    Raises:
        SpecError: a column is missing or of another length, or an episode has no last row.
    """
    missing = [name for name in STEP_COLUMNS if name not in columns]
    if missing:
        raise SpecError(f"Expected the columns {list(STEP_COLUMNS)}, found {sorted(columns)}: {missing} are missing.")
    num_rows = _check_lengths({name: columns[name] for name in STEP_COLUMNS})
    is_first, is_last, is_terminal = (read_flags(columns[name], name).reshape(-1) for name in _FLAGS)
    starts, stops = np.flatnonzero(is_first), np.flatnonzero(is_last) + 1
    if not np.array_equal(starts, np.append([0], stops[:-1])) or not stops.size or stops[-1] != num_rows:
        raise SpecError(
            "Expected each is_first right after an is_last, the first row to be one and the last row the other; "
            f"found {len(starts)} is_first and {len(stops)} is_last that are not so."
        )

    def episode(start: int, stop: int) -> Episode:
        ended = np.zeros((2, stop - start - 1), bool)
        ended[0 if is_terminal[stop - 1] else 1, -1:] = True
        return Episode(
            tree.map_structure(lambda x: np.asarray(x[start:stop]), columns["observation"]),
            tree.map_structure(lambda x: np.asarray(x[start : stop - 1]), columns["action"]),
            read_rewards(columns["reward"][start : stop - 1], "reward"),
            *ended,
        )

    return [episode(start, stop) for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]


def _check_lengths(columns: Mapping[str, Any]) -> int:
    """Returns how many rows all leaves of all columns have; rewards and flags are one number a row."""
    lengths = {name: {np.shape(leaf)[:1] for leaf in tree.flatten(nest)} for name, nest in columns.items()}
    found = set().union(*lengths.values())
    if len(found) != 1 or found == {()}:
        raise SpecError(f"Expected columns of one length, found { {name: sorted(x) for name, x in lengths.items()} }.")
    ((num_rows,),) = found
    for name in ("reward", *_FLAGS):
        if tree.is_nested(columns[name]) or np.size(columns[name]) != num_rows:
            raise SpecError(f"{name}: expected a column of one number a row, found {_describe(columns[name])}.")
    return num_rows


def _describe(column: Any) -> str:
    return f"several, {sorted(column)}" if isinstance(column, Mapping) else f"shape {list(np.shape(column))}"
