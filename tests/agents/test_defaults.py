"""Defaults that a training from the command line depends on, whatever the number of environments."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import a2c, ddpg, droq, impala, npg, ppo, redq, reinforce, td3, trpo

KEY = jax.random.PRNGKey(0)


@pytest.mark.parametrize("num_envs", [1, 3, 8, 64])
@pytest.mark.parametrize("module", [ppo, trpo, npg, reinforce])
def test_an_on_policy_update_has_2048_rows_however_many_environments_there_are(module: Any, num_envs: int) -> None:
    agent = module.make_agent().with_num_envs(num_envs)
    length = agent.experience.segment_length
    assert 2_048 <= num_envs * length <= 2_048 + 4 * num_envs
    (table,) = agent.make_tables(specs.make_environment_spec(envs.make("agentkit:point_mass")))
    assert table.layout.length == length + 1 or table.layout.signature.reward.shape[0] == length + 1
    chosen = module.make_agent(module.Config(segment_length=16, num_minibatches=1)).with_num_envs(num_envs)
    assert chosen.experience.segment_length == 16


@pytest.mark.parametrize(("num_envs", "expected"), [(1, 80), (8, 10), (16, 5), (64, 5)])
def test_a2cs_segments_are_short_and_its_updates_have_80_rows(num_envs: int, expected: int) -> None:
    assert a2c.make_agent().with_num_envs(num_envs).experience.segment_length == expected


@pytest.mark.full
@pytest.mark.parametrize("module", [td3, ddpg, redq, droq])
def test_learning_begins_where_random_actions_end(module: Any) -> None:
    """Actions are random as long as they are the same under other parameters."""
    agent = module.make_agent()
    spec = specs.make_environment_spec(envs.make("agentkit:point_mass"))
    networks = agent.make_networks(spec)
    policy, update = agent.make_policy(networks), agent.make_update(networks)
    (table,) = agent.make_tables(spec)
    first = table.rate_limiter.min_size_to_sample
    assert first >= 5_000

    @jax.jit
    def actions(key: jax.Array) -> jax.Array:
        params = update.variables(update.init(key))["policy"]
        observation = jnp.ones(spec.observations.shape)

        def act(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
            action, state, _ = policy.act(params, key, observation, state)
            return state, action

        return jax.lax.scan(act, policy.init(KEY), jax.random.split(KEY, first + 100))[1]

    one, other = (np.asarray(actions(key)) for key in jax.random.split(KEY))
    assert np.flatnonzero(np.any(one != other, axis=1))[0] == first


@pytest.mark.full
@pytest.mark.parametrize(("core_size", "shares"), [(None, False), (4, True)])
def test_impalas_value_leaves_the_policy_alone_where_there_is_no_memory(core_size: int | None, shares: bool) -> None:
    agent = impala.make_agent(impala.Config(core_size=core_size))
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:catch")))
    params, observation = networks.init(KEY), np.ones((2, 10, 5), np.float32)
    cores = jax.tree.map(lambda x: jnp.tile(x, (2, 1)), networks.network.initial_state)

    def outputs(params: Any) -> tuple[jax.Array, jax.Array]:
        (distribution, value), _ = networks.network.step(params, observation, cores)
        return jnp.sum(distribution.logits[:, 0]), jnp.sum(value)

    both = [
        any(np.any(x) and np.any(y) for x, y in zip(*map(jax.tree.leaves, grads), strict=True))
        for grads in [[jax.grad(lambda p, i=i: outputs(p)[i])(params) for i in (0, 1)]]
    ]
    assert both == [shares]
