"""PPO with an core_size; what holds without one, too, is in test_ppo.py."""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import envs
from agentkit import networks as nets
from agentkit.agents import ppo
from agentkit.errors import ConfigError
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import objective
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.learning import learns
from tests.agents import on_policy_settings
from tests.agents.on_policy_training import KEY, Training, rows_of
from tests.agents.test_ppo import CHANGES, REFUSED, SMALL


@pytest.mark.full
class TestRecurrentPpo(AgentContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE
    refused: ClassVar = {**REFUSED, "num_minibatches": 3}
    changes: ClassVar = {
        **CHANGES,
        "core_size": 3,
        "batch_size": 4,
        "num_minibatches": Change(4, {"batch_size": 4}),
    }

    def make_agent(self, **settings: Any) -> Any:
        return ppo.make_agent(ppo.Config(**{**SMALL, "core_size": 4, "batch_size": 2, **settings}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()


def start(name: str, num_envs: int | None, **changes: Any) -> Training:
    settings = {**SMALL, "segment_length": 25, "core_size": 4, "num_minibatches": 1, **changes}
    return Training(ppo.make_agent(ppo.Config(**settings)), name, num_envs)


def compiled_rows(training: Training) -> Any:
    """``(state, segments) -> rows``."""
    return jax.jit(functools.partial(rows_of, training.networks, training.agent.config))


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize("name", ["agentkit:catch", "agentkit:point_mass"])
def test_at_the_first_minibatch_every_ratio_is_1(name: str, num_envs: int | None) -> None:
    """Unrolled from stored states, over ends of episodes, what actors stored is what the learner finds."""
    training = start(name, num_envs, learning_rate=0.01)
    evaluate = jax.jit(training.networks.apply)
    make_rows, starts = compiled_rows(training), 0
    for _ in range(4):
        batch = training.next_batch()
        rows = make_rows(training.state, batch.data)
        params = training.state.variables.params
        distribution, value = evaluate(params, rows.observation, rows.memory)
        log_prob = distribution.log_prob(rows.extras.sample)
        mask = rows.mask > 0
        assert mask.shape == value.shape == (num_envs or 1, 25)
        starts += int(rows.memory.start_of_episode[:, 1:].sum())
        np.testing.assert_allclose(log_prob[mask], rows.extras.log_prob[mask], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(value, rows.old_value, rtol=1e-4, atol=1e-5)
        assert training.learn(batch)["kl"] > 1e-7  # Later minibatches have moved away.
    assert starts >= 4 * (num_envs or 1)


def stepped(networks: Any, params: Any, observation: Any, start: Any, core: Any) -> list[tuple[Any, jax.Array]]:
    """(distribution, value) of each row of one segment, by one step after the other."""
    step = jax.jit(functools.partial(nets.step_one, networks.network))
    outputs = []
    for t in range(len(start)):
        output, core = step(params, observation[t], networks.network.initial_state if start[t] else core)
        outputs.append(output)
    return outputs


def first_core(data: Any, i: int) -> Any:
    return tree.map_structure(lambda x: x[i, 0], data.extras.core)


@pytest.mark.full
@pytest.mark.parametrize("last_discount", [0.0, 1.0])
def test_advantages_are_of_values_that_are_found_step_by_step(last_discount: float) -> None:
    """The state goes on into the next segment, and begins anew with each episode, whether terminated or truncated."""
    training = start("agentkit:point_mass", 2, normalize_observations=False, normalize_values=False)
    training.learn(training.next_batch())
    batch = training.next_batch()
    data = batch.data
    assert not data.start_of_episode[:, 0].any() and data.start_of_episode[:, 1:-1].any(axis=1).all()
    discount = data.discount.copy()
    discount[:, :-2][data.start_of_episode[:, 2:]] = last_discount
    batch = batch._replace(data=data._replace(discount=discount))
    config = training.agent.config
    rows = compiled_rows(training)(training.state, batch.data)
    for i in range(2):
        outputs = stepped(
            training.networks,
            training.state.variables.params,
            data.observation[i],
            data.start_of_episode[i],
            first_core(data, i),
        )
        values = [float(value) for _, value in outputs]
        np.testing.assert_allclose(rows.old_value[i], values[:-1], rtol=1e-4, atol=1e-5)
        advantage = 0.0
        for t in reversed(range(config.segment_length)):
            if data.start_of_episode[i, t + 1]:  # A final observation.
                assert rows.mask[i, t] == 0.0
                advantage = 0.0
                continue
            gamma = config.discount * discount[i, t]
            advantage = data.reward[i, t] + gamma * (values[t + 1] + config.gae_lambda * advantage) - values[t]
            np.testing.assert_allclose(rows.advantage[i, t], advantage, rtol=1e-3, atol=1e-4)
            np.testing.assert_allclose(rows.target[i, t], advantage + values[t], rtol=1e-3, atol=1e-4)


def loss_step_by_step(networks: Any, config: ppo.Config, params: Any, rows: Any) -> tuple[jax.Array, jax.Array]:
    """The paper's equation 9 with a clipped value, action by action; and the share of the ratios that are clipped."""
    steps = [
        stepped(networks, params, observation, start, core)
        for observation, start, core in zip(
            rows.observation, rows.memory.start_of_episode, map(type(rows.memory.core), *rows.memory.core), strict=True
        )
    ]
    taken = list(zip(*np.nonzero(rows.mask), strict=True))
    outputs = [steps[i][t] for i, t in taken]
    distribution, value = jax.tree.map(lambda *x: jnp.stack(x), *outputs)  # [M]
    sample, log_prob, advantage, old, target = (
        np.stack([x[i, t] for i, t in taken])
        for x in (rows.extras.sample, rows.extras.log_prob, rows.advantage, rows.old_value, rows.target)
    )
    advantage = (advantage - advantage.mean()) / advantage.std()
    ratio = jnp.exp(distribution.log_prob(sample) - log_prob)
    inside = jnp.clip(ratio, 1 - config.clip_epsilon, 1 + config.clip_epsilon)
    near = old + jnp.clip(value - old, -config.value_clip, config.value_clip)
    squares = jnp.maximum((value - target) ** 2, (near - target) ** 2)
    total = -jnp.minimum(ratio * advantage, inside * advantage) + config.value_cost * 0.5 * squares
    return jnp.mean(total - config.entropy_cost * distribution.entropy()), jnp.mean(ratio != inside)


@pytest.mark.full
@pytest.mark.parametrize("name", ["agentkit:catch", "agentkit:point_mass"])
def test_loss_and_gradient_are_those_of_one_step_after_the_other(name: str) -> None:
    """On a minibatch of two of three segments, after the policy has moved: through resets, from stored states."""
    training = start(name, 3, learning_rate=0.03, value_clip=0.1, clip_epsilon=0.03, entropy_cost=0.1)
    training.learn(training.next_batch())
    batch = training.next_batch()
    rows = compiled_rows(training)(training.state, batch.data)
    training.learn(batch)
    networks, config, params = training.networks, training.agent.config, training.state.variables.params
    minibatch = jax.tree.map(lambda x: np.asarray(x)[[2, 0]], rows)
    assert np.any(minibatch.memory.start_of_episode[:, 1:], axis=1).all()
    assert all(np.abs(core).max() > 0 for core in jax.tree.leaves(minibatch.memory.core))
    gradient = jax.jit(jax.grad(objective(ppo.make_loss(networks, config)), has_aux=True))
    grads, (loss, metrics, _) = gradient(params, training.state, batch._replace(data=minibatch), KEY)
    by_steps = jax.value_and_grad(functools.partial(loss_step_by_step, networks, config), has_aux=True)
    (right_loss, clipped), right = by_steps(params, minibatch)
    np.testing.assert_allclose(loss, right_loss, rtol=1e-4)
    np.testing.assert_allclose(metrics["clipped"], clipped, rtol=1e-5)
    assert 0.05 < clipped < 0.95
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(grads), jax.tree.leaves(right), strict=True):
        assert np.abs(b).max() > 1e-6, path
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=str(path))


@pytest.mark.full
def test_memory_begins_anew_with_each_episode_in_acting_and_in_learning() -> None:
    training = start("agentkit:catch", 3)
    data = training.next_batch().data
    first = data.start_of_episode[:, :-1]
    last = data.start_of_episode[:, 1:]
    for core in jax.tree.leaves(data.extras.core):
        assert np.all(core[:, :-1][first] == 0.0)
        assert np.all(np.any(core[:, :-1][~first & ~last] != 0.0, axis=-1))
    begin = 1 + np.flatnonzero(first[0, 1:])[0]
    memory = nets.stored_memory(data)
    evaluate = jax.jit(functools.partial(training.networks.apply, training.state.variables.params))

    def values(observation: Any, memory: Any) -> np.ndarray:
        return np.asarray(evaluate(observation, memory)[1])[0]

    usual = values(data.observation, memory)
    other = data.observation.copy()
    other[0, 0] += 1.0
    changed = values(other, memory)
    assert np.all(changed[:begin] != usual[:begin])
    np.testing.assert_array_equal(changed[begin:], usual[begin:])
    endless = memory._replace(start_of_episode=jnp.zeros_like(memory.start_of_episode))
    assert values(other, endless)[begin] != values(data.observation, endless)[begin]


def test_a_segment_begins_with_the_stored_state() -> None:
    """Of its first row, and no other."""
    training = start("agentkit:catch", None, segment_length=7)
    training.next_batch()
    batch = training.next_batch()
    assert not batch.data.start_of_episode[0, 0]
    make_rows = compiled_rows(training)

    def shifted(row: int) -> np.ndarray:
        core = tree.map_structure(lambda x: x + np.eye(8, dtype=np.float32)[row][None, :, None], batch.data.extras.core)
        rows = make_rows(training.state, batch.data._replace(extras=batch.data.extras._replace(core=core)))
        return np.asarray(rows.old_value)

    usual = np.asarray(make_rows(training.state, batch.data).old_value)
    assert np.any(shifted(0) != usual)
    for row in range(1, 8):
        np.testing.assert_array_equal(shifted(row), usual)


def test_minibatches_that_would_cut_segments_are_refused_before_anything_runs() -> None:
    agent = ppo.make_agent(ppo.Config(**{**SMALL, "core_size": 4, "num_minibatches": 4}))
    with pytest.raises(ConfigError, match="num_minibatches=4 does not divide the 2 segments"):
        run(ExperimentConfig(agent, "agentkit:catch", 100, num_envs=2))


@pytest.mark.full
def test_networks_of_ones_own_say_what_their_memory_is() -> None:
    def make_networks(spec: Any, config: ppo.Config) -> Any:
        return nets.recurrent_policy_value(spec, config.hidden_sizes, config.initial_std, core_size=6)

    agent = ppo.make_agent(ppo.Config(**SMALL), make_networks=make_networks)
    training = Training(agent, "agentkit:catch", 2)
    batch = training.next_batch()
    assert [x.shape for x in jax.tree.leaves(batch.data.extras.core)] == [(2, 17, 6)] * 2
    assert training.learn(batch)["kl"] > 0.0


@pytest.mark.full
def test_only_parameters_of_the_core_are_added_by_it() -> None:
    """Policy and value are on one core, whose inputs are the layers'."""
    params = start("agentkit:catch", None).networks.init(KEY)
    sizes = {jax.tree_util.keystr(path): x.shape for path, x in jax.tree_util.tree_leaves_with_path(params)}
    assert sizes["['core/linear']['w']"] == (8 + 4, 4 * 4)
    assert [x for x in sizes.values() if len(x) == 2 and x[0] == 4] == [(4, 1), (4, 3)]


CONFIG = ppo.Config(hidden_sizes=(32,), segment_length=32, num_minibatches=2, discount=0.95)


@pytest.mark.full
def test_with_a_core_it_learns_a_task_that_needs_memory() -> None:
    agent = ppo.make_agent(dataclasses.replace(CONFIG, core_size=32))
    learns(agent, "agentkit:memory_chain", num_steps=3_000, threshold=0.9, num_envs=8)


@pytest.mark.full
def test_without_a_core_it_stays_at_chance_there() -> None:
    """Where the core learned the task: every answer is a guess, so the mean of 200 is within 4 standard errors of 0."""
    settings: dict[str, Any] = {"num_steps": 3_000, "num_envs": 8, "num_episodes": 200, "seeds": (0,)}
    returns = learns(ppo.make_agent(CONFIG), "agentkit:memory_chain", threshold=-0.29, **settings)
    assert max(returns) < 0.29
