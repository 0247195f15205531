from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.agents import cql, sac
from agentkit.networks import ActorCriticNetworks, Network, TanhNormal
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.types import ReplaySample, Transition
from tests.agents import offline_data, settings

KEY = jax.random.PRNGKey(0)


@pytest.mark.full
class TestCql(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "tau": 0.0,
        "initial_temperature": 0.0,
        "cql_weight": -1.0,
        "num_sampled_actions": 0,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "learning_rate": 1e-2,
        "tau": 0.5,
        "target_entropy": -7.0,
        "initial_temperature": 0.1,
        "learn_temperature": False,
        "min_log_std": 1.0,
        "max_log_std": -3.0,
        "num_random_steps": 5,
        "cql_weight": 0.5,
        "num_sampled_actions": 2,
        "policy_learning_rate": 1e-2,
        "backup_entropy": True,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {**settings.SMALL, "num_random_steps": 20}
        return cql.make_agent(cql.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    """A uniform policy's actions are the data's: nothing is to be pressed down in the mean over actions."""
    config = cql.Config(
        hidden_sizes=(32,),
        discount=0.8,
        tau=0.2,
        batch_size=64,
        learning_rate=3e-3,
        policy_learning_rate=3e-3,
        initial_temperature=1e-6,
        learn_temperature=False,
        cql_weight=0.01,
    )
    networks, state = learned(cql.make_agent(config), Chain(terminates), num_updates=1_500)
    for params in state.critics:
        actions = np.linspace(-0.9, 0.9, 7, dtype=np.float32)[:, None]
        observations = np.eye(4, dtype=np.float32)
        q = [networks.critic.apply(params, observations, np.tile(action, (4, 1))) for action in actions]
        np.testing.assert_allclose(np.mean(q, axis=0), values(0.8, terminates), atol=0.15)


NETWORKS = ActorCriticNetworks(
    Network(None, lambda params, o: TanhNormal(jnp.zeros_like(o), jnp.zeros_like(o))),
    Network(None, lambda params, o, a: params * jnp.sum(jnp.square(a), axis=-1)),
    (1,),
)
"""The policy is the same everywhere; a critic's value is its parameter times the squared action."""


def _losses(count: int, **settings: Any) -> cql.Losses:
    return cql.make_losses(NETWORKS, cql.Config(num_sampled_actions=count, **settings))


def _state(critics: Any) -> cql.State:
    return cql.State((), critics, critics, jnp.log(0.1), ((), (), ()), KEY)


def _batch() -> ReplaySample:
    observation, action = np.zeros((2, 1), np.float32), np.float32([[0.5], [-1.0]])
    return ReplaySample(
        (), Transition(observation, action, np.ones(2, np.float32), np.zeros(2, np.float32), observation)
    )


@pytest.mark.full
def test_the_penalty_is_the_integral_less_the_datas_value() -> None:
    """With many samples the estimate is the integral of exp q over [-1, 1], found by quadrature."""
    critics = (jnp.float32(1.5), jnp.float32(-2.0))
    penalty = _losses(20_000).conservative(critics, _state(critics), _batch(), KEY)
    grid = (np.arange(20_000) + 0.5) / 10_000 - 1.0
    gaps = [np.log(2.0 * np.mean(np.exp(c * grid**2))) - np.mean(c * np.array([0.25, 1.0])) for c in (1.5, -2.0)]
    np.testing.assert_allclose(penalty.metrics["conservative_gap"], gaps[0], atol=0.02)
    np.testing.assert_allclose(penalty.loss, sum(gaps), atol=0.04)


@pytest.mark.full
def test_the_td_loss_is_sacs() -> None:
    critics = (jnp.float32(1.5), jnp.float32(-2.0))
    mine = _losses(4, backup_entropy=True).critic(critics, _state(critics), _batch(), KEY)
    sacs_state = sac.State((), critics, critics, jnp.log(0.1), ((), (), ()), KEY)
    sacs = sac.make_losses(NETWORKS, sac.Config()).critic(critics, sacs_state, _batch(), KEY)
    np.testing.assert_allclose(mine.loss, sacs.loss, rtol=1e-6)


def test_targets_are_without_entropy_unless_asked_for() -> None:
    """Of one reward of 1 and one value of 0 ahead, the target is 1 whatever the policy's entropy."""
    critics = (jnp.float32(0.0), jnp.float32(0.0))
    batch = _batch()
    batch = batch._replace(data=batch.data._replace(discount=np.ones(2, np.float32)))
    plain, soft = (_losses(4, backup_entropy=x).critic(critics, _state(critics), batch, KEY) for x in (False, True))
    np.testing.assert_allclose(plain.loss, 1.0, rtol=1e-6)  # 1/2 of 1 in each of two critics
    assert abs(plain.loss - soft.loss) > 1e-3


@pytest.mark.full
@pytest.mark.parametrize("weight", [0.0, 3.0])
def test_the_critics_minimise_the_td_loss_and_the_weighted_penalty(weight: float) -> None:
    agent = cql.make_agent(cql.Config(hidden_sizes=(8,), num_sampled_actions=4, cql_weight=weight))
    networks = agent.make_networks(specs.make_environment_spec(Chain(terminates=True)))
    update = agent.make_update(networks)
    state = jax.jit(update.init)(KEY)
    states, zeros = np.eye(4, dtype=np.float32), np.zeros(4, np.float32)
    batch = ReplaySample((), Transition(states, zeros[:, None], zeros + 1.0, zeros, states))
    _, output = jax.jit(update.update)(state, batch)
    td_key, penalty_key = jax.random.split(jax.random.split(state.key, 3)[1])
    losses = cql.make_losses(networks, agent.config)
    td = jax.jit(losses.critic)(state.critics, state, batch, td_key).loss
    penalty = losses.conservative(state.critics, state, batch, penalty_key).loss
    assert penalty > 0.1
    np.testing.assert_allclose(output.metrics["critic_loss"], td + weight * penalty, rtol=1e-5)


def test_importance_sampling_finds_the_integral() -> None:
    """Of exp(2 a) over [-1, 1], half of the actions uniform and half from a density that favours large ones."""
    rng, count = np.random.default_rng(0), 40_000
    uniform, other = rng.uniform(-1, 1, count), np.sqrt(rng.uniform(0, 1, count)) * 2 - 1
    actions = np.concatenate([uniform, other])
    log_density = np.log(np.concatenate([np.full(count, 0.5), np.maximum(0.5 * (other + 1), 1e-9)]))
    q = np.float32(2.0 * actions)[:, None]
    found = cql.sampled_log_sum_exp(q, np.float32(log_density)[:, None])
    np.testing.assert_allclose(found, [np.log((np.exp(2) - np.exp(-2)) / 2)], atol=0.03)


@pytest.mark.full
def test_it_learns_more_than_the_data_show() -> None:
    config = cql.Config(
        hidden_sizes=(32, 32), learning_rate=3e-3, policy_learning_rate=3e-3, tau=0.02, batch_size=64,
        updates_per_call=10,
    )  # fmt: skip
    data = offline_data.make_episodes(offline_data.POINT_MASS, 100, [0.0, 0.3])
    assert offline_data.mean_return(data) < -7.0
    offline_data.learns(cql.make_agent(config), offline_data.POINT_MASS, data, 2_000, -2.0)
