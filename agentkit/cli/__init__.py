"""The console command ``agentkit``: list, show, train, evaluate, plot.

Exit codes: 0 done; 2 what was asked for cannot be done (one line on standard error says why);
1 an error while running (with its traceback); 130 stopped by Ctrl-C, after saving.

Nothing heavy is imported here: ``agentkit --help`` is instant. Each command imports what it needs.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from agentkit.cli.parser import parse
from agentkit.errors import ConfigError, MissingExtraError, UnknownNameError

_INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        argv: the words after ``agentkit``; None for those of this process.

    Returns:
        The exit code. An error while running passes through, which Python reports with exit code 1.
    """
    try:
        arguments = parse(sys.argv[1:] if argv is None else argv)
        return _command(arguments.command)(arguments)
    except (ConfigError, UnknownNameError, MissingExtraError) as error:
        print(f"agentkit: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # Before training began, or at the second Ctrl-C: the first one saves and is no exception.
        print("agentkit: stopped at once by Ctrl-C.", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:
        # The reader (head, less) has gone; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _command(name: str) -> Callable[[argparse.Namespace], int]:
    command: Callable[[argparse.Namespace], int]
    if name == "train":
        from agentkit.cli.train import train as command
    elif name == "evaluate":
        from agentkit.cli.evaluate import evaluate as command
    elif name == "plot":
        from agentkit.cli.plot import plot as command
    elif name == "show":
        from agentkit.cli.show import show as command
    else:
        from agentkit.cli.show import list_all as command
    return command
