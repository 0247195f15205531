"""What every replay backend must do: a test class that a backend's own tests inherit.

For example:

    class TestInProcessReplay(ReplayContract):
        resumable = True

        def make_replay(self, tables, **kwargs):
            return InProcessReplay(tables, **kwargs)

Backends may be asynchronous: every case flushes the writer before it looks at a table, and makes a
new sampler after it changed one, since a sampler may hold items that it fetched ahead of time.
"""

from __future__ import annotations

from agentkit.testing.replay_bad_calls import BAD_CALLS, BadCallsContract, bad_call_tables
from agentkit.testing.replay_cases import (
    LONG,
    SHORT,
    Pair,
    chi_square,
    draw,
    make_step,
    numbers,
    pair_layout,
    pair_table,
    sequence_layout,
    wait_until,
    write_pairs,
)
from agentkit.testing.replay_contents import ContentsContract
from agentkit.testing.replay_history import HistoryContract
from agentkit.testing.replay_limits import LimitsContract
from agentkit.testing.replay_saving import SavingContract


class ReplayContract(ContentsContract, HistoryContract, LimitsContract, SavingContract, BadCallsContract):
    """Checks a backend: inherit from this, name the class Test..., and write `make_replay`.

    Set `resumable` and `prefetches` (see `ReplayCases`) to what is true of the backend.
    """


__all__ = [
    "BAD_CALLS",
    "LONG",
    "SHORT",
    "Pair",
    "ReplayContract",
    "bad_call_tables",
    "chi_square",
    "draw",
    "make_step",
    "numbers",
    "pair_layout",
    "pair_table",
    "sequence_layout",
    "wait_until",
    "write_pairs",
]
