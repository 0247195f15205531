"""What growth.py measures: each function returns curves, a cost in microseconds per item or step at each x."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from data import SMALL, VECTOR, environment_spec, fill, transition_replay
from learner import _learner, _steps, random_batch
from loop import _bare_rows, _episodes
from sampling import bare_gathers
from turns import in_turns, repeat

from agentkit.adders import NStepAdder, SequenceAdder
from agentkit.agents import registry
from agentkit.replay import InProcessReplay, Prioritized, Table

BATCH = 256


@dataclasses.dataclass
class Plot:
    """One plot.

    Attributes:
        name: of its file.
        x_label: what grows.
        y_label: what the cost is per.
        x: where it was measured.
        curves: by name, the cost at each x; None where it was not measured.
        reasons: why the curves bend, and which curve shows it.
    """

    name: str
    x_label: str
    y_label: str
    x: list[float]
    curves: dict[str, list[float | None]]
    reasons: str = ""


class _Curves:
    """Collects the medians of contestants in turns, divided by the items of a call."""

    def __init__(self) -> None:
        self.x: list[float] = []
        self.values: dict[str, list[float | None]] = {}

    def add(self, x: float, contestants: dict[str, Callable[[], float]], items: int = 1) -> None:
        times = in_turns(contestants, rounds=5)
        for name in {**dict.fromkeys(self.values), **dict.fromkeys(times)}:
            known = self.values.setdefault(name, [None] * len(self.x))
            known.append(1e6 * statistics.median(times[name]) / items if name in times else None)
        self.x.append(x)


def replay_size(sizes: Sequence[int], number: int, largest_prioritised: int = 1_000_000) -> Plot:
    """Small transitions: sampling 256 and adding, as one replay fills."""
    spec, curves = environment_spec(SMALL, discrete=True), _Curves()
    uniform = transition_replay(spec, sizes[-1])
    ranked = transition_replay(spec, min(sizes[-1], largest_prioritised), Prioritized(0.6))
    draw, draw_ranked = uniform.sampler("t", BATCH), ranked.sampler("t", BATCH)
    priorities = np.random.default_rng(2).random(BATCH) + 0.1
    held = 0
    for size in sizes:
        for replay in (uniform, ranked) if size <= largest_prioritised else (uniform,):
            fill(replay, spec, size - held)
        held = size
        fancy, take = bare_gathers(spec, size)
        neighbours = _neighbours(spec, size)
        contestants = {
            "sample": repeat(draw.__next__, number),
            "bare column[index]": repeat(fancy, number),
            "bare take": repeat(take, number),
            "bare take, rows side by side": repeat(neighbours, number),
        }
        if size <= largest_prioritised:

            def update() -> None:
                ranked.update_priorities("t", next(draw_ranked).keys, priorities)

            contestants["sample by priority, write back"] = repeat(update, number)
        curves.add(size, contestants, BATCH)
    return Plot("replay_size", "transitions held", "us per sampled transition", curves.x, curves.values)


def _neighbours(spec: Any, num_rows: int) -> Callable[[], object]:
    """As `bare_gathers`, of 256 rows that lie side by side, always the same: memory is out of the way."""
    leaves = (spec.observations, spec.actions, spec.rewards, spec.discounts, spec.observations)
    columns = [np.ones((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]
    index = np.arange(min(num_rows, BATCH))
    return lambda: [column.take(index, 0) for column in columns]


def batch_size(batches: Sequence[int], number: int, num_items: int = 100_000) -> Plot:
    """Sampling, and DQN's and SAC's updates, per transition of the batch."""
    spec, discrete, curves = environment_spec(VECTOR), environment_spec(VECTOR, discrete=True), _Curves()
    replay = transition_replay(spec, num_items)
    fill(replay, spec, num_items)
    agents = {
        "DQN's update, 64x64": (registry.make("dqn", {"hidden_sizes": (64, 64)}), discrete),
        "SAC's update, 256x256": (registry.make("sac", {}), spec),
    }
    for batch in batches:
        few = max(3, number * 32 // batch)
        fancy, take = bare_gathers(spec, num_items, batch)
        contestants = {
            "sample": repeat(replay.sampler("t", batch).__next__, few),
            "bare column[index]": repeat(fancy, few),
            "bare take": repeat(take, few),
        }
        for name, (agent, its_spec) in agents.items():
            data = itertools.cycle(random_batch(agent.make_tables(its_spec)[0], batch))
            contestants[name] = _steps(_learner(agent, its_spec, data), max(2, few // 20))
        curves.add(batch, contestants, batch)
    return Plot("batch_size", "batch", "us per transition of the batch", curves.x, curves.values)


def observation_size(number: int, num_items: int = 4_000) -> Plot:
    """From CartPole's 4 floats to Atari's 84x84x4 bytes: adding a step, sampling 256."""
    curves = _Curves()
    shapes: list[tuple[tuple[int, ...], Any]] = [((n,), np.float32) for n in (4, 16, 64, 256, 1024)]
    for shape, dtype in [*shapes, ((84, 84), np.uint8), ((84, 84, 4), np.uint8)]:
        spec = environment_spec((shape, dtype))
        few = max(3, min(number, int(number * 4e5 / BATCH / spec.observations.dtype.itemsize / np.prod(shape))))
        replay = transition_replay(spec, num_items)
        fill(replay, spec, num_items)
        adder = NStepAdder(replay.writer(NStepAdder.history(1)), spec, tables="t", n=1, discount=0.99)
        _, take = bare_gathers(spec, num_items)
        steps = 100 * max(1, few // 3)
        contestants = {
            "sample": _per(BATCH, repeat(replay.sampler("t", BATCH).__next__, few)),
            "bare take": _per(BATCH, repeat(take, few)),
            "bare take into the same memory": _per(BATCH, repeat(_take_again(spec, num_items), few)),
            "add a step": _episodes(adder, spec, 100, steps),
            "bare row": _bare_rows(spec, steps),
        }
        curves.add(spec.observations.dtype.itemsize * float(np.prod(shape)), contestants)
    label = "us per step or sampled transition"
    return Plot("observation_size", "bytes of an observation", label, curves.x, curves.values)


def _per(items: int, timed: Callable[[], float]) -> Callable[[], float]:
    return lambda: timed() / items


def _take_again(spec: Any, num_rows: int) -> Callable[[], object]:
    """`bare_gathers`' take, which finds its results' memory mapped already."""
    rng = np.random.default_rng(1)
    leaves = (spec.observations, spec.actions, spec.rewards, spec.discounts, spec.observations)
    columns = [np.ones((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]
    outputs = [np.ones((BATCH, *leaf.shape), leaf.dtype) for leaf in leaves]
    indices = itertools.cycle(rng.integers(0, num_rows, (400, BATCH)))

    def take() -> object:
        index = next(indices)
        # With mode "raise" numpy would gather into a copy first.
        return [x.take(index, 0, out=out, mode="clip") for x, out in zip(columns, outputs, strict=True)]

    return take


def episode_length(lengths: Sequence[int], steps: int) -> Plot:
    """Adding a step, by adder."""
    spec, curves = environment_spec(VECTOR), _Curves()
    for length in lengths:
        count = max(steps, length)
        contestants = {"bare row": _bare_rows(spec, count)}
        for name, layout, make in (
            ("1-step", NStepAdder.layout(spec), _n_step(1)),
            ("5-step", NStepAdder.layout(spec), _n_step(5)),
            ("sequences of 20, period 10", SequenceAdder.layout(spec, 20), _sequences),
        ):
            replay = InProcessReplay([Table("t", layout, 2_000)])
            contestants[name] = _episodes(make(replay, spec), spec, length, count - count % length)
        curves.add(length, contestants)
    return Plot("episode_length", "steps of an episode", "us per step", curves.x, curves.values)


def _n_step(n: int) -> Callable:
    def make(replay: InProcessReplay, spec: Any) -> NStepAdder:
        return NStepAdder(replay.writer(NStepAdder.history(n)), spec, tables="t", n=n, discount=0.99)

    return make


def _sequences(replay: InProcessReplay, spec: Any) -> SequenceAdder:
    return SequenceAdder(replay.writer(SequenceAdder.history(20)), spec, tables="t", length=20, period=10)


def actors(numbers: Sequence[int], seconds: float) -> Plot:
    """A launched program: each actor's microseconds a step where the environment sleeps 5 ms."""
    from actors import SLEEP_SECONDS, measure

    costs: list[float | None] = [1e6 * n / measure(n, seconds)["steps_per_second"] for n in numbers]
    sleeps: list[float | None] = [1e6 * SLEEP_SECONDS for _ in numbers]
    curves = {"an actor's step": costs, "the environment's sleep": sleeps}
    return Plot("actors", "actors", "us per step of one actor", [float(n) for n in numbers], curves)
