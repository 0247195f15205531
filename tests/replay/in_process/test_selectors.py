"""Selectors of the in-process replay, by themselves."""

from typing import Any

import numpy as np
import pytest

from agentkit.replay.in_process.selectors import make_selector
from agentkit.replay.table import MaxHeap, MinHeap


@pytest.mark.parametrize("selector", [MinHeap(), MaxHeap()], ids=repr)
def test_of_equal_priorities_the_oldest_is_drawn_also_after_a_restore(selector: Any) -> None:
    """What comes in after a restore is younger than all that was saved, in whatever slot it is."""
    slots: Any = None  # Which heaps do not ask.
    saved_from, restored = make_selector(selector, slots), make_selector(selector, slots)
    for slot in (0, 1):
        saved_from.insert(slot, 2.0)
    restored.restore(saved_from.save(2))
    restored.remove(0)
    restored.insert(0, 2.0)
    drawn, _ = restored.sample(np.random.default_rng(0), 1)
    assert drawn.tolist() == [1]
