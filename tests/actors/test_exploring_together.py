"""Actors that explore together explore differently: `Policy.diversify`, and the ladder of epsilons that uses it."""

from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import checkpoint, envs
from agentkit.actors import (
    ActorIndex,
    BatchedPolicyActor,
    Policy,
    PolicyActor,
    epsilon_greedy_policy,
    epsilon_ladder_policy,
    gaussian_noise_policy,
    sampling_policy,
    stateless_policy,
    uniform_action,
)
from agentkit.actors.policy import first_state
from agentkit.actors.ready import ReadyPolicyActor
from agentkit.actors.step_count import count_from, count_one_more, steps_taken
from agentkit.agents import dqn, r2d2
from agentkit.distributed import NodeContext, RunStore, RunStoreClient
from agentkit.distributed.context import NodeId
from agentkit.experiment import ExperimentConfig, run
from agentkit.experiment.launching.nodes.actor import find_actor_index
from agentkit.learning import Linear, Piecewise
from agentkit.specs import make_environment_spec
from agentkit.types import FIRST, LAST, MID
from tests.actors.served import FakeAdder

pytestmark = pytest.mark.both_stacks

KEY = jax.random.PRNGKey(3)


class Client:
    params = jnp.float32([0.0, 1.0, 0.5])

    def update(self, wait: bool = False) -> None: ...


def ladder() -> Policy:
    """Q-values are the parameters, whatever is observed: the second action is best."""
    return epsilon_ladder_policy(lambda params, observation: jnp.broadcast_to(params, (observation.shape[0], 3)))


def paper(i: int, n: int) -> float:
    return 0.4 ** (1 + 7 * i / (n - 1)) if n > 1 else 0.4


@pytest.mark.parametrize("count", [1, 2, 8])
def test_the_ladder_is_the_papers(count: int) -> None:
    found = [first_state(ladder(), KEY, ActorIndex(i, count)) for i in range(count)]
    np.testing.assert_allclose(found, [paper(i, count) for i in range(count)], rtol=1e-5)
    assert found[0].dtype == jnp.float32 and found[0].shape == ()


def test_environments_of_an_actor_have_places_of_their_own() -> None:
    found = [first_state(ladder(), KEY, ActorIndex(i, 2), num_envs=3) for i in range(2)]
    np.testing.assert_allclose(np.concatenate(found), [paper(i, 6) for i in range(6)], rtol=1e-5)


def test_an_actor_that_was_added_later_shares_a_place() -> None:
    for num_envs in (None, 2):
        first, later = (first_state(ladder(), KEY, ActorIndex(i, 4), num_envs) for i in (1, 5))
        np.testing.assert_array_equal(first, later)


@pytest.mark.full
def test_it_explores_as_often_as_its_place_says_for_ever() -> None:
    for index, expected in ((0, 0.4 * 2 / 3), (1, 0.4**8 * 2 / 3)):
        actor = PolicyActor(ladder(), KEY, Client(), actor_index=ActorIndex(index, 2))
        actions = np.array([actor.select_action(np.zeros(1, np.float32)) for _ in range(1_000)])
        assert np.mean(actions != 1) == pytest.approx(expected, abs=0.05)
    actor = BatchedPolicyActor(ladder(), KEY, Client(), num_envs=2)
    actions = np.array([actor.select_action(np.zeros((2, 1), np.float32)) for _ in range(1_000)])
    np.testing.assert_allclose(np.mean(actions != 1, axis=0), [0.4 * 2 / 3, 0.0], atol=0.05)


def test_a_policy_that_says_nothing_is_not_spread() -> None:
    policy = stateless_policy(lambda params, key, observation: observation)
    assert first_state(policy, KEY, ActorIndex(3, 5)) == ()
    assert first_state(policy, KEY, ActorIndex(3, 5), num_envs=2) == ()
    counting = Policy(policy.act, init=lambda key: jax.random.normal(key, (2,)))
    np.testing.assert_array_equal(first_state(counting, KEY, ActorIndex(3, 5)), counting.init(KEY))


def test_places_may_be_traced() -> None:
    """As where one compiled call acts for many actors."""
    first = jax.jit(lambda index, count: first_state(ladder(), KEY, ActorIndex(index, count), num_envs=2))
    np.testing.assert_allclose(first(1, 2), [paper(2, 4), paper(3, 4)], rtol=1e-5)


def _act_by_ladder(tmp_path: Any, **changes: Any) -> Any:
    config = dqn.Config(hidden_sizes=(8,), min_replay_size=1_000, epsilon_ladder=True)
    settings = {"num_envs": 3, "evaluation_period": 0, "run_directory": tmp_path / "run", **changes}
    run(ExperimentConfig(dqn.make_agent(config), "agentkit:catch", 30, **settings))
    return checkpoint.read_latest(tmp_path / "run" / "checkpoints").state["actor"]["policy_state"]["0"]


def test_in_one_process_the_batch_of_environments_is_the_ladder(tmp_path: Any) -> None:
    np.testing.assert_allclose(_act_by_ladder(tmp_path), [paper(i, 3) for i in range(3)], rtol=1e-5)


def test_evaluation_has_no_ladder() -> None:
    agent = dqn.make_agent(dqn.Config(epsilon_ladder=True))
    networks = agent.make_networks(make_environment_spec(envs.make("agentkit:catch", seed=0)))
    assert agent.make_policy(networks).init(KEY).dtype == jnp.float32
    assert agent.make_policy(networks, evaluation=True).init(KEY) == ()


def _place(board: RunStore, name: str) -> ActorIndex:
    role, _, index = name.rpartition("-")
    with board:
        client = RunStoreClient(board.address, "0123456789abcdef0123456789abcdef", node=name)
        context = NodeContext(NodeId(name, role, int(index)), client)
        context.sync()
        try:
            return find_actor_index(context)
        finally:
            context.close()
            client.close()


def test_a_launched_actor_knows_how_many_there_are() -> None:
    board = RunStore("0123456789abcdef0123456789abcdef")
    for name in ("replay-0", "actor-0", "actor-1", "actor-2"):
        board.node(name, supervised=True)
    assert _place(board, "actor-1") == ActorIndex(1, 3)


def test_actors_by_hand_are_spread_without_knowing_how_many_there_are() -> None:
    first = [_place(RunStore("0123456789abcdef0123456789abcdef"), f"actor-{i}") for i in (0, 1, 2, 3, 257)]
    assert first == [ActorIndex(i, 256) for i in (0, 128, 64, 192, 128)]


@pytest.mark.full
def test_environments_that_step_together_count_the_steps_of_all() -> None:
    """20 random steps of 4 environments are 5 of each, and epsilon falls by the steps of all four."""
    network = lambda params, observation: jnp.zeros((observation.shape[0], 2))  # noqa: E731
    noisy = gaussian_noise_policy(network, (2,), 0.0, num_random_steps=20)
    sampled = sampling_policy(network, lambda mean, key: mean, uniform_action((2,)), num_random_steps=20)
    for policy in (noisy, sampled):
        for num_envs, expected in ((4, 5), (1, 20)):
            actor = BatchedPolicyActor(policy, KEY, Client(), num_envs=num_envs)
            actions = np.array([actor.select_action(np.zeros((num_envs, 1), np.float32)) for _ in range(25)])
            assert np.all(actions[:expected] != 0) and not np.any(actions[expected:])
    seen = epsilon_greedy_policy(lambda p, o: jnp.broadcast_to(p, (o.shape[0], 3)), Piecewise((1.0, 0.0), (400,)))
    actor = BatchedPolicyActor(seen, KEY, Client(), num_envs=4)
    actions = np.array([actor.select_action(np.zeros((4, 1), np.float32)) for _ in range(150)])
    assert np.mean(actions[:100] != 1) == pytest.approx(2 / 3, abs=0.1) and np.all(actions[100:] == 1)
    restored = BatchedPolicyActor(seen, KEY, Client(), num_envs=4)
    restored.restore(actor.save())
    assert np.all(restored.select_action(np.zeros((4, 1), np.float32)) == 1)


def _restarted(step_types: list[int]) -> dm_env.TimeStep:
    size = len(step_types)
    return dm_env.TimeStep(np.array(step_types), np.zeros(size), np.ones(size), np.zeros((size, 1), np.float32))


@pytest.mark.full
def test_the_call_that_resets_an_environment_is_no_step_of_it() -> None:
    """Where episodes have one step, half of an environment's calls would count twice; the count outlives a save."""
    policy = epsilon_greedy_policy(lambda p, o: jnp.broadcast_to(p, (o.shape[0], 3)), Piecewise((1.0, 0.0), (400,)))
    actor, taken = BatchedPolicyActor(policy, KEY, Client(), num_envs=3), 0
    for step_types in ([MID, LAST, LAST], [MID, FIRST, FIRST], [LAST, MID, LAST], [FIRST, LAST, FIRST]):
        actor.select_action(np.zeros((3, 1), np.float32))
        actor.observe(np.zeros(3, np.int32), _restarted(step_types))
        taken += sum(step_type != FIRST for step_type in step_types)
        saved = actor.save()
        assert saved["policy_state"]["0"][:, 0].tolist() == [taken] * 3
        actor = BatchedPolicyActor(policy, KEY, Client(), num_envs=3)
        actor.restore(saved)


def test_one_environment_counts_its_own_steps() -> None:
    policy = epsilon_greedy_policy(lambda p, o: jnp.broadcast_to(p, (o.shape[0], 3)), Piecewise((1.0, 0.0), (5,)))
    actor = PolicyActor(policy, KEY, Client(), actor_index=ActorIndex(0, 1, 2))
    actions = [int(actor.select_action(np.zeros(1, np.float32))) for _ in range(20)]
    assert actor.save()["policy_state"]["0"][0] == 22 and set(actions[3:]) == {1}


def test_environments_that_are_ready_at_different_times_share_a_count() -> None:
    policy = epsilon_greedy_policy(lambda p, o: jnp.broadcast_to(p, (o.shape[0], 3)), Piecewise((1.0, 0.0), (400,)))
    adders = [FakeAdder() for _ in range(3)]
    actor, taken = ReadyPolicyActor(policy, KEY, Client(), adders), 0
    for numbers, step_types in (([0, 1], [FIRST, FIRST]), ([1, 2], [LAST, FIRST]), ([0, 1], [MID, FIRST])):
        actor.observe(_restarted(step_types), np.array(numbers))
        actor.select_action(np.zeros((2, 1), np.float32), np.array(numbers))
        taken += sum(step_type != LAST for step_type in step_types)
        assert actor.save()["policy_state"]["0"][:, 0].tolist() == [taken] * 3


def test_a_recurrent_policy_counts_them_too() -> None:
    agent = r2d2.make_agent(r2d2.Config(hidden_sizes=(4,), core_size=4))
    networks = agent.make_networks(make_environment_spec(envs.make("agentkit:catch", seed=0)))
    state = first_state(agent.make_policy(networks), KEY, num_envs=4)
    after = jax.vmap(count_one_more)(state.exploration)
    np.testing.assert_array_equal(jax.vmap(steps_taken)(after), [4] * 4)


def test_counts_of_steps_stand_where_int32_ends() -> None:
    policy = epsilon_greedy_policy(lambda p, o: p, Linear(1.0, 0.0, 100))
    state = first_state(policy, KEY, ActorIndex(num_steps=2**40), num_envs=3)
    assert jax.vmap(count_one_more)(state)[:, 0].tolist() == [2**31 - 1] * 3
    assert count_from(jnp.array([2**31 - 10, 1]), 128, 128).tolist() == [2**31 - 1, 128]
    near = jnp.array([2**31 - 10, 128], jnp.int32)
    assert count_one_more(near).tolist() == [2**31 - 1, 128]
