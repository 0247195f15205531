"""Counts the gradient updates of any library that learns with torch's optimisers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


class UpdateCounter:
    """Counts the steps of every optimiser in this process from now on.

    What steps most often is what a library calls its updates: of one optimiser for policy, critics and temperature
    each, the critics' steps at every update.
    """

    def __init__(self) -> None:
        """Begins."""
        self._steps: Counter[int] = Counter()
        register_optimizer_step_post_hook(self._count)

    def _count(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        self._steps[id(optimizer)] += 1

    @property
    def num_updates(self) -> int:
        """So far."""
        return max(self._steps.values(), default=0)
