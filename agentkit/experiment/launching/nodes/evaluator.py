"""Runs the evaluator's process: episodes with the newest parameters."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from typing import Any

from agentkit.distributed.context import NodeContext
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.evaluation.evaluate import Evaluator
from agentkit.experiment.launching.sharing.callbacks import keep_states, node_hooks
from agentkit.experiment.launching.sharing.common import count_dropped, find_spec, newest_step, resume_step, watch_steps
from agentkit.experiment.launching.sharing.transports import make_source
from agentkit.experiment.runs.logs import make_logger
from agentkit.specs import EnvironmentSpec

LAST_EVALUATION_SECONDS = 300.0
"""How long the evaluation may take that follows the last step, when the others have stopped."""


def evaluator_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, variables: Mapping[str, Any], *,
    num_evaluators: int = 1,
) -> None:  # fmt: skip
    """Evaluates every `evaluation_period` steps (evaluator i of n: every n-th time), and once at the end."""
    spec = spec or find_spec(experiment)
    plan = evaluation_plan(experiment)  # Never in proportion: a process of its own takes nothing from the training.
    period = plan.period
    label = "evaluation" if context.index == 0 else f"evaluation-{context.index}"
    turn = context.index % num_evaluators  # An external evaluator may have any index, and does not know of others.
    with contextlib.ExitStack() as stack:
        source = make_source(context, variables)
        watch = stack.enter_context(watch_steps(context, experiment))
        networks = experiment.agent.make_networks(spec)
        hooks = node_hooks(context, experiment)
        evaluator = stack.enter_context(Evaluator(experiment, networks, source, watch, hooks.evaluation_observers()))
        client = evaluator.client
        hooks.watch(count_updates=lambda: client.version, get_params=lambda: client.params)
        logger = stack.enter_context(make_logger(experiment, label, resume_step(context), count_dropped(context)))

        def evaluate(last: bool = False) -> None:
            def should_stop() -> bool:
                context.heartbeat(evaluations=len(done))
                return context.should_stop and not last

            steps = context.totals().get("steps", 0)
            hooks.watch(count_steps=lambda: steps)  # The others go on meanwhile.
            record = evaluator.run(plan.episodes, number=steps, should_stop=should_stop)
            if record is not None:
                record = {"steps": steps, **record}
                hooks.emit("on_evaluation", record)
                keep_states(context, hooks)
                logger.write(record)
                context.store.put("evaluation", record)
                done.append(steps)

        done: list[int] = []
        context.heartbeat(evaluations=0)
        hooks.emit("on_start", None)
        context.ready()
        next_number = newest_step(context.run_directory) // period + 1 if period else sys.maxsize
        while not context.wait(0.2):
            steps = context.totals().get("steps", 0)
            if steps >= experiment.num_steps:  # The learner ends soon; over the wire nobody has its parameters then.
                client.update(wait=True)
            number = steps // period if period else 0
            if number >= next_number and not hooks.requested.is_set():
                next_number = number + 1
                if number % num_evaluators == turn:
                    evaluate()
        last = context.totals().get("steps", 0) >= experiment.num_steps and turn == 0
        if period and last and not (done and done[-1] >= experiment.num_steps):
            with context.busy("the last evaluation", LAST_EVALUATION_SECONDS):
                evaluate(last=True)
