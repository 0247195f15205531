"""Columns that are stored beside the steps where a run asks for them: entries of gymnasium's info, and ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import ConfigError, SpecError, unknown_name
from agentkit.types import Nest
from agentkit.wrappers.base import EnvironmentWrapper

IDS = ("episode", "environment", "t")
"""Columns that whoever records the steps counts; int32 each."""

_INFO = "info."
_NARROWER = {np.dtype(np.float64): np.dtype(np.float32), np.dtype(np.int64): np.dtype(np.int32)}


def check_columns(names: Any) -> tuple[str, ...]:
    """Returns the names of columns as a tuple, if they are some.

    Raises:
        ConfigError: it is no list of names, or one is given twice.
        UnknownNameError: one is neither an id nor an entry of the info.
    """
    if isinstance(names, str) or not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise ConfigError(f'columns: expected a list of names, such as ("info.success", "t"), found {names!r}.')
    for name in names:
        if name not in IDS and not (name.startswith(_INFO) and name != _INFO):
            raise unknown_name("column", name, IDS, "Or an entry of gymnasium's info, such as info.success.")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns: each name once, found {', '.join(names)}.")
    return tuple(names)


@final
class ColumnSource(EnvironmentWrapper):
    """Tells the specs of columns, and has the newest values of those that are entries of the info.

    An entry's shape and dtype are those of its first value: the environment is reset, and takes one step where the
    info of the reset lacks the entry. An info that lacks it later means zeros. A dot leads into an inner dictionary.

    Works on a batch where no entry of the info is asked for.

    Args:
        environment: with ``last_info``, where an entry of it is asked for.
        names: see `check_columns`.

    Raises:
        ConfigError: the environment has no info, or its info has no such entry.
        SpecError: an entry is no number and no array of numbers.
    """

    works_on_batches = True

    def __init__(self, environment: dm_env.Environment, names: Sequence[str]):
        super().__init__(environment)
        names = check_columns(names)
        self._entries = {name: name.removeprefix(_INFO) for name in names if name.startswith(_INFO)}
        self._spec: dict[str, specs.Array] = {name: specs.Array((), np.int32, name) for name in names if name in IDS}
        if self._entries:
            self._spec |= self._look()
        self._spec = {name: self._spec[name] for name in names}  # In their order.

    def _look(self) -> dict[str, specs.Array]:
        """Returns the specs of the entries of the info."""
        if specs.is_batched(self._environment) or not hasattr(self._environment, "last_info"):
            kind = "a batch of a simulator's own" if specs.is_batched(self._environment) else "an environment"
            raise ConfigError(
                f"columns: {', '.join(self._entries)} is for environments with an info, as gymnasium's have, found "
                f"{kind} without one. Ask for {', '.join(IDS)} only, or for none."
            )
        self._environment.reset()
        found = {name: _entry(self.last_info, entry) for name, entry in self._entries.items()}
        if any(value is None for value in found.values()):
            action = tree.map_structure(lambda spec: spec.generate_value(), self._environment.action_spec())
            self._environment.step(action)
            found |= {name: _entry(self.last_info, self._entries[name]) for name in found if found[name] is None}
        return {name: self._spec_of(name, value) for name, value in found.items()}

    def _spec_of(self, name: str, value: np.ndarray | None) -> specs.Array:
        if value is None:
            there = ", ".join(map(str, self.last_info)) or "nothing"
            raise ConfigError(
                f"columns: the info of a reset and of a first step has no {self._entries[name]!r}; that of the step "
                f"has {there}."
            )
        if value.dtype.kind not in "biuf":
            raise SpecError(f"columns: {name} is {value!r:.80}; expected a number or an array of numbers.")
        return specs.Array(value.shape, _NARROWER.get(value.dtype, value.dtype), name)

    def columns_spec(self) -> dict[str, specs.Array]:
        """Returns the specs of all columns, those of ids, too."""
        return self._spec

    @property
    def info_columns(self) -> dict[str, np.ndarray]:
        """Returns the newest values of the entries of the info."""
        return {name: self._read(name, entry) for name, entry in self._entries.items()}

    def _read(self, name: str, entry: str) -> np.ndarray:
        spec, value = self._spec[name], _entry(self.last_info, entry)
        if value is None:
            return np.zeros(spec.shape, spec.dtype)
        return specs.fit_array(value, spec, f"columns: {name}, as it was at first", finite=False)


def _entry(info: Mapping[str, Any], name: str) -> np.ndarray | None:
    """Returns an entry of an info, or of a dictionary in it; None where there is none."""
    if name in info:
        return None if info[name] is None else np.asarray(info[name])
    outer, _, inner = name.partition(".")
    return _entry(info[outer], inner) if isinstance(info.get(outer), Mapping) else None


def stack_info_columns(environments: Sequence[Any]) -> dict[str, np.ndarray]:
    """Returns the newest values of the info's columns of several environments, ``[N, ...]``."""
    each = [environment.info_columns for environment in environments]
    return {name: np.stack([columns[name] for columns in each]) for name in each[0]}


def info_specs(columns: Nest) -> dict[str, specs.Array]:
    """Returns the part of the specs of columns that are entries of the info."""
    return {name: spec for name, spec in dict(columns).items() if name not in IDS}
