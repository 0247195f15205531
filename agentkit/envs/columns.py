"""Columns that are stored beside the steps where a run asks for them: entries of gymnasium's info, and ids."""

from __future__ import annotations

import ast
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


def check_columns(columns: Any) -> tuple[str, ...]:
    """Returns columns as a tuple, if they are some: a name each, and behind "=" its value where the info lacks it.

    Raises:
        ConfigError: it is no list of names, one is given twice, or a value is no number and no list of numbers.
        UnknownNameError: one is neither an id nor an entry of the info.
    """
    if (
        isinstance(columns, str)
        or not isinstance(columns, Sequence)
        or not all(isinstance(each, str) for each in columns)
    ):
        raise ConfigError(f'columns: expected a list of names, such as ("info.success", "t"), found {columns!r}.')
    names = [_parse(each)[0] for each in columns]
    for name in names:
        if name not in IDS and not (name.startswith(_INFO) and name != _INFO):
            raise unknown_name("column", name, IDS, "Or an entry of gymnasium's info, such as info.success.")
    if len(set(names)) < len(names):
        raise ConfigError(f"columns: each name once, found {', '.join(columns)}.")
    return tuple(columns)


def _parse(column: str) -> tuple[str, np.ndarray | None]:
    """Returns a column's name, and its value where the info lacks it; None where that was not said."""
    name, equals, text = column.partition("=")
    if not equals:
        return name, None
    try:
        value = np.asarray(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError):
        value = np.asarray(text)
    if not name.startswith(_INFO) or value.dtype.kind not in "biuf":
        raise ConfigError(
            f"columns: expected an entry of the info, and its value where it is absent, a number or a list of "
            f"numbers, such as info.is_success=False, found {column}."
        )
    return name, specs.fit_array(value, stored_as(name, value), f"columns: {name}")


def stored_as(name: str, value: np.ndarray) -> specs.Array:
    """Returns the spec of a column of such values: doubles are stored as singles, and longs as int32."""
    return specs.Array(value.shape, _NARROWER.get(value.dtype, value.dtype), name)


@final
class ColumnSource(EnvironmentWrapper):
    """Tells the specs of columns, and has the newest values of those that are entries of the info.

    An entry's shape and dtype are those of its value where the info lacks it (``info.is_success=False``). Where that is
    not said they are those of its first value, in a reset or a first step, and the value where the info lacks it is
    zero. A dot leads into an inner dictionary.

    Works on a batch where no entry of the info is asked for.

    Args:
        environment: with ``last_info``, where an entry of it is asked for.
        columns: see `check_columns`.

    Raises:
        ConfigError: the environment has no info, or its info has no such entry at first, and no value for
            that was given.
        SpecError: an entry is no number and no array of numbers.
    """

    works_on_batches = True

    def __init__(self, environment: dm_env.Environment, columns: Sequence[str]):
        super().__init__(environment)
        parsed = dict(map(_parse, check_columns(columns)))
        self._entries = {name: name.removeprefix(_INFO) for name in parsed if name not in IDS}
        self._absent = {name: value for name, value in parsed.items() if value is not None}
        if self._entries:
            self._check_has_info()
        if unsaid := self._entries.keys() - self._absent.keys():
            self._absent |= self._look({name: entry for name, entry in self._entries.items() if name in unsaid})
        ids = {name: specs.Array((), np.int32, name) for name in IDS}
        entries = {name: specs.Array(value.shape, value.dtype, name) for name, value in self._absent.items()}
        self._spec = {name: (ids | entries)[name] for name in parsed}  # In their order.

    def _check_has_info(self) -> None:
        if specs.is_batched(self._environment) or not hasattr(self._environment, "last_info"):
            kind = "a batch of a simulator's own" if specs.is_batched(self._environment) else "an environment"
            raise ConfigError(
                f"columns: {', '.join(self._entries)} is for environments with an info, as gymnasium's have, found "
                f"{kind} without one. Ask for {', '.join(IDS)} only, or for none."
            )

    def _look(self, entries: Mapping[str, str]) -> dict[str, np.ndarray]:
        """Returns zeros like the first values of entries of the info, in a reset and a first step."""
        self._environment.reset()
        infos = [self.last_info]
        self._environment.step(tree.map_structure(lambda spec: spec.generate_value(), self._environment.action_spec()))
        infos.append(self.last_info)
        return {
            name: self._zeros_like(name, [_entry(info, entry) for info in infos]) for name, entry in entries.items()
        }

    def _zeros_like(self, name: str, values: Sequence[np.ndarray | None]) -> np.ndarray:
        value = next((each for each in values if each is not None), None)
        if value is None:
            there = ", ".join(map(str, self.last_info)) or "nothing"
            raise ConfigError(
                f"columns: the info of a reset and of a first step has no {self._entries[name]!r}; that of the step "
                f"has {there}. If later ones have it, say what it is without: {name}=0.0, False or [0.0, 0.0]."
            )
        if value.dtype.kind not in "biuf":
            raise SpecError(f"columns: {name} is {value!r:.80}; expected a number or an array of numbers.")
        return specs.zeros(stored_as(name, value))

    def columns_spec(self) -> dict[str, specs.Array]:
        """Returns the specs of all columns, those of ids, too."""
        return self._spec

    @property
    def info_columns(self) -> dict[str, np.ndarray]:
        """Returns the newest values of the entries of the info."""
        return {name: self._read(name, entry) for name, entry in self._entries.items()}

    def _read(self, name: str, entry: str) -> np.ndarray:
        value = _entry(self.last_info, entry)
        if value is None:
            return self._absent[name]
        return specs.fit_array(value, self._spec[name], f"columns: {name}, as it was at first", finite=False)


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
