"""Imports rlax without TensorFlow.

Where TensorFlow is installed, TensorFlow Probability, on which rlax stands, imports it to copy docstrings: 3 s of a
processor and 400 MB. What somebody has imported already stays.
"""

from __future__ import annotations

import sys

__all__ = ["rlax"]

_hidden = "tensorflow" not in sys.modules
if _hidden:
    sys.modules["tensorflow"] = None  # type: ignore[assignment]  # Python's own word for "not to be imported".
try:
    import rlax
finally:
    if _hidden:
        del sys.modules["tensorflow"]
