"""The command line: which words there are and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn, final

import agentkit
from agentkit.cli.values import parse_whole
from agentkit.errors import ConfigError, unknown_name

COMMANDS = ("list", "show", "train", "evaluate", "plot")


@final
class _Parser(argparse.ArgumentParser):
    """argparse, except that an error is one line, as all errors of agentkit are."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage over several lines."""
        raise ConfigError(f"{message}. See: {self.prog} --help")


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments as a namespace whose `command` is one of `COMMANDS`.

    Raises:
        ConfigError: for missing or impossible arguments.
        UnknownNameError: for an unknown command or option.
        SystemExit: with code 0, after printing what ``--help`` or ``--version`` ask for.
    """
    parser, subparsers = _make_parser()
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        raise unknown_name("command", argv[0], COMMANDS, "See: agentkit --help")
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        command = subparsers.choices[arguments.command]
        options = [option for action in command._actions for option in action.option_strings]
        if unknown[0].startswith("-"):
            raise unknown_name(f"option of 'agentkit {arguments.command}'", unknown[0].split("=")[0], options)
        raise ConfigError(f"unexpected argument {unknown[0]!r}. See: agentkit {arguments.command} --help")
    return arguments


def _make_parser() -> tuple[_Parser, argparse._SubParsersAction[_Parser]]:
    parser = _Parser(prog="agentkit", description="Train, evaluate and compare agents.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"agentkit {agentkit.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser(
        "list",
        help="agents and environments, a line each",
        allow_abbrev=False,
        description="Lists what there is.",
    )
    show = commands.add_parser(
        "show",
        help="one agent: its paper and every config field",
        allow_abbrev=False,
        description="Shows an agent's source and its config: every field, type, default and meaning.",
    )
    show.add_argument("agent", help="a name from 'agentkit list'")
    _add_train(commands)
    evaluate = commands.add_parser(
        "evaluate",
        help="play episodes with a trained agent",
        allow_abbrev=False,
        description="Plays episodes with the evaluation policy of a run's last checkpoint.",
    )
    evaluate.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    evaluate.add_argument("--episodes", type=_positive, default=20, metavar="N", help="default: %(default)s")
    evaluate.add_argument("--video", metavar="FILE.gif", help="also record the first episode to this file")
    plot = commands.add_parser(
        "plot",
        help="a picture of returns against steps",
        allow_abbrev=False,
        description="Draws return against environment steps. Runs that differ only in their seed become one "
        "line, their mean, in the shade of their range. Solid: evaluation; faint: training.",
    )
    plot.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    plot.add_argument("-o", "--output", default="returns.png", metavar="FILE", help="default: %(default)s")
    return parser, commands


def _add_train(commands: argparse._SubParsersAction[_Parser]) -> None:
    train = commands.add_parser(
        "train",
        help="train an agent, or go on with a run",
        allow_abbrev=False,
        description="Trains an agent on an environment; a run folder keeps config, logs and checkpoints. "
        "Ctrl-C saves and stops. Numbers may be written 100_000 or 1e5.",
    )
    # Defaults are None here and live in `agentkit.cli.train`, which must know what was asked for.
    train.add_argument("agent", nargs="?", help="a name from 'agentkit list'")
    train.add_argument("--env", metavar="NAME", help="such as gymnasium:HalfCheetah-v5")
    train.add_argument("--steps", type=_positive, metavar="N", help="environment steps in all")
    train.add_argument("--seed", type=_natural, metavar="N", help="default: 0")
    train.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a config field (see 'agentkit show'); repeatable",
    )
    train.add_argument("--replay", choices=("in_process", "reverb"), help="default: in_process")
    train.add_argument(
        "--num-envs", type=_positive, metavar="N", help="environments stepped together; default: 1"
    )
    train.add_argument("--out", metavar="FOLDER", help="where the run folder is made; default: runs")
    train.add_argument(
        "--eval-every", type=_natural, metavar="STEPS", help="0: never; default: a tenth of --steps"
    )
    train.add_argument("--eval-episodes", type=_positive, metavar="N", help="default: 10")
    train.add_argument(
        "--checkpoint-every",
        type=_natural,
        metavar="STEPS",
        help="0: only at the end; default: a tenth of --steps",
    )
    train.add_argument("--tensorboard", action="store_true", default=None, help="also write TensorBoard logs")
    train.add_argument(
        "--resume",
        metavar="RUN",
        help="go on with this run; only --steps, the new total, may be given with it",
    )


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _whole(text: str, at_least: int) -> int:
    try:
        value = parse_whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if value < at_least:
        raise argparse.ArgumentTypeError(f"expected at least {at_least}, found {text!r}")
    return value
