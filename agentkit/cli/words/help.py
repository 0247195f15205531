"""Writes the text of ``--help``, in sections where a command has many options, and words for an unknown one."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterable, Mapping

from agentkit.errors import UnknownNameError, our_name

_MANY_OPTIONS = 20

# A command has those of them that it takes; what is not named here stands in a last section.
SECTIONS: Mapping[str, tuple[str, ...]] = {
    "what to train": (
        "--env", "--steps", "--updates", "--seed", "--seeds", "--jobs", "--out", "--run-directory", "--resume",
        "--config",
    ),
    "the agent": ("--preset", "--set", "--normalize", "--torso", "--view", "--show-config"),
    "the environment": (
        "--env-set", "--wrapper", "--import", "--num-envs", "--workers", "--ready", "--on-device", "--step-timeout",
        "--column",
    ),
    "what the run begins with": ("--init-from", "--init-checkpoint", "--data", "--data-share"),
    "evaluations, and when to stop": (
        "--eval-every", "--eval-episodes", "--eval-max-steps", "--evaluate-samples", "--stop-at-return", "--keep-best",
        "--best-score", "--on-nan",
    ),
    "the program": (
        "--actors", "--evaluators", "--inference", "--engine", "--ray-address", "--listen", "--max-parameter-age",
        "--max-restarts", "--learner-gpus",
    ),
    "what is written": ("--log", "--tensorboard", "--video-every", "--checkpoint-every", "--keep-checkpoints"),
}  # fmt: skip

# Options of SB3's zoo, CleanRL and Tianshou, and what one types here.
_ELSEWHERE: Mapping[str, str] = {
    "--algo": "The agent's name comes first: agentkit train sac",
    "--capture-video": "Give: --video-every STEPS",
    "--env-id": "Give: --env NAME",
    "--env-kwargs": "Give: --env-set NAME=VALUE",
    "--eval-freq": "Give: --eval-every STEPS",
    "--exp-name": "Give: --out FOLDER",
    "--hyperparams": "Give: --set NAME=VALUE",
    "--load-path": "Give: --init-from RUN, or --resume RUN",
    "--n-envs": "Give: --num-envs N",
    "--on-device": "The compiled loop is of one process, of 'agentkit train' alone; leave it out",
    "--n-eval-episodes": "Give: --eval-episodes N",
    "--n-timesteps": "Give: --steps N",
    "--optimize": "See: agentkit sweep --help",
    "--save-freq": "Give: --checkpoint-every STEPS",
    "--save-model": "Checkpoints and the best policy are always kept; leave it out",
    "--task": "Give: --env NAME",
    "--timesteps": "Give: --steps N",
    "--total-timesteps": "Give: --steps N",
    "--track": "Give: --log wandb",
    "--trained-agent": "Give: --init-from RUN, or --resume RUN",
    "-n": "Give: --steps N",
}


def format_help(parser: argparse.ArgumentParser) -> str:
    """Returns what ``--help`` prints: of a command with many options, in `SECTIONS` and with a short first line."""
    options = [action for action in parser._actions if action.option_strings]
    if len(options) < _MANY_OPTIONS:
        return argparse.ArgumentParser.format_help(parser)
    words = [action for action in parser._actions if not action.option_strings]
    by_name = {option: action for action in options for option in action.option_strings}
    sections = {title: [by_name[name] for name in names if name in by_name] for title, names in SECTIONS.items()}
    placed = [action for actions in sections.values() for action in actions]
    sections["others"] = [action for action in options if action not in placed]
    sections[next(iter(SECTIONS))][:0] = words
    formatter = parser._get_formatter()
    formatter.add_usage(f"{parser.prog} {_words(words)}[options]", [], [])
    formatter.add_text(parser.description)
    for title, actions in sections.items():
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
    return formatter.format_help()


def _words(actions: Iterable[argparse.Action]) -> str:
    shown = (str(action.metavar or action.dest).upper() for action in actions)
    return "".join(f"{word} " for word in shown)


def unknown_option(prog: str, word: str, known: Iterable[str]) -> UnknownNameError:
    """Returns an error for an option that a command lacks: what it is called here, or the nearest one there is."""
    name = word.split("=")[0]
    known = sorted(known)
    nearest = difflib.get_close_matches(name, [option for option in known if len(option) > 2], n=1, cutoff=0.6)
    said = _ELSEWHERE.get(name.replace("_", "-"))
    words = {option[2:].replace("-", "_"): option for option in known if option.startswith("--")}
    plain = name[2:].replace("-", "_")
    ours = plain if plain in words else our_name(plain, words)
    if said is None and ours is not None:
        said = f"Give: {words[ours]}"
    if "--updates" in known and name in ("--steps", "--total-timesteps"):
        said = "Give: --updates N"
    hint = f" {said}." if said else f" Did you mean {nearest[0]!r}?" if nearest else ""
    return UnknownNameError(f"{prog!r} has no option {name!r}.{hint} See: {prog} --help")
