"""Replay contract: bad input, the error it must get, and words the message must hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agentkit import errors
from agentkit.replay.base import Replay, Writer
from agentkit.replay.rate_limiter import SampleToInsertRatio
from agentkit.replay.table import (
    Prioritized,
    Table,
)
from agentkit.testing.replay_cases import (
    ReplayCases,
    draw,
    make_step,
    numbers,
    pair_table,
    sequence_layout,
)

BAD_CALLS: list[tuple[str, type[Exception], str, Callable[[Replay, Writer], Any]]] = [
    (
        "step of wrong shape",
        errors.SpecError,
        "observation",
        lambda r, w: w.append({"observation": np.zeros(3, np.float32), "action": np.int32(0)}),
    ),
    (
        "step of wrong dtype",
        errors.SpecError,
        "observation",
        lambda r, w: w.append({"observation": np.zeros(2, np.float64), "action": np.int32(0)}),
    ),
    (
        "python float for float32",
        errors.SpecError,
        "action",
        lambda r, w: w.append({"observation": np.zeros(2, np.float32), "action": 1.0}),
    ),
    (
        "step leaf missing",
        errors.SpecError,
        "structure",
        lambda r, w: w.append({"observation": np.zeros(2, np.float32)}),
    ),
    (
        "step leaf renamed",
        errors.SpecError,
        "structure",
        lambda r, w: w.append({"obs": np.zeros(2, np.float32), "action": np.int32(0)}),
    ),
    ("step of another structure", errors.SpecError, "structure", lambda r, w: w.append([1, 2, 3])),
    ("step of None", errors.SpecError, "", lambda r, w: w.append(None)),
    (
        "step of strings",
        errors.SpecError,
        "observation",
        lambda r, w: w.append({"observation": np.array(["a", "b"]), "action": np.int32(0)}),
    ),
    (
        "unknown table",
        errors.UnknownNameError,
        "pairs",
        lambda r, w: w.create_item("pears", 1.0, 4, 5, np.float32(0)),
    ),
    (
        "priority NaN",
        errors.SpecError,
        "priority",
        lambda r, w: w.create_item("pairs", float("nan"), 4, 5, np.float32(0)),
    ),
    (
        "priority negative",
        errors.SpecError,
        "priority",
        lambda r, w: w.create_item("pairs", -1.0, 4, 5, np.float32(0)),
    ),
    (
        "priority infinite",
        errors.SpecError,
        "priority",
        lambda r, w: w.create_item("pairs", float("inf"), 4, 5, np.float32(0)),
    ),
    ("inline missing", errors.SpecError, "inline", lambda r, w: w.create_item("pairs", 1.0, 4, 5)),
    (
        "inline of wrong dtype",
        errors.SpecError,
        "inline",
        lambda r, w: w.create_item("pairs", 1.0, 4, 5, 0.5),
    ),
    (
        "inline of wrong shape",
        errors.SpecError,
        "inline",
        lambda r, w: w.create_item("pairs", 1.0, 4, 5, np.zeros(1, np.float32)),
    ),
    (
        "range past the last step",
        errors.SpecError,
        "step",
        lambda r, w: w.create_item("pairs", 1.0, 0, 99, np.float32(0)),
    ),
    (
        "range out of the history",
        errors.SpecError,
        "history",
        lambda r, w: w.create_item("pairs", 1.0, 0, 5, np.float32(0)),
    ),
    (
        "range negative",
        errors.SpecError,
        "step",
        lambda r, w: w.create_item("pairs", 1.0, -1, 1, np.float32(0)),
    ),
    ("range empty", errors.SpecError, "step", lambda r, w: w.create_item("pairs", 1.0, 4, 4, np.float32(0))),
    (
        "range reversed",
        errors.SpecError,
        "step",
        lambda r, w: w.create_item("pairs", 1.0, 4, 3, np.float32(0)),
    ),
    (
        "padding negative",
        errors.SpecError,
        "padding",
        lambda r, w: w.create_item("pairs", 1.0, 4, 5, np.float32(0), padding=-1),
    ),
    ("too few steps", errors.SpecError, "3", lambda r, w: w.create_item("sequences", 1.0, 3, 5)),
    ("too many steps", errors.SpecError, "3", lambda r, w: w.create_item("sequences", 1.0, 2, 5, padding=1)),
    (
        "sampler of unknown table",
        errors.UnknownNameError,
        "sequences",
        lambda r, w: r.sampler("sequence", 1),
    ),
    ("batch of zero", errors.ConfigError, "batch", lambda r, w: r.sampler("pairs", 0)),
    ("batch larger than the table", errors.ConfigError, "batch", lambda r, w: r.sampler("pairs", 101)),
    (
        "batch that the rate limit can never let through",
        errors.ConfigError,
        "batch",
        lambda r, w: r.sampler("limited", 9),
    ),
    (
        "sampler timeout negative",
        errors.ConfigError,
        "timeout",
        lambda r, w: r.sampler("pairs", 1, timeout=-1.0),
    ),
    (
        "sampler timeout infinite",
        errors.ConfigError,
        "timeout",
        lambda r, w: r.sampler("pairs", 1, timeout=float("inf")),
    ),
    ("history of zero", errors.ConfigError, "history", lambda r, w: r.writer(0)),
    ("writer timeout NaN", errors.ConfigError, "timeout", lambda r, w: r.writer(1, timeout=float("nan"))),
    ("info of unknown table", errors.UnknownNameError, "pairs", lambda r, w: r.info("pair")),
    ("reset of unknown table", errors.UnknownNameError, "pairs", lambda r, w: r.reset("pair")),
    ("can_insert of unknown table", errors.UnknownNameError, "pairs", lambda r, w: r.can_insert("pair")),
    (
        "update of unknown table",
        errors.UnknownNameError,
        "pairs",
        lambda r, w: r.update_priorities("pair", np.zeros(1, np.uint64), np.ones(1)),
    ),
    (
        "update to NaN",
        errors.SpecError,
        "priority",
        lambda r, w: r.update_priorities("pairs", np.zeros(2, np.uint64), np.array([1.0, np.nan])),
    ),
    (
        "update to a negative priority",
        errors.SpecError,
        "priority",
        lambda r, w: r.update_priorities("pairs", np.zeros(1, np.uint64), np.array([-1e-9])),
    ),
    (
        "update of other shape",
        errors.SpecError,
        "shape",
        lambda r, w: r.update_priorities("pairs", np.zeros(2, np.uint64), np.ones(3)),
    ),
]
"""(name, error class, what its message holds, the call), on the replay of `bad_call_tables`."""


def bad_call_tables() -> list[Table]:
    """Makes the tables of `BAD_CALLS`, to be written by a writer of history 3 after five steps."""
    return [
        pair_table(sampler=Prioritized(1.0)),
        Table("sequences", sequence_layout(3), 100),
        pair_table("limited", rate_limiter=SampleToInsertRatio(1.0, 4, 4.0)),
    ]


class BadCallsContract(ReplayCases):
    """Checks the answers to a user's mistakes."""

    @pytest.mark.parametrize("name", [name for name, *_ in BAD_CALLS])
    def test_bad_input_is_refused_and_changes_nothing(self, name: str) -> None:
        """Checks the error of each of `BAD_CALLS`, its words, and that the attempt leaves no trace."""
        _, error_class, words, call = next(case for case in BAD_CALLS if case[0] == name)
        with self.opened(*bad_call_tables(), history=3) as (replay, writer):
            for i in range(5):
                writer.append(make_step(i))
            with pytest.raises(error_class) as caught:
                call(replay, writer)
            message = str(caught.value)
            assert words in message and len(message) > 25, message
            assert replay.info("pairs")[1:] == (0, 100, 0, 0)
            # The writer goes on where it was.
            assert writer.append(make_step(5)) == 5
            writer.create_item("pairs", 1.0, 3, 6, inline=np.float32(0))
            writer.flush()
            assert numbers(draw(replay, "pairs", 1)) == [3]
            assert replay.info("pairs")[1:4] == (1, 100, 1)
