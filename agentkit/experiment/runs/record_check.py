"""Knows which entries the record of a run may have, of one agent or of several, and refuses others."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from agentkit.experiment.config import identity
from agentkit.experiment.config.codes import in_short
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.version import __version__

_NONE = type(None)
_KINDS: dict[str, tuple[type, ...]] = {
    **identity.KINDS,
    "num_steps": (int,),
    "seed": (int,),
    "replay": (str, dict),
    "num_envs": (int, _NONE),
    "evaluation_samples": (bool,),
    "on_device": (bool,),
    "tensorboard": (bool,),
    "progress": (bool, _NONE),
    "columns": (list,),
    "loggers": (list,),
    "callbacks": (list,),
    "init_from": (str, _NONE),
    "data": (str, _NONE),
    "policies": (dict,),
    "policy_of": (str, dict, _NONE),
    "opponents": (dict, _NONE),
    "count_steps_by": (str,),
    "launch": (dict,),
    "learners": (list,),
    "offline": (dict,),
    "versions": (dict,),
    "command": (list,),
}
_NAMES = {*_KINDS, *(field.name for field in dataclasses.fields(ExperimentConfig))}
_OF_SEVERAL = {"policies", "policy_of", "opponents", "count_steps_by"}
_OF_ONE = {"agent_parts", "agent_code", "columns", "devices", "evaluation_samples", "init_checkpoint", "learners",
           "offline", "video_period", "workers"}  # fmt: skip


class _Form(NamedTuple):
    """Holds what an object of a record is, which names it has to have, and may have, and types of some."""

    what: str
    needed: Collection[str]
    kinds: Mapping[str, tuple[type, ...]]
    names: Collection[str]


def _form(what: str, needed: Collection[str], kinds: Mapping[str, tuple[type, ...]]) -> _Form:
    return _Form(what, needed, kinds, kinds.keys())


_NEEDED = ("agent", "agent_config", "environment")
_RUN_OF_ONE = _Form("a run of one agent", _NEEDED, _KINDS, _NAMES - _OF_SEVERAL)
_RUN_OF_SEVERAL = _Form(
    "a run of several agents", (*_NEEDED, "num_steps", "policy_of", "loggers"), _KINDS, _NAMES - _OF_ONE
)
_LEARNING = _form("an agent", ("agent", "agent_config"), {name: identity.KINDS[name] for name in identity.AGENT_PARTS})
_FIXED = _form("a policy that learns nothing", ("frozen",), {"frozen": (dict,)})
_FROZEN = _form("a Frozen", ("run",), {"run": (str,), "policy": (str, _NONE), "checkpoint": (str, int)})
_POOL = _form("a Pool", (), {"choose": (str,), "period": (int,), "size": (int,), "share": (int, float)})


def check_record(record: Any) -> None:
    """Refuses what is no record of a run: entries that are missing, unknown there, or of another type.

    Raises:
        ValueError: it says what was expected, and what was found.
    """
    several = isinstance(record, dict) and "policies" in record
    _check(record, _RUN_OF_SEVERAL if several else _RUN_OF_ONE)
    if not several:
        return
    if not record["policies"]:
        raise ValueError("policies is {}, expected one at least")
    for policy_id, policy in record["policies"].items():
        where = f"policies[{policy_id!r}]: "
        if isinstance(policy, dict) and "frozen" in policy:
            _check(policy, _FIXED, where)
            _check(policy["frozen"], _FROZEN, where)
        else:
            _check(policy, _LEARNING, where)
    if record.get("opponents") is not None:
        _check(record["opponents"], _POOL, "opponents: ")


def _check(found: Any, form: _Form, where: str = "") -> None:
    lacking = [name for name in form.needed if name not in found] if isinstance(found, dict) else form.needed
    if not isinstance(found, dict) or lacking:
        shown = f"one without {', '.join(lacking)}" if isinstance(found, dict) else in_short(found)
        raise ValueError(f"{where}expected an object with {', '.join(form.needed)}, found {shown}")
    if (wrong := identity.wrong_kind(found, form.kinds)) is not None:
        raise ValueError(where + wrong)
    if unknown := sorted(found.keys() - form.names):
        written = f", which is said to be of {found['versions'].get('agentkit')}" if "versions" in found else ""
        names = ", ".join(unknown)[:100]
        raise ValueError(f"{where}{names} is unknown to agentkit {__version__} in {form.what}{written}")
