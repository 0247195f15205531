"""Columns of transitions in D4RL's terms, cut into episodes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import tree

from agentkit import specs
from agentkit.datasets.episodes import Episode, read_flags, read_rewards
from agentkit.errors import SpecError
from agentkit.types import Nest

TRANSITION_COLUMNS = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
"""Names of the columns; files need the first four."""

_NEEDED = TRANSITION_COLUMNS[:4]
_ROWS = 1_024


def are_transitions(names: Any) -> bool:
    """Returns whether columns of these names are D4RL's: they have observations and terminals."""
    return {"observations", "terminals"} <= set(names)


def split_transitions(columns: Mapping[str, Any]) -> list[Episode]:
    """Cuts columns of transitions, in D4RL's terms (Fu et al. 2020, 2004.07219), into episodes.

    Row t has o_t, a_t, and the reward and the end that followed a_t; an episode ends at a terminal or a timeout, the
    last one with the columns. Where there are ``next_observations``, it ends also, truncated, at each row whose next
    observation is not the next row's: the environment was reset there, and nothing says so. A warning says how many
    such rows there are. Of transitions in shuffled order each is an episode of one step.

    What an episode ended in is in no row but as one of ``next_observations``. Where these are missing, a terminated
    episode ends in its last observation again, of which nothing is learned; a truncated one, whose last observation is
    bootstrapped from, ends a step earlier. Without ``timeouts``, too, an episode that a time limit ended cannot be told
    from the next, and a warning says so.

    Args:
        columns: ``observations`` and ``actions``, nests of ``[N, ...]``; ``rewards`` and ``terminals`` ``[N]``; where
            they are known, ``timeouts`` ``[N]`` and ``next_observations``, as ``observations``.

    Raises:
        SpecError: a column is missing or of another length, ends or rewards are no numbers, or no episode has a step.
    """
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise SpecError(f"Expected the columns {list(_NEEDED)}, found {sorted(columns)}: {missing} are missing.")
    known = {name: columns[name] for name in TRANSITION_COLUMNS if name in columns}
    lengths = {name: {np.shape(leaf)[:1] for leaf in tree.flatten(nest)} for name, nest in known.items()}
    found = set().union(*lengths.values())
    if len(found) != 1 or found == {()}:
        raise SpecError(f"Expected columns of one length, found { {name: sorted(x) for name, x in lengths.items()} }.")
    terminals = read_flags(known["terminals"], "terminals").reshape(-1)
    ended = terminals | read_flags(known.get("timeouts", False), "timeouts").reshape(-1)
    known["rewards"] = read_rewards(known["rewards"], "rewards")
    if "next_observations" in known:
        ended = ended | _find_breaks(known, ended)
    elif "timeouts" not in known:
        warnings.warn(
            "The columns have neither timeouts nor next_observations: an episode that a time limit ended cannot be "
            f"told from the next, and {int(terminals.sum())} terminals are all that is known. Give one of the two "
            "columns, unless each episode terminates.",
            stacklevel=2,
        )
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


def _find_breaks(columns: Mapping[str, Any], ended: np.ndarray) -> np.ndarray:
    """Returns which rows no end is told of, and yet the next row begins elsewhere than they led to; warns of them."""
    before, after = columns["observations"], columns["next_observations"]
    breaks = np.zeros(len(ended), bool)
    try:
        tree.map_structure(lambda x, y: np.logical_or(breaks[:-1], _differ(x, y), out=breaks[:-1]), after, before)
    except (ValueError, TypeError) as error:
        raise SpecError(
            f"Expected next_observations in the structure and shapes of observations, {_shapes(before)}, found "
            f"{_shapes(after)}."
        ) from error
    breaks &= ~ended
    if num_breaks := int(breaks.sum()):
        shuffled = " They seem to be shuffled: with n_step above 1 there is no more to see of them than with 1."
        warnings.warn(
            f"{num_breaks:,} of {len(ended):,} rows have no terminal and no timeout, and the next row's observation is "
            f"not their next_observation: an episode ends at each, as one that was truncated."
            f"{shuffled if num_breaks > np.count_nonzero(~ended) // 2 else ''}",
            stacklevel=3,
        )
    return breaks


def _differ(after: Any, before: Any) -> np.ndarray:
    """Returns for each row but the last whether the next one's observation is another one than it led to."""
    after, before = np.asarray(after), np.asarray(before)
    if after.shape != before.shape:
        raise ValueError(after.shape)
    kinds = {after.dtype.kind, before.dtype.kind}
    dtype = min(after.dtype, before.dtype, key=lambda dtype: dtype.itemsize) if kinds == {"f"} else None
    differ = np.zeros(max(len(after) - 1, 0), bool)
    for start in range(0, len(differ), _ROWS):  # A copy of some images, not of all.
        x, y = after[start : start + _ROWS], before[start + 1 : start + 1 + _ROWS]
        x, y = np.asarray(x[: len(y)], dtype), np.asarray(y, dtype)
        same = (x == y) | ((x != x) & (y != y))
        differ[start : start + len(y)] = ~same.reshape(len(y), -1).all(axis=1)
    return differ


def _shapes(nest: Nest) -> str:
    leaves = zip(specs.leaf_names(nest), tree.flatten(nest), strict=True)
    return ", ".join(f"{name}: {list(np.shape(leaf)[1:])}" for name, leaf in leaves)


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
        columns["rewards"][start : start + num_steps],
        *ends,
    )
