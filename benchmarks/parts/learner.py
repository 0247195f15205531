"""Part 4: the learner beside its own compiled update in a bare loop, and beside the update's matrix products alone."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import tree
from data import SMALL, VECTOR, IdleEnvironment, environment_spec, fill, transition_replay
from loop import in_a_run
from matmuls import bare_products, find_products, total_gigaflop
from turns import Line, in_turns, line

from agentkit import specs
from agentkit.agents import registry
from agentkit.datasets import ReplayDataset
from agentkit.experiment import ExperimentConfig
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.replay import InProcessReplay
from agentkit.types import DrawnBatch, ReplaySample, SampleInfo
from agentkit.variables import VariableStore

LEARNER = "Learner update"
PRODUCTS = "Learner update beside its matrix products"
BUSY = "Share of the time in which a SAC learner's update computes"
AGENTS = ("dqn", "sac", "td3", "d4pg", "ppo")
PRODUCTS_LIMIT, BUSY_LIMIT = 1 / 0.8, 0.95


def make_agent(name: str) -> tuple[Any, specs.EnvironmentSpec]:
    """An agent of the usual sizes, and an environment's spec for it."""
    if name == "dqn":
        return registry.make(name, {"hidden_sizes": (64, 64), "batch_size": 64}), environment_spec(SMALL, discrete=True)
    settings = {"batch_size": 8, "segment_length": 64} if name == "ppo" else {"batch_size": 256}
    return registry.make(name, settings), environment_spec(VECTOR)


def random_batch(table: Any, batch_size: int, num: int = 4) -> list[DrawnBatch]:
    """Batches of a table's signature with random numbers, as replay would give them."""
    rng = np.random.default_rng(0)

    def leaf(spec: specs.Array) -> np.ndarray:
        shape = (batch_size, *spec.shape)
        if spec.dtype.kind == "f":
            return (0.5 * rng.standard_normal(shape)).clip(-0.9, 0.9).astype(spec.dtype)
        return np.zeros(shape, spec.dtype)  # no episode starts here; the first action

    info = SampleInfo(
        np.full(batch_size, 1e-3), np.full(batch_size, 1000),
        np.ones(batch_size), np.ones(batch_size, np.int32),
    )  # fmt: skip
    keys = np.arange(batch_size, dtype=np.uint64)
    return [DrawnBatch(keys, ReplaySample(info, tree.map_structure(leaf, table.signature))) for _ in range(num)]


def _learner(agent: Any, spec: specs.EnvironmentSpec, dataset: Iterator[DrawnBatch]) -> Learner:
    update = agent.make_update(agent.make_networks(spec))
    callbacks = LearnerCallbacks(publisher=VariableStore())
    return Learner(update, dataset, jax.random.PRNGKey(0), callbacks=callbacks)


def _steps(learner: Learner, number: int) -> Callable[[], float]:
    def run() -> float:
        start = time.perf_counter()
        for _ in range(number):
            learner.step()
        jax.block_until_ready(learner.state)
        return (time.perf_counter() - start) / number

    return run


def _bare(learner: Learner, number: int, num_batches: int = 4) -> Callable[[], float]:
    """The learner's own compiled function, as it calls it itself, in a loop that does nothing else."""
    compiled, given = learner._compiled, []

    def listen(state: Any, *batch: Any) -> Any:
        given.append(batch)
        return compiled(state, *batch)

    learner._compiled = listen
    for _ in range(num_batches):
        learner.step()
    learner._compiled = compiled
    held = [jax.tree.map(lambda leaf: leaf.copy(), learner.state)]

    def run() -> float:
        state = held[0]
        start = time.perf_counter()
        for i in range(number):
            state = compiled(state, *given[i % num_batches])[0]
        jax.block_until_ready(state)
        held[0] = state
        return (time.perf_counter() - start) / number

    return run


def _products(agent: Any, spec: specs.EnvironmentSpec, batch: DrawnBatch, number: int) -> tuple[Callable, float]:
    update = agent.make_update(agent.make_networks(spec))
    state = update.init(jax.random.PRNGKey(0))
    placed = jax.tree.map(np.asarray, batch.sample)
    # Where the policy learns at every second update, the updates between have fewer products.
    period = getattr(agent.config, "policy_delay", 1)
    found = [find_products(update.update, state, placed, choose=max if i == 0 else min) for i in range(period)]
    calls = [bare_products(products) for products in found]

    def run() -> float:
        start = time.perf_counter()
        for i in range(number):
            results = calls[i % period]()
        jax.block_until_ready(results)
        return (time.perf_counter() - start) / number

    return run, sum(map(total_gigaflop, found)) / period


def learner_lines(seconds: float, names: tuple[str, ...] = AGENTS) -> list[Line]:
    """For each agent three comparisons, `seconds` for each contestant in each round."""
    found = []
    for name in names:
        agent, spec = make_agent(name)
        table = agent.make_tables(spec)[0]
        batch_size = agent.batch_plan.batch_size
        batches = random_batch(table, batch_size)
        learner = _learner(agent, spec, itertools.cycle(batches))
        once = min(_steps(learner, 5)() for _ in range(2))
        number = 2 * max(2, int(seconds / once / 2))
        products, gigaflop = _products(agent, spec, batches[0], number)
        bare, matmuls = "the same jax.jit function in a bare loop", "the same matrix products, bare"
        contestants = {
            "fixed": _steps(learner, number),
            bare: _bare(learner, number),
            matmuls: products,
        }
        if name != "ppo":  # whose data are learned from once: a queue would have to be filled between the steps
            sampled = _filled_replay(spec)
            dataset = ReplayDataset(sampled, agent.batch_plan._replace(table="t"))
            contestants["replay"] = _steps(_learner(agent, spec, dataset), number)
        times = in_turns(contestants)
        found.append(line(LEARNER, f"{name}, constant batches", times, "fixed", bare))
        if "replay" in contestants:
            found.append(line(LEARNER, f"{name}, in-process replay of 100,000", times, "replay", bare))
        rates = f"{gigaflop * 1e3:.3g} MFLOP"
        products_line = line(PRODUCTS, f"{name} ({rates})", times, bare, matmuls, limit=PRODUCTS_LIMIT)
        products_line.note = (
            f"{1 / products_line.ratio:.0%} of the products' speed: {gigaflop / products_line.ours * 1e6:.3g} GFLOP/s "
            f"beside {gigaflop / products_line.theirs * 1e6:.3g}"
        )
        found.append(products_line)
    return found


def _filled_replay(spec: specs.EnvironmentSpec, num_items: int = 100_000) -> InProcessReplay:
    replay = transition_replay(spec, num_items)
    fill(replay, spec, num_items)
    return replay


def busy_lines(seconds: float) -> list[Line]:
    """SAC: the time that updates alone take, by the time of the learner's steps, and of whole turns of a run."""
    agent, spec = make_agent("sac")
    replay = _filled_replay(spec)
    learner = _learner(agent, spec, ReplayDataset(replay, agent.batch_plan._replace(table="t")))
    number = max(5, int(seconds / min(_steps(learner, 5)() for _ in range(2))))
    times = in_turns({"update": _bare(learner, number), "its steps": _steps(learner, number)})
    limits: dict[str, Any] = {"limit": BUSY_LIMIT, "at_least": True}
    found = [line(BUSY, "learner with in-process replay", times, "update", "its steps", **limits)]
    for words, environment in (("idle environment", None), ("HalfCheetah-v5", "gymnasium:HalfCheetah-v5")):
        try:
            found.append(_busy_in_a_run(words, environment, number))
        except ImportError as error:
            print(f"Left out: a run in {words} ({error}).")
    return found


def _busy_in_a_run(words: str, environment: str | None, number: int) -> Line:
    spec = environment_spec(VECTOR)
    agent = registry.make("sac", {"min_replay_size": 1_000, "replay_size": 100_000, "updates_per_step": 1.0})
    experiment = ExperimentConfig(
        agent, environment or (lambda seed: IdleEnvironment(spec)), num_steps=10**9, evaluation_period=0
    )

    def measure(run: Any) -> dict[str, list[float]]:
        while run.learner.num_updates_done < 5:
            run.step()
        while not run.dataset.ready():  # not to wait for data in `_bare`'s steps
            run.loop.step()
        bare = _bare(run.learner, number, num_batches=1)

        def turns() -> float:
            before, start = run.learner.num_updates_done, time.perf_counter()
            for _ in range(number):
                run.step()
            jax.block_until_ready(run.learner.state)
            return (time.perf_counter() - start) / (run.learner.num_updates_done - before)

        return in_turns({"update": bare, "its turns": turns})

    times = in_a_run(experiment, measure)
    note = "acting and the environment's step are in the turns, too"
    return line(BUSY, f"a run in one process, {words}", times, "update", "its turns", note=note)
