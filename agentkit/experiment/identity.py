"""Describes a run: its agent and environment as plain values for config.json, and both made again from there.

An agent is written as a registered name, its settings, and those of its five fields that are not as the registered
agent has them. An environment is a name or a function, its arguments, and wrappers.
"""

from __future__ import annotations

import dataclasses
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, final

from agentkit.agents import registry
from agentkit.agents.common.agent import Agent
from agentkit.envs import given
from agentkit.envs import registry as environments
from agentkit.errors import ConfigError
from agentkit.experiment.recipes import changed, decode, encode, named_modules, names_only, same, unnamed
from agentkit.experiment.trust import check_gymnasium_name, check_trusted, import_named, packages_outside

AGENT_PARTS = ("agent", "agent_config", "agent_parts", "agent_code")
ENVIRONMENT_PARTS = ("environment", "environment_function", "environment_factory", "environment_settings", "wrappers")
_BY_NAME = ("agent_config", "agent_parts", "environment_settings")
_EMPTY: dict[str, Any] = {
    "agent_parts": {},
    "environment_function": None,
    "environment_factory": None,
    "environment_settings": {},
    "wrappers": [],
}


@final
class ChangedCodeWarning(UserWarning):
    """Says that code that a run was made with has changed since."""


def describe_agent(agent: Any, num_envs: int) -> dict[str, Any]:
    """Describes an agent as plain values.

    Args:
        agent: any; one of `common.agent.Agent` is described by its parts.
        num_envs: environments of an actor, which a registered agent is compared for.
    """
    settings = agent.config
    if dataclasses.is_dataclass(settings):
        fields = {field.name: encode(getattr(settings, field.name)) for field in dataclasses.fields(settings)}
    else:
        fields = {"config": encode(settings)}
    name = registry.name_of(agent)
    if not isinstance(agent, Agent):
        return {"agent": None, "agent_config": fields, "agent_parts": {"agent": encode(agent)}}
    parts = {field.name: encode(getattr(agent, field.name), settings) for field in dataclasses.fields(agent)}
    if name is None:
        return {"agent": None, "agent_config": fields, "agent_parts": parts | {"config": encode(settings)}}
    stock = registry.module(name).make_agent(settings).with_num_envs(num_envs)
    parts = {part: code for part, code in parts.items() if code != encode(getattr(stock, part), settings)}
    code = encode(registry.module(name).make_agent)
    return {"agent": name, "agent_config": fields, "agent_parts": parts, "agent_code": code}


def describe_environment(environment: Any, settings: Mapping[str, Any], wrappers: Sequence[Any]) -> dict[str, Any]:
    """Describes an environment as plain values."""
    by_name = isinstance(environment, str)
    factory = environments.registered(environment) if by_name else None
    return {
        "environment": environment if by_name else None,
        "environment_function": None if by_name else _describe_given(environment),
        "environment_factory": None if factory is None else encode(factory),
        "environment_settings": {name: encode(value) for name, value in settings.items()},
        "wrappers": [encode(wrapper) for wrapper in wrappers],
    }


def _describe_given(environment: Any) -> Any:
    if not given.is_instance(environment):
        return encode(environment)
    cls = encode(type(environment))
    name = f"{type(environment).__module__}:{type(environment).__qualname__}"
    return {"unnamed": f"an instance of {name}, not its class", "name": name, "digest": cls.get("digest")}


def rebuild_agent(record: Mapping[str, Any], run: object) -> Any:
    """Makes the agent of a record; `check_rebuildable` says before whether it can be.

    Raises:
        ConfigError: it has settings that this version does not know, or a part cannot be found.
    """
    parts, name = dict(record.get("agent_parts", {})), record["agent"]
    if name is None:
        if "agent" in parts:
            return decode(parts["agent"])
        config = decode(parts.pop("config"))
        return Agent(config, **{part: decode(code, config) for part, code in parts.items()})
    settings = {field: decode(code) for field, code in record["agent_config"].items()}
    unknown = settings.keys() - {field.name for field in dataclasses.fields(registry.config_class(name))}
    if unknown:
        raise ConfigError(
            f"The run {run} has settings of agent {name!r} that this version does not know: {sorted(unknown)}. "
            f"Use the version of agentkit it was made with: {record.get('versions')}. CHANGELOG.md says which settings "
            "have other names now."
        )
    stock: Any = registry.make(name, settings)
    if not parts:
        return stock
    return dataclasses.replace(stock, **{part: decode(code, stock.config) for part, code in parts.items()})


def rebuild_environment(record: Mapping[str, Any]) -> dict[str, Any]:
    """Makes the fields of an `ExperimentConfig` that define the environment."""
    environment = record["environment"]
    if environment is None:
        environment = decode(record["environment_function"])
    elif (code := record.get("environment_factory")) is not None:
        _restore_factory(environment, code)
    settings = record.get("environment_settings", {})
    return {
        "environment": environment,
        "environment_settings": {name: decode(value) for name, value in settings.items()},
        "wrappers": decode(record.get("wrappers", [])),
    }


def _restore_factory(environment: str, code: Any) -> None:
    """Registers the prefix of an environment's name again, unless the program has done so itself."""
    prefix = environment.partition(":")[0]
    found = environments.registered(environment)
    if found is None:
        factory = decode(code)  # Importing its module may register it.
        if environments.registered(environment) is None:
            environments.register(prefix, factory)
    elif names_only(encode(found)) != names_only(code):
        raise ConfigError(
            f"The environment prefix {prefix!r} was registered for {_short(code)}, and is here for "
            f"{_short(encode(found))}. Register what the run was made with."
        )


def _short(code: Mapping[str, Any]) -> str:
    return str(code.get("function") or code.get("type") or code.get("unnamed") or "a partial")


@final
@dataclasses.dataclass(frozen=True)
class MissingLogger:
    """Stands for a logger of a run's own that cannot be had again: evaluating such a run does not need it."""

    code: Any
    reason: str


def describe_loggers(loggers: Sequence[Any]) -> list[Any]:
    """Describes loggers as plain values: names as they are, the user's own as code."""
    return [logger.code if isinstance(logger, MissingLogger) else encode(logger) for logger in loggers]


def rebuild_loggers(codes: Any, run: object, imports: Sequence[str]) -> list[Any]:
    """Makes the loggers of a record again; one of code that is not there, or not trusted, is a `MissingLogger`."""
    found: list[Any] = []
    for code in codes if isinstance(codes, list) else ():
        try:
            reasons = [reason for _, reason in unnamed(code, "")]
            if reasons:
                raise ConfigError(reasons[0])
            check_trusted(list(named_modules(code)), imports, run)
            found.append(decode(code))
        except ConfigError as error:
            found.append(MissingLogger(code, str(error).rstrip(".")))
    return found


def check_rebuildable(
    record: Mapping[str, Any],
    run: object,
    imports: Sequence[str],
    names: Sequence[str] = (*AGENT_PARTS, *ENVIRONMENT_PARTS),
) -> None:
    """Refuses a record whose parts cannot be named, or name code that the user has not asked for.

    Args:
        record: what `describe_agent` and `describe_environment` returned.
        run: the run folder, for messages.
        imports: packages that the user named; they are imported.
        names: the parts that are to be made again.

    Raises:
        ConfigError: a part was a lambda, a closure, of ``__main__``, or of no type that can be written.
        UntrustedCodeError: a part is code of a module that is neither loaded nor named.
    """
    import_named(imports)
    if "environment" in names and not record.get("offline", {}).get("evaluates", True):
        raise ConfigError(f"The run {run} is from data alone and has no environment. Give one, as environment=.")
    parts = {name: record[name] for name in names if record.get(name) is not None}
    factory = parts.get("environment_factory")
    if factory is not None and environments.registered(record["environment"]) is not None:
        del parts["environment_factory"]  # The program has it, and `_restore_factory` compares them.
    found = _unnamed(parts)
    if record.get("agent") is None and "agent" in names and not record.get("agent_parts"):
        found.append(("agent", "of your own code"))
    if "environment" in names and record["environment"] is None and "environment_function" not in parts:
        found.append(("environment", "of your own code"))
    if found:
        raise ConfigError(
            f"The run {run} was made with your own code, which its folder cannot rebuild: {_in_words(found)}. To "
            f"evaluate or load it, give {_given_again(found, record)} again; to go on, call "
            f"agentkit.{'run_offline(config' if 'offline' in record else 'run(experiment'}, resume=True) from that "
            "code. Code in a module that can be imported would need neither."
        )
    check_trusted(_modules(parts), imports, run)
    if isinstance(parts.get("environment"), str):
        check_gymnasium_name(parts["environment"], imports, run)


def what_the_folder_lacks(record: Mapping[str, Any]) -> str | None:
    """Returns a sentence on the parts that a run folder will not be able to make again; None where it has all."""
    found = _unnamed(_described(record))
    if not found:
        return None
    return (
        f"The run folder will not know all of the run: {_in_words(found)}. To evaluate or load it, give "
        f"{_given_again(found, record)} again. Code in a module that can be imported would need neither."
    )


def _in_words(found: Sequence[tuple[str, str]]) -> str:
    return "; ".join(
        f"{path.removeprefix('agent_parts.').replace('environment_function', 'environment')} is {reason}"
        for path, reason in found
    )


def _given_again(found: Sequence[tuple[str, str]], record: Mapping[str, Any]) -> str:
    """Returns the arguments of `load` and `evaluate` that stand for these parts."""
    lacking = {path.partition(".")[0].partition("[")[0] for path, _ in found}
    names = ["agent"] if lacking - set(ENVIRONMENT_PARTS) else []
    if lacking & set(ENVIRONMENT_PARTS):  # Where it is given, nothing of the environment is taken from the folder.
        names += ["environment", *(name for name in ("environment_settings", "wrappers") if record.get(name))]
    return " and ".join(f"{name}=" for name in names)


def _unnamed(parts: Mapping[str, Any]) -> list[tuple[str, str]]:
    return [found for path, code in _codes(parts) for found in unnamed(code, path)]


def _modules(parts: Mapping[str, Any]) -> list[str]:
    return [module for _, code in _codes(parts) for module in named_modules(code)]


def _codes(parts: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Returns what `encode` has written of the parts of a record, each with its path."""
    found: list[tuple[str, Any]] = []
    for part, code in parts.items():
        if part in _BY_NAME:
            found += [(f"{part}.{name}", child) for name, child in code.items()]
        else:
            found.append((part, code))
    return found


def packages_of(record: Mapping[str, Any]) -> list[str]:
    """Returns the packages that ``--import`` has to name for another program to rebuild a run."""
    callbacks = [module for code in record.get("callbacks", []) for module in named_modules(code)]
    return packages_outside([*_modules(_described(record)), *callbacks])


def difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Returns the first part in which two records differ by name, with what differs; None if they are one run's."""
    for part in (*AGENT_PARTS[:3], *ENVIRONMENT_PARTS):  # The agent's own file is named by the agent.
        one, other = (record.get(part, _EMPTY.get(part)) for record in (saved, now))
        ones, others = (dict(_codes({part: value})) for value in (one, other))
        if ones.keys() != others.keys() or not all(same(code, others[path]) for path, code in ones.items()):
            return _narrowed(part, _shown(part, one), _shown(part, other))
    return None


def _narrowed(name: str, one: Any, other: Any) -> tuple[str, Any, Any]:
    """Returns where in a part two values differ: the innermost field, or those that do where there are several."""
    if not (isinstance(one, Mapping) and isinstance(other, Mapping)):
        return name, one, other
    keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
    if len(keys) == 1:
        return _narrowed(f"{name}.{keys[0]}", one.get(keys[0]), other.get(keys[0]))
    if not keys:
        return name, one, other
    return name, {key: one.get(key) for key in keys}, {key: other.get(key) for key in keys}


def _shown(part: str, value: Any) -> Any:
    return {name: names_only(code) for name, code in value.items()} if part in _BY_NAME else names_only(value)


def warn_of_changes(saved: Mapping[str, Any], now: Mapping[str, Any], run: object) -> None:
    """Warns about each function and class whose source has changed since a record was written."""
    found, others = (dict(_codes({**_described(record), **_training(record)})) for record in (saved, now))
    names = {name for path in found.keys() & others.keys() for name in changed(found[path], others[path])}
    for name in sorted(names):
        module = sys.modules.get(name.partition(":")[0])
        warnings.warn(
            f"{name}, or what it uses of its own package, has changed since the run {run} was made, or cannot be "
            f"compared: see {getattr(module, '__file__', 'where it was made')}.",
            ChangedCodeWarning,
            stacklevel=1,  # Always this line: Python then says it once, however often the folder is read.
        )


def _training(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the codes of those callbacks of a record that change the training."""
    return {"callbacks": [code for code in record.get("callbacks", []) if code["changes_training"]]}


def _described(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in (*AGENT_PARTS, *ENVIRONMENT_PARTS) if record.get(name) is not None}
