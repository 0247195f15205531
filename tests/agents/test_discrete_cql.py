from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import discrete_cql, dqn
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import ReplaySample, Transition
from tests.agents import offline_data, settings
from tests.agents.target_state import state_of_targets

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
class TestDiscreteCql(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {**settings.VALUE_REFUSED, "cql_weight": -1.0}
    changes: ClassVar = {
        **settings.VALUE_CHANGES,
        "duelling": True,
        "double": Change(False, {"learning_rate": 0.1}),
        "huber_delta": 0.01,
        "cql_weight": 0.3,
    }

    def make_agent(self, **changes: Any) -> Any:
        return discrete_cql.make_agent(discrete_cql.Config(**{**settings.SMALL_VALUES, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.one_case
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_it_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = discrete_cql.Config(
        hidden_sizes=(32,),
        discount=0.8,
        n_step=n_step,
        learning_rate=3e-3,
        target_update_period=20,
        cql_weight=0.02,
    )
    networks, state = learned(discrete_cql.make_agent(config), Chain(terminates, num_actions=2), num_updates=1_000)
    q = networks.apply(state.params, np.eye(4, dtype=np.float32))
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates)[:, None], 2), atol=0.15)


@pytest.mark.full
def test_it_learns_more_than_the_data_show() -> None:
    config = discrete_cql.Config(hidden_sizes=(32, 32), batch_size=64, target_update_period=50, updates_per_call=10)
    data = offline_data.make_episodes(offline_data.CATCH, 200, [0.0, 0.3])
    assert offline_data.mean_return(data) < 0.0
    offline_data.learns(discrete_cql.make_agent(config), offline_data.CATCH, data, 3_000, 0.8)


def _batch() -> ReplaySample:
    environment = envs.make("agentkit:catch", seed=0)
    observation = np.stack([environment.reset().observation for _ in range(3)])
    scalars = np.float32([1.0, -1.0, 0.5])
    return ReplaySample((), Transition(observation, np.int32([0, 2, 1]), scalars, 0.9 * np.ones(3), observation))


@pytest.mark.full
def test_the_loss_is_dqns_and_the_penalty() -> None:
    agent = discrete_cql.make_agent(discrete_cql.Config(hidden_sizes=(8,), cql_weight=3.0))
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:catch", seed=0)))
    params, batch = jax.jit(networks.init)(KEY), _batch()
    found = jax.jit(discrete_cql.make_loss(networks, agent.config))(params, state_of_targets(params), batch, KEY)
    plain = jax.jit(dqn.make_loss(networks, agent.config))(params, state_of_targets(params), batch, KEY)
    q = np.asarray(networks.apply(params, batch.data.observation), np.float64)
    gap = np.mean(np.log(np.sum(np.exp(q), axis=-1)) - q[np.arange(3), batch.data.action])
    np.testing.assert_allclose(found.metrics["conservative_gap"], gap, rtol=1e-5)
    np.testing.assert_allclose(found.loss, plain.loss + 3.0 * gap, rtol=1e-5)


@pytest.mark.full
def test_what_the_data_never_do_is_not_overestimated() -> None:
    """Action 0 alone is in the data; DQN's own guess of the others is as good as any."""
    batch = _batch()
    batch = batch._replace(data=batch.data._replace(action=np.zeros(3, np.int32)))
    agent = discrete_cql.make_agent(discrete_cql.Config(hidden_sizes=(16,), learning_rate=1e-2))
    networks = agent.make_networks(specs.make_environment_spec(envs.make("agentkit:catch", seed=0)))
    update = agent.make_update(networks)
    state, step = jax.jit(update.init)(KEY), jax.jit(update.update)
    for _ in range(200):
        state, _ = step(state, batch)
    q = np.asarray(networks.apply(state.params, batch.data.observation))
    assert np.all(q[:, 0] > q[:, 1:].max(axis=-1) + 0.5)
