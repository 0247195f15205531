"""Shortens the traceback of an error in the user's own code to the frames that are the user's."""

from __future__ import annotations

import os
import pathlib
import sysconfig
import traceback
import types

from agentkit.errors import AgentkitError, ConfigError, SpecError

_OWN = str(pathlib.Path(__file__).parents[2])
_LIBRARY = tuple(str(pathlib.Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib"))
_ADVICE = "Frames of agentkit and of libraries are left out. To see all: AGENTKIT_DEBUG=1, or a command's --debug."


def shorten(error: Exception) -> Exception:
    """Returns the error, its traceback cut down to the user's own frames, if it arose below any.

    A `ConfigError` or `SpecError` says itself what is wrong, and keeps no frame but those of a cause in the user's own
    code. Nothing is cut from agentkit's other
    errors; from those that passed through no code of the user's, which may be bugs; and where AGENTKIT_DEBUG is set.
    """
    if os.environ.get("AGENTKIT_DEBUG"):
        return error
    error.__notes__ = [note for note in getattr(error, "__notes__", []) if "JAX_TRACEBACK_FILTERING" not in note]
    if isinstance(error, ConfigError | SpecError):
        if isinstance(error.__cause__, Exception) and not was_shortened(shorten(error.__cause__)):
            error.__cause__ = None  # It arose in agentkit's code, and the message has what it said.
        error.__suppress_context__ = True
        return error.with_traceback(None)
    if isinstance(error, AgentkitError):
        return error
    frames = [frame for frame in _frames(error) if is_users(frame.tb_frame.f_code.co_filename)]
    if not frames:
        return error
    cut: types.TracebackType | None = None
    for frame in reversed(frames):
        cut = types.TracebackType(cut, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    if error.__cause__ is None or not any(is_users(f.tb_frame.f_code.co_filename) for f in _frames(error.__cause__)):
        error.__cause__, error.__suppress_context__ = None, True
    if not was_shortened(error):
        error.add_note(_ADVICE)
    return error.with_traceback(cut)


def was_shortened(error: Exception) -> bool:
    """Returns whether `shorten` has cut this error's traceback."""
    return _ADVICE in getattr(error, "__notes__", [])


def describe(error: Exception) -> str:
    """Returns an error whose traceback was cut as text: the user's frames, the error, and how to see all."""
    frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
    return f"{frames}\n{''.join(traceback.format_exception_only(error)).rstrip()}"


def is_users(file: str) -> bool:
    """Returns whether a frame's file is neither agentkit's nor a library's."""
    if file.startswith("<frozen") or file.startswith(_OWN):
        return False
    path = pathlib.Path(file)
    return not {"site-packages", "dist-packages"} & set(path.parts) and not str(path).startswith(_LIBRARY)


def _frames(error: BaseException) -> list[types.TracebackType]:
    found, frame = [], error.__traceback__
    while frame is not None:
        found.append(frame)
        frame = frame.tb_next
    return found
