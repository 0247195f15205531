"""Refuses a run that needs more memory than the device has, by the shapes of its arrays, before any of them is made."""

from __future__ import annotations

import math
import os
from typing import NamedTuple

import jax

from agentkit.errors import ConfigError
from agentkit.experiment.on_device.loop import Held
from agentkit.experiment.on_device.replay.store import stores_of
from agentkit.types import Nest


class Part(NamedTuple):
    """Holds what a part of a run takes of the memory.

    Attributes:
        name: of the part, for messages.
        num_bytes: that it takes on a device; on the first one, which may have more than the others.
        remedy: how it takes less.
    """

    name: str
    num_bytes: int
    remedy: str


def check_memory(held: Held, num_runs: int = 1, num_devices: int = 1) -> str | None:
    """Returns a sentence on what the replay takes of the device's memory; None where there is no replay.

    Args:
        held: shapes and dtypes, of all runs.
        num_runs: that train side by side.
        num_devices: that share the run, or the runs.

    Raises:
        ConfigError: there is less than all parts need; what updates compute with, which only the compiler knows, comes
            on top.
    """
    parts, there = parts_of(held, num_runs, num_devices), _memory_of_a_device(num_devices)
    needed = sum(part.num_bytes for part in parts)
    if needed > there:
        parts.sort(key=lambda part: part.num_bytes, reverse=True)
        listed = ", ".join(f"{part.name} {_gb(part.num_bytes)}" for part in parts if part.num_bytes > needed / 1_000)
        fewer = ", or train fewer seeds together" if num_runs > 1 else ""
        raise ConfigError(
            f"The training on the device needs {_gb(needed)} GB of memory, and the device has {_gb(there)}: {listed}. "
            f"{parts[0].remedy}{fewer}."
        )
    num_items = _num_items(held, num_runs, num_devices)
    if not num_items:
        return None
    replay = parts[0].num_bytes
    return (
        f"The replay on the device has room for {num_items:,} items of {replay // num_items:,} bytes, {_gb(replay)} GB "
        f"of {_gb(there)}; a checkpoint has those that are in."
    )


def parts_of(held: Held, num_runs: int = 1, num_devices: int = 1) -> list[Part]:
    """Returns what each part takes of the memory of a device, the replay first.

    Runs side by side need more for a while: where one is saved or restored, its state is copied. And each has the
    training state that came out of the last chunk beside that of all, on the first device.

    Args:
        held: see `check_memory`, as the others.
        num_runs: likewise.
        num_devices: likewise.
    """
    state, scratch = held.state, held.scratch
    num_items, training = _num_items(held, num_runs, num_devices), _size(held.training)
    of_run = num_devices if _is_population(held) else 1  # A run that several devices share has this on each of them.
    environments = state.acting._replace(opponents=())
    fewer_environments = "Take fewer environments (num_envs)"
    smaller_replay = "Lower replay_size or store smaller observations"
    parts = [
        Part(f"the replay of {num_items:,} items", _size(state.store) // of_run, smaller_replay),
        Part(
            "the segments of a round",
            _size(scratch.segments) // num_devices,
            f"{fewer_environments} or shorter segments (segment_length)",
        ),
        Part("the environments", _size(environments) // num_devices, fewer_environments),
        Part("the pool of resets", _size(scratch.resets) // of_run, "Lower reset_pool"),
        Part("the pools of opponents", _size(state.acting.opponents) // of_run, "Lower the size of the Pool"),
        Part("the training state", training // of_run, "Take smaller networks"),
    ]
    if _is_population(held):
        parts.append(Part("a copy of each run's training state", training, "Take smaller networks"))
        parts.append(Part("a copy of one run while it is saved", _size(state) // num_runs, smaller_replay))
    return parts


def _is_population(held: Held) -> bool:
    """Returns whether runs train side by side, whose arrays have an axis of their own."""
    return bool(held.state.acting.num_steps.ndim)


def _num_items(held: Held, num_runs: int, num_devices: int) -> int:
    """Returns for how many items the replays on a device have room."""
    of_one = sum(store.ring.capacity for store in stores_of(held.state.store).values())
    return of_one * num_runs // num_devices if _is_population(held) else of_one


def _memory_of_a_device(num_devices: int) -> int:
    """Returns the bytes that a device has; the devices of a CPU share those of the machine."""
    stats = jax.local_devices()[0].memory_stats()
    if stats:
        return int(stats["bytes_limit"])
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // num_devices


def _size(nest: Nest) -> int:
    """Returns the bytes of a nest's arrays, by their shapes and dtypes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(nest))


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.2f}"
