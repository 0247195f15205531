"""An actor and its loop for one environment or for a batch: the same choice in every process that acts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from agentkit.actors import ActorIndex, BatchedPolicyActor, Policy, PolicyActor, RemoteActor
from agentkit.actors.batches import SplitAdder
from agentkit.actors.policy import ALONE
from agentkit.adders import ForkAdder
from agentkit.agents.common.agent import Agent as Value
from agentkit.core import Actor, Adder, Agent
from agentkit.counting import Counter
from agentkit.distributed.context import NodeContext
from agentkit.environment_loop import BatchedEnvironmentLoop, EnvironmentLoop, Log
from agentkit.replay import Replay
from agentkit.specs import EnvironmentSpec, is_batched
from agentkit.variables import VariableClient


def make_adder(environment: Any, spec: EnvironmentSpec, fed: Sequence[tuple[Agent, Replay]]) -> Adder:
    """The adder of an actor: for an environment or a batch of them, and for all who learn from its steps.

    Args:
        environment: what the actor will act in.
        spec: its spec.
        fed: agents, each with the replay that it learns out of.
    """
    adders = [_make_adder(environment, spec, agent, replay) for agent, replay in fed]
    return adders[0] if len(adders) == 1 else ForkAdder(adders)


def _make_adder(environment: Any, spec: EnvironmentSpec, agent: Agent, replay: Replay) -> Adder:
    if not is_batched(environment):
        return agent.make_adder(replay, spec)
    if isinstance(agent, Value):
        return agent.make_adder(replay, spec, environment.num_envs)
    make_batched = getattr(agent, "make_batched_adder", None)  # Optional, see `core.Agent`.
    if make_batched is not None:
        return make_batched(replay, spec, environment.num_envs)
    return SplitAdder([agent.make_adder(replay, spec) for _ in range(environment.num_envs)])


def make_actor(
    environment: Any,
    policy: Policy,
    key: jax.Array,
    client: VariableClient,
    adder: Adder | None = None,
    actor_index: ActorIndex = ALONE,
) -> PolicyActor | BatchedPolicyActor:
    """The actor for an environment, or for a batch of them (EnvPool's single environment is one, too).

    Args:
        environment: what it will act in.
        policy: how to act.
        key: PRNG key ``uint32[2]``.
        client: where parameters come from.
        adder: what `make_adder` made; None records nothing.
        actor_index: of the actors that explore together.
    """
    if not is_batched(environment):
        return PolicyActor(policy, key, client, adder, actor_index)
    return BatchedPolicyActor(policy, key, client, adder, num_envs=environment.num_envs, actor_index=actor_index)


def make_remote_actor(
    context: NodeContext,
    environment: Any,
    spec: EnvironmentSpec,
    servers: Sequence[Mapping[str, Any]],
    *,
    seed: int,
    adder: Adder | None = None,
) -> RemoteActor:
    """An actor that one of the inference nodes acts for: actor i of n nodes' asks number i mod n.

    Args:
        context: the actor node's.
        environment: what it will act in.
        spec: its spec.
        servers: the endpoints of all inference nodes. A node may come back at another address, so the board is asked.
        seed: of the PRNG key that is kept for it.
        adder: what `make_adder` made; None records nothing.
    """
    name = servers[context.index % len(servers)]["node"]
    return RemoteActor(
        lambda: str(context.board.get(f"endpoint/{name}", timeout=1.0)["value"]["address"]),
        context.board.run_id,
        spec,
        seed=seed,
        adder=adder,
        num_envs=environment.num_envs if is_batched(environment) else None,
        actor_index=find_place(context),
    )


def find_place(context: NodeContext) -> ActorIndex:
    """An actor node's place among those of its program, as it is now.

    An actor that was started by hand cannot know how many there are. Its number, with the lowest 8 bits in
    reverse order, is its place among 256: numbers in a row from 0 are spread evenly however many they are, and
    so are random ones.
    """
    others = context.board.status()["nodes"].values()
    count = sum(node["role"] == context.role and node["supervised"] for node in others)
    if count:
        return ActorIndex(context.index, count)
    return ActorIndex(int(f"{context.index % 256:08b}"[::-1], base=2), 256)


def make_loop(
    environment: Any,
    actor: Actor,
    counter: Counter | None = None,
    log: Log | None = None,
) -> EnvironmentLoop | BatchedEnvironmentLoop:
    """The loop in which they meet; see `EnvironmentLoop`."""
    if is_batched(environment):
        return BatchedEnvironmentLoop(environment, actor, counter=counter, log=log)
    return EnvironmentLoop(environment, actor, counter=counter, log=log)
