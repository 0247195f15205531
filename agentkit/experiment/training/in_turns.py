"""Makes the replay of a run in one process, whose environment and learner take turns."""

from __future__ import annotations

from collections.abc import Sequence

from agentkit.replay import InProcessReplay, Replay, Table


def make_replay_in_turns(backend: str, tables: Sequence[Table], seed: int) -> Replay:
    """Makes agentkit's own replay, or Reverb's on a server in this process.

    Args:
        backend: "in_process" or "reverb".
        tables: what it holds.
        seed: of what agentkit's own one draws; Reverb takes none.
    """
    if backend == "in_process":
        return InProcessReplay(tables, seed=seed, in_turns=True)
    from agentkit.replay.reverb.single_process import (
        SingleProcessReverbReplay,  # Loads TensorFlow: only when asked for.
    )

    return SingleProcessReverbReplay(tables, in_turns=True)
