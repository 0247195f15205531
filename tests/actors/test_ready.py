"""Whoever is ready is acted for as if it were alone: its memory, its actions and what is recorded of them."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import specs
from agentkit.actors import Policy, ReadyPolicyActor
from agentkit.core import Adder
from agentkit.environment_loop import ReadyEnvironmentLoop
from agentkit.errors import ConfigError

NUM_ENVS, READY = 5, 2
LENGTHS = (3, 1, 4, 2, 5)
"""Steps of the episodes of each environment."""


class Recorded(Adder):
    """Keeps what it is told."""

    def __init__(self):
        self.told = []

    def add_first(self, timestep):
        assert timestep.reward is None
        self.told.append(("first", float(timestep.observation)))

    def add(self, action, next_timestep, extras=()):
        self.told.append((int(action), float(extras), float(next_timestep.observation), int(next_timestep.step_type)))

    def reset(self):
        raise AssertionError

    def close(self):
        self.told.append("closed")


class Client:
    params = 10

    def update(self, wait=False):
        pass


class Environments:
    """N environments of which M are ready in an order that a generator chooses; observations count all steps."""

    num_envs = NUM_ENVS

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)
        self.states = [(0, 0)] * NUM_ENVS  # (step of the episode, steps so far)
        self.waiting = []
        self.got = [[] for _ in range(NUM_ENVS)]

    def action_spec(self):
        return specs.Array((), np.int32)

    def async_reset(self):
        self.waiting = list(range(NUM_ENVS))

    def recv(self):
        numbers = np.sort(self.rng.choice(self.waiting, READY, replace=False))
        self.waiting = [i for i in self.waiting if i not in numbers]
        steps = np.array([self.states[i] for i in numbers])
        last = steps[:, 0] == np.array(LENGTHS)[numbers]
        step_type = np.where(steps[:, 0] == 0, 0, np.where(last, 2, 1)).astype(np.int32)
        observation = (100 * numbers + steps[:, 1]).astype(np.float32)
        return numbers, dm_env.TimeStep(step_type, np.ones(READY, np.float32), np.ones(READY, np.float32), observation)

    def send(self, actions, numbers):
        for action, i in zip(actions, numbers, strict=True):
            step, count = self.states[i]
            self.got[i].append(int(action))
            self.states[i] = (0 if step == LENGTHS[i] else step + 1, count + 1)
            self.waiting.append(i)


def remembering_policy():
    """Returns a policy whose memory counts the steps of an episode, and which emits it beside the action."""

    def act(params, key, observation, memory):
        return (observation * params + memory).astype(jnp.int32), memory + 1, memory

    return Policy(
        act, init=lambda key: jnp.int32(7), reset=lambda memory: jnp.int32(0), extras_spec=specs.Array((), int)
    )


def alone(i, num_turns):
    """Returns what an environment alone is told, and what is recorded, written as a plain loop."""
    told, actions, step, memory = [], [], 0, 0
    for count in range(num_turns):
        observation = 100 * i + count
        if step == 0:
            told.append(("first", float(observation)))
            memory = 0
        else:
            told.append((actions[-1], float(memory - 1), float(observation), 2 if step == LENGTHS[i] else 1))
        actions.append(observation * 10 + memory)
        memory += 1
        step = 0 if step == LENGTHS[i] else step + 1
    return told, actions


@pytest.mark.parametrize("seed", range(3))
def test_each_environment_is_acted_for_and_recorded_as_if_it_were_alone(seed):
    adders = [Recorded() for _ in range(NUM_ENVS)]
    actor = ReadyPolicyActor(remembering_policy(), jax.random.PRNGKey(seed), Client(), adders)
    environments, records = Environments(seed), []
    loop = ReadyEnvironmentLoop(environments, actor, log=records.append)
    for _ in range(60):
        loop.step()
    assert sum(len(got) for got in environments.got) == 60 * READY
    for i, (adder, got) in enumerate(zip(adders, environments.got, strict=True)):
        assert (adder.told, got) == alone(i, len(got))
    steps = [sum(len(each) == 4 for each in adder.told) for adder in adders]
    assert loop.num_steps == sum(steps)
    assert len(records) == sum(told[3:] == (2,) for adder in adders for told in adder.told)
    assert {record["episode_length"] for record in records} <= set(LENGTHS)
    assert all(record["episode_return"] == record["episode_length"] for record in records)


def test_a_resumed_actor_begins_new_episodes_with_its_own_key_and_states():
    actors = [
        ReadyPolicyActor(
            remembering_policy(), jax.random.PRNGKey(seed), Client(), [Recorded() for _ in range(NUM_ENVS)]
        )
        for seed in (0, 1)
    ]
    numbers = np.array([1, 3])
    actors[0].select_action(np.zeros(2, np.float32), numbers)
    saved = actors[0].save()
    assert saved["adders"] is None and saved["is_first"].all()
    assert saved["policy_state"]["0"].tolist() == [7, 1, 7, 1, 7]
    actors[1].restore(saved)
    assert actors[1].save()["key"].tolist() == saved["key"].tolist()
    actors[1].close()


def test_an_actor_of_nobody_is_refused():
    with pytest.raises(ConfigError, match="an adder for each environment"):
        ReadyPolicyActor(remembering_policy(), jax.random.PRNGKey(0), Client(), [])
