"""Reads the command line: says which commands there are, and parses their words."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from agentkit.cli.values.config_file import refuse_option, refuse_setting, with_file
from agentkit.cli.words.help import unknown_option
from agentkit.cli.words.looking_commands import add_completion, add_evaluate_and_plot, add_list_and_show, add_policies
from agentkit.cli.words.options import Commands, Parser
from agentkit.cli.words.program_commands import NODE_ROLES, add_launch, add_node, add_watching
from agentkit.cli.words.training_commands import add_offline, add_sweep, add_train
from agentkit.errors import ConfigError, unknown_name
from agentkit.version import __version__

COMMANDS = (
    "list", "show", "train", "sweep", "offline", "export", "launch", "node", "status", "scale", "stop", "evaluate",
    "plot", "compare", "watch", "export-policy", "push", "completion",
)  # fmt: skip


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments as a namespace whose `command` is one of `COMMANDS`.

    Raises:
        ConfigError: for missing or impossible arguments.
        UnknownNameError: for an unknown command or option.
        SystemExit: with code 0, after printing what ``--help`` or ``--version`` ask for.
    """
    parser, commands = _make_parser()
    if not argv:
        parser.print_help()
    _check_word("command", argv[:1], COMMANDS, "agentkit")
    if argv[:1] == ["node"]:
        _check_word("role of 'agentkit node'", argv[1:2], NODE_ROLES, "agentkit node")
    arguments, unknown = parser.parse_known_args(argv)
    chosen = commands.choices[arguments.command]
    if arguments.command == "node":
        chosen = _roles(chosen).choices[arguments.role]
    if unknown:
        known = [option for action in chosen._actions for option in action.option_strings]
        if unknown[0].startswith("-"):
            refuse_setting(arguments, unknown, known)
            raise unknown_option(chosen.prog, unknown[0], known)
        is_name = ":" in unknown[0] and "--env" in known
        advice = f" An environment is named with --env: --env {unknown[0]}." if is_name else ""
        raise ConfigError(f"unexpected argument {unknown[0]!r}.{advice} See: {chosen.prog} --help")
    if getattr(arguments, "config", None) is not None:
        arguments = with_file(arguments, chosen)
    refuse_option(arguments, {option: action for action in chosen._actions for option in action.option_strings})
    return arguments


def _make_parser() -> tuple[Parser, Commands[Parser]]:
    """Returns the parser of all, and what holds those of the commands."""
    parser = Parser(
        prog="agentkit",
        description="Train, evaluate and compare agents.",
        epilog="Begin with: agentkit train dqn --env gymnasium:CartPole-v1",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"agentkit {__version__}")
    # Taken out before words get here, so that it may stand anywhere.
    parser.add_argument(
        "--debug", action="store_true", default=None, help="with any command: show the whole traceback of an error"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        add_list_and_show, add_train, add_evaluate_and_plot, add_policies, add_sweep, add_offline, add_launch,
        add_watching, add_node, add_completion,
    ):  # fmt: skip
        add(commands)
    return parser, commands


def options(command: str) -> dict[str, argparse.Action]:
    """Returns the options of a command, such as "train" or "node actor", by name: ``--steps``."""
    commands = _make_parser()[1]
    first, _, role = command.partition(" ")
    parser = _roles(commands.choices[first]).choices[role] if role else commands.choices[first]
    return {option: action for action in parser._actions for option in action.option_strings if option[:2] == "--"}


def _roles(node: Parser) -> Commands[Parser]:
    (roles,) = (action for action in node._actions if isinstance(action, Commands))
    return roles


def _check_word(kind: str, words: Sequence[str], known: Sequence[str], prog: str) -> None:
    if words and not words[0].startswith("-") and words[0] not in known:
        raise unknown_name(kind, words[0], known, f"See: {prog} --help")
