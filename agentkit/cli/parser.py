"""Reads the command line: says which words there are and what they mean."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NoReturn, final, get_args

import agentkit
from agentkit.cli.config_file import refuse_setting, with_file
from agentkit.cli.values import parse_whole
from agentkit.errors import ConfigError, OnNan, unknown_name

COMMANDS = (
    "list", "show", "train", "sweep", "offline", "export", "launch", "node", "status", "scale", "stop", "evaluate",
    "plot", "compare", "watch", "export-policy", "push", "completion",
)  # fmt: skip
SHELLS = ("bash", "zsh", "fish")
FORMATS = ("policy", "numpy", "stablehlo", "onnx", "savedmodel")
ENGINES = ("processes", "ray", "threads")
NODE_ROLES = ("replay", "learner", "actor", "evaluator")


@final
class _Parser(argparse.ArgumentParser):
    """Parses as argparse does, except that an error is one line, as all errors of agentkit are."""

    def error(self, message: str) -> NoReturn:
        """Raises instead of printing the usage over several lines."""
        raise ConfigError(f"{message}. See: {self.prog} --help")


_Commands = argparse._SubParsersAction  # What `add_subparsers` returns; argparse has no public name for it.


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """Returns the arguments as a namespace whose `command` is one of `COMMANDS`.

    Raises:
        ConfigError: for missing or impossible arguments.
        UnknownNameError: for an unknown command or option.
        SystemExit: with code 0, after printing what ``--help`` or ``--version`` ask for.
    """
    parser, commands = _make_parser()
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
            raise unknown_name(f"option of {chosen.prog!r}", unknown[0].split("=")[0], known)
        raise ConfigError(f"unexpected argument {unknown[0]!r}. See: {chosen.prog} --help")
    return arguments if getattr(arguments, "config", None) is None else with_file(arguments, chosen)


def _make_parser() -> tuple[_Parser, _Commands[_Parser]]:
    """Returns the parser of all, and what holds those of the commands."""
    parser = _Parser(prog="agentkit", description="Train, evaluate and compare agents.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"agentkit {agentkit.__version__}")
    # Taken out before words get here, so that it may stand anywhere.
    parser.add_argument(
        "--debug", action="store_true", default=None, help="with any command: show the whole traceback of an error"
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (
        _add_list_and_show, _add_train, _add_sweep, _add_offline, _add_launch, _add_node, _add_watching,
        _add_evaluate_and_plot, _add_policies, _add_completion,
    ):  # fmt: skip
        add(commands)
    return parser, commands


def options(command: str) -> dict[str, argparse.Action]:
    """Returns the options of a command, such as "train" or "node actor", by name: ``--steps``."""
    commands = _make_parser()[1]
    first, _, role = command.partition(" ")
    parser = _roles(commands.choices[first]).choices[role] if role else commands.choices[first]
    return {option: action for action in parser._actions for option in action.option_strings if option[:2] == "--"}


def _roles(node: _Parser) -> _Commands[_Parser]:
    (roles,) = (action for action in node._actions if isinstance(action, _Commands))
    return roles


def _check_word(kind: str, words: Sequence[str], known: Sequence[str], prog: str) -> None:
    if words and not words[0].startswith("-") and words[0] not in known:
        raise unknown_name(kind, words[0], known, f"See: {prog} --help")


def _add(commands: _Commands[_Parser], name: str, help: str, description: str) -> _Parser:
    return commands.add_parser(name, help=help, description=description, allow_abbrev=False)


def _add_list_and_show(commands: _Commands[_Parser]) -> None:
    _add(commands, "list", "agents and environments, a line each", "Lists what there is.")
    show = _add(
        commands,
        "show",
        "one agent: its paper and every config field",
        "Shows an agent's source and its config: every field, type, default and meaning.",
    )
    show.add_argument("agent", help="a name from 'agentkit list'")
    show.add_argument("--env", metavar="NAME", help="also show the preset for this environment: settings known to work")


def _add_train(commands: _Commands[_Parser]) -> None:
    train = _add(
        commands,
        "train",
        "train an agent in this process, or go on with a run",
        "Trains an agent on an environment; a run folder keeps config, logs and checkpoints. "
        "Ctrl-C saves and stops. Numbers may be written 100_000, 100k, 2M or 1e5.",
    )
    _add_experiment(train)
    train.add_argument(
        "--seeds", metavar="SEEDS", help="a run for each, such as 0:5 or 0,3,7, in processes and folders of their own"
    )
    train.add_argument("--jobs", type=_positive, metavar="N", help="with --seeds: runs at a time; default: 1")
    train.add_argument("--replay", choices=("in_process", "reverb"), help="default: in_process")
    train.add_argument(
        "--video-every",
        type=_natural,
        metavar="STEPS",
        help="film the policy into the run's videos/step-N.mp4; needs the extra 'video'; default: 0, never",
    )
    train.add_argument(
        "--profile", action="store_true", help="say at the end where a step's time went; waits for each update"
    )
    train.add_argument(
        "--jax-trace", metavar="FOLDER", help="also write a trace of some steps there; implies --profile"
    )
    _add_resume(train, "only --steps, the new total, may be given with it")


def _add_sweep(commands: _Commands[_Parser]) -> None:
    sweep = _add(
        commands,
        "sweep",
        "try many settings, as a file says, or go on with that",
        "Trains with many settings: a grid, random ones, or those that Optuna proposes. The file has the options of "
        "'agentkit train' and what to search; see docs/sweeps.md. The same command goes on after a kill.",
    )
    sweep.add_argument("file", metavar="FILE.toml", help="what to try")
    sweep.add_argument("--jobs", type=_positive, metavar="N", help="runs at a time; default: the file's, or 1")
    sweep.add_argument("--out", metavar="FOLDER", help="where the sweep's folder is made; default: runs")
    sweep.add_argument("--status", action="store_true", help="only show the trials so far and the best one")
    _add_import(sweep)


def _add_offline(commands: _Commands[_Parser]) -> None:
    offline = _add(
        commands,
        "offline",
        "train an agent from a file of episodes, or go on with such a run",
        "Trains an agent from data alone; the environment is for evaluation. A run folder keeps config, logs and "
        "checkpoints; their steps are updates. Needs the extra 'offline' for HDF5.",
    )
    _add_run(offline, "UPDATES", "--updates")
    offline.add_argument(
        "--data", metavar="FILE", help="HDF5 in Minari's layout, as 'agentkit export' writes it, or .npz; see docs"
    )
    offline.add_argument("--updates", type=_positive, metavar="N", help="gradient updates in all")
    _add_resume(offline, "only --updates, the new total, may be given with it")
    export = _add(
        commands,
        "export",
        "write episodes of a run to a file, to learn from",
        "Plays episodes with a run's policy, or takes those that its replay holds, and writes them as HDF5 in Minari's "
        "layout. Needs the extra 'offline'.",
    )
    export.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    _add_import(export)
    export.add_argument("--out", required=True, metavar="FILE.hdf5", help="the file to write, which must not exist")
    export.add_argument("--episodes", type=_positive, metavar="N", help="how many to play; default: 100")
    export.add_argument("--explore", action="store_true", help="play with the policy that explores")
    export.add_argument("--seed", type=_natural, metavar="N", help="of what is played; default: 0")
    export.add_argument(
        "--replay", action="store_true", help="play nothing: write the episodes in the run's replay (n_step=1 only)"
    )


def _add_launch(commands: _Commands[_Parser]) -> None:
    launch = _add(
        commands,
        "launch",
        "train with many processes, on this machine or on Ray",
        "Trains an agent with a replay server, a learner, actors and evaluators, and restarts what dies. "
        "Ctrl-C saves and stops, a second one kills. Needs the extra 'reverb'.",
    )
    _add_experiment(launch)
    launch.add_argument("--actors", type=_positive, metavar="N", help="actor processes; default: 2")
    launch.add_argument("--evaluators", type=_natural, metavar="N", help="evaluator processes; default: 1")
    launch.add_argument(
        "--inference",
        type=_natural,
        metavar="N",
        help="processes that choose the actions of all actors, for large networks; default: 0, each actor itself",
    )
    launch.add_argument("--engine", choices=ENGINES, help="what runs the nodes; default: processes")
    launch.add_argument("--ray-address", metavar="HOST:PORT", help="the Ray cluster's, for --engine ray")
    launch.add_argument(
        "--listen",
        metavar="DEVICE",
        help="the network device that servers answer on, where a cluster's machines share one; default: lo",
    )
    launch.add_argument(
        "--max-parameter-age",
        type=_seconds,
        metavar="SECONDS",
        help="actors wait where their parameters are older; default: no limit",
    )
    launch.add_argument(
        "--max-restarts",
        type=_natural,
        metavar="N",
        help="of one node within ten minutes; one more stops the program; default: 20",
    )
    launch.add_argument(
        "--learner-gpus",
        type=_amount,
        metavar="N",
        help="with --engine ray: GPUs to reserve for the learner, 0.5 for half of one; default: 0, it sees those there "
        "are without reserving any, as on the other engines",
    )
    _add_resume(launch, "only --steps, the new total, and how to run it (--actors, --engine, ...) may be given with it")


def _add_node(commands: _Commands[_Parser]) -> None:
    node = _add(
        commands,
        "node",
        "run one node of a program, for a scheduler or a shell",
        "Runs one node. 'replay' hosts a run; the others join it from any machine, and may be started, killed "
        "and started again at any time. Exit codes: 0 the run is over, 1 start it again, 2 do not.",
    )
    roles = node.add_subparsers(dest="role", required=True, metavar="ROLE")
    _add_host(_add(roles, "replay", "host a run: its replay server and its run store", _HOST_DESCRIPTION))
    for role, meaning in (
        ("learner", "updates and publishes the parameters, and saves checkpoints"),
        ("actor", "plays and fills the replay"),
        ("evaluator", "plays with the evaluation policy and logs the returns"),
    ):
        one = _add(roles, role, meaning, f"Joins a run as its {role}: {meaning}. {_RUN_ID_NOTE}")
        one.add_argument("--connect", metavar="HOST:PORT", help="the run store, as 'agentkit node replay' prints it")
        _add_run_id(one)
        _add_import(one)
        if role == "learner":  # A run has one.
            one.add_argument(
                "--listen",
                metavar="DEVICE",
                help="the network device on which nodes of other machines get the parameters, such as wg0 or eth0, or "
                "'all'; default: lo, this machine alone",
            )
        else:
            default = "a random one" if role == "actor" else "0"
            one.add_argument(
                "--index", type=_natural, metavar="I", help=f"tells each {role} from the others; default: {default}"
            )


_RUN_ID_NOTE = (
    "The run id is a secret: who knows it may join and stop the run. Give it in the variable AGENTKIT_RUN_ID or in "
    "a file; --run-id shows it to everyone who can list this machine's processes."
)
_HOST_DESCRIPTION = (
    "Hosts a run: the run store, at which its nodes meet, and the replay server. Prints what the other nodes need. "
    f"{_RUN_ID_NOTE}"
)


def _add_host(host: _Parser) -> None:
    _add_experiment(host)
    host.add_argument(
        "--run",
        metavar="RUN",
        help="instead of --out: this very run folder, made if there is none; the run in it goes on. For schedulers, "
        "which start the same command again",
    )
    host.add_argument("--board-port", type=_port, metavar="P", help="of the run store, where nodes meet; default: 7700")
    host.add_argument("--port", type=_port, metavar="P", help="of the replay server; default: a free one")
    host.add_argument(
        "--listen",
        metavar="DEVICE",
        help="the network device that both answer on, such as wg0 or eth0, or 'all'; default: lo, this machine alone",
    )
    _add_run_id(host)


def _add_run_id(parser: _Parser) -> None:
    given = parser.add_mutually_exclusive_group()
    given.add_argument("--run-id", metavar="ID", help="the run's secret; better in AGENTKIT_RUN_ID or a file")
    given.add_argument(
        "--run-id-file", metavar="FILE", help="a file with the run id, or RUN/board.json, which has the address too"
    )


def _add_watching(commands: _Commands[_Parser]) -> None:
    status = _add(
        commands,
        "status",
        "what a launched program is doing",
        "Shows a running program's nodes and tables. Exit code 2 if nothing runs there.",
    )
    status.add_argument("--watch", action="store_true", help="go on showing it until it ends or Ctrl-C")
    scale = _add(
        commands,
        "scale",
        "change how many actors a running program has",
        "Starts or stops actors of a running program.",
    )
    scale.add_argument("--actors", type=_natural, required=True, metavar="N", help="how many there are to be")
    stop = _add(commands, "stop", "save and stop a running program", "Asks a running program to save and stop.")
    for parser in (status, scale, stop):
        parser.add_argument("run", metavar="RUN", help="the run folder of 'agentkit launch' or 'agentkit node replay'")


def _add_evaluate_and_plot(commands: _Commands[_Parser]) -> None:
    evaluate = _add(
        commands,
        "evaluate",
        "play episodes with a trained agent",
        "Plays episodes with the evaluation policy of a run's last checkpoint, or of another one.",
    )
    evaluate.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    evaluate.add_argument("--episodes", type=_positive, default=20, metavar="N", help="default: %(default)s")
    evaluate.add_argument(
        "--checkpoint",
        default="newest",
        metavar="WHICH",
        help="newest, best (of all evaluations), or the step of one that is there; default: %(default)s",
    )
    _add_environment_settings(evaluate)
    _add_import(evaluate)
    evaluate.add_argument("--video", metavar="FILE", help="also film it: .mp4, with the extra 'video', or .gif")
    _add_film(evaluate)
    _add_pictures(commands)


def _add_pictures(commands: _Commands[_Parser]) -> None:
    plot = _add(
        commands,
        "plot",
        "a picture of returns, or of any metric, against steps or time",
        "Draws episode returns against environment steps. Runs that differ only in their seed become one line with a "
        "band. Solid: evaluation; faint: training. The suffix says which file it is: .png, .pdf, .svg.",
    )
    plot.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    plot.add_argument("-o", "--output", default="returns.png", metavar="FILE", help="default: %(default)s")
    plot.add_argument("--metric", metavar="LOG/COLUMN", help="such as learner/loss; default: the episode returns")
    plot.add_argument(
        "--x", choices=("steps", "time", "updates", "episodes"), default="steps", help="default: %(default)s"
    )
    plot.add_argument(
        "--band",
        choices=("ci", "std", "range"),
        default="ci",
        help="the bootstrap's 95%% interval, a standard deviation, or least to greatest; default: %(default)s",
    )
    plot.add_argument("--iqm", action="store_true", help="draw the interquartile mean of runs instead of their mean")
    plot.add_argument(
        "--smooth", type=_positive, metavar="N", help="mean over the last N points; default: 20 training episodes"
    )
    plot.add_argument("--csv", metavar="FILE", help="also write the points of the lines")
    compare = _add(
        commands,
        "compare",
        "which agent or setting is better, and how sure that is",
        "Compares runs grouped by agent and settings: interquartile mean, median, mean and probability of improvement "
        "with bootstrap intervals, and performance profiles, after Agarwal et al. 2021.",
    )
    compare.add_argument("runs", nargs="+", metavar="RUN", help="run folders")
    compare.add_argument("-o", "--output", default="comparison.png", metavar="FILE", help="default: %(default)s")
    compare.add_argument(
        "--score",
        choices=("final", "best", "mean"),
        default="final",
        help="of a run's evaluation returns: the mean of the last tenth, the best, or the mean of all; default: final",
    )
    compare.add_argument(
        "--normalize",
        action="append",
        metavar="minmax|ENV=LOW:HIGH",
        help="scores as shares of the way from LOW to HIGH, which those of several environments need; repeatable",
    )
    compare.add_argument("--csv", metavar="FILE", help="also write the score of each run")


def _add_completion(commands: _Commands[_Parser]) -> None:
    completion = _add(
        commands,
        "completion",
        "the shell's completion of commands, agents, settings and run folders",
        'Prints a script for the shell. Bash: put  eval "$(agentkit completion bash)"  into ~/.bashrc; zsh: the same '
        "with zsh into ~/.zshrc; fish: agentkit completion fish > ~/.config/fish/completions/agentkit.fish",
    )
    completion.add_argument("shell", choices=SHELLS, help="which shell")
    completion.add_argument("words", nargs="*", help=argparse.SUPPRESS)  # What the scripts themselves ask with.


def _add_film(parser: _Parser) -> None:
    parser.add_argument("--video-steps", type=_positive, metavar="N", help="frames, one a step; default: 300")
    parser.add_argument("--fps", type=_amount, metavar="N", help="frames per second; default: 30")
    parser.add_argument("--size", type=_positive, metavar="PIXELS", help="height of the frames; default: 240")


def _add_policies(commands: _Commands[_Parser]) -> None:
    watch = _add(
        commands,
        "watch",
        "look at a trained agent in a window",
        "Plays episodes in a window; where there is no display, writes RUN/watch.mp4 and says so.",
    )
    watch.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    watch.add_argument("--episodes", type=_positive, default=3, metavar="N", help="default: %(default)s")
    _add_environment_settings(watch)
    _add_import(watch)
    _add_film(watch)
    export = _add(
        commands,
        "export-policy",
        "write a trained policy for use elsewhere",
        "Writes a run's policy in one of five formats, reads it back and compares its actions, and writes a model card "
        "README.md beside it. docs/policies.md says how each is used.",
    )
    export.add_argument("run", metavar="RUN", help="a run folder, or a policy file .npz")
    export.add_argument("-o", "--output", metavar="FILE", help="default: RUN/policy/policy with the format's suffix")
    export.add_argument("--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}; default: by the suffix, or policy")
    _add_card(export)
    push = _add(
        commands,
        "push",
        "publish a trained policy on the Hugging Face hub, or in a folder",
        "Uploads policy.npz and its model card; agentkit.load('hf:OWNER/NAME') then loads it. Needs the extra 'hub' "
        "and a login ('hf auth login'). A folder, such as ./published, gets the same files.",
    )
    push.add_argument("run", metavar="RUN", help="a run folder")
    push.add_argument("target", metavar="OWNER/NAME", help="the repository, or a folder as ./NAME or /PATH")
    push.add_argument("--private", action="store_true", help="of a new repository")
    _add_card(push)


def _add_card(parser: _Parser) -> None:
    parser.add_argument(
        "--episodes",
        type=_positive,
        metavar="N",
        help="for the card; default: the last evaluation",
    )
    _add_import(parser)


def _add_experiment(parser: _Parser) -> None:
    """Adds what says which experiment: shared by train, launch and node replay.

    Defaults are None here and live in `agentkit.cli.train`, which must know what was asked for.
    """
    _add_run(parser, "STEPS", "--steps")
    parser.add_argument("--steps", type=_positive, metavar="N", help="environment steps in all, such as 100k or 2M")
    parser.add_argument(
        "--preset",
        metavar="NAME",
        help="settings known to work: auto, those for the environment; none; or those for another one; default: auto",
    )
    parser.add_argument(
        "--show-config", action="store_true", default=None, help="print the experiment as a file for --config, and end"
    )
    parser.add_argument(
        "--num-envs", type=_positive, metavar="N", help="environments that one actor steps together; default: 1"
    )
    parser.add_argument(
        "--devices", type=_positive, metavar="N", help="accelerators that share each batch; default: one device"
    )
    parser.add_argument(
        "--step-timeout",
        type=_amount,
        metavar="SECONDS",
        help="an environment whose step takes longer hangs, which is an error; 0 for any time; default: 300",
    )


def _add_callbacks(parser: _Parser) -> None:
    """Adds what watches a run and ends it; these may be given to a resumed run, too."""
    parser.add_argument(
        "--keep-best",
        action=argparse.BooleanOptionalAction,
        help="keep the policy of the best evaluation, for 'evaluate --checkpoint best'; default: yes",
    )
    parser.add_argument("--keep-checkpoints", type=_positive, metavar="N", help="how many stay; default: 2")
    parser.add_argument(
        "--stop-at-return", type=_amount, metavar="R", help="end at the first evaluation with this mean return"
    )


def _add_run(parser: _Parser, unit: str, total: str) -> None:
    """Adds what every run has; how long it takes is counted in `unit`, and said by the option `total`."""
    parser.add_argument("agent", nargs="?", help="a name from 'agentkit list'")
    parser.add_argument(
        "--config", metavar="FILE.toml", help="these options from a file, settings under [agent]; those given here win"
    )
    parser.add_argument("--env", metavar="NAME", help="such as gymnasium:HalfCheetah-v5, or your own MODULE:NAME")
    _add_environment_settings(parser)
    parser.add_argument(
        "--wrapper",
        action="append",
        metavar="NAME",
        help="around each environment, such as step_limit(max_steps=200); repeatable, applied in this order",
    )
    _add_import(parser)
    parser.add_argument("--seed", type=_natural, metavar="N", help="default: 0")
    parser.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a config field (see 'agentkit show'); repeatable",
    )
    parser.add_argument("--out", metavar="FOLDER", help="where the run folder is made; default: runs")
    parser.add_argument("--eval-every", type=_natural, metavar=unit, help=f"0: never; default: a tenth of {total}")
    parser.add_argument(
        "--eval-episodes",
        type=_positive,
        metavar="N",
        help="default: 10; without this and --eval-every fewer where they would take over a tenth of the run",
    )
    parser.add_argument(
        "--checkpoint-every",
        type=_natural,
        metavar=unit,
        help=f"0: only at the end; default: a tenth of {total}",
    )
    _add_callbacks(parser)
    parser.add_argument("--tensorboard", action="store_true", default=None, help="also write TensorBoard logs")
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


def _add_environment_settings(parser: _Parser) -> None:
    parser.add_argument(
        "--env-set",
        action="append",
        metavar="NAME=VALUE",
        help="an argument of the environment, such as render_mode=rgb_array; repeatable",
    )


def _add_import(parser: _Parser) -> None:
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        metavar="PACKAGE",
        help="import this package of yours, and let the run folder name its functions; repeatable",
    )


def _add_resume(parser: _Parser, note: str) -> None:
    parser.add_argument("--resume", metavar="RUN", help=f"go on with this run; {note}")


def _positive(text: str) -> int:
    return _whole(text, 1)


def _natural(text: str) -> int:
    return _whole(text, 0)


def _port(text: str) -> int:
    value = _whole(text, 1)
    if value > 65535:
        raise argparse.ArgumentTypeError(f"expected a port up to 65535, found {text!r}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, found {text!r}")
    return value


def _amount(text: str) -> float:
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
