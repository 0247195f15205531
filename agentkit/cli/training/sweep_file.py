"""Reads the file of ``agentkit sweep``: the options of `agentkit train`, a table [sweep], and a table [search].

Whatever may stand in the file may be searched: what is in [search.set] replaces [set], and so on. A trial is then
nothing but a command line of ``agentkit train``.
"""

from __future__ import annotations

import argparse
import dataclasses
import tomllib
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

from agentkit.cli.values.config_file import in_one_spelling
from agentkit.cli.values.environments import plain_text
from agentkit.cli.values.fields import field_types, parse_value, type_name
from agentkit.cli.words.options import positive
from agentkit.cli.words.parser import options
from agentkit.errors import AgentkitError, ConfigError, unknown_name

_SWEEP_KEYS = (
    "method",
    "trials",
    "seeds",
    "jobs",
    "metric",
    "return_of",
    "pruner",
    "startup_trials",
    "prune_after",
    "seed",
)
_INTERVAL_KEYS = ("low", "high", "log", "num")
_NOT_IN_A_FILE = (
    "help", "seed", "seeds", "jobs", "out", "run_directory", "config", "show_config", "resume", "profile", "jax_trace",
    "import",
)  # fmt: skip
_TABLES = ("set", "env_set")
_SEARCHED_OPTIONS = ("num_envs", "replay")
_EPISODES = 5
_PRUNE_AFTER = 5
"""By default a trial is safe for this part of its steps."""


@final
@dataclasses.dataclass(frozen=True)
class SweepFile:
    """Holds what a sweep's file says, checked but for what the experiment itself checks.

    Attributes:
        path: of the file.
        fixed: options of `agentkit train` by name, with underscores.
        sweep: the table [sweep].
        search: the settings to search, by path: ``set.learning_rate``, ``env_set.rows``, ``num_envs``.
        jobs: runs at a time.
    """

    path: Path
    fixed: dict[str, Any]
    sweep: dict[str, Any]
    search: dict[str, Any]
    jobs: int

    def words(self, parameters: Mapping[str, Any]) -> list[str]:
        """Returns the command line of ``agentkit train`` for a trial's settings, without its first word."""
        chosen: dict[str, Any] = {**self.fixed, **{table: dict(self.fixed.get(table, {})) for table in _TABLES}}
        for name, value in parameters.items():
            table, dot, key = name.partition(".")
            if dot:
                chosen[table][key] = value
            else:
                chosen[name] = value
        words = [str(chosen.pop("agent"))]
        for name, value in chosen.items():
            option = f"--{name.replace('_', '-')}"
            if name in _TABLES:
                text = plain_text if name == "env_set" else text_of  # Nobody says of which type these are to be.
                words += [word for key, each in value.items() for word in (option, f"{key}={text(each)}")]
            elif value is True:
                words.append(option)
            elif isinstance(value, list):
                words += [word for each in value for word in (option, text_of(each))]
            elif value is not False:
                words += [option, text_of(value)]
            elif (refusal := f"--no-{option.removeprefix('--')}") in options("train"):
                words.append(refusal)
        return words


def read_sweep_file(path: str | Path) -> SweepFile:
    """Reads a sweep's file.

    Raises:
        ConfigError: it cannot be read, or says what cannot be.
        UnknownNameError: it has a name that nothing has; proposes the nearest one.
    """
    try:
        content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"The sweep file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no TOML: {error}.") from error
    try:
        sweep, search = _table(content, "sweep"), _table(content, "search")
        _check_names("key of [sweep]", sweep, _SWEEP_KEYS)
        top = {name: value for name, value in content.items() if name not in ("sweep", "search")}
        fixed, search = in_one_spelling(top, "_"), in_one_spelling(search, "_")
        _check_fixed(fixed)
        if "eval_every" not in fixed:  # At the same steps in all trials, however long their episodes.
            fixed["eval_every"] = max(fixed["steps"] // 10, 1)
        fixed.setdefault("eval_episodes", _EPISODES)
        jobs = sweep.pop("jobs", 1)
        if type(jobs) is not int or jobs < 1:
            raise ConfigError(f"sweep.jobs: expected a whole number of at least 1, found {jobs!r}.")
        return SweepFile(Path(path), fixed, sweep, _search(search, fixed), jobs)
    except AgentkitError as error:
        raise type(error)(f"{path}: {error}") from error


def make_plan(file: SweepFile, make_experiment: Any) -> Any:
    """Returns the `SweepPlan` of a file.

    Raises:
        ConfigError: a value is of another type than its setting, or not in its range.
    """
    from agentkit.cli.training.seeds import parse_seeds
    from agentkit.experiment.sweeps.plan import SweepPlan, refuse_pruning

    try:
        settings = dict(file.sweep)
        if "trials" in settings:
            settings["num_trials"] = settings.pop("trials")
        seeds = settings.get("seeds", [0])
        settings["seeds"] = parse_seeds(seeds) if isinstance(seeds, str) else seeds
        if not isinstance(settings["seeds"], list) or not all(type(seed) is int for seed in settings["seeds"]):
            raise ConfigError(f'sweep.seeds: expected numbers such as [0, 1] or "0:2", found {seeds!r}.')
        refuse_pruning(settings.get("method", "random"), settings)  # Also values that are a plan's own.
        if file.sweep.get("method") == "tpe":
            settings.setdefault("prune_after", int(file.fixed["steps"]) // _PRUNE_AFTER)
        space = {name: _values(name, given, file.fixed["agent"]) for name, given in file.search.items()}
        described = {"fixed": file.fixed, "search": file.search, **settings}
        described.pop("num_trials", None)
        key = {name: value for name, value in described.items() if name not in ("fixed", "search")}
        key |= {**file.fixed, "search": file.search}
        on_device = bool(file.fixed.get("on_device", False)) and "policies" not in file.fixed
        return SweepPlan(space, make_experiment, on_device=on_device, key=key, **settings)
    except AgentkitError as error:
        raise type(error)(f"{file.path}: {error}") from error


def text_of(value: Any) -> str:
    """Returns a value of TOML as it is written on a command line.

    >>> text_of([64, 64]), text_of(True), text_of(1e-3)
    ('64,64', 'true', '0.001')
    """
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return ",".join(map(text_of, value))
    return str(value)


def _table(content: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = content.get(name)
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"there is no table [{name}]. See docs/sweeps.md for an example.")
    return dict(found)


def _check_names(kind: str, given: Mapping[str, Any], known: Any) -> None:
    for name in given:
        if name not in known:
            raise unknown_name(kind, name, known)


def _check_fixed(fixed: dict[str, Any]) -> None:
    known = {option.removeprefix("--").replace("-", "_") for option in options("train")} - set(_NOT_IN_A_FILE)
    for name in ("seed", "seeds", "jobs"):
        if name in fixed:
            raise ConfigError(f"{name} belongs into the table [sweep].")
    _refuse_settings([name for name in fixed if name not in {"agent", *known}], fixed.get("agent"))
    _check_names("option", fixed, {"agent", *known})
    for name in ("agent", "env", "steps"):
        if name not in fixed:
            raise ConfigError(f"{name} is missing. Example: {name} = {_EXAMPLES[name]}")
    try:
        fixed["steps"] = positive(str(fixed["steps"]))  # "20k", too.
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"steps: {error}.") from error
    if fixed.get("eval_every") == 0:
        raise ConfigError("eval_every must not be 0: trials are compared by their evaluations.")
    for name, value in fixed.items():
        if isinstance(value, dict) != (name in _TABLES):
            raise ConfigError(f"{name}: expected {'a table' if name in _TABLES else 'a value'}, found {value!r:.60}.")


def _refuse_settings(unknown: Sequence[str], agent: Any) -> None:
    """Refuses the agent's settings among the unknown options of a file."""
    from agentkit.agents import registry

    if unknown and agent in registry.names():
        for name in unknown:
            if name in field_types(registry.config_class(agent)):
                raise ConfigError(f"{name} is a setting of {agent}: it belongs into the table [set].")


_EXAMPLES = {"agent": '"dqn"', "env": '"gymnasium:CartPole-v1"', "steps": "20_000"}


def _search(search: Mapping[str, Any], fixed: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings to search by path, each with what TOML says of its values."""
    found: dict[str, Any] = {}
    for name, given in search.items():
        if name in _TABLES:
            if not isinstance(given, dict):
                raise ConfigError(f"search.{name}: expected a table, found {given!r:.60}.")
            found |= {f"{name}.{key}": values for key, values in given.items()}
        elif name in _SEARCHED_OPTIONS:
            found[name] = given
        else:
            advice = "The agent's settings belong into [search.set], the environment's into [search.env_set]."
            raise unknown_name("name in [search]", name, (*_TABLES, *_SEARCHED_OPTIONS), advice)
    for name in found:
        table, _, key = name.rpartition(".")
        if key in (fixed.get(table, {}) if table else fixed):
            raise ConfigError(f"{name} is both fixed and searched; take one of them out.")
    return found


def _values(name: str, given: Any, agent: str) -> Any:
    """Returns a `Choice` or `Interval`, whose values have the setting's type and are in its range."""
    from agentkit.experiment.sweeps.space import Choice, Interval

    try:
        if isinstance(given, list):
            for value in given:
                _check_value(name, value, agent)
            return Choice(tuple(given))
        if not isinstance(given, dict) or not {"low", "high"} <= given.keys():
            raise ConfigError(f"expected values such as [1, 2] or {{low = 1, high = 2}}, found {given!r:.60}.")
        _check_names("key of an interval", given, _INTERVAL_KEYS)
        low, high, log, num = given["low"], given["high"], given.get("log", False), given.get("num")
        for value in (low, high):
            if type(value) not in (int, float):
                raise ConfigError(f"expected numbers for low and high, found {value!r}.")
            _check_value(name, value, agent)
        if type(log) is not bool or (num is not None and type(num) is not int):
            raise ConfigError(f"expected log = true or false and num = a whole number, found {log!r} and {num!r}.")
        return Interval(low, high, log, _is_whole(name, low, high, agent), num)
    except AgentkitError as error:
        raise type(error)(f"search.{name}: {error}") from error


def _check_value(name: str, value: Any, agent: str) -> None:
    from agentkit.agents import registry
    from agentkit.agents.common.ranges import check_setting

    table, _, key = name.rpartition(".")
    if table != "set":
        return  # The environment and the experiment say which values they take.
    cls = registry.config_class(agent)
    hints = field_types(cls)
    if key not in hints:
        raise unknown_name(f"config field of {agent}", key, hints, f"See: agentkit show {agent}")
    try:
        check_setting(cls, key, parse_value(text_of(value), hints[key]))
    except (ValueError, TypeError) as error:
        if isinstance(error, AgentkitError):
            raise
        raise ConfigError(f"{error} ({type_name(hints[key])}).") from error


def _is_whole(name: str, low: Any, high: Any, agent: str) -> bool:
    from agentkit.agents import registry

    table, _, key = name.rpartition(".")
    if table != "set":
        return type(low) is int and type(high) is int
    hint = field_types(registry.config_class(agent))[key]
    return int in (hint, *typing.get_args(hint)) and float not in (hint, *typing.get_args(hint))
