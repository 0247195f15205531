import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import actors, envs, losses, specs
from agentkit import networks as nets
from agentkit.agents import r2d2
from agentkit.core import BatchPlan
from agentkit.datasets import ReplayDataset
from agentkit.environment_loop import EnvironmentLoop
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import Linear
from agentkit.replay import Fifo, InProcessReplay, MinSize
from agentkit.testing.agent import AgentContract
from agentkit.testing.chain import Chain, learned, values
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, SampleInfo, Step
from agentkit.variables import VariableClient, VariableStore
from tests.agents import settings
from tests.agents.target_state import state_of_targets

KEY = jax.random.PRNGKey(0)
SMALL: dict[str, Any] = {
    **settings.SMALL_VALUES,
    "core_size": 4,
    "sequence_length": 6,
    "sequence_period": 3,
    "burn_in": 2,
    "min_replay_size": 5,
    "updates_per_step": 0.5,
}
CHANGES = {
    **settings.VALUE_CHANGES,
    "updates_per_step": 0.25,
    "prioritized": False,
    "priority_exponent": 0.7,
    "importance_exponent": 0.9,
    "core_size": 3,
    "core": "gru",
    "sequence_length": 7,
    "sequence_period": 2,
    "burn_in": 3,
    "max_priority_weight": 0.5,
    "rescale_values": False,
}
REFUSED = {
    **settings.VALUE_REFUSED,
    "replay_size": 4,
    "priority_exponent": -1.0,
    "core_size": 0,
    "core": "lsmt",
    "sequence_length": 0,
    "sequence_period": 0,
    "burn_in": 4,
    "max_priority_weight": 1.5,
}


@pytest.mark.full
class TestR2d2(AgentContract):
    unsuitable_environment = "agentkit:point_mass"
    refused: ClassVar = REFUSED
    changes: ClassVar = CHANGES

    def make_agent(self, **changes: Any) -> Any:
        return r2d2.make_agent(r2d2.Config(**{**SMALL, **changes}))

    def make_environment(self, seed: int) -> Any:
        return envs.make("agentkit:catch", seed=seed)

    @pytest.mark.full
    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Each is traced anew."""
        super().test_every_setting_changes_what_the_agent_does()


def played(agent: Any, environment: Any, num_steps: int) -> tuple[Any, Any, Step, list[np.ndarray]]:
    """Acts greedily: networks, parameters, all sequences in order ``[N, T + 1, ...]``, and the values acted by."""
    spec = specs.make_environment_spec(environment)
    networks = agent.make_networks(spec)
    params = jax.jit(networks.init)(KEY)
    seen: list[np.ndarray] = []
    watched = networks._replace(step=lambda *x: _note(seen, networks.step(*x)))
    store = VariableStore()
    store.publish(0, {"policy": params})
    table = agent.make_tables(spec)[0]
    with InProcessReplay([_unlimited(table)], seed=0) as replay:
        adder = agent.make_adder(replay, spec)
        actor = actors.PolicyActor(agent.make_policy(watched), KEY, VariableClient(store), adder)
        loop = EnvironmentLoop(environment, actor)
        with jax.disable_jit():
            for _ in range(num_steps):
                loop.step()
        size = replay.info(table.name).size
        items = next(ReplayDataset(replay, BatchPlan(table.name, size), timeout=1.0)).sample.data
    return networks, params, items, seen


def _note(seen: list[np.ndarray], result: Any) -> Any:
    seen.append(np.asarray(result[0][0]))
    return result


def _unlimited(table: Any) -> Any:
    """Each item once, in the order in which they were written."""
    return dataclasses.replace(table, rate_limiter=MinSize(1), sampler=Fifo(), max_times_sampled=1)


@pytest.mark.full
def test_unrolled_from_stored_states_the_learner_sees_what_the_actor_saw() -> None:
    """Through actor, adder and replay, across ends of episodes; so no burn-in is needed while parameters stay."""
    config = r2d2.Config(**{**SMALL, "epsilon": 0.0, "burn_in": 0})
    networks, params, items, seen = played(r2d2.make_agent(config), envs.make("agentkit:catch", seed=0), 40)
    core = jax.tree.map(lambda x: x[:, 0], items.extras)
    q, _ = networks.unroll(params, items.observation, jnp.asarray(items.start_of_episode), core)  # [N, T + 1, A]
    assert len(q) > 10 and np.any(~items.start_of_episode[:, 0]) and np.any(items.start_of_episode[:, 2])
    is_final = np.zeros(3 * len(q) + 4, bool)
    by_row = np.full((3 * len(q) + 4, 3), np.nan)
    for i, start in enumerate(items.start_of_episode):
        # With a final observation no state is stored; as a sequence's first row nobody bootstraps from it.
        first = int(start[1])
        rows, values = slice(3 * i + first, 3 * i + 7), q[i, first:]
        if i:
            np.testing.assert_allclose(by_row[rows][: 4 - first], values[: 4 - first], rtol=1e-4, atol=1e-5)
        by_row[rows] = values
        is_final[3 * i : 3 * i + 6] |= start[1:]
    acted = by_row[~is_final]  # The actor never looks at a final observation.
    np.testing.assert_allclose(acted[: len(seen)], np.array(seen)[: len(acted)], rtol=1e-4, atol=1e-5)


class Example:
    """A batch of two sequences of 6 rows and one behind, and the loss and gradient of it."""

    def __init__(self, starts: tuple[int, ...], last_discount: float = 0.0, **changes: Any):
        spec = specs.make_environment_spec(envs.make("agentkit:memory_chain", seed=0))
        self.config = r2d2.Config(**{**SMALL, "prioritized": True, **changes})
        networks = r2d2.make_networks(spec, self.config)
        rng = np.random.default_rng(0)
        start = np.zeros((2, 7), bool)
        start[:, list(starts)] = True
        final = np.concatenate([start[:, 1:], np.zeros((2, 1), bool)], axis=1)
        discount = np.where(final, 0.0, 1.0)
        discount[:, :-1][final[:, 1:]] = last_discount
        self.data = Step(
            observation=rng.normal(size=(2, 7, 3)).astype(np.float32),
            action=np.where(final, 0, rng.integers(2, size=(2, 7))),
            reward=np.where(final, 0.0, rng.normal(size=(2, 7))).astype(np.float32),
            discount=discount.astype(np.float32),
            start_of_episode=start,
            extras=jax.tree.map(lambda x: rng.normal(size=(2, 7, *x.shape)).astype(np.float32), networks.initial_state),
        )
        self.params = tuple(map(jax.jit(networks.init), (KEY, jax.random.PRNGKey(1))))
        self._loss = jax.jit(r2d2.make_loss(networks, self.config))

    def learned(self, **changed: tuple[int, float]) -> np.ndarray:
        """Loss and priorities, with `field=(row, shift)` added."""
        data = self.data
        for name, (row, shift) in changed.items():

            def add(x: np.ndarray, row: int = row, shift: float = shift) -> np.ndarray:
                x = x.copy()
                x[:, row] += np.asarray(shift, x.dtype)
                return x

            data = data._replace(**{name: tree.map_structure(add, getattr(data, name))})
        info = SampleInfo(np.full(2, 0.5), np.full(2, 2), np.ones(2), np.ones(2))
        online, target = self.params
        output = self._loss(online, state_of_targets(target), ReplaySample(info, data), KEY)
        return np.array([output.loss, *output.priorities])


@pytest.mark.full
def test_what_is_burnt_in_counts_by_its_observations_alone() -> None:
    example = Example(starts=())
    usual = example.learned()
    for row in (0, 1):
        for name in ("reward", "discount", "action"):
            np.testing.assert_array_equal(example.learned(**{name: (row, 0.5 if name != "action" else -1)}), usual)
        assert np.all(example.learned(observation=(row, 1.0)) != usual)
    assert np.all(example.learned(reward=(2, 0.5)) != usual)


@pytest.mark.full
def test_after_an_episodes_start_no_burn_in_is_needed() -> None:
    example = Example(starts=(0,))
    usual = example.learned()
    for row in (0, 1):
        assert np.all(example.learned(reward=(row, 0.5)) != usual)


@pytest.mark.full
def test_the_stored_state_of_the_first_row_is_used_and_no_other() -> None:
    example = Example(starts=())
    usual = example.learned()
    assert np.all(example.learned(extras=(0, 0.5)) != usual)
    for row in range(1, 7):
        np.testing.assert_array_equal(example.learned(extras=(row, 0.5)), usual)
    example = Example(starts=(0,))
    np.testing.assert_array_equal(example.learned(extras=(0, 0.5)), example.learned())


@pytest.mark.full
def test_an_episodes_final_row_gives_no_loss_and_is_bootstrapped_from_after_truncation_only() -> None:
    """Row 3 is the final one, row 4 the next episode's first. Nothing of that reaches the rows before."""
    for last_discount in (0.0, 1.0):
        example = Example(starts=(0, 4), last_discount=last_discount, n_step=1)
        usual = example.learned()
        np.testing.assert_array_equal(example.learned(action=(3, 1)), usual)
        np.testing.assert_array_equal(example.learned(reward=(3, 1.0)), usual)
        assert np.all((example.learned(observation=(3, 1.0)) != usual) == (last_discount == 1.0))


@pytest.mark.full
def test_the_loss_is_the_mean_square_of_errors_that_are_worked_out_row_by_row() -> None:
    """Networks stepped one by one; targets summed by hand; both sequences have the same weight."""
    example = Example(starts=(0, 4), last_discount=1.0, n_step=2)
    spec = specs.make_environment_spec(envs.make("agentkit:memory_chain", seed=0))
    networks, data = r2d2.make_networks(spec, example.config), example.data

    def stepped(params: Any, i: int) -> np.ndarray:
        state, rows = networks.initial_state, []
        for t in range(7):
            state = networks.initial_state if data.start_of_episode[i, t] else state
            q, state = nets.step_one(networks, params, data.observation[i, t], state)
            rows.append(np.asarray(q))
        return np.array(rows)

    expected, priorities = [], []
    for i in range(2):
        q, target = (stepped(params, i) for params in example.params)
        gamma, squares = example.config.discount, []
        for t, until in [(0, 2), (1, 3), (2, 3), (4, 6), (5, 6)]:  # The rows with an action, and what they bootstrap.
            value = losses.signed_parabolic(target[until, np.argmax(q[until])])
            total = sum(gamma ** (k - t) * data.reward[i, k] for k in range(t, until)) + gamma ** (until - t) * value
            squares.append((losses.signed_hyperbolic(jnp.float32(total)) - q[t, data.action[i, t]]) ** 2)
        expected.append(0.5 * sum(squares) / 6)
        sizes = np.sqrt(squares)
        priorities.append(0.9 * max(sizes) + 0.1 * np.mean(sizes))
    np.testing.assert_allclose(example.learned(), [np.mean(expected), *priorities], rtol=1e-4)


def test_actors_remember_within_an_episode_and_explore_on_a_ladder() -> None:
    environment = envs.make("agentkit:memory_chain", seed=0)
    networks = r2d2.make_networks(specs.make_environment_spec(environment), r2d2.Config(**SMALL))
    policy = r2d2.make_policy(networks, r2d2.Config(**SMALL, epsilon_ladder=True))
    state = policy.diversify(policy.init(KEY), 3, 4)
    assert state.exploration == pytest.approx(0.4**8)
    params = jax.jit(networks.init)(KEY)
    _, after, extras = policy.act(params, KEY, environment.reset().observation, state)
    jax.tree.map(lambda spec, x: spec.validate(np.asarray(x)), policy.extras_spec, extras)
    assert r2d2.make_policy(networks, r2d2.Config(**SMALL), evaluation=True).extras_spec == ()
    assert all(np.all(x == 0) for x in extras) and all(np.any(x != 0) for x in after.core)
    _, _, extras = policy.act(params, KEY, environment.step(0).observation, after)
    jax.tree.map(np.testing.assert_array_equal, extras, after.core)
    again = policy.reset(after)
    assert again.exploration == state.exploration and all(np.all(x == 0) for x in again.core)


@pytest.mark.full
@pytest.mark.parametrize("rescale_values", [True, False])
@pytest.mark.parametrize("terminates", [True, False])
def test_it_finds_the_values_of_a_chain(terminates: bool, rescale_values: bool) -> None:
    config = r2d2.Config(
        hidden_sizes=(16,),
        core_size=16,
        discount=0.8,
        n_step=3,
        sequence_length=10,
        sequence_period=5,
        burn_in=2,
        batch_size=16,
        learning_rate=5e-3,
        target_update_period=20,
        rescale_values=rescale_values,
    )
    agent, chain = r2d2.make_agent(config), Chain(terminates, num_actions=2)
    core = tree.map_structure(np.asarray, agent.make_networks(specs.make_environment_spec(chain)).initial_state)
    networks, state = learned(agent, chain, num_updates=600, num_steps=600, extras=core)
    q = networks.step(state.params, np.eye(4, dtype=np.float32), jax.tree.map(lambda x: np.tile(x, (4, 1)), core))[0]
    q = losses.signed_parabolic(q) if rescale_values else q
    np.testing.assert_allclose(q, np.tile(values(0.8, terminates)[:, None], 2), atol=0.15)


@pytest.mark.full
def test_learning_is_as_frequent_as_the_settings_say_for_each_row() -> None:
    config = r2d2.Config(**{**SMALL, "updates_per_step": 0.5, "min_replay_size": 10})
    result = run(ExperimentConfig(r2d2.make_agent(config), "agentkit:catch", 600, evaluation_period=0))
    rows = 600 * 10 / 9  # Episodes of 9 steps and a row for their end.
    assert result.updates == pytest.approx(0.5 * (rows - 10 * 3), abs=12)
    assert r2d2.make_agent(config).batch_plan.table == "sequences"


def memory_config(**changes: Any) -> r2d2.Config:
    settings: dict[str, Any] = {
        "hidden_sizes": (32,),
        "core_size": 32,
        "sequence_length": 12,
        "sequence_period": 6,
        "burn_in": 3,
        "n_step": 3,
        "discount": 0.95,
        "learning_rate": 3e-3,
        "target_update_period": 50,
        "epsilon": Linear(1.0, 0.05, 500),
        "min_replay_size": 30,
        "updates_per_step": 0.5,
        "updates_per_call": 4,
    }
    return r2d2.Config(**{**settings, **changes})


@pytest.mark.full
def test_it_learns_a_task_that_needs_memory() -> None:
    agent = r2d2.make_agent(memory_config())
    learns(agent, "agentkit:memory_chain", num_steps=1_500, threshold=0.9)


@pytest.mark.full
def test_with_an_attention_memory_it_learns_it_too() -> None:
    """Of as many rows as the bit is ago; seed 0 needed 300 steps."""
    agent = r2d2.make_agent(memory_config(core=nets.GTrXL(memory_length=6)))
    learns(agent, "agentkit:memory_chain", num_steps=900, threshold=0.9)


@pytest.mark.full
def test_with_an_attention_memory_that_is_too_short_it_stays_at_chance() -> None:
    """Where the bit is five rows ago; the mean of 200 guesses is within 4 standard errors of 0."""
    agent = r2d2.make_agent(memory_config(core=nets.GTrXL(memory_length=4)))
    returns = learns(agent, "agentkit:memory_chain", num_steps=900, threshold=-0.29, seeds=(0,), num_episodes=200)
    assert max(returns) < 0.29
