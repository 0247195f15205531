"""Says which words the commands that show and pass on what there is take: list, show, evaluate, plot, watch, ..."""

from __future__ import annotations

import argparse

from agentkit.cli.words.options import (
    Commands,
    Parser,
    add_agent_settings,
    add_command,
    add_environment_settings,
    add_film,
    add_import,
    add_out,
    add_preset,
    add_wrapper,
    positive,
)

SHELLS = ("bash", "zsh", "fish")
FORMATS = ("policy", "numpy", "stablehlo", "onnx", "savedmodel")


def add_list_and_show(commands: Commands[Parser]) -> None:
    """Adds `list` and `show`."""
    add_command(commands, "list", "agents and environments, a line each", "Lists agents and environments, a line each.")
    show = add_command(
        commands,
        "show",
        "one agent: its paper and every config field; with --env its network there",
        "Shows an agent's source and its config: every field, type, default and meaning. With --env also the preset "
        "for this environment, what the network sees of its observations, and a table of the network's modules.",
    )
    show.add_argument("agent", help="a name from 'agentkit list'")
    show.add_argument("--env", metavar="NAME", help="also show the preset for this environment and the network in it")
    add_environment_settings(show)
    add_wrapper(show)
    add_import(show)
    add_agent_settings(show)
    add_preset(show)


def add_evaluate_and_plot(commands: Commands[Parser]) -> None:
    """Adds `evaluate`, `plot` and `compare`."""
    evaluate = add_command(
        commands,
        "evaluate",
        "play episodes with a trained agent",
        "Plays episodes with the evaluation policy of a run's last checkpoint, or of another one.",
    )
    evaluate.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    evaluate.add_argument("--episodes", type=positive, default=20, metavar="N", help="default: %(default)s")
    evaluate.add_argument(
        "--max-steps", type=positive, metavar="N", help="cut an episode off after N steps; default: the run's own limit"
    )
    _add_checkpoint(evaluate)
    _add_opponent(evaluate)
    evaluate.add_argument(
        "--tournament",
        action="store_true",
        help="of several agents: the newest policies, those of the pool of --opponents, chance and each --opponent "
        "NAME=RUN against one another: a table of wins, with Elo",
    )
    add_environment_settings(evaluate)
    add_import(evaluate)
    evaluate.add_argument("--video", metavar="FILE", help="also film it: .mp4, with the extra 'video', or .gif")
    add_film(evaluate)
    _add_pictures(commands)


def _add_pictures(commands: Commands[Parser]) -> None:
    plot = add_command(
        commands,
        "plot",
        "a picture of returns, or of any metric, against steps or time",
        "Draws episode returns against environment steps. Runs that differ only in their seed become one line with a "
        "band. Solid: evaluation; faint: training. The suffix says which file it is: .png, .pdf, .svg.",
    )
    plot.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or those of --seeds or sweep")
    add_out(plot, "default: %(default)s", default="returns.png")
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
        "--smooth", type=positive, metavar="N", help="mean over the last N points; default: 20 training episodes"
    )
    plot.add_argument("--csv", metavar="FILE", help="also write the points of the lines")
    compare = add_command(
        commands,
        "compare",
        "which agent or setting is better, and how sure that is",
        "Compares runs grouped by agent and settings: interquartile mean, median, mean and probability of improvement "
        "with bootstrap intervals, and performance profiles, after Agarwal et al. 2021.",
    )
    compare.add_argument("runs", nargs="+", metavar="RUN", help="run folders, or those of --seeds or sweep")
    add_out(compare, "default: %(default)s", default="comparison.png")
    compare.add_argument(
        "--score",
        choices=("final", "best", "mean"),
        default="final",
        help="of a run's evaluation returns: the mean of the last tenth, the best, or the mean of all; default: final",
    )
    compare.add_argument(
        "--return-of", metavar="AGENT", help="of several agents, the one whose returns count; default: the sum of all"
    )
    compare.add_argument(
        "--normalize",
        action="append",
        metavar="minmax|ENV=LOW:HIGH",
        help="scores as shares of the way from LOW to HIGH, which those of several environments need; repeatable",
    )
    compare.add_argument("--csv", metavar="FILE", help="also write the score of each run")


def add_policies(commands: Commands[Parser]) -> None:
    """Adds `watch`, `export-policy` and `push`."""
    watch = add_command(
        commands,
        "watch",
        "look at a trained agent, in a window or on film",
        "Plays episodes in a window. Where there is no display it writes the film RUN/watch.mp4.",
    )
    watch.add_argument("run", metavar="RUN", help="a run folder, as 'agentkit train' names it at the end")
    watch.add_argument("--episodes", type=positive, default=3, metavar="N", help="default: %(default)s")
    _add_checkpoint(watch)
    _add_opponent(watch)
    add_out(watch, "film it there instead: .mp4, with the extra 'video', or .gif")
    add_environment_settings(watch)
    add_import(watch)
    add_film(watch)
    export = add_command(
        commands,
        "export-policy",
        "write a trained policy for use elsewhere",
        "Writes a run's policy in one of five formats, reads it back and compares its actions, and writes a model card "
        "README.md beside it. docs/policies.md says how each is used.",
    )
    export.add_argument("run", metavar="RUN", help="a run folder, or a policy file .npz")
    add_out(export, "default: RUN/policy/policy with the format's suffix")
    export.add_argument("--format", metavar="FORMAT", help=f"{', '.join(FORMATS)}; default: by the suffix, or policy")
    _add_card(export)
    push = add_command(
        commands,
        "push",
        "publish a trained policy on the Hugging Face hub, or in a folder",
        "Uploads policy.npz and its model card; agentkit.load('hf:OWNER/NAME') then loads it. Needs the extra 'hub' "
        "and a login ('hf auth login'). A folder, such as ./published, gets the same files.",
    )
    push.add_argument("run", metavar="RUN", help="a run folder")
    push.add_argument("target", metavar="OWNER/NAME", help="the repository, or a folder as ./NAME or /PATH")
    push.add_argument("--private", action="store_true", help="make a new repository private")
    _add_card(push)


def _add_checkpoint(parser: Parser) -> None:
    parser.add_argument(
        "--checkpoint",
        default="newest",
        metavar="WHICH",
        help="newest, best (of all evaluations), or the step of one that is there; default: %(default)s",
    )


def _add_opponent(parser: Parser) -> None:
    parser.add_argument(
        "--opponent",
        action="append",
        metavar="AGENT=RUN",
        help="of several agents: who plays by another policy: RUN, RUN:POLICY, a policy file, or random; repeatable",
    )


def _add_card(parser: Parser) -> None:
    parser.add_argument("--policy", metavar="ID", help="which, of a run of several agents; default: the only one")
    parser.add_argument(
        "--episodes",
        type=positive,
        metavar="N",
        help="play so many for the returns in the model card; default: take the last evaluation's",
    )
    add_import(parser)


def add_completion(commands: Commands[Parser]) -> None:
    """Adds `completion`."""
    completion = add_command(
        commands,
        "completion",
        "the shell's completion of commands, agents, settings and run folders",
        'Prints a script for the shell. Bash: put  eval "$(agentkit completion bash)"  into ~/.bashrc; zsh: the same '
        "with zsh into ~/.zshrc; fish: agentkit completion fish > ~/.config/fish/completions/agentkit.fish",
    )
    completion.add_argument("shell", choices=SHELLS, help="which shell")
    completion.add_argument("words", nargs="*", help=argparse.SUPPRESS)  # What the scripts themselves ask with.
