"""Runs ``agentkit completion``: prints a script for the shell, and answers what that script asks.

The script is a few lines: on Tab it calls ``agentkit completion SHELL -- WORDS...`` with the words so far, the last one
unfinished, and offers what that prints. What there is to offer (agents, the settings of the agent that was named, run
folders) changes with the words, which a script made once, as shtab's, cannot know.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from agentkit.cli.words.looking_commands import FORMATS, SHELLS
from agentkit.cli.words.parser import COMMANDS, options
from agentkit.cli.words.program_commands import NODE_ROLES
from agentkit.errors import AgentkitError

_TAKES_AGENT = ("show", "train", "offline", "launch")
_TAKES_RUN = (
    "evaluate", "export", "plot", "compare", "watch", "export-policy", "push", "status", "scale", "stop",
)  # fmt: skip
_VALUES = {
    "checkpoint": ("best", "newest"),
    "format": FORMATS,
    "init_checkpoint": ("best", "newest"),
    "log": ("jsonl", "mlflow", "tensorboard", "wandb"),
    "normalize": ("observations", "rewards", "observations,rewards"),
    "torso": ("drq", "flatten", "impala", "nature", "shallow", "simba"),
}
"""The values of options that also take others, by the name of their argument."""
_MAX_FOLDERS = 500

_BASH = """
_agentkit() {
    local IFS=$' \\t\\n' line=${COMP_LINE:0:COMP_POINT} words
    read -r -a words <<< "$line"
    IFS=$'\\n'
    [[ $line == *' ' ]] && words+=("")
    local word=${words[-1]} rest
    COMPREPLY=($(agentkit completion bash -- "${words[@]:1}" 2>/dev/null))
    # Bash ends words at : and =, and replaces what is behind the last of these only.
    if [[ $word == *[:=]* ]]; then
        rest=${word%"${word##*[:=]}"}
        COMPREPLY=("${COMPREPLY[@]#"$rest"}")
    fi
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *[=/:] ]] && compopt -o nospace
}
complete -o default -F _agentkit agentkit
"""
_ZSH = """
_agentkit() {
    local -a found
    found=("${(@f)$(agentkit completion zsh -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n "${found[1]}" ]]; then
        compadd -Q -S '' -- ${(M)found:#*[=/:]}
        compadd -Q -- ${found:#*[=/:]}
    else
        _files
    fi
}
compdef _agentkit agentkit
"""
_FISH = """
function __agentkit
    set -l words (commandline -opc) (commandline -ct)
    set -l found (agentkit completion fish -- $words[2..-1] 2>/dev/null)
    if test -n "$found"
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c agentkit -f -a '(__agentkit)'
"""
_SCRIPTS = dict(zip(SHELLS, (_BASH, _ZSH, _FISH), strict=True))


def completion(arguments: argparse.Namespace) -> int:
    """Prints the script of a shell, or what may stand in place of the last of some words; returns 0."""
    if arguments.words:
        print("\n".join(complete(arguments.words)))
    else:
        print(_SCRIPTS[arguments.shell].strip())
    return 0


def complete(words: Sequence[str]) -> list[str]:
    """Returns what the last word may become, in order; reads no heavy module.

    Args:
        words: those after ``agentkit``; the last one is unfinished, or empty.

    >>> complete(["tra"])
    ['train']
    >>> complete(["train", "dqn", "--set", "epsilon_l"])
    ['epsilon_ladder=']
    """
    *before, last = words
    return sorted({word for word in _candidates(before, last) if word.startswith(last)})


def _candidates(before: Sequence[str], last: str) -> Iterable[str]:
    if not before:
        return COMMANDS
    command, previous = before[0], before[-1]
    if command not in COMMANDS:
        return ()
    if command == "node":
        if len(before) == 1:
            return NODE_ROLES
        return () if before[1] not in NODE_ROLES else _complete_option(f"node {before[1]}", before, last)
    if last.startswith("-") or previous.startswith("-"):
        return _complete_option(command, before, last)
    if command == "completion":
        return SHELLS
    if command == "sweep":
        return _paths(last, "*.toml")
    if command in _TAKES_RUN:
        return _runs(last)
    return _agents() if command in _TAKES_AGENT and len(before) == 1 else _complete_option(command, before, last)


def _complete_option(command: str, before: Sequence[str], last: str) -> Iterable[str]:
    """Returns the options of a command, or the values of the one that stands before."""
    known = options(command)
    option = known.get("--out" if before[-1] == "-o" else before[-1])
    if option is None or option.nargs == 0:
        return [name for name, action in known.items() if action.help != argparse.SUPPRESS]
    if option.choices is not None:
        return map(str, option.choices)
    if option.dest in _VALUES:
        return _VALUES[option.dest]
    if option.dest in ("env", "preset"):
        return _environments(last) if option.dest == "env" else ("auto", "none", *_environments(last))
    if option.dest == "set":
        return [f"{name}=" for name in _settings(before)]
    if option.dest in ("resume", "init_from"):
        return _runs(last)
    return _paths(last, "*.toml") if option.dest == "config" else ()


def _agents() -> Iterable[str]:
    folder = Path(__file__).parents[2] / "agents"  # The registry would load JAX.
    tree = ast.parse((folder / "registry.py").read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["_AGENTS"]:
            assert isinstance(node.value, ast.Dict)
            return [ast.literal_eval(key) for key in node.value.keys if key is not None]
    return []


def _settings(before: Sequence[str]) -> list[str]:
    """Returns the settings of the agent that the words name, read from its file and from what its config extends."""
    agents = set(_agents())
    agent = next((word for word in before[1:] if word in agents), None)
    return [] if agent is None else _fields(f"agentkit.agents.{agent}", "Config")


def _fields(module: str, name: str) -> list[str]:
    path = Path(__file__).parents[2].joinpath(*module.split(".")[1:]).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        return []
    found: list[str] = []
    for base in classes[name].bases:
        owner, _, attribute = ast.unparse(base).rpartition(".")
        if not owner and attribute in classes:
            found += _fields(module, attribute)
        elif not owner and attribute in imported:
            found += _fields(*imported[attribute])
        elif owner in imported:
            found += _fields(".".join(imported[owner]), attribute)
    return found + [
        node.target.id
        for node in classes[name].body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]


def _environments(last: str) -> list[str]:
    from agentkit import envs

    names = list(envs.available())
    prefix = last.partition(":")[0]
    if prefix in ("gymnasium", "gymnasium_vector") and ":" in last:
        with contextlib.suppress(AgentkitError):  # It is not installed.
            from agentkit.envs.gymnasium_loading import registered_names

            names += [f"{prefix}:{name}" for name in registered_names()]
    return names


def _runs(last: str) -> Iterable[str]:
    """Returns the run folders and groups below what is typed, or in `runs`, and the folders that may have some."""
    runs = {run for marker in ("config.json", "group.json") for run in _paths(last or "runs/", f"*/{marker}")}
    groups = set(_paths(last or "runs/", "*/group.json"))
    yield from runs
    yield from (folder for folder in _paths(last, "*/") if folder.removesuffix("/") not in runs - groups)


def _paths(last: str, pattern: str) -> Iterable[str]:
    """Returns what matches in the folder that is typed: of ``*/config.json`` the folder, of ``*/`` it with a slash."""
    head = last.rpartition("/")[0] or ("/" if last.startswith("/") else "")
    prefix = "" if not head else head if head == "/" else f"{head}/"
    for path in sorted(Path(head or ".").glob(pattern))[:_MAX_FOLDERS]:
        name = path.parent.name if pattern.endswith(".json") else path.name
        if not name.startswith("."):
            yield f"{prefix}{name}{'/' if pattern.endswith('/') else ''}"
