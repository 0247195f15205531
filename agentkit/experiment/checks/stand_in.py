"""Stands for an object, some of whose methods are watched or timed."""

from __future__ import annotations

import copy
from typing import Any, final


@final
class StandIn:
    """Stands for an object: has some attributes of its own, and all others from the object."""

    def __init__(self, original: Any, **own: Any):
        """Takes the object, and what stands in the place of its attributes, by name."""
        self._original = original
        vars(self).update(own)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Returns a copy of the object itself: what stands in its place would act on the original."""
        return copy.deepcopy(self._original, memo)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)
