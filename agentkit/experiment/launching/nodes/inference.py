"""The inference node of a launched program: one process that chooses the actions of many actors.

It pays for large networks: actors need neither the network nor its parameters (see `actors.inference_server`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any

from agentkit.actors import InferenceClient, InferenceServer, ServedPolicy
from agentkit.actors.remote import ONLY
from agentkit.distributed import NodeContext, Role
from agentkit.distributed.program import ONE_CORE
from agentkit.experiment.config.experiment_config import ExperimentConfig
from agentkit.experiment.launching.sharing.common import STATUS_SECONDS, listen_at
from agentkit.experiment.launching.sharing.transports import make_client
from agentkit.experiment.training.devices import num_cores
from agentkit.specs import EnvironmentSpec, is_batched, make_environment_spec
from agentkit.wire import reachable_address

SERVE_SECONDS = 0.2
"""How often an inference node looks whether it is to stop."""


def inference_role(num_actors: int, num_inference: int = 1) -> Role:
    """Builds the role of inference nodes, which stop as soon as the actors have.

    Together they compute with half of the cores that `make_roles` leaves to the actors, which only step
    environments now.

    Args:
        num_actors: actors of the program.
        num_inference: inference nodes that share them.
    """
    num_threads = max(1, min(num_actors, num_cores() // 2) // (2 * num_inference))
    return Role(
        "inference",
        stop_order=1,
        stop_seconds=10.0,
        start_seconds=300.0,
        num_cpus=float(num_threads),
        environment={**ONE_CORE, "NPROC": str(num_threads), "OMP_NUM_THREADS": str(num_threads)},
    )


def inference_node(
    context: NodeContext, experiment: ExperimentConfig, spec: EnvironmentSpec | None, variables: Mapping[str, Any], *,
    listen: str = "lo", max_parameter_age_seconds: float | None = None,
) -> None:  # fmt: skip
    """Chooses actions for the actors that got its handle, until it is told to stop.

    Args:
        context: the node's.
        experiment: what is run.
        spec: the environment's; None looks at it.
        variables: the endpoint of the learner whose parameters to act with.
        listen: the network device to listen on: "lo" is this machine alone.
        max_parameter_age_seconds: actors wait where the parameters here are older; None for no limit.
    """
    agent = experiment.agent
    with contextlib.closing(experiment.make_environment(experiment.seed, experiment.num_envs)) as environment:
        spec = spec or make_environment_spec(environment)
        num_envs = environment.num_envs if is_batched(environment) else None
    policy = agent.make_policy(agent.make_networks(spec))
    client = make_client(context, variables, max_parameter_age_seconds)
    serve(context, {ONLY: ServedPolicy(policy, spec, client)}, num_envs, listen)


def serve(context: NodeContext, policies: Mapping[str, ServedPolicy], num_envs: int | None, listen: str) -> None:
    """Chooses actions by policies, until the node is told to stop.

    Args:
        context: the node's.
        policies: by id.
        num_envs: that each actor steps together; None for one, unbatched.
        listen: see `inference_node`.
    """
    clients = [served.client for served in policies.values()]
    for client in clients:
        client.update(wait=True)
    with contextlib.ExitStack() as stack:
        where, run_id = listen_at(context, stack, listen), context.store.run_id
        server = stack.enter_context(InferenceServer(policies, run_id, where, num_envs=num_envs))
        context.ready({"node": context.name, "address": reachable_address(server.address, listen)})
        shown, batches, requests = time.monotonic(), 0, 0
        while not context.should_stop:
            server.serve(SERVE_SECONDS)
            context.heartbeat(actions=server.num_actions)
            now = time.monotonic()
            if now - shown < STATUS_SECONDS:
                continue
            context.gauge(
                parameter_age_seconds=max(client.age_seconds for client in clients),
                parameter_version=min(client.version for client in clients),
                num_actors=server.num_actors,
                requests_per_batch=(server.num_requests - requests) / max(server.num_batches - batches, 1),
            )
            shown, batches, requests = now, server.num_batches, server.num_requests


def connect_to_inference(
    context: NodeContext, servers: Sequence[Mapping[str, Any]], stack: contextlib.ExitStack
) -> InferenceClient:
    """Connects an actor to an inference node, actor i of n nodes' to number i mod n; the stack ends that.

    Args:
        context: the actor node's.
        servers: the endpoints of all inference nodes. A node may come back at another address, so the store is asked.
        stack: see above.
    """
    name = servers[context.index % len(servers)]["node"]

    def find_address() -> str:
        return str(context.store.get(f"endpoint/{name}", timeout=1.0)["value"]["address"])

    client = InferenceClient(find_address, context.store.run_id)
    stack.callback(client.close)
    return client
