"""The learner's process: updates, publishes, and writes checkpoints of its own state and replay's contents."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.datasets import ReplayDataset
from agentkit.distributed.board_client import BoardError
from agentkit.distributed.context import NodeContext
from agentkit.errors import CheckpointError, ReplayClosedError, ReplayTimeoutError
from agentkit.experiment.config import ExperimentConfig
from agentkit.experiment.logs import make_logger
from agentkit.experiment.nodes import (
    KEEP_ALIVE_SECONDS,
    OUTAGE_SECONDS,
    connect_to_replay,
    find_spec,
    newest_checkpoint,
    resume_step,
    say,
)
from agentkit.experiment.transports import make_publisher
from agentkit.learning import Learner, LearnerOutlets
from agentkit.replay import listening
from agentkit.specs import EnvironmentSpec

DRAIN_SECONDS = 60.0
"""How long the learner goes on, at most, with what is left to learn once the actors have stopped."""


def learner_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, replay: Mapping[str, Any], *,
    transport: str = "shared_memory", listen: str = "lo",
) -> None:  # fmt: skip
    """Learns until it is told to stop; its endpoint says where the parameters are."""
    spec = spec or find_spec(experiment)
    agent = experiment.agent
    with contextlib.ExitStack() as stack:
        publisher = stack.enter_context(contextlib.closing(make_publisher(context, transport, listen)))
        data = _Data(experiment, spec, replay, stack)
        logger = stack.enter_context(make_logger(experiment, "learner", resume_step(context)))
        learner = Learner(
            agent.make_update(agent.make_networks(spec)),
            data,
            jax.random.PRNGKey(experiment.seed),
            num_updates=agent.batch_plan.num_updates,
            outlets=LearnerOutlets(
                publisher=publisher,
                write_priorities=data.write_priorities,
                log=lambda metrics: logger.write({"steps": context.totals().get("steps", 0), **metrics}),
                log_seconds=experiment.log_seconds,
            ),
        )
        saver = _Saver(context, experiment, learner, data)
        saver.restore()
        publisher.open()
        context.gauge(updates=learner.num_updates_done)
        context.ready(publisher.endpoint)
        _learn(context, learner, data, saver)
        if context.totals().get("steps", 0) >= experiment.num_steps:  # The actors have stopped: catch up.
            deadline = time.monotonic() + DRAIN_SECONDS
            with contextlib.suppress(ReplayTimeoutError, ReplayClosedError):
                while time.monotonic() < deadline:
                    learner.step()
        saver.save()


def _learn(context: NodeContext, learner: Learner, data: _Data, saver: _Saver) -> None:
    """Steps until told to stop. Neither an empty table nor a server that is away ends it."""
    first, outage = learner.num_updates_done, time.monotonic()
    while not context.should_stop:
        try:
            learner.step()
            outage = time.monotonic()
        except ReplayTimeoutError:
            if data.server_answers():
                outage = time.monotonic()
        except ReplayClosedError:
            data.reconnect()
            context.wait(0.5)
        if time.monotonic() - outage > OUTAGE_SECONDS:
            raise ReplayClosedError(f"The replay server at {data.address} was away for {OUTAGE_SECONDS:g} s.")
        context.beat(updates=learner.num_updates_done - first)
        context.gauge(updates=learner.num_updates_done, waited_for_data_seconds=data.waited_seconds)
        data.keep_alive()
        saver.save_if_due()


class _Data:
    """The learner's batches, from a server that may go and come back.

    Attributes:
        address: the server's, "host:port".
        waited_seconds: that the learner has spent waiting for batches so far.
    """

    def __init__(
        self,
        experiment: ExperimentConfig,
        spec: EnvironmentSpec,
        replay: Mapping[str, Any],
        stack: contextlib.ExitStack,
    ):
        self._tables = experiment.agent.make_tables(spec)
        self._plan = experiment.agent.batch_plan
        self._endpoint = replay
        self.address = str(replay["address"])
        self.waited_seconds = 0.0
        self._keep_alive_at = 0.0
        self.replay = connect_to_replay(self._tables, replay, timeout=10.0, wait=120.0, draw_ahead=True)
        self._dataset: ReplayDataset | None = ReplayDataset(self.replay, self._plan, timeout=0.5)
        stack.callback(self.close)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._dataset is None:
            raise ReplayClosedError(f"The replay server at {self.address} is away.")
        start = time.monotonic()
        try:
            return next(self._dataset)
        finally:
            self.waited_seconds += time.monotonic() - start

    def write_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Priorities are hints: those that a server misses while it is away are dropped."""
        with contextlib.suppress(ReplayClosedError, ReplayTimeoutError):
            self.replay.update_priorities(self._plan.table, keys, priorities)

    def server_answers(self) -> bool:
        try:
            self.replay.info(self._plan.table)
        except (ReplayClosedError, ReplayTimeoutError):
            return False
        return True

    def reconnect(self) -> None:
        """Makes everything anew where the server answers; else leaves it for the next time."""
        self.close()
        with contextlib.suppress(ReplayClosedError, ReplayTimeoutError):
            self.replay = connect_to_replay(self._tables, self._endpoint, timeout=10.0, wait=1.0, draw_ahead=True)
            self._dataset = ReplayDataset(self.replay, self._plan, timeout=0.5)

    def keep_alive(self) -> None:
        """Lets TCP notice a host that vanished; new connections come and go, so it is done again and again."""
        if time.monotonic() >= self._keep_alive_at:
            self._keep_alive_at = time.monotonic() + KEEP_ALIVE_SECONDS
            listening.keep_connections_alive(int(self.address.rpartition(":")[2]))

    def close(self) -> None:
        if self._dataset is not None:
            self._dataset.close()
            self._dataset = None
        self.replay.close()


class _Saver:
    """Writes the run's checkpoints: one folder holds the learner's state and replay's contents of one moment."""

    def __init__(self, context: NodeContext, experiment: ExperimentConfig, learner: Learner, data: _Data):
        self._context = context
        self._experiment = experiment
        self._learner = learner
        self._data = data
        self._period = experiment.checkpoint_period
        self._next = self._period or sys.maxsize
        self._failures = 0

    def restore(self) -> None:
        """Takes back the newest checkpoint, if there is one."""
        found = newest_checkpoint(self._context.run_directory)
        if found is not None:
            self._learner.restore(found.state["learner"])
            self._next = (found.step // self._period + 1) * self._period if self._period else sys.maxsize

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
            say(self._context, f"{error}")

    def save(self) -> None:
        """Writes a checkpoint where there is a run folder; without replay's contents if its server is away."""
        directory = self._context.run_directory
        if directory is None:
            return
        with contextlib.suppress(BoardError):
            self._context.sync()
        totals = self._context.totals()
        state = {
            "experiment": self._experiment.describe(),
            "launched": True,
            "learner": self._learner.save(),
            "totals": dict(totals),
            "num_steps": totals.get("steps", 0),
        }
        folder, step = directory / "checkpoints", totals.get("steps", 0)
        try:
            checkpoint.write(folder, step, state, {"replay": self._data.replay.save})
        except (ReplayClosedError, ReplayTimeoutError) as error:
            if not self._context.should_stop:
                raise CheckpointError(f"Replay's contents could not be saved: {error}") from error
            say(self._context, f"The last checkpoint is without replay's contents: {error}")
            checkpoint.write(folder, step, state)
