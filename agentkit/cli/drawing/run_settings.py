"""Reads from a run's config what tells it from runs that are no seeds of the same setting, and puts that into words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

# What counts beside the agent and the environment, with the value of a folder that does not say. How a run was
# launched is left out: it says where the work was done.
_DEFAULTS: Mapping[str, Any] = {
    "replay": None,
    "num_envs": None,
    "on_device": False,
    "data": None,
    "init_from": None,
    "init_checkpoint": "newest",
    "opponents": None,
    "policy_of": None,
    "count_steps_by": None,
}
_AROUND = {*_DEFAULTS, "policies", "wrappers", "environment_function", "offline"}
_ADDONS = "agentkit.agents.addons."
_PLUMBING = "rewards"  # The module of add-ons that others are made with.


def settings_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings by which the runs of an environment are told apart, by name, as plain values.

    Code is there by its name alone: an edit of its source makes no other setting.

    Args:
        config: of `open_run`.
    """
    from agentkit.experiment.config.recipes import names_only

    policies = {name: _of_agent(policy) for name, policy in config.get("policies", {}).items()}
    learning = [policy for policy in policies.values() if "agent" in policy]
    agent = learning[0] if learning and learning.count(learning[0]) == len(learning) else _of_agent(config)
    settings: dict[str, Any] = {"agent": _agent_name(config), "parts": agent["agent_parts"]}
    settings["policies"] = {name: None if policy == agent else policy for name, policy in policies.items()}
    settings |= {name: names_only(config.get(name, default)) for name, default in _DEFAULTS.items()}
    settings["num_envs"] = settings["num_envs"] or 1
    settings |= {f"env_set.{name}": value for name, value in _by_name(config, "environment_settings").items()}
    settings["wrappers"] = names_only(config.get("wrappers", []))
    settings["environment_function"] = names_only(config.get("environment_function"))
    if (offline := config.get("offline")) is not None:
        settings |= {"offline": True, "data": offline.get("dataset")}
    of_config = agent["agent_config"].items()
    return settings | {f"config.{name}" if name in settings else name: value for name, value in of_config}


def is_around_agent(name: str) -> bool:
    """Returns whether a setting of `settings_of` is none of the agent itself, and may differ by environment."""
    return name in _AROUND or name.startswith("env_set.")


def environment_of(config: Mapping[str, Any]) -> str:
    """Returns the name of a run's environment; one of the user's own code is called as its function."""
    function = config.get("environment_function")
    return config["environment"] or ("own environment" if function is None else _text(function))


def setting_text(name: str, settings: Mapping[str, Any]) -> str:
    """Returns a setting as a label has it: ``learning_rate=linear(0.001, 0, 1000)``, ``parts=impala``."""
    value = settings.get(name)
    if name == "parts":
        return f"{name}={_parts_text(value or {})}"
    if name == "policies":
        return f"{name}={', '.join(value or {})}"
    return f"{name}={_text(value)}"


def _by_name(record: Mapping[str, Any], part: str) -> dict[str, Any]:
    from agentkit.experiment.config.recipes import names_only

    return {name: names_only(code) for name, code in record.get(part, {}).items()}


def _of_agent(record: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a record says of an agent; of a policy that does not learn all that there is."""
    if "agent" not in record:
        return dict(record)
    return {"agent": record["agent"], **{part: _by_name(record, part) for part in ("agent_config", "agent_parts")}}


def _agent_name(config: Mapping[str, Any]) -> str:
    """Returns the agent's name; of several policies the names of those that learn, each once."""
    found = [config["agent"], *(policy.get("agent") for policy in config.get("policies", {}).values())]
    return ", ".join(dict.fromkeys(filter(None, found))) or "own agent"


def _text(code: Any) -> str:
    """Returns a value of `recipes.encode` as a person writes it, its classes and functions by their bare names."""
    if isinstance(code, list):
        return f"({', '.join(map(_text, code))}{',' if len(code) == 1 else ''})"
    if not isinstance(code, Mapping):
        return str(code)
    if "partial" in code:
        arguments = [*map(_text, code["args"]), *(f"{name}={_text(value)}" for name, value in code["keywords"].items())]
        return f"{_text(code['partial'])}({', '.join(arguments)})"
    if "type" in code:
        return f"{_bare(code['type']).lower()}({', '.join(map(_text, code['fields'].values()))})"
    if "dict" in code:
        return f"{{{', '.join(f'{_text(key)}: {_text(value)}' for key, value in code['dict'])}}}"
    if "list" in code:
        return f"[{', '.join(map(_text, code['list']))}]"
    name = code.get("function") or code.get("name")
    if isinstance(name, str):
        return _bare(name)
    return str(next((code[key] for key in ("unnamed", "path", "array", "same_as") if key in code), dict(code)))


def _bare(name: str) -> str:
    return name.rpartition(":")[2].rpartition(".")[2]


def _parts_text(parts: Mapping[str, Any]) -> str:
    """Returns what an agent's parts are known by: a torso, add-ons and what they are for, the user's own code."""
    from agentkit.networks.own_torso import TORSOS

    torsos = {f"{torso.__module__}:{torso.__qualname__}": name for name, torso in TORSOS.items()}  # type: ignore[attr-defined]
    words: dict[str, dict[str, None]] = {}
    for name, fields in _names(parts):
        module, _, short = name.partition(":")
        addon = module.removeprefix(_ADDONS)
        if name in torsos:
            words.setdefault(torsos[name], {})
        elif addon not in (module, _PLUMBING):  # It has several parts, and not each says all that it is for.
            switched_on = [field for field, value in fields.items() if value is True]
            words.setdefault(addon, {}).update(dict.fromkeys(switched_on))
        elif not module.startswith("agentkit."):
            words.setdefault(short, {})
    told = [f"{word}({', '.join(purposes)})" if purposes else word for word, purposes in words.items()]
    return ", ".join(told or parts) or "None"


def _names(code: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the name of each function and class in a code, with the fields of a class."""
    if isinstance(code, Mapping):
        for key, value in code.items():
            if key in ("function", "type", "name") and isinstance(value, str):
                yield value, code.get("fields", {})
            else:
                yield from _names(value)
    elif isinstance(code, list):
        for value in code:
            yield from _names(value)
