from typing import Any, ClassVar

import jax
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.agents import bc
from agentkit.envs.base import Environment
from agentkit.testing.agent import AgentContract
from agentkit.types import ReplaySample, Transition
from tests.agents import offline_data, settings

KEY = jax.random.PRNGKey(0)


class TwoActions(Environment):
    """Takes a pair of actions, which no agent here does."""

    def _start(self) -> np.ndarray:
        return np.zeros(1, np.float32)

    def _advance(self, action: Any) -> tuple[np.ndarray, float, bool]:
        return np.zeros(1, np.float32), 0.0, False

    def observation_spec(self) -> specs.Array:
        return specs.Array((1,), np.float32)

    def action_spec(self) -> Any:
        return (specs.DiscreteArray(2, dtype=np.int32), specs.DiscreteArray(2, dtype=np.int32))


@pytest.fixture(autouse=True, scope="module")
def _registered() -> None:
    if "cloned_pair:" not in envs.available():
        envs.register("cloned_pair", lambda name, seed: TwoActions(seed))


class Contract(AgentContract):
    """But for two cases: what is cloned does not depend on rewards, ends, or what comes next."""

    unsuitable_environment = "cloned_pair:pair"
    refused: ClassVar = {**settings.OFF_POLICY_REFUSED, "random_actions": 1.5}
    changes: ClassVar = {**settings.OFF_POLICY_CHANGES, "learning_rate": 1e-2, "random_actions": 0.1}

    def make_agent(self, **changes: Any) -> Any:
        return bc.make_agent(bc.Config(**{**settings.SMALL, "random_actions": 0.9, **changes}))

    def test_termination_and_truncation_are_learned_from_differently(self) -> None:
        agent = self.make_agent()
        learned = [self._learned(self._make_update(agent), self._batch(agent, last)) for last in (0.0, 1.0)]
        assert learned[0].keys() == learned[1].keys()
        for name, leaf in learned[0].items():
            np.testing.assert_array_equal(leaf, learned[1][name], name)

    def test_where_the_discount_is_zero_nothing_is_bootstrapped(self) -> None:
        agent = self.make_agent()
        batch = self._batch(agent, 1.0)
        shifted = tree.map_structure(lambda x: x + 1, batch.data.next_observation)
        other = batch.data._replace(next_observation=shifted, reward=batch.data.reward + 1.0)
        learned = [self._learned(self._make_update(agent), batch._replace(data=data)) for data in (batch.data, other)]
        for name, leaf in learned[0].items():
            np.testing.assert_array_equal(leaf, learned[1][name], name)


@pytest.mark.full
class TestContinuousBc(Contract):
    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)


@pytest.mark.full
class TestDiscreteBc(Contract):
    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


@pytest.mark.full
def test_the_loss_is_the_squared_distance_or_the_cross_entropy() -> None:
    for name, actions in (("catch", np.int32([0, 2])), ("point_mass", np.float32([[0.5, -1.0], [0.0, 0.25]]))):
        environment = envs.make(f"agentkit:{name}", seed=0)
        agent = bc.make_agent(bc.Config(hidden_sizes=(8,)))
        networks = agent.make_networks(specs.make_environment_spec(environment))
        observation = np.stack([environment.reset().observation for _ in range(2)])
        params = networks.policy.init(KEY)
        output = np.asarray(networks.policy.apply(params, observation), np.float64)
        data = Transition(observation, actions, np.zeros(2), np.zeros(2), observation)
        found = jax.jit(bc.make_loss(networks, agent.config))(params, (), ReplaySample((), data), KEY)
        if name == "catch":
            expected = np.mean([np.log(np.sum(np.exp(row))) - row[a] for row, a in zip(output, actions, strict=True)])
            np.testing.assert_allclose(found.metrics["agreement"], np.mean(output.argmax(-1) == actions))
        else:
            expected = np.mean(np.sum((output - actions) ** 2, axis=-1))
        np.testing.assert_allclose(found.loss, expected, rtol=1e-5)


@pytest.mark.one_case
@pytest.mark.parametrize("name", ["catch", "point_mass"])
def test_it_explores_by_chance_and_is_judged_without(name: str) -> None:
    environment = envs.make(f"agentkit:{name}", seed=0)
    agent = bc.make_agent(bc.Config(hidden_sizes=(8,), random_actions=0.25))
    networks = agent.make_networks(specs.make_environment_spec(environment))
    params, observation = networks.policy.init(KEY), environment.reset().observation

    def actions(evaluation: bool) -> np.ndarray:
        policy = agent.make_policy(networks, evaluation)
        act = jax.vmap(lambda key: policy.act(params, key, observation, policy.init(key))[0])
        return np.asarray(act(jax.random.split(KEY, 2_000))).reshape(2_000, -1)

    judged, explored = actions(True), actions(False)
    assert np.all(judged == judged[0])
    others = np.mean(np.any(explored != judged[0], axis=-1))
    expected = 0.25 * (2 / 3 if name == "catch" else 1.0)
    assert abs(others - expected) < 0.04
    assert np.all(np.abs(explored) <= (2 if name == "catch" else 1))


@pytest.mark.full
def test_it_is_as_good_as_who_made_the_data() -> None:
    """The scripted expert's returns: 1 on catch, about -0.53 on the point mass, where 11 is lost at random."""
    config = bc.Config(hidden_sizes=(32, 32), learning_rate=3e-3, batch_size=64, updates_per_call=10)
    for name, num_episodes, num_updates, loss in (("catch", 60, 900, 0.0), ("point_mass", 30, 1_000, 0.2)):
        environment = f"agentkit:{name}"
        expert = offline_data.make_episodes(environment, num_episodes, [1.0])
        threshold = offline_data.mean_return(expert) - loss
        offline_data.learns(bc.make_agent(config), environment, expert, num_updates, threshold)
