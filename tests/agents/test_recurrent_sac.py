"""Recurrent SAC; the order of the steps of its update is in test_updates_by_hand.py."""

import dataclasses
from typing import Any, ClassVar

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import actors, envs, specs
from agentkit import networks as nets
from agentkit.agents import recurrent_sac, sac
from agentkit.core import BatchPlan
from agentkit.datasets import ReplayDataset
from agentkit.environment_loop import EnvironmentLoop
from agentkit.envs.base import Environment
from agentkit.replay import Fifo, InProcessReplay, MinSize
from agentkit.testing.agent import AgentContract, Change
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Step
from agentkit.variables import VariableClient, VariableStore
from tests.agents import settings

KEY = jax.random.PRNGKey(0)
SMALL: dict[str, Any] = {
    **settings.SMALL,
    "core_size": 4,
    "head_sizes": (8,),
    "sequence_length": 6,
    "sequence_period": 3,
    "burn_in": 2,
    "min_replay_size": 5,
    "updates_per_step": 0.5,
    "num_random_steps": 10,
}


@pytest.mark.full
class TestRecurrentSac(AgentContract):
    unsuitable_environment = "agentkit:catch"
    refused: ClassVar = {
        **settings.SOFT_REFUSED,
        "replay_size": 4,
        "hidden_sizes": (0,),
        "head_sizes": (0,),
        "core_size": 0,
        "core": nets.GTrXL(num_heads=3),
        "sequence_length": 0,
        "sequence_period": 0,
        "burn_in": 4,
        "max_priority_weight": 1.5,
        "min_log_std": 3.0,
    }
    changes: ClassVar = {
        **settings.SOFT_CONTINUOUS_CHANGES,
        "updates_per_step": 0.25,
        "core_size": 3,
        "core": "gtrxl",
        "head_sizes": (8, 8),
        "sequence_length": 7,
        "sequence_period": 2,
        "burn_in": 3,
        "max_grad_norm": 1e-3,
        "num_random_steps": 0,
        "max_priority_weight": Change(0.5, settings.PRIORITIZED),
    }

    def make_agent(self, **changes: Any) -> Any:
        return recurrent_sac.make_agent(recurrent_sac.Config(**{**SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:point_mass", seed=seed)

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()


@pytest.mark.full
def test_unrolled_from_stored_states_the_learner_sees_what_the_actor_saw() -> None:
    """Through actor, adder and replay, across ends of episodes: the modes of the policy are the actions taken."""
    environment = envs.make("agentkit:point_mass", max_steps=5, seed=0)
    spec = specs.make_environment_spec(environment)
    config = recurrent_sac.Config(**{**SMALL, "burn_in": 0, "num_random_steps": 0})
    agent = recurrent_sac.make_agent(config)
    networks = agent.make_networks(spec)
    params = jax.tree.map(lambda x: 5.0 * x, networks.policy.init(KEY))  # So that actions differ.
    exploring = agent.make_policy(networks)

    def act_by_mode(params: Any, key: Any, observation: Any, state: Any) -> Any:
        _, after, extras = exploring.act(params, key, observation, state)
        return nets.mode(nets.step_one(networks.policy, params, observation, state.core)[0]), after, extras

    store = VariableStore()
    store.publish(0, {"policy": params})
    (table,) = agent.make_tables(spec)
    table = dataclasses.replace(table, rate_limiter=MinSize(1), sampler=Fifo(), max_times_sampled=1)
    with InProcessReplay([table], seed=0) as replay:
        adder = agent.make_adder(replay, spec)
        actor = actors.PolicyActor(exploring._replace(act=act_by_mode), KEY, VariableClient(store), adder)
        loop = EnvironmentLoop(environment, actor)
        for _ in range(40):
            loop.step()
        size = replay.info(table.name).size
        data = next(ReplayDataset(replay, BatchPlan(table.name, size), timeout=1.0)).sample.data
    found = nets.mode(recurrent_sac.distributions(networks, params, data, config))
    # With a final observation no state is stored: a sequence that begins there begins anew with its second row.
    final = np.concatenate([data.start_of_episode[:, 1:], np.zeros((size, 1), bool)], axis=1)
    taken = ~final[:, :-1]
    assert size > 8 and 0.6 < taken.mean() < 0.95 and np.std(data.action[:, :-1][taken]) > 0.03
    assert any(start[1:].any() and not start[0] for start in data.start_of_episode)
    np.testing.assert_allclose(found[:, :-1][taken], data.action[:, :-1][taken], rtol=1e-4, atol=1e-5)


class Example:
    """A batch of two sequences of 6 rows and one behind, a training state, and the losses of them."""

    def __init__(self, starts: tuple[int, ...], last_discount: float = 0.0, **changes: Any):
        spec = specs.make_environment_spec(envs.make("agentkit:point_mass", seed=0))
        self.config = recurrent_sac.Config(**{**SMALL, "prioritized": True, "initial_temperature": 0.3, **changes})
        self.networks = recurrent_sac.make_networks(spec, self.config)
        rng = np.random.default_rng(0)
        start = np.zeros((2, 7), bool)
        start[:, list(starts)] = True
        final = np.concatenate([start[:, 1:], np.zeros((2, 1), bool)], axis=1)
        discount = np.where(final, 0.0, 1.0)
        discount[:, :-1][final[:, 1:]] = last_discount
        core = self.networks.policy.initial_state
        self.data = Step(
            observation=rng.normal(size=(2, 7, 2)).astype(np.float32),
            action=np.where(final[..., None], 0.0, rng.uniform(-1, 1, size=(2, 7, 2))).astype(np.float32),
            reward=np.where(final, 0.0, rng.normal(size=(2, 7))).astype(np.float32),
            discount=discount.astype(np.float32),
            start_of_episode=start,
            extras=jax.tree.map(lambda x: rng.normal(size=(2, 7, *x.shape)).astype(np.float32), core),
        )
        self.losses = recurrent_sac.make_losses(self.networks, self.config)
        self.state = recurrent_sac.make_update(self.networks, self.losses, self.config).init(KEY)
        policy = jax.tree.map(lambda x: 2.0 * x, self.state.policy)  # Its last layer begins near 0.
        # Targets and critics begin equal.
        targets = jax.tree.map(lambda x: 0.5 * x, self.state.target_critics)
        self.state = self.state._replace(policy=policy, target_critics=targets)
        self._compiled = jax.jit(self._all)

    def _all(self, data: Step) -> tuple[Any, ...]:
        info = SampleInfo(np.full(2, 0.5), np.full(2, 2), np.ones(2), np.ones(2))
        batch, state = ReplaySample(info, data), self.state
        output = jax.jit(self.losses.critic)(state.critics, state, batch, KEY)
        policy_loss, metrics, _ = jax.jit(self.losses.policy)(state.policy, state, batch, KEY)
        entropy = metrics["entropy"]
        return output.loss, output.priorities, policy_loss, entropy

    def learned(self, **changed: tuple[int, float]) -> tuple[np.ndarray, np.ndarray]:
        """The critics' loss and priorities; the policy's loss and entropy; with `field=(row, shift)` added."""
        data = self.data
        for name, (row, shift) in changed.items():

            def add(x: np.ndarray, row: int = row, shift: float = shift) -> np.ndarray:
                x = x.copy()
                x[:, row] += np.asarray(shift, x.dtype)
                return x

            data = data._replace(**{name: tree.map_structure(add, getattr(data, name))})
        loss, priorities, policy_loss, entropy = self._compiled(data)
        return np.array([loss, *priorities]), np.array([policy_loss, entropy])


@pytest.mark.full
def test_what_is_burnt_in_counts_by_its_observations_alone() -> None:
    example = Example(starts=())
    usual = example.learned()
    for row in (0, 1):
        for name in ("reward", "discount", "action"):
            for found, expected in zip(example.learned(**{name: (row, 0.5)}), usual, strict=True):
                np.testing.assert_array_equal(found, expected)
        for found, expected in zip(example.learned(observation=(row, 1.0)), usual, strict=True):
            assert np.all(found != expected)
    assert np.all(example.learned(reward=(2, 0.5))[0] != usual[0])
    found = recurrent_sac.distributions(example.networks, example.state.policy, example.data, example.config)
    log_prob = nets.sample_and_log_prob(found, KEY)[1]
    np.testing.assert_allclose(usual[1][1], -jnp.mean(log_prob[:, 2:6]), rtol=1e-4)
    example = Example(starts=(0,))  # After an episode's start none is needed.
    assert np.all(example.learned(reward=(0, 0.5))[0] != example.learned()[0])


@pytest.mark.full
def test_the_stored_state_of_the_first_row_is_used_and_no_other() -> None:
    example = Example(starts=())
    usual = example.learned()[1]
    assert np.all(example.learned(extras=(0, 0.5))[1] != usual)
    for row in range(1, 7):
        np.testing.assert_array_equal(example.learned(extras=(row, 0.5))[1], usual)
    example = Example(starts=(0,))
    np.testing.assert_array_equal(example.learned(extras=(0, 0.5))[1], example.learned()[1])


@pytest.mark.full
def test_an_episodes_final_row_gives_no_loss_and_is_bootstrapped_from_after_truncation_only() -> None:
    """Row 3 is the final one, row 4 the next episode's first. Nothing of that reaches the rows before."""
    for last_discount in (0.0, 1.0):
        example = Example(starts=(0, 4), last_discount=last_discount)
        usual = example.learned()
        for name in ("action", "reward"):
            np.testing.assert_array_equal(example.learned(**{name: (3, 1.0)})[0], usual[0])
        critic, policy = example.learned(observation=(3, 1.0))
        assert np.all((critic != usual[0]) == (last_discount == 1.0))
        np.testing.assert_array_equal(policy, usual[1])


@pytest.mark.full
@pytest.mark.parametrize("n_step", [1, 2])
def test_the_losses_are_those_of_one_step_after_the_other(n_step: int) -> None:
    """Networks stepped one by one from the episodes' starts; targets summed by hand; rows 0 to 2, 4 and 5 count."""
    example = Example(starts=(0, 4), last_discount=1.0, n_step=n_step)
    networks, data, config, state = example.networks, example.data, example.config, example.state

    def stepped(network: Any, params: Any, inputs: Any) -> Any:
        """Outputs ``[2, 7, ...]``."""
        sequences = []
        for i in range(2):
            core, rows = network.initial_state, []
            for t in range(7):
                core = network.initial_state if data.start_of_episode[i, t] else core
                output, core = nets.step_one(network, params, jax.tree.map(lambda x, i=i, t=t: x[i, t], inputs), core)
                rows.append(output)
            sequences.append(jax.tree.map(lambda *x: np.stack(x), *rows))
        return jax.tree.map(lambda *x: np.stack(x), *sequences)

    def values_of(critics: Any, action: Any) -> tuple[np.ndarray, np.ndarray]:
        return stepped(networks.critic, critics, recurrent_sac.CriticInput(data.observation, action))

    # Noise is drawn for all rows at once.
    action, log_prob = nets.sample_and_log_prob(stepped(networks.policy, state.policy, data.observation), KEY)
    v = np.minimum(*values_of(state.target_critics, action)) - 0.3 * np.asarray(log_prob)
    q = values_of(state.critics, data.action)
    until = {1: {0: 1, 1: 2, 2: 3, 4: 5, 5: 6}, 2: {0: 2, 1: 3, 2: 3, 4: 6, 5: 6}}[n_step]
    loss, priorities = [], []
    for i in range(2):
        errors = []
        for t, end in until.items():
            target = sum(config.discount ** (k - t) * data.reward[i, k] for k in range(t, end))
            target += config.discount ** (end - t) * v[i, end]
            errors.append([one[i, t] - target for one in q])
        loss.append(0.5 * np.sum(np.square(errors)) / 6)
        sizes = np.abs(np.array(errors)[:, 0])
        priorities.append(0.9 * sizes.max() + 0.1 * sizes.mean())
    rows = list(until)
    by_policy = np.minimum(*values_of(state.critics, action))
    policy_loss = np.mean((0.3 * np.asarray(log_prob) - by_policy)[:, rows])
    found = example.learned()
    np.testing.assert_allclose(found[0], [np.mean(loss), *priorities], rtol=1e-4)
    np.testing.assert_allclose(found[1], [policy_loss, -np.mean(np.asarray(log_prob)[:, rows])], rtol=1e-4)


@pytest.mark.full
def test_a_policys_gradient_reaches_its_memory_and_no_critic() -> None:
    example = Example(starts=(0, 4))
    info = SampleInfo(np.full(2, 0.5), np.full(2, 2), np.ones(2), np.ones(2))
    batch = ReplaySample(info, example.data)

    def loss(policy: Any) -> jax.Array:
        return example.losses.policy(policy, example.state, batch, KEY).loss

    grads = jax.jit(jax.grad(loss))(example.state.policy)
    assert all(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(grads))

    def critic_loss(critics: Any) -> jax.Array:
        return example.losses.critic(critics, example.state, batch, KEY).loss

    grads = jax.jit(jax.grad(critic_loss))(example.state.critics)
    assert all(np.any(np.asarray(x) != 0) for x in jax.tree.leaves(grads))


@pytest.mark.full
def test_actors_remember_within_an_episode_and_begin_with_uniform_actions() -> None:
    environment = envs.make("agentkit:point_mass", seed=0)
    config = recurrent_sac.Config(**{**SMALL, "num_random_steps": 2})
    networks = recurrent_sac.make_networks(specs.make_environment_spec(environment), config)
    policy, params = recurrent_sac.make_policy(networks, config), networks.policy.init(KEY)
    judged = recurrent_sac.make_policy(networks, config, evaluation=True)
    observation, state = environment.reset().observation, policy.begin(policy.init(KEY), jnp.int32(1), 1)
    distribution, core = nets.step_one(networks.policy, params, observation, state.core)
    action, after, extras = policy.act(params, KEY, observation, state)
    jax.tree.map(lambda spec, x: spec.validate(np.asarray(x)), policy.extras_spec, extras)
    jax.tree.map(np.testing.assert_array_equal, (extras, after.core), (state.core, core))
    sample_key, uniform_key = jax.random.split(KEY)
    np.testing.assert_allclose(action, jax.random.uniform(uniform_key, (2,), minval=-1, maxval=1))
    action, later, _ = policy.act(params, KEY, observation, after)
    distribution, core = nets.step_one(networks.policy, params, observation, after.core)
    np.testing.assert_allclose(
        action, nets.sample(jax.tree.map(lambda x: x[None], distribution), sample_key)[0], rtol=1e-5
    )
    assert all(np.any(x != 0) for x in later.core)
    again = policy.reset(later)
    np.testing.assert_array_equal(again.chooser, later.chooser)
    assert all(np.all(x == 0) for x in again.core)
    action, _, extras = judged.act(params, KEY, observation, judged.init(KEY))
    assert extras == judged.extras_spec == ()
    np.testing.assert_allclose(
        action, nets.mode(nets.step_one(networks.policy, params, observation, state.core)[0]), rtol=1e-5
    )


@pytest.mark.full
@pytest.mark.parametrize("terminates", [True, False])
def test_both_critics_find_the_values_of_a_chain(terminates: bool) -> None:
    """With a temperature so small that entropy is worth nothing."""
    config = recurrent_sac.Config(
        hidden_sizes=(16,),
        core_size=16,
        head_sizes=(16,),
        discount=0.8,
        n_step=3,
        sequence_length=10,
        sequence_period=5,
        burn_in=2,
        batch_size=16,
        learning_rate=5e-3,
        tau=0.05,
        initial_temperature=1e-6,
        learn_temperature=False,
    )
    agent, chain = recurrent_sac.make_agent(config), Chain(terminates)
    core = agent.make_networks(specs.make_environment_spec(chain)).policy.initial_state
    networks, state = learned(agent, chain, num_updates=400, num_steps=600, extras=tree.map_structure(np.asarray, core))
    seen = recurrent_sac.CriticInput(np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32))
    zeros = jax.tree.map(lambda x: np.tile(x, (4, 1)), networks.critic.initial_state)
    for q in networks.critic.step(state.critics, seen, zeros)[0]:
        np.testing.assert_allclose(q, values(0.8, terminates), atol=0.1)


class Recall(Environment):
    """Shows a number, 0.7 or -0.7, at the first step alone; the action three steps later is to be that number.

    The reward of the last step is 1 less the squared difference over 0.49: the **optimal return** is 1, and without
    memory no policy's mean exceeds 0. Observation: float32 ``[2]``, the number (0 later), and the share of time gone.
    """

    def _start(self) -> np.ndarray:
        self._number, self._time = float(self._rng.choice([-0.7, 0.7])), 0
        return np.array([self._number, 0.0], np.float32)

    def _advance(self, action: Any) -> tuple[np.ndarray, float, bool]:
        self._time += 1
        done = self._time == 4
        reward = 1.0 - (float(action[0]) - self._number) ** 2 / 0.49 if done else 0.0
        return np.array([0.0, self._time / 4], np.float32), reward, done

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((2,), np.float32, -1.0, 1.0, "observation")

    def action_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, "action")


def recall(seed: int) -> dm_env.Environment:
    return Recall(seed)


@pytest.mark.full
def test_it_learns_a_task_that_needs_memory() -> None:
    config = recurrent_sac.Config(
        hidden_sizes=(32,),
        core_size=32,
        head_sizes=(32,),
        sequence_length=10,
        sequence_period=5,
        burn_in=3,
        discount=0.9,
        learning_rate=3e-3,
        tau=0.02,
        initial_temperature=0.1,
        min_replay_size=30,
        num_random_steps=200,
        updates_per_step=0.5,
        updates_per_call=4,
    )
    learns(recurrent_sac.make_agent(config), recall, num_steps=1_500, threshold=0.8)


@pytest.mark.full
def test_plain_sac_stays_at_chance_there() -> None:
    """Every answer is a guess."""
    config = sac.Config(
        hidden_sizes=(32, 32),
        discount=0.9,
        learning_rate=3e-3,
        tau=0.02,
        batch_size=64,
        initial_temperature=0.1,
        min_replay_size=100,
        num_random_steps=200,
        updates_per_step=0.5,
        updates_per_call=4,
    )
    settings: dict[str, Any] = {"num_steps": 1_500, "num_episodes": 200, "seeds": (0,)}
    returns = learns(sac.make_agent(config), recall, threshold=-2.0, **settings)
    assert max(returns) < 0.3
