"""Runs the inference node of a launched program of several agents, and lets actors ask it for all of them at once.

One node has all policies that learn, so that an actor asks once at a step, whatever the number of its agents and of
their policies, and a program has as many inference nodes as were asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, final

import jax

from agentkit.actors import ActorIndex, InferenceClient, RemoteActor, ServedPolicy
from agentkit.actors.remote_ready import RemoteReadyActor
from agentkit.core import Adder
from agentkit.distributed.context import NodeContext
from agentkit.experiment.launching.nodes.inference import serve
from agentkit.experiment.launching.sharing.common import watch_steps
from agentkit.experiment.launching.sharing.transports import make_client
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.experiment.multi_agent.config import MultiAgentConfig
from agentkit.experiment.multi_agent.parts import make_policies
from agentkit.experiment.multi_agent.players import AnyPlayer, Trained
from agentkit.experiment.policies.own_actor import seed_of
from agentkit.multi_agent_loop import MultiAgentLoop
from agentkit.types import AgentId

RemotePlayer = RemoteActor | RemoteReadyActor
"""Acts for one agent as a server says: in one environment, or in those of N that wait for it."""


def multi_agent_inference_node(
    context: NodeContext, config: MultiAgentConfig, learners: Mapping[str, Mapping[str, Any]], *,
    listen: str = "lo", max_parameter_age_seconds: float | None = None,
) -> None:  # fmt: skip
    """Chooses the actions of all agents that play by policies that learn, until it is told to stop.

    Args:
        context: the node's.
        config: what is run.
        learners: the endpoints of the learners, by policy id.
        listen: the network device to listen on; "lo" is this machine alone.
        max_parameter_age_seconds: actors wait where the parameters here are older; None for no limit.
    """
    with (
        watch_steps(context, config) as watch,
        contextlib.closing(watch.make(lambda: config.make_environment(config.seed))) as environment,
    ):
        agent_specs = environment.agent_specs()
    trained, _ = make_policies(config, agent_specs)
    policies = {
        each.policy_id: ServedPolicy(
            each.agent.make_policy(each.parts.networks),
            each.spec,
            make_client(context, learners[each.policy_id], max_parameter_age_seconds),
        )
        for each in trained
    }
    serve(context, policies, config.num_envs, listen)


def make_remote_player(
    client: InferenceClient, trained: Trained, index: ActorIndex, key: jax.Array, adder: Adder | list[Adder]
) -> RemotePlayer:
    """Makes an actor of one of the agents that play by a policy, for which a server chooses.

    Args:
        client: asks the server; of all agents of the process.
        trained: the policy.
        index: among those that explore by it.
        key: PRNG key ``uint32[2]``.
        adder: records; of N environments, a list of one for each.
    """
    given: Any = {"seed": seed_of(key), "actor_index": index, "policy_id": trained.policy_id}
    if isinstance(adder, list):
        return RemoteReadyActor(client, trained.spec, adders=adder, **given)
    return RemoteActor(client, trained.spec, adder=adder, **given)


@final
class RemoteLoop:
    """Runs a loop of several agents, for whose actors a server chooses: it is asked for all who act, with one request.

    Agents whose actors are local ones, frozen or by chance, act in this process.
    """

    def __init__(
        self,
        loop: MultiAgentLoop | BatchedMultiAgentLoop,
        actors: Mapping[AgentId, AnyPlayer | RemotePlayer],
        client: InferenceClient,
    ):
        """Takes the loop with its actors, and whom the remote ones of them ask."""
        self._loop: Any = loop  # Of what it returns, `actors` know the kind.
        self._actors = {agent_id: actor for agent_id, actor in actors.items() if isinstance(actor, RemotePlayer)}
        self._client = client

    @property
    def num_steps(self) -> int:
        """Counts as the loop does."""
        return int(self._loop.num_steps)

    def step(self) -> Any:
        """Takes a step, as the loop does."""
        seen = self._loop.begin_step()
        rows: dict[str, list[dict[str, Any]]] = {}
        for agent_id, given in seen.items():
            if (actor := self._actors.get(agent_id)) is not None:
                row = actor.request(given) if isinstance(actor, RemoteActor) else actor.request(*given.batch())
                rows.setdefault(actor.policy.policy_id, []).append(row)
        answers = {policy_id: iter(each) for policy_id, each in self._client.act(rows).items()} if rows else {}
        return self._loop.end_step({agent_id: self._act(agent_id, seen[agent_id], answers) for agent_id in seen})

    def _act(self, agent_id: AgentId, given: Any, answers: Mapping[str, Iterator[dict[str, Any]]]) -> Any:
        """Returns the action of an agent, or those in the environments that wait for it, out of the answers or not."""
        actor = self._actors.get(agent_id)
        if actor is None:
            return self._loop.choose(agent_id, given)
        action = actor.take(next(answers[actor.policy.policy_id]))
        return action if isinstance(actor, RemoteActor) else given.apart(action)
