"""What each process of a launched experiment does: the functions behind the nodes of its program.

    replay_node     serves the tables on a port that stays the same
    learner_node    updates, publishes, and writes checkpoints: in `learner_node.py`
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
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.distributed.board_client import BoardError
from agentkit.distributed.context import NodeContext
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop
from agentkit.errors import CheckpointError, ReplayClosedError
from agentkit.experiment.acting import make_actor, make_loop
from agentkit.experiment.config import ExperimentConfig
from agentkit.experiment.evaluate import Evaluator
from agentkit.experiment.logs import make_logger
from agentkit.experiment.transports import make_source
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
            say(context, f"{found.path} holds no replay contents: replay starts empty.")
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
    found = newest_checkpoint(folder)
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
        logger = stack.enter_context(make_logger(experiment, label, resume_step(context)))

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
        logger = stack.enter_context(make_logger(experiment, label, resume_step(context)))

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


def newest_checkpoint(directory: pathlib.Path | None) -> checkpoint.Checkpoint | None:
    """The newest whole checkpoint of the run in a folder; None if there is none, or no folder."""
    return None if directory is None else checkpoint.read_latest(directory / "checkpoints")


def _newest_step(directory: pathlib.Path | None) -> int:
    """The step of the newest checkpoint, without reading it; 0 without any."""
    return 0 if directory is None else max(checkpoint.steps(directory / "checkpoints"), default=0)


def resume_step(context: NodeContext) -> int:
    """Up to which step a log is kept: all of it, unless the whole run went back to a checkpoint."""
    return sys.maxsize if context.incarnation else _newest_step(context.run_directory)


def say(context: NodeContext, text: str) -> None:
    """Writes a line to the node's log."""
    print(f"{context.name} on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
