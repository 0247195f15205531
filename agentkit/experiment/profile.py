"""Where the time of a run goes, part by part; nothing of this is in the way of a run that is not profiled.

`agentkit.run(experiment, profile=Profile())` wraps the methods of that run's own parts as it builds them.
"""

from __future__ import annotations

import collections
import functools
import pathlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax

from agentkit.errors import ConfigError
from agentkit.types import DrawnBatch

PARTS = (
    "environment", "acting", "adding", "sampling", "update", "waiting", "evaluation", "saving", "logging", "rest",
)  # fmt: skip
"""What the time of the steps is divided into."""

ONCE = ("starting", "compiling", "tracing", "closing")
"""What a run's time goes to besides its steps."""

# Methods of a run's parts, by the name under which `Profile.watch` gets the part: whose time they are, and whether
# a call is counted (of the several methods of a part, those that say how often it was its turn).
_METHODS: Mapping[str, Mapping[str, tuple[str, bool]]] = {
    "environment": {"step": ("environment", True), "reset": ("environment", False)},
    "adder": {"add": ("adding", True), "add_first": ("adding", False)},
    "actor": {"select_action": ("acting", True), "update": ("acting", False)},
    "replay": {"can_insert": ("waiting", False), "update_priorities": ("sampling", False)},
    "logs": dict.fromkeys(("write_episode", "show_progress", "say"), ("logging", True)),
    "log": {"write": ("logging", True)},
    "run": {"_evaluate": ("evaluation", True), "save": ("saving", True)},
}

_COMPILES = "/jax/core/compile/"  # What JAX calls the times it takes to trace, lower and compile.
_TRACE_AFTER = 3  # Learner steps until nothing is compiled any more.


class _Clock:
    """Wall time by part: each moment belongs to the innermost part that is running, or to a compilation in it."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.calls: collections.Counter[str] = collections.Counter()
        self.thread = threading.get_ident()
        self._running = ["starting"]
        self._since = time.perf_counter()
        self._compiled: list[tuple[float, float]] = []  # Apart from each other, in order, since `_since`.

    def go_on_as(self, part: str) -> None:
        """What runs while nothing else does is `part` from now on."""
        self.switch()
        self._running[0] = part

    def enter(self, part: str) -> None:
        """`part` begins, within the one that is running."""
        self.switch()
        self._running.append(part)

    def leave(self) -> None:
        """The innermost part ends."""
        self.switch()
        self._running.pop()

    def switch(self) -> None:
        """Writes down the time since the last switch."""
        now = time.perf_counter()
        elapsed = now - self._since
        if self._compiled:
            compiling = sum(stop - start for start, stop in self._compiled)
            self._compiled.clear()
            self.seconds["compiling"] += compiling
            elapsed -= compiling
        self.seconds[self._running[-1]] += elapsed
        self._since = now

    def add_compilation(self, seconds: float) -> None:
        """A compilation of so many seconds has just ended; those inside it were told before."""
        now = time.perf_counter()
        start = max(now - seconds, self._since)
        while self._compiled and self._compiled[-1][1] > start:
            start = min(start, self._compiled.pop()[0])
        self._compiled.append((start, now))

    def timed(self, function: Callable[..., Any], part: str, counted: bool = True) -> Callable[..., Any]:
        """The function, with its calls on this clock."""

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.enter(part)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()
                if counted:
                    self.calls[part] += 1

        return call


class Row(NamedTuple):
    """A line of the table.

    Attributes:
        part: one of `ONCE` or `PARTS`.
        calls: how often it was its turn; 0 where that means nothing.
        seconds: in all. Those of all rows add up to the wall time of the run.
        microseconds_per_call: 0.0 where there was no call.
        microseconds_per_step: of the environment; 0.0 for what is `ONCE`.
        share: of the time of all steps, 0 to 1; 0.0 for what is `ONCE`.
    """

    part: str
    calls: int
    seconds: float
    microseconds_per_call: float
    microseconds_per_step: float
    share: float


class Profile:
    """Times one run; give it to `agentkit.run`, and read it afterwards. In one process, one run at a time.

    Each update is waited for, so that its time is all that it takes: what a run gains where the environment steps
    while JAX computes is lost. Compilations are told apart.

    Attributes:
        num_steps: environment steps that were timed.
        num_updates: learner updates that were.
        blocked_seconds: of "update", how long JAX computed after its calls had returned.
    """

    def __init__(self, trace_directory: str | pathlib.Path | None = None, trace_steps: int = 200):
        """Makes one.

        Args:
            trace_directory: where to put a trace by `jax.profiler`; None for none. It begins when nothing is compiled
                any more, and does not wait for updates: it shows what runs beside what.
            trace_steps: at least so many environment steps are traced, and at least one learner step.

        Raises:
            ConfigError: `trace_steps` is less than 1.
        """
        if trace_steps < 1:
            raise ConfigError(f"trace_steps must be at least 1, found {trace_steps}.")
        self.num_steps = 0
        self.num_updates = 0
        self.trace_directory = None if trace_directory is None else pathlib.Path(trace_directory)
        self.traced = False  # Whether the trace is written.
        self._trace_steps = trace_steps
        self._trace_start: int | None = None
        self.blocked_seconds = 0.0
        self._clock: _Clock | None = None
        self._run: Any = None

    def start(self) -> None:
        """Starts the clock; `agentkit.run` calls it.

        Raises:
            ConfigError: it has timed a run already.
        """
        if self._clock is not None:
            raise ConfigError("This Profile has timed a run already; make a new one for each run.")
        self._clock = _Clock()
        _listen(self)

    def watch(self, kind: str, part: Any) -> Any:
        """`part` of a run, whose methods it wraps; some are returned in a shell of theirs.

        Args:
            kind: "environment", "adder", "actor", "replay", "dataset", "learner", "logs" or "run".
            part: the object. Only this instance is changed.

        Raises:
            ConfigError: the object takes no attributes.
        """
        clock = self._clock
        assert clock is not None, "Profile.start comes first"
        for name, (of, counted) in _METHODS.get(kind, {}).items():
            _replace(part, name, clock.timed(getattr(part, name), of, counted))
        if kind == "dataset":
            return _TimedDataset(part, clock)
        if kind == "replay":
            make = part.sampler
            _replace(part, "sampler", lambda *args, **kwargs: _TimedSampler(make(*args, **kwargs), clock))
        elif kind == "learner":
            _replace(part, "step", self._timed_update(part, clock))
        elif kind == "logs":
            for log in (part.train, part.evaluation, part.learner):
                self.watch("log", log)
        elif kind == "run":
            _replace(part, "train", self._timed_training(part, clock))
        return part

    def _timed_training(self, run: Any, clock: _Clock) -> Callable[..., Any]:
        train = run.train

        def timed(*args: Any, **kwargs: Any) -> Any:
            clock.go_on_as("rest")
            compiling = clock.seconds.pop("compiling", 0.0)
            starting = sum(clock.seconds.values())  # A resumed run steps its environment before it begins.
            clock.seconds.clear()
            clock.calls.clear()
            clock.seconds.update(starting=starting, compiling=compiling)
            steps, updates = run.loop.num_steps, run.learner.num_updates_done
            self._run = run
            try:
                return train(*args, **kwargs)
            finally:
                self._stop_trace(clock)
                clock.go_on_as("closing")
                self.num_steps = run.loop.num_steps - steps
                self.num_updates = run.learner.num_updates_done - updates

        return timed

    def _timed_update(self, learner: Any, clock: _Clock) -> Callable[[], None]:
        step, calls = learner.step, clock.calls

        def timed() -> None:
            clock.enter("update")
            try:
                step()
                if self._trace_start is None:
                    returned = time.perf_counter()
                    jax.block_until_ready(learner.state)
                    self.blocked_seconds += time.perf_counter() - returned
            finally:
                clock.leave()
                calls["update"] += 1
            if self.trace_directory is not None and not self.traced:
                self._move_trace(clock)

        return timed

    def _move_trace(self, clock: _Clock) -> None:
        """After a learner step: starts the trace where it is time, and stops it."""
        if self._run is None:
            return
        if self._trace_start is None:
            if clock.calls["update"] >= _TRACE_AFTER:
                clock.timed(jax.profiler.start_trace, "tracing")(str(self.trace_directory))
                self._trace_start = self._run.loop.num_steps
        elif self._run.loop.num_steps >= self._trace_start + self._trace_steps:
            self._stop_trace(clock)

    def _stop_trace(self, clock: _Clock) -> None:
        if self._trace_start is not None:
            clock.timed(jax.profiler.stop_trace, "tracing")()
            self._trace_start, self.traced = None, True

    def stop(self) -> None:
        """Stops the clock; `agentkit.run` calls it, however the run ended. May be called twice."""
        if self._clock is not None and _is_watched(self):
            self._clock.switch()
            _listen(None)
            self._run = None

    @property
    def overhead_microseconds(self) -> float:
        """What the timers themselves cost in each step, about: it is in the rows that they time, and in "rest"."""
        if self._clock is None or not self.num_steps:
            return 0.0
        clock, tries = _Clock(), 1000
        call = clock.timed(lambda: None, "rest")
        start = time.perf_counter()
        for _ in range(tries):
            call()
        each = (time.perf_counter() - start) / tries
        return 1e6 * each * sum(self._clock.calls.values()) / self.num_steps

    def rows(self) -> list[Row]:
        """The table, `ONCE` before `PARTS`; without a run that began to train, nothing but its start."""
        seconds: Mapping[str, float] = {} if self._clock is None else self._clock.seconds
        calls: Mapping[str, int] = {} if self._clock is None else self._clock.calls
        total = sum(seconds.get(part, 0.0) for part in PARTS)
        rows = []
        for part in (*ONCE, *PARTS):
            spent, times = seconds.get(part, 0.0), calls.get(part, 0) if part in PARTS else 0
            stepwise = spent if part in PARTS else 0.0
            per_step = 1e6 * stepwise / self.num_steps if self.num_steps else 0.0
            per_call = 1e6 * spent / times if times else 0.0
            rows.append(Row(part, times, spent, per_call, per_step, stepwise / total if total else 0.0))
        return rows


_watched: list[Profile] = []  # The profile whose run is going on, if any.


@functools.cache
def _register() -> None:
    jax.monitoring.register_event_duration_secs_listener(_hear)  # JAX's public names have no way to take it back.


def _hear(event: str, duration_secs: float, **details: str | int) -> None:
    del details
    for profile in _watched:
        clock = profile._clock
        if event.startswith(_COMPILES) and clock is not None and clock.thread == threading.get_ident():
            clock.add_compilation(duration_secs)


def _listen(profile: Profile | None) -> None:
    """Tells a profile of compilations from now on; None tells nobody."""
    _register()
    _watched[:] = [] if profile is None else [profile]


def _is_watched(profile: Profile) -> bool:
    return any(profile is watched for watched in _watched)


def _replace(part: Any, name: str, value: Any) -> None:
    try:
        setattr(part, name, value)
    except AttributeError as error:
        raise ConfigError(
            f"{type(part).__name__} cannot be profiled: its {name} cannot be replaced ({error}). Give the class a "
            "__dict__ (leave out __slots__), or wrap the object in agentkit.wrappers.base.EnvironmentWrapper."
        ) from error


class _TimedDataset:
    """A `ReplayDataset` on a clock; `next` looks at the class, so that an instance's method will not do."""

    def __init__(self, dataset: Any, clock: _Clock):
        self._dataset = dataset
        self._next = clock.timed(dataset.__next__, "sampling")
        self.ready = clock.timed(dataset.ready, "waiting", counted=False)
        self.close = dataset.close

    def __iter__(self) -> _TimedDataset:
        return self

    def __next__(self) -> DrawnBatch:
        return self._next()


class _TimedSampler:
    """A `Sampler` on a clock: what it has not got ready is waited for."""

    def __init__(self, sampler: Any, clock: _Clock):
        self._sampler = sampler
        self._next_late = clock.timed(sampler.__next__, "waiting")
        self.ready = sampler.ready
        self.close = sampler.close

    def __iter__(self) -> _TimedSampler:
        return self

    def __next__(self) -> DrawnBatch:
        return next(self._sampler) if self._sampler.ready() else self._next_late()
