"""Puts columns beside the policy's extras: entries of the environment's info, and ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, final

import dm_env
import numpy as np

from agentkit import core
from agentkit.adders.base import read
from agentkit.errors import CheckpointError, ConfigError
from agentkit.types import FIRST, WAIT, Nest


@final
class ColumnsAdder(core.Adder):
    """Adds columns to the extras of each step, for an adder that stores them.

    ``t`` counts the steps of an episode before this one, ``episode`` the environment's episodes before it, and
    ``environment`` says which of an actor's environments it is. The others come from the environment itself, as they
    are after the step, like the reward.
    """

    def __init__(
        self,
        adder: core.Adder,
        columns: Mapping[str, Any],
        read_info: Callable[[], Mapping[str, np.ndarray]],
        *,
        num_envs: int | None = None,
        number: int = 0,
    ):
        """Makes a `ColumnsAdder`.

        Args:
            adder: made with `with_columns` of the extras' specs; it is closed with this.
            columns: their specs by name.
            read_info: returns the newest values of those that are no ids, with leaves ``[N, ...]`` of a batch.
            num_envs: N, for a batch of environments that step together; None for one.
            number: of the one environment.
        """
        self._adder = adder
        self._names = tuple(columns)
        self._read_info = read_info
        shape = () if num_envs is None else (num_envs,)
        self._t = np.zeros(shape, np.int32)
        self._episode = np.full(shape, -1, np.int32)
        self._environment = np.int32(number) if num_envs is None else np.arange(num_envs, dtype=np.int32)

    def add_first(self, timestep: dm_env.TimeStep) -> None:
        """Starts an episode, of a batch one in each environment."""
        self._t, self._episode = np.zeros_like(self._t), self._episode + np.int32(1)
        self._adder.add_first(timestep)

    def add(self, action: Nest, next_timestep: dm_env.TimeStep, extras: Nest = ()) -> None:
        """Adds a step with its columns."""
        found = {"t": self._t, "episode": self._episode, "environment": self._environment, **self._read_info()}
        self._adder.add(action, next_timestep, with_columns(extras, {name: found[name] for name in self._names}))
        step_type = np.asarray(next_timestep.step_type)
        begins = step_type == FIRST  # Of a batch only, as WAIT.
        self._t = np.where(begins, 0, self._t + (step_type != WAIT)).astype(np.int32)
        self._episode = self._episode + begins.astype(np.int32)

    def reset(self) -> None:
        """Drops the unfinished episode."""
        self._adder.reset()

    def close(self) -> None:
        """Closes the adder."""
        self._adder.close()

    def save(self) -> dict[str, Any]:
        """Returns the counts and the adder's state (a `Saveable`)."""
        return {"adder": self._adder.save(), "t": self._t, "episode": self._episode}  # type: ignore[attr-defined]

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned."""
        adder, t, episode = read(state, "adder", "t", "episode")
        if np.shape(t) != self._t.shape:
            raise CheckpointError(f"Expected counts of shape {self._t.shape}, found {np.shape(t)}. Keep num_envs.")
        self._t, self._episode = np.array(t, np.int32), np.array(episode, np.int32)
        self._adder.restore(adder)  # type: ignore[attr-defined]


def with_columns(extras: Nest, columns: Mapping[str, Any]) -> Nest:
    """Returns a policy's extras, or their specs, with more columns: in their field ``columns``, or as a dictionary.

    Raises:
        ConfigError: the extras are neither a dictionary, nor a NamedTuple with that field, nor ().
    """
    if not columns:
        return extras
    if isinstance(extras, dict) or (isinstance(extras, tuple) and not extras):
        return {**dict(extras), **columns}
    if hasattr(extras, "_replace") and "columns" in extras._fields:
        return extras._replace(columns={**dict(extras.columns), **columns})
    raise ConfigError(
        f"columns: the policy emits a {type(extras).__name__} with each action, in which there is no place for them. "
        "Let it emit a dictionary, or a NamedTuple with a field `columns`."
    )
