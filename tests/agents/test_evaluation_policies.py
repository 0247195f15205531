"""What each agent's two policies are for: the one that acts explores, the one that is judged does not."""

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.actors import ActorIndex
from agentkit.actors.policy import first_state
from agentkit.agents import registry
from tests.agents.spaces import environment_of

KEYS = jax.random.split(jax.random.PRNGKey(0), 512)


def actions(name: str, evaluation: bool) -> np.ndarray:
    """The different actions ``[K, ...]`` that a policy takes with 512 keys, after a million steps of its actor."""
    agent = registry.make(name)
    spec = specs.make_environment_spec(envs.make(environment_of(name), seed=0))
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    params = update.variables(update.init(KEYS[0]))["policy"]
    policy = agent.make_policy(networks, evaluation)
    state = first_state(policy, KEYS[0], ActorIndex(num_steps=1_000_000))
    observation = specs.zeros(spec.observations)
    found = jax.jit(jax.vmap(lambda key: policy.act(params, key, observation, state)[0]))(KEYS)
    return np.unique(np.asarray(found), axis=0)


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("name", registry.names())
def test_the_policy_that_acts_explores_and_the_one_that_is_judged_does_not(name: str) -> None:
    assert len(actions(name, evaluation=True)) == 1
    assert len(actions(name, evaluation=False)) > 1
