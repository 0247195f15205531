from typing import Any, ClassVar

import jax
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import rainbow
from agentkit.agents.common.agent import Agent
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Transition
from tests.agents import settings
from tests.agents.target_state import state_of_targets


@pytest.mark.full
class TestRainbow(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = {
        **settings.OFF_POLICY_REFUSED,
        "priority_exponent": -1.0,
        "target_update_period": 0,
        "num_atoms": 1,
        "vmin": 9.0,
        "noise": -0.5,
    }
    changes: ClassVar = {
        **settings.OFF_POLICY_CHANGES,
        "prioritized": False,
        "priority_exponent": 0.9,
        "importance_exponent": 0.9,
        "learning_rate": 1e-2,
        "target_update_period": 1,
        "max_grad_norm": 1e-3,
        "num_atoms": 7,
        "vmin": -1.0,
        "vmax": 1.0,
        "noise": 0.9,
    }

    def make_agent(self, **changes: Any) -> Any:
        small = {
            **settings.SMALL,
            "n_step": 3,
            "updates_per_step": 1.0,
            "target_update_period": 10,
            "num_atoms": 11,
            "vmin": -2.0,
            "vmax": 2.0,
        }
        return rainbow.make_agent(rainbow.Config(**{**small, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
@pytest.mark.parametrize("n_step", [1, 3])
def test_it_finds_the_values_of_a_chain(n_step: int, terminates: bool) -> None:
    config = rainbow.Config(
        hidden_sizes=(32,),
        discount=0.8,
        n_step=n_step,
        learning_rate=3e-3,
        target_update_period=50,
        num_atoms=21,
        vmin=0.0,
        vmax=5.0,
        noise=0.1,
    )
    networks, state = learned(rainbow.make_agent(config), Chain(terminates, num_actions=2), num_updates=2_000)
    logits = networks.logits(state.params, None, np.eye(4, dtype=np.float32))
    q = nets.categorical_mean(logits, networks.atoms)
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates)[:, None], 2), atol=0.15)


def _parts() -> tuple[Agent[nets.CategoricalNetwork], nets.CategoricalNetwork, Any, ReplaySample]:
    """A small agent, its networks and parameters, and a batch in which item 3 was drawn by a small chance."""
    config = rainbow.Config(hidden_sizes=(8,), num_atoms=11, vmin=-2.0, vmax=2.0, n_step=1)
    agent = rainbow.make_agent(config)
    networks = agent.make_networks(specs.make_environment_spec(Chain(True, num_actions=2)))
    observation = np.eye(4, dtype=np.float32)
    action, reward = np.int32([0, 1, 0, 1]), np.float32([0, 1, 2, -1])
    data = Transition(observation, action, reward, np.full(4, 0.9, np.float32), observation[::-1])
    info = SampleInfo(np.array([0.4, 0.4, 0.1, 0.01]), np.full(4, 50), np.ones(4), np.ones(4, np.int32))
    return agent, networks, jax.jit(networks.init)(jax.random.PRNGKey(0)), ReplaySample(info, data)


@pytest.mark.full
def test_each_items_loss_is_its_priority_and_rare_items_weigh_more() -> None:
    agent, networks, params, batch = _parts()
    key = jax.random.PRNGKey(1)
    output = jax.jit(rainbow.make_loss(networks, agent.config))(params, state_of_targets(params), batch, key)
    assert output.priorities is not None and output.priorities.shape == (4,) and np.all(output.priorities >= 0)
    weights = (np.array([0.4, 0.4, 0.1, 0.01]) * 50) ** -agent.config.importance_exponent
    expected = np.mean(weights / weights.max() * np.asarray(output.priorities))
    np.testing.assert_allclose(output.loss, expected, rtol=1e-5)


@pytest.mark.full
def test_online_target_and_selecting_networks_have_noise_of_their_own() -> None:
    """Fortunato et al. 2018, eq. 15; and the action is selected by the online network (double Q-learning)."""
    agent, networks, params, batch = _parts()
    seen = []

    def logits(given: Any, key: jax.Array, observation: Any) -> jax.Array:
        seen.append((given is params, tuple(np.asarray(key)), np.array_equal(observation, batch.data.observation)))
        return networks.logits(given, key, observation)

    other = jax.jit(networks.init)(jax.random.PRNGKey(5))
    rainbow.make_loss(networks._replace(logits=logits), agent.config)(
        params, state_of_targets(other), batch, jax.random.PRNGKey(1)
    )
    assert [(online, before) for online, _, before in seen] == [(True, True), (False, False), (True, False)]
    assert len({key for _, key, _ in seen}) == 3


@pytest.mark.full
def test_it_explores_by_noise_and_is_judged_without() -> None:
    agent, networks, params, batch = _parts()
    observation = batch.data.observation[0]
    keys = jax.random.split(jax.random.PRNGKey(2), 200)
    share = {}
    for evaluation in (False, True):
        policy = agent.make_policy(networks, evaluation)
        actions = jax.vmap(lambda key, policy=policy: policy.act(params, key, observation, ())[0])(keys)
        share[evaluation] = float(np.mean(actions))
    assert 0 < share[False] < 1 and share[True] in (0.0, 1.0)


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = rainbow.Config(
        num_atoms=21,
        vmin=-2.0,
        vmax=2.0,
        n_step=3,
        batch_size=64,
        updates_per_step=1.0,
        learning_rate=2e-3,
        min_replay_size=100,
        target_update_period=50,
    )
    learns(rainbow.make_agent(config), "agentkit:catch", num_steps=6_000, threshold=0.8)
