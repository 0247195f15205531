"""The time steps and actions of N environments in memory that several processes have mapped."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from typing import final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.envs.batched import check_actions
from agentkit.envs.columns import info_specs
from agentkit.errors import SpecError
from agentkit.types import Nest

_ALIGNMENT = 64

Rows = slice | np.ndarray
"""Which environments: a slice, or their numbers."""


def open_shared() -> int:
    """Opens memory that has no name and returns its descriptor: the system frees it with the last process that has it.

    Where there is no such memory, it is a file that is deleted already.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create("agentkit-environments")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


@final
class SharedColumns:
    """Holds one column ``[N, ...]`` for each leaf of a time step and of an action.

    Every process that makes it of an equal spec finds the same columns. Who writes and who reads take turns; nothing
    here waits or locks.

    Args:
        descriptor: what `open_shared` returned, here or in the process that this one was started by.
        spec: of one environment.
        num_envs: N.

    Raises:
        SpecError: a leaf has no fixed size in bytes, such as text of any length.
    """

    def __init__(self, descriptor: int, spec: specs.EnvironmentSpec, num_envs: int):
        self._num_envs = num_envs
        leaves: list[tuple[tuple[int, ...], np.dtype]] = [((), np.dtype(np.int32)), ((), np.dtype(np.float64))]
        info = info_specs(spec.columns)
        for part in (spec.rewards, spec.discounts, spec.observations, spec.actions, info):
            leaves += [(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in tree.flatten(part)]
        for _, dtype in leaves:
            if dtype.hasobject or dtype.itemsize == 0:
                raise SpecError(
                    f"Environments in workers need arrays of numbers, found dtype {dtype}. Leave --workers out, or "
                    "turn it into numbers in a wrapper."
                )
        offsets, end = [], 0
        for shape, dtype in leaves:
            offsets.append(end)
            end += -(-num_envs * int(np.prod(shape, dtype=np.int64)) * dtype.itemsize // _ALIGNMENT) * _ALIGNMENT
        if os.fstat(descriptor).st_size < end:
            os.ftruncate(descriptor, end)
        self._memory = mmap.mmap(descriptor, end)
        columns = [
            np.ndarray((num_envs, *shape), dtype, self._memory, offset)
            for (shape, dtype), offset in zip(leaves, offsets, strict=True)
        ]
        self._step_type, self._raw_return = columns.pop(0), columns.pop(0)
        self._reward, columns = _take(spec.rewards, columns)
        self._discount, columns = _take(spec.discounts, columns)
        self._observation, columns = _take(spec.observations, columns)
        self._action, columns = _take(spec.actions, columns)
        self._info, _ = _take(info, columns)

    def write_timestep(self, rows: Rows, timestep: dm_env.TimeStep) -> None:
        """Writes the time steps of some environments, leaves ``[M, ...]``."""
        self._step_type[rows] = timestep.step_type
        _write(self._reward, rows, timestep.reward)
        _write(self._discount, rows, timestep.discount)
        _write(self._observation, rows, timestep.observation)

    def read_timestep(self, rows: Rows) -> dm_env.TimeStep:
        """Returns copies of the time steps of some environments, leaves ``[M, ...]``."""
        return dm_env.TimeStep(
            np.array(self._step_type[rows]),
            _read(self._reward, rows),
            _read(self._discount, rows),
            _read(self._observation, rows),
        )

    def write_info(self, rows: Rows, values: dict[str, np.ndarray]) -> None:
        """Writes the info's columns of some environments, ``[M, ...]``."""
        for name, column in self._info.items():
            column[rows] = values[name]

    def read_info(self) -> dict[str, np.ndarray]:
        """Returns copies of the info's columns of all environments, ``[N, ...]``."""
        return {name: np.array(column) for name, column in self._info.items()}

    def write_raw_return(self, rows: Rows, values: np.ndarray) -> None:
        """Writes the raw returns of some environments, ``[M]``."""
        self._raw_return[rows] = values

    def read_raw_return(self) -> np.ndarray:
        """Returns a copy of the raw returns of all environments, ``[N]``."""
        return np.array(self._raw_return)

    def write_actions(self, rows: Rows, actions: Nest) -> None:
        """Writes the actions of some environments, leaves ``[M, ...]``.

        Raises:
            SpecError: there is not one action for each of them.
        """
        if isinstance(self._action, np.ndarray):
            self._write_leaf(self._action, rows, actions)
            return
        tree.assert_same_structure(self._action, actions)
        for column, leaf in zip(tree.flatten(self._action), tree.flatten(actions), strict=True):
            self._write_leaf(column, rows, leaf)

    def _write_leaf(self, column: np.ndarray, rows: Rows, leaf: Nest) -> None:
        num_rows = self._num_envs if isinstance(rows, slice) else len(rows)
        column[rows] = check_actions(leaf, num_rows, column.shape[1:])

    def read_actions(self, rows: Rows) -> Nest:
        """Returns copies of the actions of some environments, leaves ``[M, ...]``."""
        return _read(self._action, rows)


def _take(spec: Nest, columns: Sequence[np.ndarray]) -> tuple[Nest, list[np.ndarray]]:
    """Returns the first columns in the structure of `spec`, and those that remain."""
    count = len(tree.flatten(spec))
    return tree.unflatten_as(spec, list(columns[:count])), list(columns[count:])


def _write(columns: Nest, rows: Rows, values: Nest) -> None:
    if isinstance(columns, np.ndarray):
        columns[rows] = values
        return
    for column, leaf in zip(tree.flatten(columns), tree.flatten(values), strict=True):
        column[rows] = leaf


def _read(columns: Nest, rows: Rows) -> Nest:
    if isinstance(columns, np.ndarray):
        return np.array(columns[rows])
    return tree.map_structure(lambda column: np.array(column[rows]), columns)
