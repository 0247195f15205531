"""Runs the learner's process: updates, publishes, and writes checkpoints of its state and replay's contents."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.distributed.context import NodeContext
from agentkit.distributed.run_store_client import RunStoreError
from agentkit.errors import CheckpointError, ConfigError, ReplayClosedError, ReplayTimeoutError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.nodes.learner_data import ServerData, ShardedData, make_data
from agentkit.experiment.launching.sharing.callbacks import keep_states, node_hooks, save_states
from agentkit.experiment.launching.sharing.common import (
    OUTAGE_SECONDS,
    contents_seconds,
    count_dropped,
    find_spec,
    log,
    newest_checkpoint,
    num_items,
    open_run_folder,
    resume_step,
)
from agentkit.experiment.launching.sharing.exploring import save_explored
from agentkit.experiment.launching.sharing.transports import PUBLISH_SECONDS, make_publisher
from agentkit.experiment.policies.agent_parts import AgentParts
from agentkit.experiment.runs.lock import RunFolder
from agentkit.experiment.runs.logs import make_logger
from agentkit.experiment.runs.resume_checks import ResumeError
from agentkit.experiment.training.devices import learner_devices, local_devices
from agentkit.experiment.training.hooks import Hooks
from agentkit.experiment.training.initial_state import find_initial_state
from agentkit.experiment.training.own_learner import OwnLearner, make_learner
from agentkit.experiment.training.prior_data import refuse_prior_data
from agentkit.experiment.training.switched_state import as_launched
from agentkit.learning import Learner, LearnerCallbacks
from agentkit.specs import EnvironmentSpec

DRAIN_SECONDS = 60.0
"""How long the learner goes on, at most, with what is left to learn once the actors have stopped."""


def learner_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None,
    replay: Mapping[str, Any] | Sequence[Mapping[str, Any]], *,
    listen: str = "lo", publish_seconds: float = PUBLISH_SECONDS, learner_id: str | None = None,
    learned_share: float | None = None,
) -> None:  # fmt: skip
    """Learns until it is told to stop; its endpoint says where the parameters are.

    Args:
        context: the node's.
        experiment: what is run.
        spec: the environment's; None looks at one.
        replay: the endpoint of the replay node to learn from, or a list of those of several, used in turn.
        listen: the network device for nodes on other hosts, see `transports.make_publisher`.
        publish_seconds: between two publications, at least; 0 publishes every update.
        learner_id: of several learners, its name, such as the policy that it learns; it saves in a folder of its own.
        learned_share: of several agents' actions, the share that it learns from, on average.
    """
    if learner_id is None:
        _check_is_the_first(context)
    label = "learner" if learner_id is None else f"learner-{learner_id}"
    folder = open_run_folder(context, learner_id)
    refuse_prior_data(experiment)
    local_devices()  # Ends the program where a platform is not there, before it is waited for and begun again.
    devices = learner_devices(experiment.devices)
    spec = spec or find_spec(experiment)
    agent = experiment.agent
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(contextlib.closing(make_publisher(context, listen, publish_seconds)))
        data = stack.enter_context(contextlib.closing(make_data(agent, spec, replay, context.store)))
        logger = stack.enter_context(make_logger(experiment, label, resume_step(context), count_dropped(context)))
        hooks = node_hooks(context, experiment)
        steps_per_action = functools.partial(_steps_per_action, context, learner_id, learned_share)
        parts = AgentParts(agent, spec)
        learner = make_learner(
            parts,
            data,
            _key(experiment),
            callbacks=LearnerCallbacks(
                publisher=publisher,
                write_priorities=data.write_priorities,
                log=lambda row: hooks.log_learner(logger, {**_counted(context), **row}),
                log_seconds=experiment.log_seconds,
                count_steps=lambda: _counted(context)["steps"],
                steps_per_action=None if learned_share is None else steps_per_action,
            ),
            devices=devices,
            on_nan=experiment.on_nan,
        )
        stack.enter_context(contextlib.closing(learner))
        saver = _Saver(context, folder, experiment, learner, data, hooks)
        if not saver.restore():
            _begin(learner, experiment, parts)
        publisher.open()
        hooks.watch(count_updates=lambda: learner.num_updates_done)
        hooks.emit("on_start", None)
        first = learner.num_updates_done
        context.gauge(updates=first)
        context.heartbeat(updates=0)
        context.ready(publisher.endpoint)
        _learn(context, learner, data, saver)
        if context.totals().get("steps", 0) >= experiment.num_steps:  # The actors have stopped: catch up.
            _drain(context, learner, data, first)
        learner.log()
        saver.save()
        hooks.emit("on_end")


def _counted(context: NodeContext) -> dict[str, int]:
    """Returns the steps of all actors, and their agents' actions where there are several."""
    totals = context.totals()
    return {"steps": 0} | {name: totals[name] for name in ("steps", "agent_steps") if name in totals}


def _steps_per_action(context: NodeContext, learner_id: str | None, learned_share: float | None) -> float:
    """Returns how many steps an action is that is learned from, on average so far; see `types.ReplaySample`."""
    totals = context.totals()
    # Where policies change by episode, actors count the actions of each.
    chosen = totals.get(f"agent_steps/{learner_id}", totals.get("agent_steps", 0) * (learned_share or 1))
    return totals.get("steps", 0) / max(chosen, 1)


def _key(experiment: ExperimentConfig) -> Any:
    """Returns the learner's PRNG key ``uint32[2]``; of a user's own the same numbers, without taking JAX's device."""
    if experiment.agent.make_learner is not None:  # JAX would take most of an accelerator's memory, which is torch's.
        return np.array([0, experiment.seed], np.uint32)
    return jax.random.PRNGKey(experiment.seed)


def _check_is_the_first(context: NodeContext) -> None:
    if context.index > 0 and context.run_directory is not None:
        raise ConfigError(
            f"{context.name} would write the same checkpoints as learner-0. Give each learner and its replay a "
            "learner_id, and run the program by experiment.run_learners, as examples/plans/two_learners.py does."
        )


def _begin(learner: Learner | OwnLearner, experiment: ExperimentConfig, parts: AgentParts) -> None:
    """Begins with the training state of another run, if the experiment names one."""
    initial = find_initial_state(experiment, parts)
    if initial.training is not None:
        assert isinstance(learner, Learner), "check_own_boxes has refused another"
        learner.begin_with(initial.training)


def _learn(context: NodeContext, learner: Learner | OwnLearner, data: ServerData | ShardedData, saver: _Saver) -> None:
    """Steps until told to stop. Neither an empty table nor a server that is away ends it."""
    first, outage = learner.num_updates_done, time.monotonic()
    while not context.should_stop:
        try:
            learner.step()
            outage = time.monotonic()
        except ReplayTimeoutError:
            if data.answers():
                outage = time.monotonic()
        except ReplayClosedError:
            data.reconnect()
            context.wait(0.5)
        if time.monotonic() - outage > OUTAGE_SECONDS:
            raise ReplayClosedError(f"The replay server at {data.address} was away for {OUTAGE_SECONDS:g} s.")
        context.heartbeat(updates=learner.num_updates_done - first)
        context.gauge(updates=learner.num_updates_done, waited_for_data_seconds=data.waited_seconds)
        data.keep_alive()
        data.share_priorities(context.store)
        saver.save_if_due()


def _drain(context: NodeContext, learner: Learner | OwnLearner, data: ServerData | ShardedData, first: int) -> None:
    """Learns from what replay still lets it draw, for a minute at most; `first` updates came before this node."""
    deadline = time.monotonic() + DRAIN_SECONDS
    with contextlib.suppress(ReplayTimeoutError, ReplayClosedError):
        while time.monotonic() < deadline:
            try:
                learner.step()
            except ReplayTimeoutError:  # Of a learner that has just begun, the first batch may only be slow to come.
                if not data.may_draw():
                    break
            context.heartbeat(updates=learner.num_updates_done - first)
    context.gauge(updates=learner.num_updates_done)


class _Saver:
    """Writes the run's checkpoints: one folder holds the learner's state and replay's contents of one moment."""

    def __init__(
        self,
        context: NodeContext,
        folder: RunFolder,
        experiment: ExperimentConfig,
        learner: Learner | OwnLearner,
        data: ServerData | ShardedData,
        hooks: Hooks,
    ):
        self._context = context
        self._folder = folder
        self._hooks = hooks
        self._experiment = experiment
        self._learner = learner
        self._data = data
        self._period = experiment.checkpoint_period
        self._next = self._period or sys.maxsize
        self._failures = 0
        self._explored: dict[str, int] = {}
        self._counted: tuple[dict[str, int], dict[str, Any]] = {}, {}
        self._states: dict[str, Any] = {}

    def restore(self) -> bool:
        """Takes back the newest checkpoint; returns whether there is one."""
        found = newest_checkpoint(self._context.run_directory)
        if found is not None:
            try:
                self._learner.restore(found.state["learner"])
            except CheckpointError as error:
                raise ResumeError(str(error)) from error
            state = as_launched(found.state)
            self._counted = dict(state["totals"]), dict(state.get("counted", {}))
            self._explored = dict(state.get("explored", {}))
            self._states = dict(state.get("callbacks", {}))
            self._next = (found.step // self._period + 1) * self._period if self._period else sys.maxsize
        return found is not None

    def save_if_due(self) -> None:
        """Saves every `checkpoint_period` steps. A failure is told and tried again later: training goes on."""
        steps = self._context.totals().get("steps", 0)
        if steps < self._next:
            return
        self._next = (steps // self._period + 1) * self._period
        try:
            self.save()
        except CheckpointError as error:
            self._failures += 1
            self._context.gauge(checkpoint_failures=self._failures)
            log(self._context, f"{error}")

    def save(self) -> None:
        """Writes a checkpoint where there is a run folder; without replay's contents if its server is away.

        Nothing, where another process has taken the learner's name over.
        """
        directory = self._context.run_directory
        if directory is None:
            return
        self._folder.check()
        with contextlib.suppress(RunStoreError):
            self._context.sync()
        if self._context.replaced:  # The folder is the other's, whose state is the newer one.
            log(self._context, "Saves no checkpoint: another process is this learner now.")
            return
        with contextlib.suppress(RunStoreError):
            keep_states(self._context, self._hooks)
        self._explored = save_explored(self._context, self._explored)
        self._states = save_states(self._context, self._states)
        totals, counted = self._counts()
        state = {
            "experiment": self._experiment.describe(),
            "launched": True,
            "learner": self._learner.save(),
            "totals": totals,
            "counted": counted,
            "explored": self._explored,
            "num_steps": totals.get("steps", 0),
            "callbacks": self._states,
        }
        keep = self._experiment.keep_checkpoints
        folder, step = directory / "checkpoints", totals.get("steps", 0)
        try:
            with self._context.busy("saving a checkpoint", contents_seconds(num_items(self._context))):
                path = checkpoint.write(folder, step, state, self._data.writers_of_contents(), max_to_keep=keep)
        except (CheckpointError, ReplayClosedError, ReplayTimeoutError) as error:
            if not self._context.should_stop:
                raise CheckpointError(f"Replay's contents could not be saved: {error}") from error
            log(self._context, f"The last checkpoint is without replay's contents: {error}")
            path = checkpoint.write(folder, step, state, max_to_keep=keep)
        self._hooks.emit("on_checkpoint", path)

    def _counts(self) -> tuple[dict[str, int], dict[str, Any]]:
        """Returns the totals, and who counted what of them.

        Where the run store is away, as of the last save if nodes have joined by themselves: they may outlive the store,
        and what they have counted since then they tell it again. Else as of the last heartbeat.
        """
        with contextlib.suppress(RunStoreError):
            found = self._context.store.save_counts()
            self._counted = found["totals"], found["counted"]
            return self._counted
        return self._counted if self._counted[1] else (dict(self._context.totals()), {})
