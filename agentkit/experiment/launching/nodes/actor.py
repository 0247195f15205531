"""Runs the actor's process: the environment loop, writing to replay."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from agentkit.actors import (
    ActorIndex,
    BatchedPolicyActor,
    InferenceClosedError,
    PolicyActor,
    ReadyPolicyActor,
    RemoteActor,
)
from agentkit.agents.common.agent import Agent
from agentkit.counting import Counter
from agentkit.distributed.context import NodeContext
from agentkit.errors import ReplayClosedError
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.config.run_config import RunConfig
from agentkit.experiment.launching.nodes.inference import connect_to_inference
from agentkit.experiment.launching.nodes.multi_agent_inference import RemoteLoop
from agentkit.experiment.launching.nodes.replay import check_reachable, connect_to_replay, keep_alive
from agentkit.experiment.launching.sharing.callbacks import node_hooks
from agentkit.experiment.launching.sharing.common import (
    KEEP_ALIVE_SECONDS,
    OUTAGE_SECONDS,
    STATUS_SECONDS,
    count_dropped,
    resume_step,
    watch_steps,
)
from agentkit.experiment.launching.sharing.exploring import find_start
from agentkit.experiment.launching.sharing.priorities import LargestPriorities
from agentkit.experiment.launching.sharing.step_goal import StepGoal
from agentkit.experiment.launching.sharing.transports import make_client
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.experiment.multi_agent.self_play import SelfPlayLoop
from agentkit.experiment.policies.agent_parts import AgentParts
from agentkit.experiment.policies.make_actor import AnyActor, AnyLoop, make_actor, make_adder, make_loop
from agentkit.experiment.runs.logs import make_logger
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.replay import Replay, Table
from agentkit.specs import EnvironmentSpec, is_batched, make_environment_spec
from agentkit.types import Nest
from agentkit.variables import VariableClient

_STOCK_ACTORS = (PolicyActor, BatchedPolicyActor, ReadyPolicyActor, RemoteActor)
"""Have nothing to update but their client."""


def actor_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, replay: Mapping[str, Any],
    variables: Mapping[str, Any], *, max_parameter_age_seconds: float | None = None,
    extra_learners: Sequence[tuple[Agent, Mapping[str, Any]]] = (), inference: Sequence[Mapping[str, Any]] = (),
) -> None:  # fmt: skip
    """Acts until it is told to stop. A server that is away stops it for as long, not for good.

    Args:
        context: the node's.
        experiment: what is run.
        spec: the environment's; None looks at it.
        replay: the endpoint of the replay node to write to.
        variables: the endpoint of the learner whose parameters to act with.
        max_parameter_age_seconds: see `LaunchConfig`.
        extra_learners: other agents that learn from the same steps, each with the endpoint of its replay node.
        inference: the endpoints of inference nodes, one of which chooses its actions; none: it does so itself.
    """
    agent = experiment.agent
    seed, num_steps = find_start(context, experiment.seed, 2)
    index = find_actor_index(context, num_steps)
    with contextlib.ExitStack() as stack:
        watch = stack.enter_context(watch_steps(context, experiment))
        hooks = node_hooks(context, experiment)
        environment = watch.make(lambda: hooks.wrap(experiment).make_training_environment(seed))
        stack.enter_context(contextlib.closing(environment))
        spec = spec or make_environment_spec(environment)
        learners = [(agent, replay), *extra_learners]
        servers = [(endpoint, connect(context, each.make_tables(spec), endpoint, stack)) for each, endpoint in learners]
        log = open_log(context, experiment, stack)
        written = [(each, server) for (each, _), (_, server) in zip(learners, servers, strict=True)]
        adder, closes = make_adder(environment, spec, written), [server.close for _, server in servers]
        actor: AnyActor | RemoteActor
        client: VariableClient | RemoteActor
        if inference:
            assert not isinstance(adder, list)  # LaunchConfig refuses --ready with inference nodes.
            num_envs = environment.num_envs if is_batched(environment) else None
            asked = connect_to_inference(context, inference, stack)
            actor = client = RemoteActor(asked, spec, seed=seed, adder=adder, num_envs=num_envs, actor_index=index)
            closes.append(client.disconnect)
        else:
            place = jax.device_put if agent.make_actor is None else _as_is
            client = make_client(context, variables, max_parameter_age_seconds, place)
            policy = AgentParts(agent, spec).policy()
            actor = make_actor(environment, policy, jax.random.PRNGKey(seed), client, adder, index)
        counter = Counter()
        loop = make_loop(environment, actor, counter, log, experiment.on_nan, hooks.observers())
        updates = [] if type(actor) in _STOCK_ACTORS else [actor.update]
        client.update(wait=True)
        for update in updates:
            update(wait=True)
        hooks.watch(count_updates=lambda: client.version)
        hooks.emit("on_start", environment)
        context.ready()
        close_on_stop(context, closes)
        try:
            goal = StepGoal(context, index.num_actors)
            act(context, loop, [client], servers, goal, lambda: _count(loop, counter), updates)
            actor.close()
        except (ReplayClosedError, InferenceClosedError):
            if not context.should_stop:
                raise


def _as_is(params: Nest) -> Nest:
    return params  # An actor of the user's own need not know of JAX's devices.


def _count(loop: AnyLoop, counter: Counter) -> dict[str, int]:
    return {"steps": loop.num_steps, "episodes": counter.get("episodes")}


def connect(
    context: NodeContext, tables: Sequence[Table], endpoint: Mapping[str, Any], stack: contextlib.ExitStack
) -> Replay:
    """Connects an actor to a replay node; the stack ends that."""
    check_reachable(endpoint)
    server = connect_to_replay(tables, endpoint, timeout=OUTAGE_SECONDS, wait=120.0, store=context.store)
    stack.callback(server.close)  # Abandons what is unconfirmed, after the adders' close.
    return server


def open_log(
    context: NodeContext, experiment: RunConfig, stack: contextlib.ExitStack
) -> Callable[[dict[str, float]], None]:
    """Returns what writes an episode's record to this actor's log, by the steps and episodes of all actors."""
    label = "train" if context.index == 0 else f"train-{context.index}"
    logger = stack.enter_context(make_logger(experiment, label, resume_step(context), count_dropped(context)))

    def log(record: dict[str, float]) -> None:
        totals = context.totals()
        counted: dict[str, Any] = {
            name: max(totals.get(name, 0), value)
            for name, value in record.items()
            if name in ("steps", "episodes") or name.startswith("agent_steps")
        }
        logger.write({**record, **counted})

    return log


def act(
    context: NodeContext, loop: AnyLoop | MultiAgentLoop | BatchedMultiAgentLoop | SelfPlayLoop | RemoteLoop,
    clients: Sequence[VariableClient | RemoteActor], servers: Sequence[tuple[Mapping[str, Any], Any]], goal: StepGoal,
    count: Callable[[], dict[str, int]], updates: Sequence[Callable[[], None]] = (),
) -> None:  # fmt: skip
    """Steps until told to stop, and no more once all actors have taken enough together.

    `clients` keep the parameters fresh, of each policy; `servers` are the replay nodes' endpoints, with the clients
    that write there. `count` returns what to count. `updates` are those of a user's own actors.
    """
    priorities = [(LargestPriorities(context.store, endpoint), server) for endpoint, server in servers]
    start, keep_alive_at, shown = time.monotonic(), 0.0, 0.0
    context.heartbeat(**count())
    while not context.should_stop:
        if goal.reached():
            context.wait(STATUS_SECONDS)  # For the word to stop, which the replay node gives.
            continue
        loop.step()
        for update in updates:
            update()
        for client in clients:
            client.update()
        context.heartbeat(**count())
        now = time.monotonic()
        if now - shown > STATUS_SECONDS:
            shown = now
            context.gauge(
                parameter_age_seconds=max(client.age_seconds for client in clients),
                parameter_version=min(client.version for client in clients),
                steps_per_second=loop.num_steps / (now - start),
            )
            for largest, server in priorities:
                largest.share(server)
        if now >= keep_alive_at:
            keep_alive_at = now + KEEP_ALIVE_SECONDS
            for endpoint, _ in servers:
                keep_alive(endpoint)


def close_on_stop(context: NodeContext, closes: Sequence[Callable[[], None]]) -> None:
    """Ends a wait for replay that has not ended by itself a second after the node is told to stop."""

    def watch() -> None:
        while not context.should_stop:
            time.sleep(0.1)
        time.sleep(1.0)
        for close in closes:
            close()

    threading.Thread(target=watch, name="close-on-stop", daemon=True).start()


def find_actor_index(context: NodeContext, num_steps: int = 0) -> ActorIndex:
    """Returns the node's current index among the actors of its program, and their number.

    An external actor cannot know how many there are. Its number, with the lowest 8 bits in
    reverse order, is its place among 256: numbers in a row from 0 are spread evenly however many they are, and
    so are random ones. It goes on from `num_steps` steps.
    """
    others = context.store.status()["nodes"].values()
    count = sum(node["role"] == context.role and node["supervised"] for node in others)
    if count:
        return ActorIndex(context.index, count, num_steps)
    return ActorIndex(int(f"{context.index % 256:08b}"[::-1], base=2), 256, num_steps)
