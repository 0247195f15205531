"""Runs the evaluator's process: episodes with the newest parameters."""

from __future__ import annotations

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from agentkit.distributed.context import NodeContext
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.errors import ConfigError
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.evaluation.evaluate import Evaluator
from agentkit.experiment.launching.nodes.learner import DRAIN_SECONDS
from agentkit.experiment.launching.sharing.callbacks import keep_states, node_hooks
from agentkit.experiment.launching.sharing.common import (
    count_dropped,
    find_spec,
    is_here,
    resume_step,
    watch_steps,
)
from agentkit.experiment.launching.sharing.transports import make_source
from agentkit.experiment.runs.logs import make_logger
from agentkit.loggers import Logger, read_csv
from agentkit.specs import EnvironmentSpec

_NEWEST = "evaluations/"
NUM_KEPT = 20
"""How many evaluations of each evaluator the run store keeps, for those that look there now and then."""

LAST_EVALUATION_SECONDS = 300.0
"""How long the evaluation may take that follows the last step, when the others have stopped."""

LEARNER_SECONDS = DRAIN_SECONDS + 30.0
"""How long the last evaluation waits for a learner that was told to stop at the same time, to learn and to save."""


def evaluator_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, variables: Mapping[str, Any], *,
    num_evaluators: int = 1,
) -> None:  # fmt: skip
    """Evaluates every `evaluation_period` steps (evaluator i of n: every n-th time), and once at the end."""
    spec = spec or find_spec(experiment)
    plan = evaluation_plan(experiment)  # Never in proportion: a process of its own takes nothing from the training.
    with contextlib.ExitStack() as stack:
        source = make_source(context, variables)
        watch = stack.enter_context(watch_steps(context, experiment))
        networks = experiment.agent.make_networks(spec)
        hooks = node_hooks(context, experiment)
        evaluator = stack.enter_context(Evaluator(experiment, networks, source, watch, hooks.evaluation_observers()))
        client = evaluator.client
        hooks.watch(count_updates=lambda: client.version, get_params=lambda: client.params)
        logger = open_log(context, experiment, stack)

        def evaluate(steps: int, should_stop: Callable[[], bool]) -> dict[str, float] | None:
            hooks.watch(count_steps=lambda: steps)  # The others go on meanwhile.
            return evaluator.run(plan.episodes, number=steps, should_stop=should_stop)

        def tell(record: dict[str, float]) -> None:
            hooks.emit("on_evaluation", record)
            keep_states(context, hooks)
            logger.write(record)

        turns = Turns(context, plan.period, experiment.num_steps, num_evaluators, last_evaluation(context))
        context.heartbeat(evaluations=0)
        hooks.emit("on_start", None)
        context.ready()
        turns.take(evaluate, tell, refresh=lambda: client.update(wait=True), requested=hooks.requested.is_set)


def open_log(context: NodeContext, experiment: RunConfig, stack: contextlib.ExitStack) -> Logger:
    """Returns the log of an evaluator."""
    label = "evaluation" if context.index == 0 else f"evaluation-{context.index}"
    return stack.enter_context(make_logger(experiment, label, resume_step(context), count_dropped(context)))


def newest_evaluations(values: Mapping[str, Any]) -> dict[tuple[str, int], dict[str, float]]:
    """Returns the records that the run store's values have of each evaluator, by its name and their steps."""
    return {
        (key.removeprefix(_NEWEST), int(record["steps"])): record
        for key, records in values.items()
        if key.startswith(_NEWEST)
        for record in records
    }


def last_evaluation(context: NodeContext) -> int:
    """Returns the step of the newest evaluation that the run has from where it goes on, by any evaluator; 0 for none.

    One that was broken off has no row, and that of a later step was dropped: what they were of is played anew.
    """
    if context.run_directory is None:
        return 0
    until = resume_step(context)
    logs = (context.run_directory / "logs").glob("evaluation*.csv")
    return max((step for log in logs for step in _steps_in(log) if step <= until), default=0)


def _steps_in(log: pathlib.Path) -> list[int]:
    """Returns the steps of a log's rows; none of a damaged one, which its own evaluator refuses."""
    try:
        return [int(float(row["steps"])) for row in read_csv(log)[1] if row.get("steps")]
    except (OSError, ValueError, ConfigError):
        return []


class Turns:
    """Says when an evaluator of several is to evaluate: evaluator i of n every n-th time, and the first at the end."""

    def __init__(self, context: NodeContext, period: int, num_steps: int, num_evaluators: int, last_step: int):
        """Makes the turns of a node.

        Args:
            context: the node's.
            period: in steps; 0 for no evaluation.
            num_steps: of the whole run, until a host that came back wants more.
            num_evaluators: evaluators that take turns.
            last_step: of the newest evaluation before; see `last_evaluation`.
        """
        self._context, self._period, self._num_steps = context, period, num_steps
        # An external evaluator may have any index, and does not know of others.
        self._turn, self._num_evaluators = context.index % num_evaluators, num_evaluators
        self._newest: list[dict[str, float]] = context.store.status()["values"].get(_NEWEST + context.name, [])
        self._last_step = max([last_step, *(int(record["steps"]) for record in self._newest)])
        self._next = self._last_step // period + 1 if period else sys.maxsize
        self._num_done = 0

    def take(
        self,
        evaluate: Callable[[int, Callable[[], bool]], dict[str, float] | None],
        tell: Callable[[dict[str, float]], None],
        *,
        refresh: Callable[[], None],
        requested: Callable[[], bool] = lambda: False,
    ) -> None:
        """Evaluates until the node is told to stop, and once more after all steps, unless the run has that evaluation.

        Args:
            evaluate: evaluates after so many steps, unless it is to stop; returns the record, or None.
            tell: takes a record.
            refresh: fetches the newest parameters.
            requested: whether a callback has asked for the end.
        """
        context, period = self._context, self._period

        def run(steps: int, last: bool = False) -> None:
            def should_stop() -> bool:
                context.heartbeat(evaluations=self._num_done)
                return context.should_stop and not last

            record = evaluate(steps, should_stop)
            if record is not None:
                record = {"steps": steps, **record}
                tell(record)
                self._keep(record)
                self._num_done += 1

        while not context.wait(0.2):
            steps = context.totals().get("steps", 0)
            if self._are_all(steps):  # The learner still learns what is left: these are not its last parameters.
                refresh()  # Over the wire nobody has them once it has ended.
                continue
            number = steps // period if period else 0
            if number >= self._next and not requested():
                self._next = number + 1
                if number % self._num_evaluators == self._turn:
                    run(steps)
        steps = context.totals().get("steps", 0)
        if period and self._turn == 0 and self._are_all(steps) and steps > self._last_step:
            with context.busy("the last evaluation", LEARNER_SECONDS + LAST_EVALUATION_SECONDS):
                self._wait_for_learners(refresh)
                run(steps, last=True)

    def _wait_for_learners(self, refresh: Callable[[], None]) -> None:
        """Waits until the learners have left: those that joined by themselves are told to stop when all others are."""
        deadline = time.monotonic() + LEARNER_SECONDS
        while time.monotonic() < deadline and self._learners_learn():
            self._context.heartbeat(evaluations=self._num_done)
            refresh()
            time.sleep(0.1)

    def _learners_learn(self) -> bool:
        with contextlib.suppress(RunStoreError):  # It is away, and with it all that could be waited for.
            nodes = self._context.store.status()["nodes"].values()
            return any(node["role"] == "learner" and not node["supervised"] and is_here(node) for node in nodes)
        return False

    def _are_all(self, steps: int) -> bool:
        """Returns whether so many steps are all that the run is to take; asks the run store where it may be so."""
        if steps >= self._num_steps:
            with contextlib.suppress(RunStoreError):  # It is away: what is known of it counts.
                self._num_steps = int(self._context.store.get("num_steps", timeout=1.0))  # A new host may want more.
        return steps >= self._num_steps

    def _keep(self, record: dict[str, float]) -> None:
        """Puts a record into the run store, beside this evaluator's others."""
        self._newest = [*self._newest, record][-NUM_KEPT:]
        self._context.store.put(_NEWEST + self._context.name, self._newest)
        self._context.store.put("evaluation", record)  # The newest of all evaluators, for people.
