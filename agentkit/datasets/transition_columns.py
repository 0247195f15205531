"""Columns of transitions in D4RL's terms, cut into episodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

from agentkit.datasets.episodes import Episode
from agentkit.errors import SpecError
from agentkit.types import Nest

TRANSITION_COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
"""Names of the columns; files need the first four."""

_NEEDED = TRANSITION_COLUMNS[:4]


def are_transitions(names: Any) -> bool:
    """Returns whether columns of these names are D4RL's: they have observations and terminals."""
    return {"observations", "terminals"} <= set(names)


def split_transitions(columns: Mapping[str, Any]) -> list[Episode]:
    """Cuts columns of transitions, in D4RL's terms (Fu et al. 2020, 2004.07219), into episodes.

    Row t has o_t, a_t, and the reward and the end that followed a_t; an episode ends at a terminal or a timeout, the
    last one with the columns. What an episode ended in is in no row but as one of ``next_observations``. Where
    these are missing, a terminated episode ends in its last observation again, of which nothing is learned; a
    truncated one, whose last observation is bootstrapped from, ends a step earlier.

    Args:
        columns: ``observations`` and ``actions``, nests of ``[N, ...]``; ``rewards`` and ``terminals`` ``[N]``; where
            they are known, ``timeouts`` ``[N]`` and ``next_observations``, as ``observations``.

    Raises:
        SpecError: a column is missing or of another length, or no episode has a step.
    """
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise SpecError(f"Expected the columns {list(_NEEDED)}, found {sorted(columns)}: {missing} are missing.")
    known = {name: columns[name] for name in TRANSITION_COLUMNS if name in columns}
    lengths = {name: {np.shape(leaf)[:1] for leaf in tree.flatten(nest)} for name, nest in known.items()}
    found = set().union(*lengths.values())
    if len(found) != 1 or found == {()}:
        raise SpecError(f"Expected columns of one length, found { {name: sorted(x) for name, x in lengths.items()} }.")
    terminals = np.asarray(known["terminals"]).astype(bool).reshape(-1)
    ended = terminals | np.asarray(known.get("timeouts", False)).astype(bool).reshape(-1)
    stops = np.flatnonzero(ended) + 1
    num_rows = len(terminals)
    if num_rows and (not stops.size or stops[-1] != num_rows):
        stops = np.append(stops, num_rows)
    starts = np.append([0], stops[:-1])
    episodes = [
        _episode(known, start, stop, bool(terminals[stop - 1]))
        for start, stop in zip(starts.tolist(), stops.tolist(), strict=bool(stops.size))
    ]
    kept = [episode for episode in episodes if episode is not None]
    if not kept:
        raise SpecError(f"Expected at least 1 episode of at least 1 step in the columns, found {num_rows} rows.")
    return kept


def _episode(columns: Mapping[str, Any], start: int, stop: int, terminated: bool) -> Episode | None:
    """Returns the episode of some rows; None where it has no whole step."""

    def rows(name: str, first: int, last: int) -> Nest:
        return tree.map_structure(lambda x: np.asarray(x)[first:last], columns[name])

    num_steps = stop - start
    if "next_observations" in columns:
        last = rows("next_observations", stop - 1, stop)
    elif terminated:
        last = rows("observations", stop - 1, stop)
    else:
        num_steps -= 1
        last = rows("observations", stop - 1, stop)
    if num_steps < 1:
        return None
    observations = rows("observations", start, start + num_steps)
    ends = np.zeros((2, num_steps), bool)
    ends[0 if terminated else 1, -1] = True
    return Episode(
        tree.map_structure(lambda *x: np.concatenate(x), observations, last),
        rows("actions", start, start + num_steps),
        np.asarray(columns["rewards"][start : start + num_steps], np.float64).reshape(-1),
        *ends,
    )
