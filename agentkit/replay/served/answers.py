"""What the errors of the wire are to those who use a replay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from agentkit import errors
from agentkit.wire import RefusedError, WireClosedError, WireTimeoutError

_BY_NAME = {
    kind.__name__: kind
    for kind in (
        errors.CheckpointError,
        errors.ConfigError,
        errors.ReplayClosedError,
        errors.ReplayTimeoutError,
        errors.SpecError,
        errors.UnknownNameError,
    )
}


@contextlib.contextmanager
def as_replay_errors() -> Iterator[None]:
    """Raises the wire's errors as the replay's; a refusal of another kind stays `RefusedError`."""
    try:
        yield
    except WireClosedError as error:
        raise errors.ReplayClosedError(f"The replay server is away, or this was closed: {error}") from error
    except WireTimeoutError as error:
        raise errors.ReplayTimeoutError(str(error)) from error
    except RefusedError as error:
        if error.kind not in _BY_NAME:
            raise
        raise _BY_NAME[error.kind](str(error)) from error
