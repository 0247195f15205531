"""Parts 1 and 2: what the loop costs a step beside environment, policy and update; what an adder costs a step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np
from data import IMAGE, SMALL, VECTOR, IdleEnvironment, action, environment_spec
from turns import Line, in_turns, line, repeat

from agentkit import core, specs
from agentkit.adders import BatchedSegmentAdder, EpisodeAdder, NStepAdder, SegmentAdder, SequenceAdder
from agentkit.adders.segment import segment_layout
from agentkit.agents import registry
from agentkit.environment_loop import EnvironmentLoop
from agentkit.experiment import ExperimentConfig, local
from agentkit.experiment.training import training_loop
from agentkit.replay import InProcessReplay, Table

LOOP, ADDERS = "Loop overhead per environment step", "Adder writes per environment step"
LIMIT_US = 30.0


class _IdleActor(core.Actor):
    """Chooses the same action, records nothing."""

    def __init__(self, chosen: np.ndarray):
        self._action = chosen

    def select_action(self, observation: Any) -> Any:
        return self._action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        pass

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        pass

    def update(self, wait: bool = False) -> None:
        pass


def _bare_loop(environment: IdleEnvironment, actor: _IdleActor, steps: int) -> Callable[[], float]:
    """The loop as one would write it by hand: reset, act, step, record, add up rewards."""

    def run() -> float:
        start = time.perf_counter()
        timestep, total = None, 0.0
        for _ in range(steps):
            if timestep is None:
                timestep = environment.reset()
                actor.observe_first(timestep)
            chosen = actor.select_action(timestep.observation)
            timestep = environment.step(chosen)
            actor.observe(chosen, timestep)
            total += timestep.reward
            if timestep.last():
                timestep = None
            actor.update()
        return (time.perf_counter() - start) / steps

    return run


def loop_lines(steps: int) -> list[Line]:
    """The loop alone, and the whole turn of a run in one process, on what costs nothing."""
    spec = environment_spec()
    environment, actor = IdleEnvironment(spec), _IdleActor(action(spec))
    loop = EnvironmentLoop(IdleEnvironment(spec), actor)

    def ours() -> float:
        start = time.perf_counter()
        loop.run(num_steps=steps)
        return (time.perf_counter() - start) / steps

    bare = "the same calls in a for loop"
    times = in_turns({"EnvironmentLoop": ours, bare: _bare_loop(environment, actor, steps)})
    found = [line(LOOP, "EnvironmentLoop; idle environment, policy, adder", times, "EnvironmentLoop", bare)]
    return found + [x for name, discrete in (("dqn", True), ("sac", False)) for x in _turns(name, discrete, steps)]


class _Clock:
    """Adds up the seconds that are not the loop's. Wall time: a thread's own costs 2 us to ask for."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, call: Callable, wait: bool = False) -> Callable:
        """`call`, whose time counts; with `wait` until the device is done."""

        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            if wait:
                jax.block_until_ready(result)
            self.seconds += time.perf_counter() - start
            return result

        return timed


def _turns(name: str, discrete: bool, steps: int) -> list[Line]:
    """One agent's turns: with the real policy and update, timed from outside, and with both made idle."""
    spec = environment_spec(SMALL if discrete else VECTOR, discrete)
    size = {"hidden_sizes": (64, 64), "batch_size": 64} if discrete else {"batch_size": 256}
    agent = registry.make(name, {**size, "min_replay_size": 1_000, "replay_size": 100_000, "updates_per_step": 1.0})
    experiment = ExperimentConfig(agent, lambda seed: IdleEnvironment(spec), num_steps=10**9, evaluation_period=0)
    reference = "a for loop with nothing in it"
    bare = _bare_loop(IdleEnvironment(spec), _IdleActor(action(spec)), steps)

    def measure(run: Any) -> dict[str, list[float]]:
        while run.learner.num_updates_done < 20:
            run.step()
        compiled = run.learner._compiled
        rest = in_turns({"rest": _timed_turns(run, max(200, steps // 20))})
        return rest | in_turns({"idle": _idle_turn(run, compiled, steps), reference: bare})

    times = in_a_run(experiment, measure)
    batch = agent.batch_plan.batch_size
    limits: dict[str, Any] = {"limit": LIMIT_US, "of": "ours"}
    return [
        line(LOOP, f"{name}: a real run less environment, policy, update", times, "rest", reference, **limits,
             note=f"adder, replay, a batch of {batch}, publishing; caches as the update leaves them"),
        line(LOOP, f"{name}: the same with idle policy and update", times, "idle", reference,
             note="what is left is Python and numpy with warm caches"),
    ]  # fmt: skip


def in_a_run(experiment: ExperimentConfig, use: Callable[[Any], Any]) -> Any:
    """Returns what `use` makes of the work of a run in one process, all parts made, that would now begin to train."""
    found: list[Any] = []

    def train(run: Any, stop: Any) -> training_loop.Result:
        found.append(use(run.work))
        return training_loop.Result(run.work.num_steps, run.learner.num_updates_done, [], True)

    original = training_loop.Training.train
    training_loop.Training.train = train  # type: ignore[method-assign, assignment]
    try:
        local.run(experiment)
    finally:
        training_loop.Training.train = original  # type: ignore[method-assign]
    return found[0]


def _timed_turns(run: Any, turns: int) -> Callable[[], float]:
    """Seconds of a turn that are none of environment, policy and update."""
    clock = _Clock()
    run.learner._compiled = clock.around(run.learner._compiled, wait=True)
    run.actor._act = clock.around(run.actor._act, wait=True)
    run.loop._environment.step = clock.around(run.loop._environment.step)

    def timed() -> float:
        clock.seconds, start = 0.0, time.perf_counter()
        for _ in range(turns):
            run.step()
        return (time.perf_counter() - start - clock.seconds) / turns

    return timed


def _idle_turn(run: Any, compiled: Callable, steps: int) -> Callable[[], float]:
    """Turns whose policy and update hand out what they returned once."""
    kept: list[Any] = []

    def keep(*args: Any) -> Any:
        if not kept:
            kept.append(jax.block_until_ready(compiled(*args)))
        return kept[0]

    run.learner._compiled = keep
    timestep = run.loop.timestep or run.loop._environment.reset()
    acted = run.actor._act(run.actor._client.params, run.actor._key, timestep.observation, run.actor._state)
    run.actor._act = lambda *args: acted
    return repeat(run.step, steps)


def _adder_cases(length: int) -> dict[str, Callable[[InProcessReplay | None, specs.EnvironmentSpec], Any]]:
    """Makers of an adder on a replay, and of the layout for its table where the replay is None."""

    def n_step(n: int) -> Callable:
        def make(replay: InProcessReplay | None, spec: specs.EnvironmentSpec) -> Any:
            if replay is None:
                return NStepAdder.layout(spec)
            return NStepAdder(replay.writer(NStepAdder.history(n)), spec, tables="t", n=n, discount=0.99)

        return make

    def sequence(replay: InProcessReplay | None, spec: specs.EnvironmentSpec) -> Any:
        if replay is None:
            return SequenceAdder.layout(spec, 20)
        return SequenceAdder(replay.writer(SequenceAdder.history(20)), spec, tables="t", length=20, period=10)

    def episode(replay: InProcessReplay | None, spec: specs.EnvironmentSpec) -> Any:
        if replay is None:
            return EpisodeAdder.layout(spec, length)
        return EpisodeAdder(replay.writer(EpisodeAdder.history()), spec, tables="t", length=length)

    def segment(replay: InProcessReplay | None, spec: specs.EnvironmentSpec) -> Any:
        if replay is None:
            return segment_layout(spec, 64)
        return SegmentAdder(replay.writer(1), spec, tables="t", length=64)

    steps = {"1-step": n_step(1), "5-step": n_step(5)}
    return {**steps, "sequence 20/10": sequence, "episode": episode, "segment 64": segment}


def adder_lines(steps: int) -> list[Line]:
    """Each adder beside bare numpy, which writes the step's arrays to a row of columns."""
    length, found = 100, []
    for words, observation in (("17 floats", VECTOR), ("84x84x4 bytes", IMAGE)):
        spec = environment_spec(observation)
        few = steps if observation is VECTOR else max(200, steps // 10)
        few -= few % length
        contestants = {"numpy": _bare_rows(spec, few)}
        for name, make in _adder_cases(length).items():
            rows_held = 2_000 if observation is IMAGE else 20_000
            per_item = {"sequence 20/10": 10, "episode": length, "segment 64": 64}.get(name, 1)
            replay = InProcessReplay([Table("t", make(None, spec), max(4, rows_held // per_item))])
            contestants[name] = _episodes(make(replay, spec), spec, length, few)
        contestants["segment 64, 8 environments"] = _batched_segments(spec, few)
        times = in_turns({f"{words}: {name}": call for name, call in contestants.items()})
        bare = f"{words}: numpy"
        for name in times:
            if name != bare:
                shown = line(ADDERS, name, times, name, bare)
                shown.reference = "a row of bare numpy columns"
                shown.note = f"{1e6 / shown.ours:,.0f} steps a second beside {1e6 / shown.theirs:,.0f}"
                found.append(shown)
    return found


def _bare_rows(spec: specs.EnvironmentSpec, steps: int) -> Callable[[], float]:
    num_rows = 2_000
    leaves = [np.zeros(x.shape, x.dtype) for x in (spec.observations, spec.actions, spec.rewards, spec.discounts)]
    columns = [np.ones((num_rows, *leaf.shape), leaf.dtype) for leaf in leaves]

    def run() -> float:
        start = time.perf_counter()
        for row in range(steps):
            for column, leaf in zip(columns, leaves, strict=True):
                column[row % num_rows] = leaf
        return (time.perf_counter() - start) / steps

    return run


def _episodes(adder: core.Adder, spec: specs.EnvironmentSpec, length: int, steps: int) -> Callable[[], float]:
    observation = np.zeros(spec.observations.shape, spec.observations.dtype)
    first, mid = dm_env.restart(observation), dm_env.transition(1.0, observation, 1.0)
    last, chosen = dm_env.termination(1.0, observation), action(spec)

    def run() -> float:
        start = time.perf_counter()
        for _ in range(steps // length):
            adder.add_first(first)
            for _ in range(length - 1):
                adder.add(chosen, mid)
            adder.add(chosen, last)
        return (time.perf_counter() - start) / steps

    return run


def _batched_segments(spec: specs.EnvironmentSpec, steps: int) -> Callable[[], float]:
    num_envs = 8
    replay = InProcessReplay([Table("t", segment_layout(spec, 64), num_envs)])
    adder = BatchedSegmentAdder(replay.writer(1), spec, tables="t", length=64, num_envs=num_envs)
    batch = [
        np.zeros((num_envs, *x.shape), x.dtype) for x in (spec.rewards, spec.discounts, spec.observations, spec.actions)
    ]
    mid = dm_env.TimeStep(np.full(num_envs, dm_env.StepType.MID), *batch[:3])
    adder.add_first(mid._replace(step_type=np.full(num_envs, dm_env.StepType.FIRST)))

    def run() -> float:
        start = time.perf_counter()
        for _ in range(steps // num_envs):
            adder.add(batch[3], mid)
        return (time.perf_counter() - start) / (steps // num_envs * num_envs)

    return run
