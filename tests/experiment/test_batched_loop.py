"""N environments of several agents: each goes as if it were alone, with one policy call for all that wait."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import checkpoint, specs
from agentkit.actors import CompiledPolicy, Policy, PolicyActor, ReadyPolicyActor
from agentkit.actors.random_actor import RandomActor
from agentkit.core import Adder
from agentkit.counting import Counter
from agentkit.envs.multi_agent.come_and_go import ComeAndGo
from agentkit.envs.multi_agent.resumable import ResumableMultiAgentEnvironment
from agentkit.envs.multi_agent.tic_tac_toe import TicTacToe
from agentkit.errors import ConfigError
from agentkit.experiment.multi_agent.batched_loop import BatchedMultiAgentLoop
from agentkit.multi_agent_loop import MultiAgentLoop

NUM_ENVS = 5
KEY = jax.random.PRNGKey(0)


class Recorded(Adder):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def add_first(self, timestep):
        self.told.append(timestep)

    def add(self, action, next_timestep, extras=()):
        self.told.append((action.tolist(), extras.tolist(), next_timestep))

    def reset(self):
        raise AssertionError

    def close(self):
        pass

    def save(self):
        return {"count": len(self.told)}

    def restore(self, state):
        self.told = [None] * int(state["count"])


class Client:
    params = 3

    def update(self, wait=False):
        pass


def remembering_policy(num_actions):
    """Chooses by what it sees and by how many actions of this episode it remembers, and emits that number."""

    def act(params, key, observation, memory):
        mask = observation["action_mask"] if isinstance(observation, dict) else jnp.ones(num_actions, bool)
        seen = sum(jnp.sum(leaf.ravel() * jnp.arange(1, leaf.size + 1)) for leaf in jax.tree.leaves(observation))
        order = (jnp.arange(num_actions) * 7 + seen.astype(jnp.int32) + params * memory) % num_actions
        return jnp.argmin(jnp.where(mask, order, num_actions)).astype(jnp.int32), memory + 1, memory

    return CompiledPolicy(
        Policy(act, init=lambda key: jnp.int32(9), reset=lambda memory: jnp.int32(0),
               extras_spec=specs.Array((), np.int32))
    )  # fmt: skip


def environments(kind):
    return [ResumableMultiAgentEnvironment(kind(), seed=10 + number) for number in range(NUM_ENVS)]


def policies(kind):
    return {agent_id: remembering_policy(spec.actions.num_values) for agent_id, spec in kind().agent_specs().items()}


def batch(kind, made, **settings):
    adders = {agent_id: [Recorded() for _ in range(NUM_ENVS)] for agent_id in made}
    actors = {
        agent_id: ReadyPolicyActor(policy, KEY, Client(), adders[agent_id], number_varies=True)
        for agent_id, policy in made.items()
    }
    return BatchedMultiAgentLoop(environments(kind), actors, **settings), actors, adders


@pytest.mark.parametrize("kind", [ComeAndGo, TicTacToe])
def test_each_environment_goes_as_if_it_were_alone(kind):
    made, logged, counter = policies(kind), [], Counter()
    loop, _, adders = batch(kind, made, counter=counter, log=lambda record, number: logged.append((number, record)))
    for _ in range(60):
        loop.step()
    assert loop.num_steps == 60 * NUM_ENVS
    agent_steps = num_lost = 0
    for number, environment in enumerate(environments(kind)):
        own = {agent_id: Recorded() for agent_id in made}
        actors = {agent_id: PolicyActor(made[agent_id], KEY, Client(), own[agent_id]) for agent_id in made}
        alone = MultiAgentLoop(environment, actors)
        records = [record for _ in range(60) if (record := alone.step()) is not None]
        for agent_id, adder in own.items():
            assert repr(adders[agent_id][number].told) == repr(adder.told) and adder.told
        found = [record for i, record in logged if i == number]
        for name in (
            "episode_return",
            "episode_length",
            "agents_lost",
            *(f"episode_return/{agent_id}" for agent_id in made),
        ):
            assert [record[name] for record in found] == [record[name] for record in records]
        agent_steps, num_lost = agent_steps + alone.num_agent_steps, num_lost + alone.num_lost
    assert (loop.num_agent_steps, loop.num_lost) == (agent_steps, num_lost)
    assert counter.counts()["episodes"] == len(logged) >= 2 * NUM_ENVS
    steps = [record["steps"] for _, record in logged]
    assert steps == sorted(steps) and all(step % NUM_ENVS == 0 for step in steps)


@pytest.mark.parametrize("kind", [ComeAndGo, TicTacToe])
@pytest.mark.parametrize("num_steps", [0, 7])
def test_a_saved_loop_goes_on_bit_for_bit_with_actions_that_wait(kind, num_steps, tmp_path):
    made = policies(kind)
    loop, actors, adders = batch(kind, made)
    for _ in range(num_steps):
        loop.step()
    state = {"loop": loop.save(), "actors": {agent_id: actor.save(True) for agent_id, actor in actors.items()}}
    checkpoint.write(tmp_path, 1, state)
    found = checkpoint.read_latest(tmp_path).state
    other, others, recorded = batch(kind, made)
    other.step()
    other.restore(found["loop"])
    for agent_id, actor in others.items():
        actor.restore(found["actors"][agent_id])
    for _ in range(20):
        loop.step(), other.step()
    assert other.num_steps == loop.num_steps == (20 + num_steps) * NUM_ENVS
    for agent_id in made:
        for one, two in zip(adders[agent_id], recorded[agent_id], strict=True):
            before = next((i for i, told in enumerate(two.told) if told is not None), len(two.told))
            assert repr(one.told[before:]) == repr(two.told[before:])
        assert any(len(each.told) > num_steps for each in recorded[agent_id])


def test_few_programs_are_compiled_however_many_wait():
    """ComeAndGo has 0 to 5 environments in which an agent acts: 1, 2, 4 and 5 at once are the programs."""
    made = policies(ComeAndGo)
    loop, _, _ = batch(ComeAndGo, made)
    for _ in range(100):
        loop.step()
    for policy in made.values():
        assert 1 <= policy.act_in_some._cache_size() <= 4


def test_exploration_counts_the_steps_of_an_agent_in_all_environments():
    """A schedule of an agent's steps is over as early as where it acts in one environment."""

    def count(params, key, observation, state):
        return jnp.int32(0), state.at[0].add(state[1]), state[0]

    policy = Policy(
        count,
        init=lambda key: jnp.zeros(2, jnp.int32),
        begin=lambda state, num_steps, num_envs: jnp.stack([state[0] + num_steps, jnp.int32(num_envs)]),
        extras_spec=specs.Array((), np.int32),
    )
    actor = ReadyPolicyActor(policy, KEY, Client(), [Recorded() for _ in range(5)], number_varies=True)
    total = 0
    for numbers in ([0, 1, 2], [4], [0, 2, 3, 4, 1], [3, 1]):
        actor.select_action(np.zeros(len(numbers), np.float32), np.array(numbers))
        total += len(numbers)
        counts = np.asarray(actor.save()["policy_state"]["0"])[:, 0]
        assert (counts == total).all(), counts


def test_chance_plays_in_all_environments():
    players = {agent_id: RandomActor(spec.actions, 3) for agent_id, spec in TicTacToe().agent_specs().items()}
    loop = BatchedMultiAgentLoop(environments(TicTacToe), players)
    records = [record for _ in range(30) for record in loop.step() or ()]
    assert [record["episodes"] for record in records] == list(range(1, len(records) + 1)), "of all, by one counter"
    assert len(records) > NUM_ENVS and {record["episode_return/first"] for record in records} >= {1.0, -1.0}


def test_no_environment_is_refused():
    with pytest.raises(ConfigError, match="Expected at least one environment, found none"):
        BatchedMultiAgentLoop([], {})
