import functools
from typing import Any, ClassVar

import dm_env
import jax
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit import networks as nets
from agentkit.agents import impala
from agentkit.datasets import ReplayDataset
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.policies.make_actor import make_actor, make_adder, make_loop
from agentkit.learning import Linear
from agentkit.replay import InProcessReplay
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import has_action
from agentkit.variables import VariableClient, VariableStore
from agentkit.wrappers.base import EnvironmentWrapper
from tests.agents import on_policy_settings

KEY = jax.random.PRNGKey(0)
FLOAT = specs.Array((), np.float32)
SMALL: dict[str, Any] = {"hidden_sizes": (8,), "segment_length": 6}


class _ImpalaContract(AgentContract):
    unsuitable_environment = on_policy_settings.UNSUITABLE
    steps_before_learning = 5
    refused: ClassVar = {
        "segment_length": 0,
        "batch_size": 0,
        "core_size": 0,
        "core": "lsmt",
        "queue_size": 0,
        "discount": 1.5,
        "vtrace_lambda": -0.5,
        "rho_clip": 0.0,
        "policy_rho_clip": 0.0,
        "initial_std": 0.0,
    }
    # Of a policy that has moved away from the one that acted; the first update follows that one.
    moved: ClassVar = {"learning_rate": 0.1}
    changes: ClassVar = {
        "hidden_sizes": (8, 8),
        "core_size": 3,
        "core": Change("gru", {"core_size": 3}),
        "residual_torso": True,
        "segment_length": 8,
        "batch_size": 2,
        "batch_mode": on_policy_settings.COMPLETE,
        "queue_size": 7,
        "discount": 0.5,
        "vtrace_lambda": 0.5,
        "rho_clip": Change(0.5, moved),
        "policy_rho_clip": Change(0.5, moved),
        "learning_rate": 1e-2,
        "max_grad_norm": 1e-3,
        "adam_epsilon": 1.0,
        "value_cost": 0.1,
        "entropy_cost": 0.1,
        "normalize_observations": False,
        "normalize_values": False,
        "initial_std": 0.5,
    }

    def make_agent(self, **settings: Any) -> Any:
        return impala.make_agent(impala.Config(**{**SMALL, **settings}))


@pytest.mark.parametrize(
    ("settings", "by_actors"),
    [
        ({}, True),
        ({"normalize_observations": True}, False),
        ({"normalize_values": True}, False),
        ({"entropy_cost": Linear(0.1, 0.0, 100)}, False),
    ],
)
def test_actors_compute_gradients_where_the_learner_alone_knows_nothing(
    settings: dict[str, Any], by_actors: bool
) -> None:
    config = impala.Config(**{**SMALL, "normalize_observations": False, "normalize_values": False, **settings})
    networks = impala.make_agent(config).make_networks(specs.make_environment_spec(envs.make("agentkit:catch", seed=0)))
    update = impala.make_update(networks, impala.make_loss(networks, config), config)
    assert (update.gradient is not None) is by_actors


class _Pictures(EnvironmentWrapper):
    """Shows what an environment renders."""

    def reset(self) -> dm_env.TimeStep:
        return self._environment.reset()._replace(observation=self._environment.render())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._environment.step(action)._replace(observation=self._environment.render())

    def observation_spec(self) -> specs.Array:
        return specs.spec_of(self._environment.render())


class _PicturesAndStates(_Pictures):
    """Shows the observation beside what an environment renders."""

    def reset(self) -> dm_env.TimeStep:
        return self._both(self._environment.reset())

    def step(self, action: Any) -> dm_env.TimeStep:
        return self._both(self._environment.step(action))

    def _both(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        return timestep._replace(observation={"picture": self._environment.render(), "state": timestep.observation})

    def observation_spec(self) -> Any:
        return {"picture": super().observation_spec(), "state": self._environment.observation_spec()}


class _ImpalaOfImages(_ImpalaContract):
    def make_environment(self, seed: int) -> Any:
        return _PicturesAndStates(envs.make("agentkit:point_mass", seed=seed))


@pytest.mark.full
class TestImpalaFeedForward(_ImpalaContract):
    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is compiled anew; of images, without which there is no choice of a torso, and of a state beside them."""
        _ImpalaOfImages().test_every_setting_changes_what_the_agent_does()


@pytest.mark.full
class TestImpalaRecurrent(_ImpalaContract):
    test_every_setting_changes_what_the_agent_does = None  # type: ignore[assignment]  # Those of continuous actions do.

    def make_agent(self, **settings: Any) -> Any:
        return super().make_agent(**{"core_size": 4, **settings})

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)


class Training:
    """Acts until a batch is due, and updates when told."""

    def __init__(self, name: str, num_envs: int | None, **settings: Any):
        self.agent = impala.make_agent(impala.Config(**{**SMALL, **settings})).with_num_envs(num_envs or 1)
        environment = envs.make(name, seed=0, num_envs=num_envs)
        spec = specs.make_environment_spec(environment)
        self.networks = self.agent.make_networks(spec)
        self.replay = InProcessReplay(self.agent.make_tables(spec))
        self.dataset = ReplayDataset(self.replay, self.agent.batch_plan)
        update = self.agent.make_update(self.networks)
        self.state, self.update = jax.jit(update.init)(KEY), jax.jit(update.update)
        self.params = self.state.variables.params
        self.store = VariableStore()
        self.client = VariableClient(self.store)
        self.publish()
        adder = make_adder(environment, spec, [(self.agent, self.replay)])
        policy = self.agent.make_policy(self.networks)
        self.loop = make_loop(environment, make_actor(environment, policy, KEY, self.client, adder))

    def publish(self) -> None:
        self.store.publish(int(self.state.num_updates), {"policy": self.state.variables})
        self.client.update()

    def next_batch(self) -> Any:
        while not self.dataset.ready():
            self.loop.step()
        return next(self.dataset).sample

    def learn(self, batch: Any) -> dict[str, float]:
        self.state, output = self.update(self.state, batch)
        self.params = self.state.variables.params
        return {name: float(value) for name, value in output.metrics.items()}


@pytest.mark.full
@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize(
    ("name", "core_size"), [("agentkit:catch", 4), ("agentkit:point_mass", 4), ("agentkit:catch", None)]
)
def test_the_learner_sees_the_probabilities_that_the_actor_saw(name: str, core_size: int | None, num_envs: Any) -> None:
    """Unrolled from stored states, over ends of episodes: every ratio is 1, until the learner is ahead of the actor."""
    training = Training(name, num_envs, core_size=core_size, learning_rate=0.05)
    starts = 0

    @jax.jit
    def log_prob_of(variables: Any, observation: Any, start: Any, core: Any, sample: Any) -> Any:
        (distribution, _), _ = training.networks.network.unroll(
            variables.params, variables.normalized(observation), start, core
        )
        return distribution.log_prob(sample)

    for _ in range(5):
        batch = training.next_batch()
        data, start = batch.data, batch.data.start_of_episode
        core = jax.tree.map(lambda x: x[:, 0], data.extras.core)
        log_prob = log_prob_of(training.state.variables, data.observation, start, core, data.extras.sample)[:, :-1]
        mask = np.asarray(has_action(start)) > 0
        starts += int(data.start_of_episode[:, 1:-1].sum())
        np.testing.assert_allclose(np.asarray(log_prob)[mask], data.extras.log_prob[:, :-1][mask], rtol=1e-3, atol=1e-4)
        assert abs(training.learn(batch)["kl"]) < 1e-6
        training.publish()
    assert starts > 0
    training.learn(training.next_batch())  # From here on it does not publish.
    assert training.learn(training.next_batch())["kl"] > 1e-5


@pytest.mark.full
def test_ones_own_targets_are_no_part_of_the_gradient() -> None:
    training = Training("agentkit:catch", None)
    networks, config, batch = training.networks, training.agent.config, training.next_batch()

    def of_one_step(segments: impala.Trajectories, config: impala.Config) -> impala.losses.VTrace:
        target = segments.reward + segments.discount * segments.values[:, 1:]
        return impala.losses.VTrace(target, target - segments.values[:, :-1])

    def stopped(segments: impala.Trajectories, config: impala.Config) -> impala.losses.VTrace:
        return jax.lax.stop_gradient(of_one_step(segments, config))

    def gradient(estimator: impala.EstimateTargets) -> Any:
        loss = impala.make_loss(networks, config, estimator)
        return jax.jit(jax.grad(lambda params: loss(params, (), batch, KEY).loss))(training.params)

    jax.tree.map(np.testing.assert_array_equal, gradient(of_one_step), gradient(stopped))


def by_hand(networks: Any, config: impala.Config, params: Any, data: Any) -> dict[str, float]:
    """Losses of one segment: networks stepped one by one, V-trace by its recursion over each episode alone."""
    T = config.segment_length

    @jax.jit
    def step(observation: Any, sample: Any, state: Any) -> Any:
        (distribution, value), state = nets.step_one(networks.network, params, observation, state)
        return (distribution.log_prob(sample), distribution.entropy(), value), state

    state = jax.tree.map(lambda x: x[0, 0], data.extras.core)
    outputs = []
    for t in range(T + 1):
        state = networks.network.initial_state if data.start_of_episode[0, t] else state
        output, state = step(data.observation[0, t], data.extras.sample[0, t], state)
        outputs.append(tuple(map(float, output)))
    policy, squares, entropy = [], [], []
    target_after, error_after = outputs[T][2], 0.0
    for t in reversed(range(T)):
        log_prob, entropy_here, value = outputs[t]
        if data.start_of_episode[0, t + 1]:  # A final observation.
            target_after, error_after = value, 0.0
            continue
        ratio = np.exp(log_prob - data.extras.log_prob[0, t])
        discount = config.discount * data.discount[0, t]
        reward = data.reward[0, t]
        advantage = min(config.policy_rho_clip, ratio) * (reward + discount * target_after - value)
        error = min(config.rho_clip, ratio) * (reward + discount * outputs[t + 1][2] - value)
        error += discount * min(1.0, ratio) * error_after
        target_after, error_after = value + error, error
        policy.append(-log_prob * advantage)
        squares.append(0.5 * error**2)
        entropy.append(entropy_here)
    return {"policy_loss": np.mean(policy), "value_loss": np.mean(squares), "entropy": np.mean(entropy)}


@pytest.mark.full
@pytest.mark.parametrize("last_discount", [0.0, 1.0])
@pytest.mark.parametrize(("name", "core_size"), [("agentkit:catch", 4), ("agentkit:point_mass", None)])
def test_the_loss_is_worked_out_row_by_row(name: str, core_size: int | None, last_discount: float) -> None:
    """On a segment that an older policy made, with an episode's end inside, terminated or truncated."""
    training = Training(name, None, core_size=core_size, segment_length=25, learning_rate=0.1, rho_clip=0.9)
    batch = training.next_batch()
    training.learn(batch)
    data = batch.data
    assert data.start_of_episode[0, 1:-1].any()
    discount = data.discount.copy()
    discount[:, :-2][data.start_of_episode[:, 2:]] = last_discount
    batch = batch._replace(data=data._replace(discount=discount))
    networks, config = training.networks, training.agent.config
    expected = by_hand(networks, config, training.params, batch.data)
    output = jax.jit(impala.make_loss(networks, config))(training.params, (), batch, KEY)
    for metric, value in expected.items():
        np.testing.assert_allclose(output.metrics[metric], value, rtol=2e-4, atol=1e-5, err_msg=metric)
    total = expected["policy_loss"] + 0.5 * expected["value_loss"] - 0.01 * expected["entropy"]
    np.testing.assert_allclose(output.loss, total, rtol=2e-4, atol=1e-5)
    assert output.metrics["kl"] > 1e-4


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("core_size", [None, 4])
def test_a_final_observations_row_gives_no_loss(core_size: int | None) -> None:
    """But for its value, which is bootstrapped from after truncation."""
    training = Training("agentkit:point_mass", None, core_size=core_size, segment_length=25)
    batch = training.next_batch()
    (row,) = np.flatnonzero(batch.data.start_of_episode[0, 1:])
    loss = impala.make_loss(training.networks, training.agent.config)
    gradient = jax.jit(jax.grad(lambda params, batch: loss(params, (), batch, KEY).loss))

    def grads(data: Any) -> Any:
        return gradient(training.params, batch._replace(data=data))

    def shifted(name: str) -> Any:
        def add(x: np.ndarray) -> np.ndarray:
            x = x.copy()
            x[:, row] += 1
            return x

        return batch.data._replace(**{name: tree.map_structure(add, getattr(batch.data, name))})

    usual = grads(batch.data)
    for name in ("action", "reward", "extras"):
        jax.tree.map(np.testing.assert_array_equal, grads(shifted(name)), usual)
    # Point mass truncates.
    assert any(
        np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (grads(shifted("observation")), usual)), strict=True)
    )


@pytest.mark.full
def test_a_segment_begins_with_the_stored_state() -> None:
    training = Training("agentkit:catch", None, core_size=4)
    training.next_batch()
    batch = training.next_batch()
    assert not batch.data.start_of_episode[0, 0]
    loss = jax.jit(impala.make_loss(training.networks, training.agent.config))

    def shifted(row: int) -> float:
        core = tree.map_structure(lambda x: x + np.eye(7, dtype=np.float32)[row][None, :, None], batch.data.extras.core)
        data = batch.data._replace(extras=batch.data.extras._replace(core=core))
        return float(loss(training.params, (), batch._replace(data=data), KEY).loss)

    usual = float(loss(training.params, (), batch, KEY).loss)
    assert shifted(0) != usual
    assert all(shifted(row) == usual for row in range(1, 7))


@pytest.mark.full
@pytest.mark.parametrize("core_size", [None, 8])
@pytest.mark.parametrize("terminates", [True, False])
def test_it_finds_the_values_of_a_chain(terminates: bool, core_size: int | None) -> None:
    config = impala.Config(
        hidden_sizes=(16,),
        core_size=core_size,
        discount=0.8,
        segment_length=10,
        batch_size=5,
        queue_size=500,
        learning_rate=5e-3,
    )
    agent, chain = impala.make_agent(config), Chain(terminates, num_actions=2)
    core = agent.make_networks(specs.make_environment_spec(chain)).network.initial_state
    extras = nets.PolicyExtras(np.int32(0), np.float32(-0.5), tree.map_structure(np.asarray, core))
    networks, state = learned(agent, chain, num_updates=1_200, num_steps=1_200, extras=extras)
    cores = jax.tree.map(lambda x: np.tile(x, (4, 1)), core)
    observations = state.variables.normalized(np.eye(4, dtype=np.float32))
    (_, output), _ = jax.jit(networks.network.step)(state.variables.params, observations, cores)
    value = state.returns.mean + nets.std(state.returns) * output
    np.testing.assert_allclose(value, values(0.8, terminates), atol=0.15)


@pytest.mark.full
def test_values_are_learned_of_returns_normalised_by_the_statistics_of_all_targets() -> None:
    training = Training("agentkit:catch", None, segment_length=25, normalize_observations=False)
    batch = training.next_batch()
    assert batch.data.start_of_episode[0, 1:-1].any()
    networks, config, params = training.networks, training.agent.config, training.params
    estimate = jax.jit(functools.partial(impala.estimate, networks, config))
    found = estimate(params, training.state.returns, batch.data)
    targets = np.asarray(found.vtrace.target)[np.asarray(found.mask) > 0]
    metrics = training.learn(batch)
    returns = training.state.returns
    np.testing.assert_allclose([returns.count, returns.mean], [targets.size, targets.mean()], rtol=1e-5)
    np.testing.assert_allclose(nets.std(returns), targets.std(), rtol=1e-4)
    rows = estimate(params, returns, batch.data)
    wanted = (np.asarray(rows.vtrace.target) - targets.mean()) / targets.std() - np.asarray(rows.output)
    mask = np.asarray(rows.mask) > 0
    np.testing.assert_allclose(metrics["value_loss"], 0.5 * np.mean(wanted[mask] ** 2), rtol=1e-4)
    policy_losses = -(np.asarray(rows.log_prob) * np.asarray(rows.vtrace.advantage))[mask] / targets.std()
    np.testing.assert_allclose(metrics["policy_loss"], policy_losses.mean(), rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_observations_are_normalised_for_policy_and_value() -> None:
    """By the statistics that the actor acted with: a batch is taken into them after it was learned from."""
    training = Training("agentkit:point_mass", None, normalize_values=False)
    training.learn(training.next_batch())
    training.publish()
    batch = training.next_batch()
    assert training.state.variables.statistics
    data = batch.data._replace(observation=training.state.variables.normalized(batch.data.observation))
    loss = jax.jit(impala.make_loss(training.networks, training.agent.config))
    expected = loss(training.params, (), batch._replace(data=data), KEY)
    plain = loss(training.params, (), batch, KEY)
    metrics = training.learn(batch)
    for name in ("policy_loss", "value_loss", "entropy"):
        np.testing.assert_allclose(metrics[name], expected.metrics[name], rtol=1e-4, atol=1e-6)
    assert abs(metrics["value_loss"] - plain.metrics["value_loss"]) > 1e-4


def test_the_queue_is_as_long_as_the_settings_say() -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))
    for num_envs, batch_size, queue_size, expected in [(4, None, None, 4), (4, 3, None, 6), (4, None, 32, 32)]:
        agent = impala.make_agent(impala.Config(**SMALL, batch_size=batch_size, queue_size=queue_size))
        (table,) = agent.with_num_envs(num_envs).make_tables(spec)
        assert table.name == "segments" and table.max_size == expected and table.max_times_sampled == 1
    with pytest.raises(ConfigError, match=r"queue_size must be at least 4 .* found 3"):
        impala.make_agent(impala.Config(**SMALL, queue_size=3)).with_num_envs(4).make_tables(spec)


@pytest.mark.full
def test_an_entropy_bonus_makes_the_policy_more_random() -> None:
    found = []
    for entropy_cost in (0.0, 10.0):
        training = Training("agentkit:point_mass", 3, learning_rate=0.01, entropy_cost=entropy_cost)
        entropies = [training.learn(training.next_batch())["entropy"] for _ in range(4)]
        found.append(entropies[-1] - entropies[0])
    assert found[1] > found[0] + 0.05


@pytest.mark.full
def test_with_a_core_it_learns_a_task_that_needs_memory() -> None:
    config = impala.Config(hidden_sizes=(32,), core_size=32, learning_rate=3e-3, discount=0.95)
    learns(impala.make_agent(config), "agentkit:memory_chain", num_steps=18_000, threshold=0.9, num_envs=8)


@pytest.mark.full
def test_without_a_core_it_stays_at_chance_there() -> None:
    """Where the core learned the task: every answer is a guess, so the mean of 200 is within 4 standard errors of 0."""
    config = impala.Config(hidden_sizes=(32,), learning_rate=3e-3, discount=0.95)
    returns = learns(impala.make_agent(config), "agentkit:memory_chain", num_steps=18_000, threshold=-0.29, num_envs=8,
                     num_episodes=200, seeds=(0,))  # fmt: skip
    assert max(returns) < 0.29


@pytest.mark.full
def test_it_learns_catch() -> None:
    config = impala.Config(segment_length=10, learning_rate=3e-3, discount=0.95)
    learns(impala.make_agent(config), "agentkit:catch", num_steps=30_000, threshold=0.8, num_envs=8)


def test_the_residual_torso_is_before_the_layers_and_the_core() -> None:
    spec = specs.make_environment_spec(_Pictures(envs.make("agentkit:point_mass")))
    agent = impala.make_agent(impala.Config(residual_torso=True, hidden_sizes=(8,), core_size=4))
    params = jax.eval_shape(agent.make_networks(spec).init, KEY)
    assert sum(name.startswith("residual_torso/conv2_d") for name in params) == 15
    assert params["residual_torso/linear"]["w"].shape == (8 * 8 * 32, 256)
    assert params["linear"]["w"].shape == (256, 8) and params["core/linear"]["w"].shape == (8 + 4, 4 * 4)
    usual = jax.eval_shape(impala.make_agent(impala.Config(hidden_sizes=(8,))).make_networks(spec).init, KEY)
    assert "atari_torso/conv2_d" in usual and not any(name.startswith("residual") for name in usual)


def test_the_residual_torso_refuses_what_is_no_image() -> None:
    experiment = ExperimentConfig(impala.make_agent(impala.Config(residual_torso=True)), "agentkit:point_mass", 10)
    with pytest.raises(SpecError, match=r"for images, \[H, W, C\].*found observations of shapes \[\[2\]\]"):
        run(experiment)
