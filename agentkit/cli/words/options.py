"""Defines the options that several commands share, and the kinds of values that options have."""

from __future__ import annotations

import argparse
from typing import Any, NoReturn, final, get_args

from agentkit.cli.values.fields import parse_whole
from agentkit.cli.words import help
from agentkit.errors import ConfigError, OnNan


@final
class Parser(argparse.ArgumentParser):
    """Parses as argparse does, except that an error is one line, as all errors of agentkit are."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage over several lines."""
        raise ConfigError(f"{message}. See: {self.prog} --help")

    def format_help(self) -> str:
        """Returns the text, in sections where there are many options."""
        return help.format_help(self)


Commands = argparse._SubParsersAction  # What `add_subparsers` returns; argparse has no public name for it.


def add_command(commands: Commands[Parser], name: str, help: str, description: str) -> Parser:
    """Adds a command and returns its parser."""
    return commands.add_parser(name, help=help, description=description, allow_abbrev=False)


def add_out(parser: Parser, help: str, **settings: Any) -> None:
    """Adds `--out FILE`; `--output` is its name of before, which is still taken."""
    parser.add_argument("-o", "--out", metavar="FILE", help=help, **settings)
    parser.add_argument("--output", dest="out", help=argparse.SUPPRESS, default=argparse.SUPPRESS)


def add_film(parser: Parser) -> None:
    """Adds the options of a film."""
    parser.add_argument("--video-steps", type=positive, metavar="N", help="frames, one a step; default: 300")
    parser.add_argument("--fps", type=amount, metavar="N", help="frames per second; default: 30")
    parser.add_argument("--size", type=positive, metavar="PIXELS", help="height of the frames; default: 240")


def add_experiment(parser: Parser, is_host: bool = False) -> None:
    """Adds what says which experiment: shared by train, launch and node replay, which `is_host`.

    Defaults are None here and live in `agentkit.cli.training.new_run`, which must know what was asked for.
    """
    add_run(parser, "STEPS", "--steps", is_host)
    parser.add_argument("--steps", type=positive, metavar="N", help="environment steps in all, such as 100k or 2M")
    add_preset(parser)
    parser.add_argument(
        "--show-config", action="store_true", default=None, help="print the experiment as a file for --config, and end"
    )
    parser.add_argument(
        "--column",
        action="append",
        metavar="NAME",
        help="what to store beside each step: info.KEY of gymnasium's info, or info.KEY=VALUE where it may be "
        "absent, episode, environment or t; repeatable",
    )
    parser.add_argument(
        "--evaluate-samples",
        action="store_true",
        default=None,
        help="evaluations act as in training: by samples of a stochastic policy, not by its mode",
    )
    parser.add_argument(
        "--num-envs", type=positive, metavar="N", help="environments that one actor steps together; default: 1"
    )
    parser.add_argument(
        "--workers",
        type=natural,
        metavar="N",
        help="processes that --num-envs are shared out to; 0: none, one after the other; default: 0",
    )
    parser.add_argument(
        "--ready",
        type=positive,
        metavar="N",
        help="with --workers or envpool: act for the N environments that are ready first; default: for all together",
    )
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="replay begins with these episodes: HDF5 in Minari's layout or D4RL's, .npz, minari:ID, rlds:FOLDER",
    )
    parser.add_argument(
        "--data-share",
        type=amount,
        metavar="SHARE",
        help="draw this share of each batch from --data, such as 0.5 (RLPD), and keep the data apart from replay",
    )
    parser.add_argument(
        "--devices",
        type=positive,
        metavar="N",
        help="accelerators that share each batch, and with --on-device the environments or the seeds; default: one",
    )
    parser.add_argument(
        "--step-timeout",
        type=amount,
        metavar="SECONDS",
        help="an environment whose step takes longer hangs, which is an error; 0 for any time; default: 300",
    )


def add_callbacks(parser: Parser) -> None:
    """Adds what watches a run and ends it; these may be given to a resumed run, too."""
    parser.add_argument(
        "--keep-best",
        action=argparse.BooleanOptionalAction,
        help="keep the policy of the best evaluation, for 'evaluate --checkpoint best'; default: yes",
    )
    parser.add_argument(
        "--best-score",
        metavar="COLUMN",
        help="the column of logs/evaluation.csv that the best evaluation has most of; default: episode_return",
    )
    parser.add_argument("--keep-checkpoints", type=positive, metavar="N", help="how many stay; default: 2")
    parser.add_argument(
        "--stop-at-return", type=amount, metavar="R", help="end at the first evaluation with this mean return"
    )


def add_run(parser: Parser, unit: str, total: str, is_host: bool = False) -> None:
    """Adds what every run has; how long it takes is counted in `unit`, and said by the option `total`.

    `is_host` is of ``node replay``, which goes on with a run folder where there is one.
    """
    parser.add_argument("agent", nargs="?", help="a name from 'agentkit list'")
    parser.add_argument(
        "--config", metavar="FILE.toml", help="these options from a file, settings under [agent]; those given here win"
    )
    parser.add_argument("--env", metavar="NAME", help="such as gymnasium:HalfCheetah-v5, or your own MODULE:NAME")
    add_environment_settings(parser)
    add_wrapper(parser)
    add_import(parser)
    parser.add_argument("--seed", type=natural, metavar="N", help="of everything random; default: 0")
    add_agent_settings(parser)
    add_normalize(parser)
    add_initial_state(parser)
    parser.add_argument("--out", metavar="FOLDER", help="where a run folder is made and named; default: runs")
    if not is_host:  # Whose own option has the word.
        parser.add_argument("--run-directory", metavar="RUN", help="the run folder itself, in the place of --out")
    parser.add_argument("--eval-every", type=natural, metavar=unit, help=f"0: never; default: a tenth of {total}")
    parser.add_argument(
        "--eval-episodes",
        type=positive,
        metavar="N",
        help="default: 10; without this and --eval-every fewer where they would take over a tenth of the run",
    )
    parser.add_argument(
        "--eval-max-steps",
        type=positive,
        metavar="N",
        help="cut an evaluation's episode off after N steps; default: the run's steps, within 1,000 and 100,000",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=natural,
        metavar=unit,
        help=f"0: only at the end; default: a tenth of {total}",
    )
    add_callbacks(parser)
    parser.add_argument("--tensorboard", action="store_true", default=None, help="the same as --log tensorboard")
    parser.add_argument(
        "--log",
        action="append",
        metavar="NAMES",
        help="loggers besides CSV: jsonl, mlflow, tensorboard, wandb, or MODULE:NAME of your own; with commas, or "
        "repeatable",
    )
    parser.add_argument(
        "--on-nan",
        choices=get_args(OnNan),
        help="at a reward, observation, loss or parameter that is NaN or infinite: end the run, the last good "
        "checkpoint kept, or warn and go on; default: stop",
    )


def add_initial_state(parser: Parser) -> None:
    """Adds what another run gives to a new one."""
    parser.add_argument(
        "--init-from",
        metavar="RUN",
        help="begin with the parameters and optimisers of another run of this agent, such as one of 'agentkit offline'",
    )
    parser.add_argument(
        "--init-checkpoint", metavar="WHICH", help="of that run: newest, best, or a step that has one; default: newest"
    )


def add_preset(parser: Parser) -> None:
    """Adds `--preset`."""
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="settings known to work: auto, those for the environment; none; or those for another one; default: auto",
    )


def add_wrapper(parser: Parser) -> None:
    """Adds `--wrapper`."""
    parser.add_argument(
        "--wrapper",
        action="append",
        metavar="NAME",
        help="around each environment, such as step_limit(max_steps=200); repeatable, applied in this order",
    )


def add_agent_settings(parser: Parser) -> None:
    """Adds `--set`, `--torso` and `--view`."""
    parser.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a config field (see 'agentkit show'); repeatable",
    )
    parser.add_argument(
        "--torso",
        metavar="NAME",
        help="what turns observations into features: nature, shallow, impala, drq, simba, flatten, or MODULE:NAME of "
        "your own; default: what they ask for",
    )
    parser.add_argument(
        "--view",
        action="append",
        metavar="NAME=COLUMN:SHIFT",
        help="a part of what the model sees, such as window=observation:-50:0 or last=action:-1, in the place of the "
        "observation; ,fill=first or a number for steps before the episode, else zeros; repeatable",
    )


def add_normalize(parser: Parser) -> None:
    """Adds `--normalize`."""
    parser.add_argument(
        "--normalize",
        action="append",
        metavar="NAMES",
        help="observations, rewards or both, by running statistics that are saved with the policy; with commas, or "
        "repeatable",
    )


def add_environment_settings(parser: Parser) -> None:
    """Adds `--env-set`."""
    parser.add_argument(
        "--env-set",
        action="append",
        metavar="NAME=VALUE",
        help="an argument of the environment, such as render_mode=rgb_array; repeatable",
    )


def add_import(parser: Parser) -> None:
    """Adds `--import`."""
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        metavar="PACKAGE",
        help="import this package of yours, and let the run folder name its functions; repeatable",
    )


def add_policies(parser: Parser) -> None:
    """Adds `--policies`, and what goes with it."""
    parser.add_argument(
        "--policies",
        choices=("shared", "each"),
        help="of several agents in one environment, such as pettingzoo:classic/tictactoe_v3: one policy for all, or "
        "one each",
    )
    parser.add_argument(
        "--count-steps-by",
        choices=("environment", "agents"),
        help="with --policies: whether a step is one of the environment, or an agent's action; default: environment",
    )
    parser.add_argument(
        "--opponents",
        metavar="WHICH",
        help="with --policies, self-play against earlier parameters: newest, uniform or prioritized; with settings of "
        "the pool: uniform,period=2k,size=30,share=0.5",
    )


def add_resume(parser: Parser, note: str) -> None:
    """Adds `--resume`."""
    parser.add_argument("--resume", metavar="RUN", help=f"go on with this run; {note}")


def positive(text: str) -> int:
    """Reads a whole number of at least 1."""
    return _whole(text, 1)


def natural(text: str) -> int:
    """Reads a whole number of at least 0."""
    return _whole(text, 0)


def port(text: str) -> int:
    """Reads the number of a port."""
    value = _whole(text, 1)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"expected a port up to 65535, found {text!r}")
    return value


def seconds(text: str) -> float:
    """Reads a time in seconds."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return value


def amount(text: str) -> float:
    """Reads a number."""
    try:
        return float(text)  # The config knows which amounts there are.
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a number, found {text!r}") from None


def _whole(text: str, at_least: int) -> int:
    try:
        value = parse_whole(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if value < at_least:
        raise argparse.ArgumentTypeError(f"expected at least {at_least}, found {text!r}")
    return value
