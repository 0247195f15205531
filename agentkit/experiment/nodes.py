"""What each process of a launched experiment does: the functions behind the nodes of its program.

    replay_node     serves the tables on a port that stays the same
    learner_node    updates, publishes, and writes checkpoints: its own state and replay's contents together
    actor_node      the environment loop, writing to replay
    evaluator_node  episodes with the newest parameters

Each goes on from the newest checkpoint in the run folder, if there is one, so a node that died is started
again by calling its function again. A node that is told to stop saves what it owns and returns.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.datasets import ReplayDataset
from agentkit.distributed.board_client import BoardError
from agentkit.distributed.context import NodeContext
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop
from agentkit.errors import CheckpointError, ReplayClosedError, ReplayTimeoutError
from agentkit.experiment.acting import make_actor, make_loop
from agentkit.experiment.config import ExperimentConfig
from agentkit.experiment.evaluate import Evaluator
from agentkit.experiment.logs import make_logger
from agentkit.experiment.transports import make_publisher, make_source
from agentkit.learning import Learner, LearnerOutlets
from agentkit.replay import Replay, listening
from agentkit.specs import EnvironmentSpec, make_environment_spec
from agentkit.variables import VariableClient

HANDOVER = "replay_handover"
"""Folder in the run's: what a replay node held that was stopped by itself."""

OUTAGE_SECONDS = 300.0
"""How long actors and the learner wait for a replay server that is gone."""

STATUS_SECONDS = 0.5
PARAMETER_SECONDS = 0.1
"""How often an actor looks for newer parameters; looking costs microseconds, fetching up to milliseconds."""

KEEP_ALIVE_SECONDS = 10.0
DRAIN_SECONDS = 60.0

_THIS_PROCESS = secrets.token_hex(8)


def replay_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None = None, *,
    listen: str = "lo", port: int | None = None,
) -> None:  # fmt: skip
    """Serves the agent's tables, and says when all steps are taken.

    Args:
        context: the node's.
        experiment: what is run.
        spec: the environment's; None looks at one.
        listen: the network device to listen on, see `ReverbReplay`.
        port: None finds a free one, and keeps it when the node is started again.
    """
    from agentkit.replay import ReverbReplay  # Loads TensorFlow.

    spec = spec or find_spec(experiment)
    key = f"port/{context.name}"
    known = context.board.status()["values"].get(key)
    folder = context.run_directory
    found = _newest_contents(folder)
    replay = ReverbReplay(
        experiment.agent.make_tables(spec), port=port or known, listen=listen, checkpoint_directory=folder
    )
    with replay:
        if found is not None and (found.path / "replay").is_dir():
            replay.restore(found.path / "replay")
        elif found is not None:
            _say(context, f"{found.path} holds no replay contents: replay starts empty.")
        number = int(replay.address.rpartition(":")[2])
        context.board.put(key, number)
        host = listening.device_address(listen)
        context.board.put("tables", {name: _table_status(replay, name) for name in replay.tables})
        context.ready({"address": f"{host}:{number}", "pid": os.getpid(), "process": _THIS_PROCESS})
        goal = experiment.num_steps
        context.board.put("num_steps", goal)
        while not context.wait(STATUS_SECONDS):
            context.board.put("tables", {name: _table_status(replay, name) for name in replay.tables})
            if context.totals().get("steps", 0) >= goal:
                context.request_stop(f"reached {goal:,} steps")
        if folder is not None and not _program_stops(context):  # Told to stop alone: nobody else will save this.
            _hand_over(folder, context.totals().get("steps", 0), replay)


def _hand_over(folder: pathlib.Path, step: int, replay: Replay, num_attempts: int = 3) -> None:
    """Saves what the tables hold; tries again, as a learner that saves at the same time takes the file away."""
    for attempt in range(num_attempts):
        try:
            checkpoint.write(folder / HANDOVER, step, {}, {"replay": replay.save}, max_to_keep=1)
            return
        except CheckpointError:
            if attempt == num_attempts - 1:
                raise
            time.sleep(0.5)


def _newest_contents(folder: pathlib.Path | None) -> checkpoint.Checkpoint | None:
    """The checkpoint to fill the tables from: the run's newest, or what a replay node left when it was stopped."""
    found = _newest_checkpoint(folder)
    if folder is None:
        return None
    handover = checkpoint.read_latest(folder / HANDOVER)
    if handover is not None and (found is None or handover.step >= found.step):
        return handover
    return found


def _program_stops(context: NodeContext) -> bool:
    with contextlib.suppress(BoardError):
        return context.board.status()["stop"] is not None
    return False


def _table_status(replay: Replay, name: str) -> dict[str, Any]:
    info, limiter = replay.info(name), replay.tables[name].rate_limiter
    counts = {"size": info.size, "inserted": info.num_inserted, "sampled": info.num_sampled}
    waiting = "nobody"
    if not limiter.can_insert(1, **counts):
        waiting = "writers"
    elif not limiter.can_sample(1, **counts):
        waiting = "samplers"
    target = limiter.samples_per_insert
    return {
        **{k: int(v) for k, v in info._asdict().items() if k != "name"},
        "samples_per_insert": float(info.samples_per_insert),
        "samples_per_insert_target": float(target) if np.isfinite(target) else None,
        "waiting": waiting,
    }


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
        logger = stack.enter_context(make_logger(experiment, "learner", _resume_step(context)))
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
    waited = 0.0
    while not context.should_stop:
        start = time.monotonic()
        try:
            learner.step()
            outage = time.monotonic()
        except ReplayTimeoutError:
            waited += time.monotonic() - start
            if data.server_answers():
                outage = time.monotonic()
        except ReplayClosedError:
            data.reconnect()
            context.wait(0.5)
        if time.monotonic() - outage > OUTAGE_SECONDS:
            raise ReplayClosedError(f"The replay server at {data.address} was away for {OUTAGE_SECONDS:g} s.")
        context.beat(updates=learner.num_updates_done - first)
        context.gauge(updates=learner.num_updates_done, waited_for_data_seconds=waited)
        data.keep_alive()
        saver.save_if_due()


class _Data:
    """The learner's batches, from a server that may go and come back."""

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
        self._keep_alive_at = 0.0
        self.replay = connect_to_replay(self._tables, replay, timeout=10.0, wait=120.0, draw_ahead=True)
        self._dataset: ReplayDataset | None = ReplayDataset(self.replay, self._plan, timeout=0.5)
        stack.callback(self.close)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._dataset is None:
            raise ReplayClosedError(f"The replay server at {self.address} is away.")
        return next(self._dataset)

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
        found = _newest_checkpoint(self._context.run_directory)
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
            _say(self._context, f"{error}")

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
            _say(self._context, f"The last checkpoint is without replay's contents: {error}")
            checkpoint.write(folder, step, state)


def actor_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, replay: Mapping[str, Any],
    variables: Mapping[str, Any], *, max_parameter_age_seconds: float | None = None,
) -> None:  # fmt: skip
    """Acts until it is told to stop. A server that is away stops it for as long, not for good."""
    agent = experiment.agent
    seed = int(
        np.random.SeedSequence([experiment.seed, 2, context.index, context.incarnation]).generate_state(1)[0] >> 1
    )
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(contextlib.closing(experiment.make_environment(seed, experiment.num_envs)))
        spec = spec or make_environment_spec(environment)
        connected = connect_to_replay(agent.make_tables(spec), replay, timeout=OUTAGE_SECONDS, wait=120.0)
        stack.callback(connected.close)  # Abandons what is unconfirmed, after the adders' close.
        source = make_source(context, variables)
        client = VariableClient(
            source, update_seconds=PARAMETER_SECONDS, timeout=120.0, max_age_seconds=max_parameter_age_seconds
        )
        policy, key = agent.make_policy(agent.make_networks(spec)), jax.random.PRNGKey(seed)
        label = "train" if context.index == 0 else f"train-{context.index}"
        logger = stack.enter_context(make_logger(experiment, label, _resume_step(context)))

        def log(record: dict[str, float]) -> None:
            logger.write({**record, "steps": max(context.totals().get("steps", 0), record["steps"])})

        actor = make_actor(environment, policy, key, client, lambda: agent.make_adder(connected, spec))
        loop = make_loop(environment, actor, log=log)
        client.update(wait=True)
        context.ready()
        _close_on_stop(context, connected.close)
        try:
            _act(context, loop, client, int(str(replay["address"]).rpartition(":")[2]))
            actor.close()
        except ReplayClosedError:
            if not context.should_stop:
                raise


def _act(
    context: NodeContext, loop: EnvironmentLoop | BatchedEnvironmentLoop, client: VariableClient, port: int
) -> None:
    start, keep_alive_at, shown = time.monotonic(), 0.0, 0.0
    while not context.should_stop:
        loop.step()
        client.update()
        context.beat(steps=loop.num_steps)
        now = time.monotonic()
        if now - shown > STATUS_SECONDS:
            shown = now
            context.gauge(
                parameter_age_seconds=client.age_seconds,
                parameter_version=client.version,
                steps_per_second=loop.num_steps / (now - start),
            )
        if now >= keep_alive_at:
            keep_alive_at = now + KEEP_ALIVE_SECONDS
            listening.keep_connections_alive(port)


def _close_on_stop(context: NodeContext, close: Callable[[], None]) -> None:
    """A second after the node is told to stop, ends a wait for replay that has not ended by itself."""

    def watch() -> None:
        while not context.should_stop:
            time.sleep(0.1)
        time.sleep(1.0)
        close()

    threading.Thread(target=watch, name="close-on-stop", daemon=True).start()


def evaluator_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, variables: Mapping[str, Any], *,
    num_evaluators: int = 1,
) -> None:  # fmt: skip
    """Evaluates every `evaluation_period` steps (evaluator i of n: every n-th time), and once at the end."""
    spec = spec or find_spec(experiment)
    period = experiment.evaluation_period
    label = "evaluation" if context.index == 0 else f"evaluation-{context.index}"
    with contextlib.ExitStack() as stack:
        source = make_source(context, variables)
        evaluator = stack.enter_context(Evaluator(experiment, experiment.agent.make_networks(spec), source))
        logger = stack.enter_context(make_logger(experiment, label, _resume_step(context)))

        def evaluate(should_stop: Callable[[], bool]) -> None:
            steps = context.totals().get("steps", 0)
            record = evaluator.run_unless(should_stop, experiment.evaluation_episodes, number=steps)
            if record is not None:
                record = {"steps": steps, **record}
                logger.write(record)
                context.board.put("evaluation", record)
                done.append(steps)

        done: list[int] = []
        context.ready()
        next_number = _newest_step(context.run_directory) // period + 1 if period else sys.maxsize
        while not context.wait(0.2):
            number = context.totals().get("steps", 0) // period if period else 0
            if number >= next_number:
                next_number = number + 1
                if number % num_evaluators == context.index:
                    evaluate(lambda: context.should_stop)
        last = context.totals().get("steps", 0) >= experiment.num_steps and context.index == 0
        if period and last and not (done and done[-1] >= experiment.num_steps):
            evaluate(lambda: False)


def connect_to_replay(
    tables: Any, endpoint: Mapping[str, Any], *, timeout: float, wait: float, draw_ahead: bool = False
) -> Replay:
    """A `ReverbReplay` of a replay node's server.

    Args:
        tables: the agent's.
        endpoint: the replay node's.
        timeout: seconds, of later waits.
        wait: seconds that a server may take to answer now.
        draw_ahead: see `ReverbReplay`.

    Raises:
        ReplayClosedError: it does not answer, or its process has this one's PID and is another one.
    """
    from agentkit.replay import ReverbReplay

    if endpoint["pid"] == os.getpid() and endpoint["process"] != _THIS_PROCESS:
        # Reverb takes equal PIDs for one process and follows the other's pointer.
        raise ReplayClosedError(
            f"This process and the replay server both have PID {os.getpid()}, in different PID namespaces: Reverb "
            "would crash. A restart gives another PID; in Kubernetes set shareProcessNamespace: true."
        )
    return ReverbReplay(
        tables, address=str(endpoint["address"]), default_timeout=timeout, connect_timeout=wait, draw_ahead=draw_ahead
    )


def find_spec(experiment: ExperimentConfig) -> EnvironmentSpec:
    """The spec of the experiment's environment, from a look at one."""
    with contextlib.closing(experiment.make_environment(experiment.seed, experiment.num_envs)) as environment:
        return make_environment_spec(environment)


def _newest_checkpoint(directory: pathlib.Path | None) -> checkpoint.Checkpoint | None:
    return None if directory is None else checkpoint.read_latest(directory / "checkpoints")


def _newest_step(directory: pathlib.Path | None) -> int:
    """The step of the newest checkpoint, without reading it; 0 without any."""
    return 0 if directory is None else max(checkpoint.steps(directory / "checkpoints"), default=0)


def _resume_step(context: NodeContext) -> int:
    """Up to which step a log is kept: all of it, unless the whole run went back to a checkpoint."""
    return sys.maxsize if context.incarnation else _newest_step(context.run_directory)


def _say(context: NodeContext, text: str) -> None:
    print(f"{context.name} on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
