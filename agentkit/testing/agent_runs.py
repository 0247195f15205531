"""Runs of agents under observation: what they did and left behind, and whether two are the same to the last bit."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import dm_env
import numpy as np
import tree

from agentkit import checkpoint, nests
from agentkit.experiment import Result


class KilledError(Exception):
    """Stands for kill -9: nothing of agentkit catches it."""


class Watched:
    """Notes the actions that an environment gets, and dies at action number `die_at`.

    After each number of actions in `mid_at` an episode must go on, unless all so far were of one step.
    """

    def __init__(self, environment: Any, actions: list[Any], die_at: float, mid_at: Sequence[int] = ()):
        self._environment = environment
        self._actions = actions
        self._die_at, self._mid_at = die_at, mid_at
        self._went_on = False  # An episode, after a step.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environment, name)

    def step(self, action: Any) -> dm_env.TimeStep:
        """Takes a step."""
        if len(self._actions) >= self._die_at:
            raise KilledError
        self._actions.append(np.concatenate([np.ravel(leaf) for leaf in tree.flatten(action)]))
        timestep: dm_env.TimeStep = self._environment.step(action)
        self._went_on |= timestep.mid()
        number = len(self._actions)
        if self._went_on and number in self._mid_at:
            assert timestep.mid(), f"step {number} ends an episode: set another num_steps"
        return timestep


class Trained(NamedTuple):
    """Holds what a run left: the result, its last checkpoint's state and replay files, and the actions."""

    result: Result
    state: dict[str, Any]
    replay: dict[str, Any]
    actions: list[Any]


class Killed(NamedTuple):
    """Holds what is known of a run that died: its folder, and the actions until then."""

    directory: pathlib.Path
    actions: list[Any]


def read_trained(result: Result, directory: pathlib.Path, actions: list[Any]) -> Trained:
    """Reads what a run left in its folder, whose last checkpoint must be of its end."""
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None and found.step == result.steps
    folder = found.path / "replay"
    files = {str(p.relative_to(folder)): _contents(p) for p in folder.rglob("*") if p.is_file()}
    return Trained(result, found.state, files, actions)


def _contents(path: pathlib.Path) -> Any:
    """Returns a file's bytes; of JSON its values, with lists of records (such as writers) in a fixed order."""

    def ordered(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: ordered(child) for key, child in value.items()}
        if isinstance(value, list) and value and all(isinstance(child, dict) for child in value):
            return sorted(map(ordered, value), key=lambda child: json.dumps(child, sort_keys=True))
        return value

    return ordered(json.loads(path.read_text())) if path.suffix == ".json" else path.read_bytes()


def by_name(nest: Any) -> dict[str, np.ndarray]:
    """Returns a nest's leaves as arrays, by their paths."""
    return {path: np.asarray(leaf) for path, leaf in nests.flatten_to_paths(nest).items()}


def differ(a: Any, b: Any) -> bool:
    """Returns whether two nests of dicts differ in a key, a type, or a bit."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        return a.keys() != b.keys() or any(differ(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return (a.dtype, a.shape, a.tobytes()) != (b.dtype, b.shape, b.tobytes())
    return type(a) is not type(b) or a != b


def assert_same(found: Mapping[str, Any], expected: Mapping[str, Any], path: str = "") -> None:
    """Expects two nests of dicts to be the same to the last bit, and names the first leaf that is not."""
    assert found.keys() == expected.keys(), path
    for key, value in found.items():
        if isinstance(value, Mapping) and isinstance(expected[key], Mapping):
            assert_same(value, expected[key], f"{path}/{key}")
        else:
            assert not differ(value, expected[key]), f"{path}/{key}: found {value}, expected {expected[key]}"
