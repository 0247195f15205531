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
from agentkit.envs import given, prefixes
from agentkit.errors import ConfigError
from agentkit.experiment.config import callback_record
from agentkit.experiment.config.codes import Code, in_short, parse
from agentkit.experiment.config.recipes import Checked, check, encode, names_only
from agentkit.experiment.config.trust import (
    check_gymnasium_name,
    check_logger_name,
    import_named,
    logger_modules,
    packages_outside,
)

AGENT_PARTS = ("agent", "agent_config", "agent_parts", "agent_code")
ENVIRONMENT_PARTS = ("environment", "environment_function", "environment_factory", "environment_settings", "wrappers")
_BY_NAME = ("agent_config", "agent_parts", "environment_settings")
KINDS: dict[str, tuple[type, ...]] = {
    "agent": (str, type(None)),
    "agent_config": (dict,),
    "agent_parts": (dict,),
    "agent_code": (dict,),
    "environment": (str, type(None)),
    "environment_function": (dict, type(None)),
    "environment_factory": (dict, type(None)),
    "environment_settings": (dict,),
    "wrappers": (list,),
}
"""Types that the parts of a record may have."""
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
    parts = {
        field.name: encode(getattr(agent, field.name), settings)
        for field in dataclasses.fields(agent)
        if name is not None or getattr(agent, field.name) is not field.default
    }
    if name is None:
        return {"agent": None, "agent_config": fields, "agent_parts": parts | {"config": encode(settings)}}
    stock = registry.module(name).make_agent(settings).with_num_envs(num_envs)
    parts = {part: code for part, code in parts.items() if code != encode(getattr(stock, part), settings)}
    code = encode(registry.module(name).make_agent)
    return {"agent": name, "agent_config": fields, "agent_parts": parts, "agent_code": code}


def describe_environment(environment: Any, settings: Mapping[str, Any], wrappers: Sequence[Any]) -> dict[str, Any]:
    """Describes an environment as plain values."""
    by_name = isinstance(environment, str)
    factory = prefixes.registered(environment) if by_name else None
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


def rebuild_agent(record: Mapping[str, Any], checked: Mapping[str, Checked], run: object) -> Any:
    """Makes the agent of a record.

    Args:
        record: what `describe_agent` returned.
        checked: what `check_rebuildable` returned for it.
        run: the run folder, for messages.

    Raises:
        ConfigError: it has settings that this version does not know, or a part cannot be found.
    """
    parts, name = _under(checked, "agent_parts"), record["agent"]
    if name is None:
        if "agent" in parts:
            return parts["agent"].build()
        if "config" not in parts:
            raise ConfigError(f"{run} is damaged: agent_parts has no config. Restore it, or train anew.")
        config = parts.pop("config").build()
        return Agent(config, **{part: code.build(config) for part, code in parts.items()})
    settings = {field: code.build() for field, code in _under(checked, "agent_config").items()}
    unknown = settings.keys() - {field.name for field in dataclasses.fields(registry.config_class(name))}
    if unknown:
        raise ConfigError(
            f"The run {run} has settings of agent {name!r} that this version does not know: {sorted(unknown)}. "
            f"Use the version of agentkit it was made with, {record.get('versions')}, or train anew."
        )
    stock: Any = registry.make(name, settings)
    if not parts:
        return stock
    return dataclasses.replace(stock, **{part: code.build(stock.config) for part, code in parts.items()})


def rebuild_environment(record: Mapping[str, Any], checked: Mapping[str, Checked]) -> dict[str, Any]:
    """Makes the fields of an `ExperimentConfig` that define the environment, but for its wrappers.

    Args:
        record: what `describe_environment` returned.
        checked: what `check_rebuildable` returned for it.
    """
    environment = record["environment"]
    if environment is None:
        environment = checked["environment_function"].build()
    elif record.get("environment_factory") is not None:
        _restore_factory(environment, record["environment_factory"], checked.get("environment_factory"))
    return {
        "environment": environment,
        "environment_settings": {name: code.build() for name, code in _under(checked, "environment_settings").items()},
    }


def _under(checked: Mapping[str, Checked], part: str) -> dict[str, Checked]:
    """Returns the codes of a part that has several, by their names."""
    return {path.removeprefix(f"{part}."): code for path, code in checked.items() if path.startswith(f"{part}.")}


def _restore_factory(environment: str, code: Any, checked: Checked | None) -> None:
    """Registers the prefix of an environment's name again, unless the program has done so itself: `checked` is None."""
    prefix = environment.partition(":")[0]
    if checked is not None:
        factory = checked.build()  # Importing its module may register it.
        if prefixes.registered(environment) is None:
            prefixes.register(prefix, factory)
        return
    found = encode(prefixes.registered(environment))
    if names_only(found) != names_only(code):
        raise ConfigError(
            f"The environment prefix {prefix!r} was registered for {_short(code)}, and is here for "
            f"{_short(found)}. Register what the run was made with."
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


def rebuild_loggers(codes: Sequence[Any], run: object, imports: Sequence[str]) -> list[Any]:
    """Makes the loggers of a record again; one of code that is not there, or not trusted, is a `MissingLogger`.

    Raises:
        ConfigError: one is nothing that `describe_loggers` writes.
    """
    found: list[Any] = []
    for number, code in enumerate(codes):
        parsed = parse(code, f"{run}, loggers[{number}]")
        try:
            for _, reason in parsed.unnamed(""):
                raise ConfigError(reason)
            (checked,) = check([parsed], imports, run)
            logger = checked.build()
            check_logger_name(logger, imports, run)
            found.append(logger)
        except ConfigError as error:
            found.append(MissingLogger(code, str(error).rstrip(".")))
    return found


def rebuild_replay(code: Any, run: object, imports: Sequence[str]) -> Any:
    """Makes the function again that makes a run's replay.

    Raises:
        ConfigError: it was a lambda, a closure or of ``__main__``: such a run is given it again, as ``replay=``.
        UntrustedCodeError: it is of a module that is neither loaded nor named.
    """
    parsed = parse(code, f"{run}, replay")
    for path, reason in parsed.unnamed("replay"):
        raise ConfigError(
            f"The run {run} was made with your own code, which its folder cannot rebuild: {path} is {reason}. Give "
            "replay= again; to evaluate or load it, replay='in_process' does."
        )
    return check([parsed], imports, run)[0].build()


def check_rebuildable(
    record: Mapping[str, Any],
    run: object,
    imports: Sequence[str],
    names: Sequence[str] = (*AGENT_PARTS, *ENVIRONMENT_PARTS),
) -> dict[str, Checked]:
    """Refuses a record whose parts cannot be named, or name code that the user has not asked for.

    Args:
        record: what `describe_agent` and `describe_environment` returned.
        run: the run folder, for messages.
        imports: packages that the user named; they are imported.
        names: the parts that are to be made again.

    Returns:
        The codes that it has checked, by path: `rebuild_agent` and `rebuild_environment` use nothing else.

    Raises:
        ConfigError: a part was a lambda, a closure, of ``__main__``, or of no type that can be written; or the record
            is damaged.
        UntrustedCodeError: a part is code of a module that is neither loaded nor named.
    """
    import_named(imports)
    if (wrong := wrong_kind(record, KINDS)) is not None:
        raise ConfigError(f"{run} is damaged: {wrong}. Restore it, or train anew.")
    if "environment" in names and not record.get("offline", {}).get("evaluates", True):
        raise ConfigError(f"The run {run} is from data alone and has no environment. Give one, as environment=.")
    parts = {name: record[name] for name in names if record.get(name) is not None}
    factory = parts.get("environment_factory")
    if factory is not None and prefixes.registered(record["environment"]) is not None:
        del parts["environment_factory"]  # The program has it, and `_restore_factory` compares them.
    codes = _codes(parts, f"{run}, ")
    found = _unnamed(codes)
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
    checked = check(list(codes.values()), imports, run)
    if "environment" in parts:
        check_gymnasium_name(parts["environment"], imports, run)
    return dict(zip(codes, checked, strict=True))


def what_the_folder_lacks(record: Mapping[str, Any]) -> str | None:
    """Returns a sentence on the parts that a run folder will not be able to make again; None where it has all."""
    found = _unnamed(_codes(_described(record)))
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
    if lacking & set(ENVIRONMENT_PARTS) - {"wrappers"}:  # Arguments are those of the environment that is not given.
        names += ["environment", *(["environment_settings"] if record.get("environment_settings") else [])]
    if "wrappers" in lacking:
        names.append("wrappers")
    return " and ".join(f"{name}=" for name in names)


def _unnamed(codes: Mapping[str, Code]) -> list[tuple[str, str]]:
    return [found for path, code in codes.items() for found in code.unnamed(path)]


def wrong_kind(record: Mapping[str, Any], kinds: Mapping[str, tuple[type, ...]]) -> str | None:
    """Says which value of a record is of another type than its name may have; None where none is."""
    for name, value in record.items():
        if name in kinds and type(value) not in kinds[name]:
            expected = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds[name])
            return f"{name} is {in_short(value)}, expected {expected}"
    return None


def _codes(parts: Mapping[str, Any], where: str = "") -> dict[str, Code]:
    """Reads what `encode` has written of the parts of a record; returns each code by its path."""
    found: dict[str, Code] = {}
    for part, code in parts.items():
        if part in _BY_NAME:
            found |= {f"{part}.{name}": parse(child, f"{where}{part}.{name}") for name, child in code.items()}
        else:
            found[part] = parse(code, where + part)
    return found


def packages_of(record: Mapping[str, Any]) -> list[str]:
    """Returns the packages that ``--import`` has to name for another program to rebuild a run."""
    callbacks = [each.code for each in callback_record.read(record.get("callbacks", []))]
    codes = (*_codes(_described(record)).values(), *callbacks)
    modules = [module for code in codes for module in code.modules()]
    return packages_outside([*modules, *logger_modules(record.get("loggers", ()))])


def difference(saved: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, Any, Any] | None:
    """Returns the first part in which two records differ by name, with what differs; None if they are one run's."""
    for part in (*AGENT_PARTS[:3], *ENVIRONMENT_PARTS):  # The agent's own file is named by the agent.
        one, other = (record.get(part, _EMPTY.get(part)) for record in (saved, now))
        ones, others = (_codes({part: value}) for value in (one, other))
        if ones.keys() != others.keys() or not all(code.same(others[path]) for path, code in ones.items()):
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
    found, others = ({**_codes(_described(record)), **_training(record)} for record in (saved, now))
    names = {name for path in found.keys() & others.keys() for name in found[path].changed(others[path])}
    for name in sorted(names):
        module = sys.modules.get(name.partition(":")[0])
        warnings.warn(
            f"{name}, or what it uses of its own package, has changed since the run {run} was made, or cannot be "
            f"compared: see {getattr(module, '__file__', 'where it was made')}.",
            ChangedCodeWarning,
            stacklevel=1,  # Always this line: Python then says it once, however often the folder is read.
        )


def _training(record: Mapping[str, Any]) -> dict[str, Code]:
    """Returns the codes of those callbacks of a record that change the training."""
    saved = callback_record.read(record.get("callbacks", []))
    codes = [each.code for each in saved if each.changes_training]
    return {f"callbacks[{number}]": code for number, code in enumerate(codes)}


def _described(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record[name] for name in (*AGENT_PARTS, *ENVIRONMENT_PARTS) if record.get(name) is not None}
