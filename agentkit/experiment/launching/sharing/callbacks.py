"""Calls callbacks on the nodes of a launched program: their stops and failures end it all, and their state is kept.

The run store keeps the states of the evaluators' and the learner's callbacks, so that a node that is started again has
them, and the learner writes them into checkpoints. Those of actors begin anew with their process. What the evaluation
after the last step changes is in none: it judges the parameters that the learner has saved before it left. So a run
that is extended goes on with the states of the evaluation before.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import traceback
from collections.abc import Mapping
from typing import Any

from agentkit.distributed import ProgramError
from agentkit.distributed.context import NodeContext
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.training.hooks import Hooks

_STATES = "callbacks/"
_STOPPED_BY = "stopped_by"
_FAILURE = "callback_failure"


def node_hooks(context: NodeContext, experiment: RunConfig) -> Hooks:
    """Makes the `Hooks` of a node, with the state that they had; what ends a run ends the whole program, in order."""
    # Nodes that are threads share the experiment: each has callbacks of its own, as processes have.
    either: Any = experiment  # Of one agent or of several, a dataclass.
    own = dataclasses.replace(either, callbacks=copy.deepcopy(tuple(experiment.callbacks)))
    hooks = Hooks(own, context.role)

    def end_program() -> None:
        if hooks.failure is not None:
            text = "".join(traceback.format_exception(hooks.failure))
            context.store.put(_FAILURE, f"A callback on {context.name} failed; the run is saved.\n{text}")
            context.request_stop(f"a callback on {context.name} failed")
        else:
            if context.role != "actor":
                keep_states(context, hooks)  # The learner may save before the callbacks behind this one are done.
            context.store.put(_STOPPED_BY, hooks.stopped_by)
            context.request_stop(str(hooks.stopped_by))

    hooks.on_request = end_program
    hooks.watch(lambda: context.totals().get("steps", 0))
    if hooks.callbacks:
        context.sync()  # For the program's steps.
    if hooks.callbacks and context.role != "actor":
        hooks.restore(context.store.status()["values"].get(_STATES + context.name, {}))
    return hooks


def keep_states(context: NodeContext, hooks: Hooks) -> None:
    """Puts the states of a node's callbacks into the run store."""
    states = {name: state for name, state in hooks.save().items() if state}
    try:
        json.dumps(states)
    except TypeError as error:
        hooks.fail(error, f"{', '.join(states)}: save, whose state has to be plain values in a launched program")
    else:
        if states:
            context.store.put(_STATES + context.name, states)


def save_states(context: NodeContext, known: dict[str, Any]) -> dict[str, Any]:
    """Returns what a checkpoint keeps: the states of all nodes' callbacks; `known` where the store does not answer."""
    with contextlib.suppress(RunStoreError):
        values = context.store.status()["values"]
        return {key.removeprefix(_STATES): value for key, value in values.items() if key.startswith(_STATES)}
    return known


def restored_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what belongs into the run store of a run that goes on from a checkpoint's state."""
    return {_STATES + name: value for name, value in state.get("callbacks", {}).items()}


def stopped_by(status: Mapping[str, Any]) -> str | None:
    """Returns why a callback has ended a program; None if none has.

    Raises:
        ProgramError: one has failed; the message has its traceback.
    """
    values = status["values"]
    if _FAILURE in values:
        raise ProgramError(str(values[_FAILURE]))
    return None if values.get(_STOPPED_BY) is None else str(values[_STOPPED_BY])
