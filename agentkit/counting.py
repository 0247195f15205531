"""Counters that a parent and its children share (steps, episodes, updates), due steps, and counts in words."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from agentkit.errors import CheckpointError, ConfigError

MOST_STEPS = 2**31 - 1
"""The greatest count of steps that schedules see: JAX counts in int32. Greater ones stand there."""


class Counter:
    """Counts by name, upwards only. Thread-safe.

    A child writes under its prefix and reads everything, so that an evaluator's ``evaluator_steps``
    and the actors' ``steps`` stand side by side in one count.

    >>> parent = Counter()
    >>> child = Counter(parent, prefix="evaluator")
    >>> parent.increment(steps=3)
    {'steps': 3}
    >>> child.increment(steps=1)
    {'steps': 3, 'evaluator_steps': 1}
    """

    def __init__(self, parent: Counter | None = None, prefix: str = ""):
        """Makes a `Counter`.

        Args:
            parent: where counts are kept; None keeps them here.
            prefix: put before the names this counter increments, with an underscore.
        """
        self._parent = parent
        self._prefix: str = ("" if parent is None else parent._prefix) + (f"{prefix}_" if prefix else "")
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def increment(self, **amounts: int) -> dict[str, int]:
        """Adds to counts and returns all of them.

        Raises:
            ConfigError: a negative amount.
        """
        for name, amount in amounts.items():
            if amount < 0:
                raise ConfigError(f"Counts only grow: expected an amount >= 0 for {name!r}, found {amount}.")
        return self._root()._add({self._prefix + name: int(amount) for name, amount in amounts.items()})

    def _root(self) -> Counter:
        return self if self._parent is None else self._parent._root()

    def _add(self, amounts: dict[str, int]) -> dict[str, int]:
        with self._lock:
            for name, amount in amounts.items():
                self._counts[name] = self._counts.get(name, 0) + amount
            return dict(self._counts)

    def counts(self) -> dict[str, int]:
        """Returns all counts now, the parent's and its other children's included."""
        if self._parent is not None:
            return self._parent.counts()
        with self._lock:
            return dict(self._counts)

    def get(self, name: str) -> int:
        """Returns one count of this counter's own (its prefix is added); 0 if it was never incremented."""
        return self.counts().get(self._prefix + name, 0)

    def save(self) -> dict[str, Any]:
        """Returns the counts of the root."""
        return {"counts": self.counts()}

    def restore(self, state: dict[str, Any]) -> None:
        """Restores the state that `save` returned; only at the root."""
        if self._parent is not None:
            raise CheckpointError("Restore the parent counter: a child holds no counts of its own.")
        with self._lock:
            self._counts = {name: int(value) for name, value in state["counts"].items()}


def due_step(steps: int, newest: int, period: int, num_steps: int) -> int:
    """Returns the step at which an evaluation counts beside those of other runs: the one at which it was due.

    A run of many environments evaluates a little later, after its last step too. A second evaluation of the same
    period, as at the end, counts at its own step.

    Args:
        steps: of the evaluation.
        newest: at which the one before counts; 0 for the first.
        period: steps between evaluations.
        num_steps: of the run.

    >>> due_step(2_048, 0, 2_000, 20_000), due_step(25, 24, 2, 25), due_step(32, 20, 10, 30)
    (2000, 25, 30)
    """
    due = steps // period * period
    return min(due if due > newest else steps, num_steps)


_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9}


def count_of(number: float, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun, for a sentence; the plural has an s unless another is given.

    >>> count_of(1, "run"), count_of(2_000, "run"), count_of(0, "policy", "policies")
    ('1 run', '2,000 runs', '0 policies')
    """
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"


def parse_whole(text: str) -> int:
    """Returns a whole number, written 100000, 100_000, 1e5, 100k, 2M or 1.5M.

    Raises:
        ValueError: if it is none.

    >>> parse_whole("100_000"), parse_whole("1e5"), parse_whole("100k"), parse_whole("1.5M")
    (100000, 100000, 100000, 1500000)
    """
    with contextlib.suppress(ValueError):
        return int(text)  # Exact, however many digits there are.
    unit = _UNITS.get(text[-1:].lower())
    with contextlib.suppress(ValueError, OverflowError):
        value = float(text) if unit is None else round(float(text[:-1]) * unit, 6)
        if value.is_integer():
            return int(value)
    raise ValueError(f"expected a whole number, found {text!r}")
