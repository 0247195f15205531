"""What each agent's two policies are for: the one that acts explores, the one that is judged does not, nor counts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.actors import ActorIndex
from agentkit.actors.policy import first_state
from agentkit.agents import registry
from agentkit.agents.common.agent import Agent
from agentkit.errors import ConfigError
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.experiment.policies.policy_file import PolicyFile
from tests.agents.spaces import environment_of

KEYS = jax.random.split(jax.random.PRNGKey(0), 512)


HAVE_A_MEMORY = ("r2d2", "recurrent_sac")
"""Agents whose policies remember by default."""

DQN_FIRST = ["dqn", *(name for name in registry.names() if name != "dqn")]


def initial(name: str) -> tuple[Agent, specs.EnvironmentSpec, Any, Any]:
    """A registered agent, the spec of a small environment, and its networks for it with initial parameters."""
    agent = registry.make(name)
    spec = specs.make_environment_spec(envs.make(environment_of(name), seed=0))
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    return agent, spec, networks, update.variables(update.init(KEYS[0]))["policy"]


def actions(name: str, evaluation: bool) -> np.ndarray:
    """The different actions ``[K, ...]`` that a policy takes with 512 keys, after a million steps of its actor."""
    agent, spec, networks, params = initial(name)
    policy = agent.make_policy(networks, evaluation)
    state = first_state(policy, KEYS[0], ActorIndex(num_steps=1_000_000))
    observation = specs.zeros(spec.observations)
    found = jax.jit(jax.vmap(lambda key: policy.act(params, key, observation, state)[0]))(KEYS)
    return np.unique(np.concatenate([np.reshape(leaf, (len(KEYS), -1)) for leaf in jax.tree.leaves(found)], 1), axis=0)


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("name", registry.names())
def test_the_policy_that_acts_explores_and_the_one_that_is_judged_does_not(name: str) -> None:
    assert len(actions(name, evaluation=True)) == 1
    assert len(actions(name, evaluation=False)) > 1


@pytest.mark.one_case
@pytest.mark.parametrize("name", DQN_FIRST)
def test_a_policy_that_is_judged_keeps_its_memory_and_nothing_else(name: str) -> None:
    agent = registry.make(name)
    networks = agent.make_networks(specs.make_environment_spec(envs.make(environment_of(name), seed=0)))
    state = jax.eval_shape(agent.make_policy(networks, evaluation=True).init, KEYS[0])
    memory: Any = ()
    if name in HAVE_A_MEMORY:
        memory = networks.initial_state if name == "r2d2" else networks.policy.initial_state
    assert jax.tree.map(jnp.shape, jax.tree.leaves(state)) == jax.tree.map(jnp.shape, jax.tree.leaves(memory))


@pytest.mark.full
@pytest.mark.parametrize("name", DQN_FIRST)
def test_an_action_alone_is_the_action_with_a_state_and_is_for_policies_without_a_memory(name: str) -> None:
    agent, spec, networks, params = initial(name)
    policy = LoadedPolicy(agent, agent.make_policy(networks, True), params, PolicyFile({}, spec, spec.actions), seed=0)
    observation = specs.zeros(spec.observations)
    if name in HAVE_A_MEMORY:
        with pytest.raises(ConfigError, match=r"keeps a state .* action, state = policy\(observation, state\)"):
            policy.select_action(observation)
        return
    rows = jax.tree.map(lambda x: np.stack([x] * 3), observation)
    for seen in (observation, rows):
        action, state = policy(seen)
        jax.tree.map(np.testing.assert_array_equal, policy.select_action(seen), action)
        jax.tree.map(np.testing.assert_array_equal, policy(seen, state)[0], action)
