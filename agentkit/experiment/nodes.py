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
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from agentkit import checkpoint
from agentkit.actors import BatchedPolicyActor, InferenceClosedError, PolicyActor, RemoteActor
from agentkit.core import Agent
from agentkit.distributed.board_client import BoardError
from agentkit.distributed.context import NodeContext
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop
from agentkit.errors import CheckpointError, ReplayClosedError
from agentkit.experiment.acting import find_place, make_actor, make_adder, make_loop, make_remote_actor
from agentkit.experiment.config import ExperimentConfig
from agentkit.experiment.evaluate import Evaluator
from agentkit.experiment.logs import make_logger
from agentkit.experiment.transports import make_source
from agentkit.ports import device_address, keep_connections_alive
from agentkit.replay import Replay
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
    folder, contents = context.run_directory, contents_name(context.name)
    if folder is not None and context.incarnation == 0:  # Of an earlier program: this one begins from a checkpoint.
        shutil.rmtree(_handover(folder, contents), ignore_errors=True)
    found = _newest_contents(folder, contents)
    scratch = None if folder is None else folder / f".{context.name}"
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)  # A server that was killed left its files there.
        scratch.mkdir(parents=True)
    replay = ReverbReplay(
        experiment.agent.make_tables(spec), port=port or known, listen=listen, checkpoint_directory=scratch
    )
    with replay:
        if found is not None:
            replay.restore(found.path / contents)
        elif _newest_step(folder):
            say(context, f"No checkpoint in {folder} holds replay contents: replay starts empty.")
        number = int(replay.address.rpartition(":")[2])
        context.board.put(key, number)
        host = device_address(listen)
        # Tables of a second server, or of another shard, are beside those of the first: see `all_tables`.
        tables = "tables" if context.index == 0 else f"tables/{context.name}"
        context.board.put(tables, {name: _table_status(replay, name) for name in replay.tables})
        endpoint = {"node": context.name, "address": f"{host}:{number}"}
        context.ready({**endpoint, "pid": os.getpid(), "process": _THIS_PROCESS})
        goal = experiment.num_steps
        context.board.put("num_steps", goal)
        while not context.wait(STATUS_SECONDS):
            with contextlib.suppress(BoardError):  # A board that stays silent ends this node in order: it hands over.
                context.board.put(tables, {name: _table_status(replay, name) for name in replay.tables})
                if context.totals().get("steps", 0) >= goal:
                    context.request_stop(f"reached {goal:,} steps")
        if folder is not None and not _program_stops(context):  # Told to stop alone: nobody else will save this.
            _hand_over(folder, contents, context.totals().get("steps", 0), replay)
    if scratch is not None:
        shutil.rmtree(scratch, ignore_errors=True)


def contents_name(replay_node: str) -> str:
    """Where in a checkpoint the contents of a replay node are: "replay", and of a second one its own name."""
    return "replay" if replay_node == "replay-0" else replay_node


def _hand_over(folder: pathlib.Path, contents: str, step: int, replay: Replay, num_attempts: int = 3) -> None:
    """Saves what the tables hold; tries again, as a learner that saves at the same time takes the file away."""
    for attempt in range(num_attempts):
        try:
            checkpoint.write(_handover(folder, contents), step, {}, {contents: replay.save}, max_to_keep=1)
            return
        except CheckpointError:
            if attempt == num_attempts - 1:
                raise
            time.sleep(0.5)


def _handover(folder: pathlib.Path, contents: str) -> pathlib.Path:
    return folder / (HANDOVER if contents == "replay" else f"{HANDOVER}-of-{contents}")


def _newest_contents(folder: pathlib.Path | None, contents: str) -> checkpoint.Checkpoint | None:
    """What to fill the tables from: the run's newest checkpoint, or what a replay node left when it was stopped.

    A checkpoint without contents (a learner wrote it that could not reach the server) is passed over.
    """
    if folder is None:
        return None
    found = checkpoint.read_latest(folder / "checkpoints", holding=contents)
    handover = checkpoint.read_latest(_handover(folder, contents))
    return handover if found is None or (handover is not None and handover.step >= found.step) else found


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
    also: Sequence[tuple[Agent, Mapping[str, Any]]] = (), inference: Sequence[Mapping[str, Any]] = (),
) -> None:  # fmt: skip
    """Acts until it is told to stop. A server that is away stops it for as long, not for good.

    Args:
        context: the node's.
        experiment: what is run.
        spec: the environment's; None looks at it.
        replay: the endpoint of the replay node to write to.
        variables: the endpoint of the learner whose parameters to act with.
        max_parameter_age_seconds: see `LaunchConfig`.
        also: other agents that learn from the same steps, each with the endpoint of its replay node.
        inference: the endpoints of inference nodes, one of which chooses its actions; none: it does so itself.
    """
    agent = experiment.agent
    seed = int(
        np.random.SeedSequence([experiment.seed, 2, context.index, context.incarnation]).generate_state(1)[0] >> 1
    )
    with contextlib.ExitStack() as stack:
        environment = stack.enter_context(contextlib.closing(experiment.make_environment(seed, experiment.num_envs)))
        spec = spec or make_environment_spec(environment)
        fed = []
        for each, endpoint in ((agent, replay), *also):
            fed.append((each, connect_to_replay(each.make_tables(spec), endpoint, timeout=OUTAGE_SECONDS, wait=120.0)))
            stack.callback(fed[-1][1].close)  # Abandons what is unconfirmed, after the adders' close.
        label = "train" if context.index == 0 else f"train-{context.index}"
        logger = stack.enter_context(make_logger(experiment, label, resume_step(context), count_dropped(context)))

        def log(record: dict[str, float]) -> None:
            logger.write({**record, "steps": max(context.totals().get("steps", 0), record["steps"])})

        adder, closes = make_adder(environment, spec, fed), [connected.close for _, connected in fed]
        actor: PolicyActor | BatchedPolicyActor | RemoteActor
        client: VariableClient | RemoteActor
        if inference:
            actor = client = make_remote_actor(context, environment, spec, inference, seed=seed, adder=adder)
            stack.callback(client.disconnect)
            closes.append(client.disconnect)
        else:
            client = VariableClient(
                make_source(context, variables), update_seconds=PARAMETER_SECONDS, timeout=120.0,
                max_age_seconds=max_parameter_age_seconds, place=jax.device_put,
            )  # fmt: skip
            policy, key = agent.make_policy(agent.make_networks(spec)), jax.random.PRNGKey(seed)
            actor = make_actor(environment, policy, key, client, adder, find_place(context))
        loop = make_loop(environment, actor, log=log)
        client.update(wait=True)
        context.ready()
        close_on_stop(context, closes)
        try:
            _act(context, loop, client, [_port(endpoint) for endpoint in (replay, *(pair[1] for pair in also))])
            actor.close()
        except (ReplayClosedError, InferenceClosedError):
            if not context.should_stop:
                raise


def _port(endpoint: Mapping[str, Any]) -> int:
    return int(str(endpoint["address"]).rpartition(":")[2])


def _act(
    context: NodeContext, loop: EnvironmentLoop | BatchedEnvironmentLoop, client: VariableClient | RemoteActor,
    ports: Sequence[int],
) -> None:  # fmt: skip
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
            for port in ports:
                keep_connections_alive(port)


def close_on_stop(context: NodeContext, closes: Sequence[Callable[[], None]]) -> None:
    """A second after the node is told to stop, ends a wait for replay that has not ended by itself."""

    def watch() -> None:
        while not context.should_stop:
            time.sleep(0.1)
        time.sleep(1.0)
        for close in closes:
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
    turn = context.index % num_evaluators  # By hand an evaluator may have any index, and does not know of others.
    with contextlib.ExitStack() as stack:
        source = make_source(context, variables)
        evaluator = stack.enter_context(Evaluator(experiment, experiment.agent.make_networks(spec), source))
        logger = stack.enter_context(make_logger(experiment, label, resume_step(context), count_dropped(context)))

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
                if number % num_evaluators == turn:
                    evaluate(lambda: context.should_stop)
        last = context.totals().get("steps", 0) >= experiment.num_steps and turn == 0
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


def count_dropped(context: NodeContext) -> Callable[[int], None]:
    """Shows in the status how many rows of a node's log a full disk has refused."""
    return lambda number: context.gauge(log_rows_dropped=number)


def say(context: NodeContext, text: str) -> None:
    """Writes a line to the node's log."""
    with contextlib.suppress(OSError):  # A full disk refuses the log too.
        print(f"{context.name} on {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
