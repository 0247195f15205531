"""Reads ``--config FILE.toml``: options as keys, the agent and its settings under [agent]; and writes such a file.

    env = "gymnasium:HalfCheetah-v5"
    steps = "1M"

    [agent]
    name = "ppo"
    learning_rate = 3e-4

Arguments of the environment stand in a table [env-set], or as words in a list, env-set = ["render_mode=none"].

A file says no more than the command line: it becomes words, which the same parser reads. It may name code of yours
like ``--env`` and ``--import`` do, so use none that you would not run.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from agentkit.cli.values.environments import plain_text
from agentkit.cli.values.fields import BOOLS, value_text
from agentkit.cli.values.presets import wrapper_text
from agentkit.errors import ConfigError, our_name, unknown_name

_NOT_IN_FILES = ("--config", "--help", "--resume", "--run-id", "--run-id-file", "--show-config")
_TABLES = ("agent", "env-set", "set")

# Options of `options.add_experiment`, and the fields of `ExperimentConfig` that they become.
_FIELDS = {
    "steps": "num_steps",
    "seed": "seed",
    "num-envs": "num_envs",
    "workers": "workers",
    "ready": "ready",
    "replay": "replay",
    "on-device": "on_device",
    "eval-every": "evaluation_period",
    "eval-episodes": "evaluation_episodes",
    "eval-max-steps": "evaluation_max_steps",
    "evaluate-samples": "evaluation_samples",
    "checkpoint-every": "checkpoint_period",
    "tensorboard": "tensorboard",
    "on-nan": "on_nan",
    "devices": "devices",
    "step-timeout": "step_timeout",
}
_WITH_A_NO = ("keep-best",)
"""Options whose ``--no-...`` says something."""
_IN_THE_PLACE_OF = {"seed": ("seeds", "jobs"), "seeds": ("seed",), "out": ("run_directory",), "run_directory": ("out",)}
"""Options of a file that count no more where the command line gives another one."""
_ELSEWHERE = ("command", "role", "agent", "env", "env_set", "set", "wrapper", "imports", "preset", "out", "run")


def with_file(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Returns the arguments with those of their ``--config`` file added; what the command line gave wins.

    Args:
        arguments: of the command line.
        parser: the command's own.

    Raises:
        ConfigError: the file cannot be read, or a value in it is none that the option takes.
        UnknownNameError: a key is no option; proposes the nearest one.
    """
    path = arguments.config
    try:
        with open(path, "rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"--config: {path!r} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        both = " Write agent = ... as name = ... under [agent]." if "Cannot overwrite a value" in str(error) else ""
        raise ConfigError(f"--config: {path} is no TOML: {error}.{both}") from error
    options = {
        option.removeprefix("--"): action
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--") and option not in _NOT_IN_FILES
    }
    for key in content:
        if key.replace("_", "-") not in (*options, *_TABLES):
            raise unknown_name(f"key of {path}", key, {*options, "agent"}, f"See: {parser.prog} --help")
    try:
        of_file = parser.parse_args(list(_words(in_one_spelling(content, "-"), options)))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    return _merged(arguments, of_file, parser)


def in_one_spelling(content: Mapping[str, Any], separator: str) -> dict[str, Any]:
    """Returns a file's content with "-" or "_" between the words of its keys, of which a file may have either.

    Raises:
        ConfigError: a key is there in both spellings.
    """
    found: dict[str, Any] = {}
    for key, value in content.items():
        name = re.sub("[-_]", separator, key)
        if name in found:
            raise ConfigError(f"{key} is given twice, with - and with _; give it once.")
        found[name] = value
    return found


def _words(content: Mapping[str, Any], options: Mapping[str, argparse.Action]) -> Iterator[str]:
    """Yields a file's content as words of the command line."""
    for key, value in content.items():
        other_form = {"agent": str, "env-set": list}.get(key)
        if isinstance(value, dict) != (key in _TABLES) and not (other_form and isinstance(value, other_form)):
            raise ConfigError(f"{key}: expected {'a table' if key in _TABLES else 'a value'}, found {value!r:.60}.")
        if key == "agent":
            table = {"name": value} if isinstance(value, str) else dict(value)
            if "name" in table:
                yield _text("name", table.pop("name"))
            yield from (f"--set={name}={_text(name, child)}" for name, child in table.items())
        elif key == "set":
            yield from (f"--set={name}={_text(name, child)}" for name, child in value.items())
        elif key == "env-set" and isinstance(value, dict):
            yield from (f"--env-set={name}={plain_text(child)}" for name, child in value.items())
        elif options[key].nargs == 0:
            if not isinstance(value, bool):
                raise ConfigError(f"{key}: expected true or false, found {value!r:.60}.")
            if value or isinstance(options[key], argparse.BooleanOptionalAction):
                yield f"--{key}" if value else f"--no-{key}"
        elif isinstance(value, list):
            if not isinstance(options[key], argparse._AppendAction):
                raise ConfigError(f"{key}: expected one value, found the list {value!r:.60}.")
            yield from (f"--{key}={_text(key, child)}" for child in value)
        else:
            yield f"--{key}={_text(key, value)}"


def _text(key: str, value: Any) -> str:
    """Returns a value as the command line has it; a list in brackets, which a setting of one value does not take."""
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, list):
        return str(value)
    if any(isinstance(child, list | dict) for child in value):
        raise ConfigError(f"{key}: expected a list of single values, found {value!r:.60}.")
    return f"({','.join(_text(key, child) for child in value)},)" if value else "()"


def _merged(
    arguments: argparse.Namespace, of_file: argparse.Namespace, parser: argparse.ArgumentParser
) -> argparse.Namespace:
    merged = argparse.Namespace(**vars(arguments))
    chosen = [name for name in _IN_THE_PLACE_OF if getattr(arguments, name, None) is not None]
    replaced = {other for name in chosen for other in _IN_THE_PLACE_OF[name]}
    for name, value in vars(of_file).items():
        if name in replaced:
            continue
        given = getattr(arguments, name, None)
        if name in ("set", "env_set") and value and given:
            theirs = {word.partition("=")[0] for word in given}
            setattr(merged, name, [word for word in value if word.partition("=")[0] not in theirs] + given)
        elif given is None or (given is False and parser.get_default(name) is False):
            setattr(merged, name, value)  # Else it is a --no-... of the command line.
    return merged


def show_config(plan: Any, arguments: argparse.Namespace) -> NoReturn:
    """Prints an experiment as a file for ``--config``, all of its values in it, and ends the command."""
    print(config_text(plan, arguments), end="")
    raise SystemExit(0)


def config_text(plan: Any, arguments: argparse.Namespace) -> str:
    """Returns the text of a file that asks for an experiment whatever presets and defaults say later."""
    import dataclasses

    from agentkit.envs.given import name_of

    top: dict[str, Any] = {"env": arguments.env if arguments.env is not None else name_of(plan.environment)}
    top |= {key: getattr(plan, field) for key, field in _FIELDS.items()}
    if arguments.command != "train" and top["replay"] == "in_process":
        top["replay"] = "served"  # The word of programs for the same.
    taken = {key.replace("-", "_") for key in _FIELDS} | {*_ELSEWHERE, "config", "show_config", "resume"}
    secret = {"run_id", "run_id_file"}
    top |= {name.replace("_", "-"): value for name, value in vars(arguments).items() if name not in taken | secret}
    top |= {"preset": "none", "out": arguments.out, "import": list(arguments.imports or ()) or None}
    top["wrapper"] = [wrapper_text(wrapper) for wrapper in plan.wrappers] or None
    if top.get("seeds") is not None:
        del top["seed"]  # It is the first of them.
    settings = plan.environment_settings
    as_table = all(name.isascii() and name.isidentifier() and _is_of_toml(value) for name, value in settings.items())
    if not as_table:
        top["env-set"] = [f"{name}={plain_text(value)}" for name, value in settings.items()]
    lines = [
        f"{key} = {_toml(value)}"
        for key, value in top.items()
        if value is not None and (value is not False or key in _WITH_A_NO)
    ]
    if settings and as_table:
        lines += ["", "[env-set]", *(f"{name} = {_toml(value)}" for name, value in settings.items())]
    config = plan.agent.config
    lines += ["", "[agent]", f"name = {_toml(arguments.agent)}"]
    lines += [f"{field.name} = {_toml(getattr(config, field.name))}" for field in dataclasses.fields(config)]
    return "\n".join(lines) + "\n"


def _is_of_toml(value: Any) -> bool:
    """Returns whether a file gives a value back as it is: TOML has neither tuples nor None."""
    return type(value) in (bool, int, float, str) or (type(value) is list and all(map(_is_of_toml, value)))


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if value is None:
        return '"none"'
    return json.dumps(value if isinstance(value, str) else value_text(value), ensure_ascii=False)


def refuse_setting(arguments: argparse.Namespace, unknown: Sequence[str], options: Sequence[str]) -> None:
    """Raises an error that says ``--set``, where an unknown option is a setting of the agent, or most like one.

    Raises:
        ConfigError: it has the words to give instead.
    """
    if getattr(arguments, "agent", None) is None or not hasattr(arguments, "set"):
        return
    from agentkit.agents import registry
    from agentkit.cli.values.fields import field_types

    if arguments.agent not in registry.names():
        return
    option, equals, text = unknown[0].partition("=")
    if not equals:
        text = unknown[1] if len(unknown) > 1 and not unknown[1].startswith("--") else "VALUE"
    name = option.removeprefix("--").replace("-", "_")
    settings = list(field_types(registry.config_class(arguments.agent)))
    of_options = [known.removeprefix("--").replace("-", "_") for known in options]
    words, ours = [*settings, *of_options], our_name(name, settings)
    if ours is None and name not in settings and our_name(name, of_options) is not None:
        return  # An option's other name, which `help.unknown_option` knows.
    near = difflib.get_close_matches(ours or name, words, n=1, cutoff=0.8)
    if near and near[0] in settings and near[0] in (name, ours):
        raise ConfigError(f"{option} is no option but a setting of {arguments.agent}. Give: --set {near[0]}={text}")
    if near and near[0] in settings:
        raise ConfigError(f"Unknown option {option}. Did you mean the setting --set {near[0]}={text}?")


def refuse_option(arguments: argparse.Namespace, options: Mapping[str, argparse.Action]) -> None:
    """Raises an error that names the option, where a word of ``--set`` is one of the command and no agent's setting.

    Raises:
        ConfigError: it has the words to give instead.
    """
    for word in getattr(arguments, "set", None) or ():
        name, _, text = word.partition("=")
        option = f"--{name.replace('_', '-')}"
        if option not in options or option in _NOT_IN_FILES:
            continue
        from agentkit.agents import registry
        from agentkit.cli.values.fields import field_types

        agent = arguments.agent
        if agent in registry.names() and name not in field_types(registry.config_class(agent)):
            advice = _in_options(option, options[option], text)
            raise ConfigError(f"{name} is no setting of {agent} but an option. {advice}")


def _in_options(option: str, action: argparse.Action, text: str) -> str:
    """Returns how an option says what somebody has written as the value of a setting."""
    if action.nargs != 0:
        return f"Give: {option} {text}"
    if BOOLS.get(text.lower(), True):
        return f"Give: {option}"
    opposite = [other for other in action.option_strings if other != option]
    return f"Give: {opposite[0]}" if opposite else "Leave it out."
