"""A replay and its writers that are saved in mid-training and go on in new objects."""

import pathlib
from collections.abc import Sequence

from agentkit.replay import InProcessReplay, Table
from agentkit.replay.in_process.writer import InProcessWriter


def make_writers(replay: InProcessReplay) -> list[InProcessWriter]:
    """Two, of different histories."""
    return [replay.writer(4), replay.writer(3)]


def moved(
    replay: InProcessReplay, writers: Sequence[InProcessWriter], tables: list[Table], directory: pathlib.Path
) -> tuple[InProcessReplay, list[InProcessWriter]]:
    """Saves all of it into a new folder, closes it, and restores it in a replay of `tables` and in new writers."""
    directory.mkdir()
    replay.save(directory)
    states = [writer.save() for writer in writers]
    replay.close()
    new = InProcessReplay(tables, seed=12345)
    new.restore(directory)
    new_writers = make_writers(new)
    for writer, saved in zip(new_writers, states, strict=True):
        writer.restore(saved)
    return new, new_writers
