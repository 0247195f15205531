"""Replay on a Reverb server. Extra: ``reverb``.

`library` is the one file that imports Reverb and TensorFlow. Importing this package loads neither, so that the files
that need none of them (`packing`, `sampler`, `writer`) are tested without.
"""

from __future__ import annotations

import importlib.util

from agentkit.errors import missing_extra


def check_installed() -> None:
    """Refuses to go on where Reverb is not installed; loads nothing of it.

    Raises:
        MissingExtraError: names the extra.
    """
    if importlib.util.find_spec("reverb") is None:
        raise missing_extra("dm-reverb", "reverb")
