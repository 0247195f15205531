"""Runs the console command ``agentkit``: list, show, train, offline, export, launch, node, ... (`agentkit --help`).

Exit codes: 0 done; 2 what was asked for cannot be done (one line on standard error says why);
1 an error while running (with its traceback, of the user's own code only where it arose below such, all of it with
--debug; of a launched program, the first node's that failed; one line where the environment gave what it must not, a
number became NaN or infinite, or the last checkpoint could not be written);
130 stopped by Ctrl-C, SIGTERM, SIGHUP or ``agentkit stop``, after saving. ``agentkit node``
is for schedulers: 0 means that the run is over, 1 that starting the node again may help, 2 that it cannot.

Nothing heavy is imported here: ``agentkit --help`` is instant. Each command imports what it needs.
"""

from __future__ import annotations

from agentkit.cli import interrupts

if interrupts.is_command():
    interrupts.end_at_once()

import argparse
import contextlib
import os
import shlex
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from typing import Any, NoReturn

from agentkit.cli.interrupts import INTERRUPTED, MESSAGE
from agentkit.cli.output import lasting_output, prepare_output
from agentkit.cli.screen import say
from agentkit.cli.words.parser import parse
from agentkit.errors import (
    CheckpointError,
    ConfigError,
    MissingExtraError,
    NonFiniteError,
    SpecError,
    UnknownNameError,
)

# The commands that go on when nobody reads their output any more; the others end quietly.
_TRAINING = ("train", "sweep", "offline", "launch", "node")

# Where each command is: room, file and function.
_FUNCTIONS = {
    "compare": ("looking.compare", "compare"),
    "completion": ("words.completion", "completion"),
    "evaluate": ("looking.evaluate", "evaluate"),
    "export": ("training.offline", "export"),
    "export-policy": ("looking.export_policy", "export_policy"),
    "launch": ("training.launch", "launch"),
    "list": ("looking.show", "list_all"),
    "node": ("training.node", "node"),
    "offline": ("training.offline", "offline"),
    "plot": ("looking.plot", "plot"),
    "push": ("looking.export_policy", "push"),
    "scale": ("looking.status", "scale"),
    "show": ("looking.show", "show"),
    "status": ("looking.status", "status"),
    "stop": ("looking.status", "stop"),
    "sweep": ("training.sweep", "sweep"),
    "train": ("training.train", "train"),
    "watch": ("looking.watch", "watch"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after ``agentkit``; None for those of this process.

    Returns:
        The exit code. An error while running passes through, which Python reports with exit code 1.
    """
    if argv is None:
        prepare_output()
        interrupts.end_at_once()
    if argv is None and sys.argv[1:2] == ["node"]:
        _run_and_end(sys.argv[1:])
    return _run(sys.argv[1:] if argv is None else argv)


def _run(argv: Sequence[str]) -> int:
    if "--debug" in argv:
        argv = [word for word in argv if word != "--debug"]
        os.environ["AGENTKIT_DEBUG"] = "1"
    try:
        arguments = parse(argv)
        lasting = lasting_output() if arguments.command in _TRAINING else contextlib.nullcontext()
        with lasting, _short_warnings():
            return _command(arguments.command)(arguments)
    except (ConfigError, UnknownNameError, MissingExtraError) as error:
        if os.environ.get("AGENTKIT_DEBUG"):
            traceback.print_exc()
        say(f"agentkit: {' '.join(str(error).split())}", sys.stderr)
        if packages := getattr(error, "packages", ()):  # See `experiment.config.trust.UntrustedCodeError`.
            named = [word for package in packages for word in ("--import", package)]
            say(f"Run:\n  {shlex.join(['agentkit', *argv, *named])}", sys.stderr)
        return 2
    except (CheckpointError, NonFiniteError, SpecError) as error:
        # The last checkpoint on a full disk, or data that the run met: the message says whose they are, and a traceback
        # would be agentkit's own.
        say(f"agentkit: {' '.join(str(error).split())}", sys.stderr)
        return 1
    except KeyboardInterrupt:
        # At the second Ctrl-C of a training, whose first one saves and is no exception; or in `interruptible` code.
        print(MESSAGE, file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if not _say_mistake(error):
            raise
        return 1


def _say_mistake(error: Exception) -> bool:
    """Prints an error in the user's own code with the user's own frames; returns False for any other error."""
    try:
        from agentkit.experiment.checks import user_tracebacks
    except ImportError:  # What cannot be imported may be the error itself.
        return False
    error = user_tracebacks.shorten(error)
    if not user_tracebacks.was_shortened(error):
        return False
    print(f"agentkit: an error in your code:\n{user_tracebacks.describe(error)}", file=sys.stderr)
    return True


@contextlib.contextmanager
def _short_warnings() -> Iterator[None]:
    """Shows agentkit's own warnings as one line, each once; the others as Python does.

    Its own are those of its own kinds, and those that stand at one of its own lines.
    """
    own_folder = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_short(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
            if category.__module__.startswith("agentkit.") or filename.startswith(own_folder):
                say(f"agentkit: warning: {message}", sys.stderr)
            else:
                show(message, category, filename, *rest)

        warnings.showwarning = show_short  # type: ignore[assignment]
        warnings.filterwarnings("default", message=".*has changed since the run")
        warnings.filterwarnings("always", message="Could not write the checkpoint")
        yield


def _run_and_end(argv: Sequence[str]) -> NoReturn:
    """Runs a node and ends the process itself: Reverb's threads can hold up the interpreter's own end for ever."""
    code = 1
    try:
        code = _run(argv)
    except SystemExit as end:  # --help
        code = end.code if isinstance(end.code, int) else 0
    except BaseException:
        traceback.print_exc()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    os._exit(code)


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    file, function = _FUNCTIONS[name]
    command: Callable[[argparse.Namespace], int] = getattr(import_module(f"agentkit.cli.{file}"), function)
    return command
