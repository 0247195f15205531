"""Measures where the time of a run goes, part by part.

`agentkit.run(experiment, profile=Profile())` puts each part of that run behind a `StandIn`, which tells a
`Timer` of its calls. A run without a profile has none of them, and its steps ask for none.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, final

import jax

from agentkit.errors import ConfigError
from agentkit.experiment.checks.stand_in import StandIn
from agentkit.experiment.policies.make_actor import num_ready
from agentkit.experiment.policies.result import Result
from agentkit.experiment.training.signals import StopOnSignal
from agentkit.experiment.training.training_loop import Training
from agentkit.types import ReplaySample

PARTS = (
    "environment", "acting", "adding", "sampling", "update", "waiting", "evaluation", "saving", "logging", "rest",
)  # fmt: skip
"""What the time of the steps is divided into."""

ONCE = ("starting", "compiling", "tracing", "closing")
"""What a run's time goes to besides its steps."""

_COMPILES = "/jax/core/compile/"  # What JAX calls the times it takes to trace, lower and compile.
_TRACE_AFTER = 3  # Learner steps until nothing is compiled any more.


@final
class Timer:
    """Measures wall time by part: each moment counts for the innermost part that runs, or a compilation in it."""

    def __init__(self) -> None:
        """Starts it; what runs is "starting"."""
        self.seconds: dict[str, float] = collections.defaultdict(float)
        self.calls: collections.Counter[str] = collections.Counter()
        self.thread = threading.get_ident()
        self._running = ["starting"]
        self._since = time.perf_counter()
        self._compiled: list[tuple[float, float]] = []  # Apart from each other, in order, since `_since`.

    def go_on_as(self, part: str) -> None:
        """Lets `part` run from now on while nothing else does."""
        self.switch()
        self._running[0] = part

    def enter(self, part: str) -> None:
        """Begins `part` within the one that is running."""
        self.switch()
        self._running.append(part)

    def leave(self) -> None:
        """Ends the innermost part."""
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
        """Adds a compilation of so many seconds that has just ended; those inside it were added before."""
        now = time.perf_counter()
        start = max(now - seconds, self._since)
        while self._compiled and self._compiled[-1][1] > start:
            start = min(start, self._compiled.pop()[0])
        self._compiled.append((start, now))

    @contextlib.contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Counts the code inside as one call of `part`."""
        self.enter(part)
        try:
            yield
        finally:
            self.leave()
            self.calls[part] += 1

    def timed(self, function: Callable[..., Any], part: str, counted: bool = True) -> Callable[..., Any]:
        """Returns the function, timed as `part`; its calls are counted if `counted`."""

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


@final
class TimedDataset:
    """Stands for a `ReplayDataset`; a batch that is due and still on its way is waited for."""

    def __init__(self, dataset: Any, timer: Timer):
        """Takes the dataset, and the timer that is told of the calls."""
        self._dataset = dataset
        self._draw_late = timer.timed(dataset.__next__, "waiting")
        self._next = timer.timed(self._draw, "sampling")
        self.ready = timer.timed(dataset.ready, "waiting", counted=False)

    def _draw(self) -> ReplaySample:
        return next(self._dataset) if self._dataset.fetched() else self._draw_late()

    @property
    def num_taken(self) -> int:
        """Returns the items that were handed out."""
        return int(self._dataset.num_taken)

    def __iter__(self) -> TimedDataset:
        return self

    def __next__(self) -> ReplaySample:
        return self._next()


class Row(NamedTuple):
    """Holds a line of the table.

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
    """Measures one run; give it to `agentkit.run`, and read it afterwards. In one process, one run at a time.

    Each update is waited for, so that its time is all that it takes: what a run gains where the environment steps
    while JAX computes is lost. Compilations are told apart.

    Attributes:
        num_steps: environment steps that were timed.
        num_updates: learner updates that were.
        blocked_seconds: of "update", how long JAX computed after its calls had returned.
    """

    def __init__(self, trace_directory: str | pathlib.Path | None = None, trace_steps: int = 200):
        """Makes a `Profile`.

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
        self._timer: Timer | None = None
        self._training = False
        self._loop: Any = None

    def start(self) -> None:
        """Starts the timer; `agentkit.run` calls it.

        Raises:
            ConfigError: it has timed a run already.
        """
        if self._timer is not None:
            raise ConfigError("This Profile has timed a run already; make a new one for each run.")
        self._timer = Timer()
        _listen(self)

    def time_parts(self, environment: Any, replay: Any, dataset: Any, logs: Any) -> tuple[Any, ...]:
        """Returns the parts of a run in the order given, each with timed calls."""
        timer = self._started()
        timed, uncounted = timer.timed, functools.partial(timer.timed, counted=False)
        advance = _advance(environment)
        timed_environment = StandIn(
            environment,
            reset=uncounted(environment.reset, "environment"),
            **{advance: timed(getattr(environment, advance), "environment")},
        )
        timed_replay = StandIn(
            replay,
            can_insert=uncounted(replay.can_insert, "waiting"),
            update_priorities=uncounted(replay.update_priorities, "sampling"),
        )
        timed_logs = StandIn(
            logs,
            evaluation=StandIn(logs.evaluation, write=timed(logs.evaluation.write, "logging")),
            learner=StandIn(logs.learner, write=timed(logs.learner.write, "logging")),
            **{name: timed(getattr(logs, name), "logging") for name in ("write_episode", "show_progress", "message")},
        )
        return timed_environment, timed_replay, TimedDataset(dataset, timer), timed_logs

    def time_actor(self, actor: Any, environment: Any) -> Any:
        """Returns the actor, which acts in this environment, with timed calls."""
        timer = self._started()
        timed, uncounted = timer.timed, functools.partial(timer.timed, counted=False)
        return StandIn(
            actor,
            select_action=timed(actor.select_action, "acting"),
            update=uncounted(actor.update, "acting"),
            observe=timed(actor.observe, "adding"),  # Actors leave it to their adders.
            **({"observe_first": uncounted(actor.observe_first, "adding")} if _advance(environment) == "step" else {}),
        )

    def time_learner(self, learner: Any, loop: Any) -> Any:
        """Returns the learner, timed and waited for at each step; a trace is as long as the loop's steps say."""
        timer = self._started()
        self._loop = loop
        return StandIn(learner, step=functools.partial(self._step, learner, timer))

    def train(self, training: Training, stop: StopOnSignal) -> Result:
        """Trains as `Training.train` does; the table begins here."""
        timer, work, learner = self._started(), training.work, training.learner
        training.timer = timer
        timer.go_on_as("rest")
        compiling = timer.seconds.pop("compiling", 0.0)
        starting = sum(timer.seconds.values())  # A resumed run steps its environment before it begins.
        timer.seconds.clear()
        timer.calls.clear()
        timer.seconds.update(starting=starting, compiling=compiling)
        steps, updates = work.num_steps, learner.num_updates_done
        self._training = True
        try:
            return training.train(stop)
        finally:
            self._stop_trace(timer)
            timer.go_on_as("closing")
            self.num_steps = work.num_steps - steps
            self.num_updates = learner.num_updates_done - updates

    def _started(self) -> Timer:
        assert self._timer is not None, "Profile.start comes first"
        return self._timer

    def _step(self, learner: Any, timer: Timer) -> None:
        """Takes a step of the learner and, without a trace, waits until JAX has computed it."""
        with timer.time("update"):
            learner.step()
            if self._trace_start is None:
                returned = time.perf_counter()
                jax.block_until_ready(learner.state)
                self.blocked_seconds += time.perf_counter() - returned
        if self.trace_directory is not None and not self.traced:
            self._move_trace(timer)

    def _move_trace(self, timer: Timer) -> None:
        """Starts the trace where it is time, and stops it; called after a learner step."""
        if not self._training:
            return
        if self._trace_start is None:
            if timer.calls["update"] >= _TRACE_AFTER:
                timer.timed(jax.profiler.start_trace, "tracing")(str(self.trace_directory))
                self._trace_start = self._loop.num_steps
        elif self._loop.num_steps >= self._trace_start + self._trace_steps:
            self._stop_trace(timer)

    def _stop_trace(self, timer: Timer) -> None:
        if self._trace_start is not None:
            timer.timed(jax.profiler.stop_trace, "tracing")()
            self._trace_start, self.traced = None, True

    def stop(self) -> None:
        """Stops the timer; `agentkit.run` calls it, however the run ended. May be called twice."""
        if self._timer is not None and _is_watched(self):
            self._timer.switch()
            _listen(None)
            self._loop = None

    @property
    def overhead_microseconds(self) -> float:
        """Estimates the cost of the timers in each step, which is in the rows that they time and in "rest"."""
        if self._timer is None or not self.num_steps:
            return 0.0
        timer, tries = Timer(), 1000
        call = timer.timed(lambda: None, "rest")
        start = time.perf_counter()
        for _ in range(tries):
            call()
        each = (time.perf_counter() - start) / tries
        return 1e6 * each * sum(self._timer.calls.values()) / self.num_steps

    def rows(self) -> list[Row]:
        """Returns the table, `ONCE` before `PARTS`; without a run that began to train, nothing but its start."""
        seconds: Mapping[str, float] = {} if self._timer is None else self._timer.seconds
        calls: Mapping[str, int] = {} if self._timer is None else self._timer.calls
        total = sum(seconds.get(part, 0.0) for part in PARTS)
        rows = []
        for part in (*ONCE, *PARTS):
            spent, times = seconds.get(part, 0.0), calls.get(part, 0) if part in PARTS else 0
            stepwise = spent if part in PARTS else 0.0
            per_step = 1e6 * stepwise / self.num_steps if self.num_steps else 0.0
            per_call = 1e6 * spent / times if times else 0.0
            rows.append(Row(part, times, spent, per_call, per_step, stepwise / total if total else 0.0))
        return rows


def _advance(environment: Any) -> str:
    """Returns the name of the method that takes an environment on."""
    return "step" if num_ready(environment) is None else "recv"


_watched: list[Profile] = []  # The profile whose run is going on, if any.


@functools.cache
def _register() -> None:
    jax.monitoring.register_event_duration_secs_listener(_hear)  # JAX's public names have no way to take it back.


def _hear(event: str, duration_secs: float, **details: str | int) -> None:
    del details
    for profile in _watched:
        timer = profile._timer
        if event.startswith(_COMPILES) and timer is not None and timer.thread == threading.get_ident():
            timer.add_compilation(duration_secs)


def _listen(profile: Profile | None) -> None:
    """Tells a profile of compilations from now on; None tells nobody."""
    _register()
    _watched[:] = [] if profile is None else [profile]


def _is_watched(profile: Profile) -> bool:
    return any(profile is watched for watched in _watched)
