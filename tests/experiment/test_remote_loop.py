"""Several agents whose actions come from a server: those of local actors, of all who act with one request."""

import jax
import jax.numpy as jnp
import pytest

from agentkit.actors import (
    ActorIndex,
    CompiledPolicy,
    InferenceClient,
    Policy,
    PolicyActor,
    ReadyPolicyActor,
    RemoteActor,
    ServedPolicy,
)
from agentkit.actors.random_actor import RandomActor
from agentkit.actors.remote_ready import RemoteReadyActor
from agentkit.envs.multi_agent.come_and_go import ComeAndGo
from agentkit.experiment.launching.nodes.multi_agent_inference import RemoteLoop
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.multi_agent_loop import MultiAgentLoop
from tests.actors.served import RUN, Client, serving_all
from tests.experiment.test_batched_loop import Recorded

WHO = {"agent_0": "a", "agent_1": "b", "agent_2": "a"}
"""Who plays by which policy; agent_3 plays by chance."""


def policy():
    """Draws an action; keeps a place among those that explore, a count of steps, and one of the episode's actions."""

    def act(params, key, observation, state):
        drawn = jax.random.randint(key, (), 0, 1000) + params * state[2] + state[1]
        return drawn % 2, state.at[2].add(1), jnp.array([drawn, params, *state])

    return CompiledPolicy(
        Policy(
            act,
            init=lambda key: jnp.zeros(3, jnp.int32),
            reset=lambda state: state.at[2].set(0),
            diversify=lambda state, index, count: state.at[0].set(100 * index + count),
            begin=lambda state, num_steps, num_envs: state.at[1].add(num_steps),
        )
    )


@pytest.fixture
def padding_does_not_show():
    """What is drawn depends on how many keys a key is split into in JAX before 0.5, without this."""
    before = jax.config.jax_threefry_partitionable
    jax.config.update("jax_threefry_partitionable", True)
    yield
    jax.config.update("jax_threefry_partitionable", before)


@pytest.mark.one_case
@pytest.mark.parametrize("num_envs", [None, 2])
def test_actions_are_those_of_local_actors_and_are_asked_for_together(num_envs, padding_does_not_show):
    made = dict.fromkeys(("a", "b"), policy())
    clients = {"a": Client(5), "b": Client(6)}
    spec = ComeAndGo().agent_specs()["agent_0"]
    served = {name: ServedPolicy(made[name].policy, spec, clients[name]) for name in made}

    def play(client):
        adders = {agent_id: [Recorded() for _ in range(num_envs or 1)] for agent_id in WHO}
        actors = {}
        for number, (agent_id, name) in enumerate(WHO.items()):
            given, index, key = adders[agent_id], ActorIndex(number, 3, 40), jax.random.PRNGKey(number)
            settings = {"seed": number, "actor_index": index, "policy_id": name}
            if client is None and num_envs is None:
                actors[agent_id] = PolicyActor(made[name], key, clients[name], given[0], index)
            elif client is None:
                actors[agent_id] = ReadyPolicyActor(made[name], key, clients[name], given, index, number_varies=True)
            elif num_envs is None:
                actors[agent_id] = RemoteActor(client, spec, adder=given[0], **settings)
            else:
                actors[agent_id] = RemoteReadyActor(client, spec, adders=given, **settings)
        actors["agent_3"] = RandomActor(spec.actions, 0)
        if num_envs is None:
            loop = MultiAgentLoop(ComeAndGo(seed=1), actors)
        else:
            loop = BatchedMultiAgentLoop([ComeAndGo(seed=number) for number in range(num_envs)], actors)
        stepped = loop if client is None else RemoteLoop(loop, actors, client)
        records = [record for _ in range(40) if (record := stepped.step()) is not None]
        told = {agent_id: [adder.told for adder in given] for agent_id, given in adders.items()}
        assert records and stepped.num_steps == 40 * (num_envs or 1)
        return repr(told)

    expected = play(None)
    with serving_all(served, num_envs=num_envs) as server:
        client = InferenceClient(lambda: server.address, RUN)
        assert play(client) == expected
        assert server.num_requests <= 40 + len(WHO) < server.num_actions, "at a step one for all who act"
        assert client.version("a") == client.version("b") == 5
        client.close()
