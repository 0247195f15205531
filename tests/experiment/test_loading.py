"""A policy that leaves the house: loaded from a run or a file it acts as the agent does, in the environment's terms."""

import copy
import dataclasses
import functools
import json
import os
import pickle
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit import specs
from agentkit.actors.policy import first_state
from agentkit.agents import dqn, ppo, r2d2, sac
from agentkit.envs import make
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import Evaluator, Result, record_episodes
from agentkit.experiment.policies.export.pure_policy import acting_of
from agentkit.experiment.policies.policy_file import read_policy, write_policy
from agentkit.experiment.policies.restore_policy import own_actions, restore_policy, steps_explored
from agentkit.learning import Linear
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.step_limit import StepLimit

SAC = sac.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=8, num_random_steps=0)
R2D2 = r2d2.Config(
    hidden_sizes=(8,), core_size=8, min_replay_size=4, batch_size=2, sequence_length=6, sequence_period=3, burn_in=2
)


def train(folder, agent, environment):
    agentkit.run(agentkit.ExperimentConfig(agent, environment, num_steps=40, run_directory=folder, evaluation_period=0))
    return folder


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "pendulum", sac.make_agent(SAC), "gymnasium:Pendulum-v1")


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "chain", r2d2.make_agent(R2D2), "agentkit:memory_chain")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """A policy with a memory, as it begins: nothing is compiled to update it."""
    agent = r2d2.make_agent(dataclasses.replace(R2D2, min_replay_size=1_000))
    return agentkit.load(train(tmp_path_factory.mktemp("runs") / "recurrent", agent, "agentkit:memory_chain"))


def rows_for(policy, num_rows=4):
    shape = (num_rows, *policy.observation_spec.shape)
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.full
def test_it_plays_the_episode_that_the_evaluator_plays(pendulum):
    """In gymnasium's own environment, with gymnasium's bounds and dtypes, and nothing of agentkit's around it."""
    experiment, networks, store = restore_policy(pendulum)[:3]
    seeds = []

    class Watched(gymnasium.Wrapper):
        def reset(self, *, seed=None, **kwargs):
            seeds.append(seed)
            return super().reset(seed=seed, **kwargs)

    with Evaluator(experiment, networks, store) as evaluator:
        inner = evaluator._environment.environment
        while hasattr(inner, "environment"):
            inner = inner.environment
        inner._environment = Watched(inner._environment)
        (record,) = evaluator.episodes(1)
    policy, environment = agentkit.load(pendulum), gymnasium.make("Pendulum-v1")
    observation, _ = environment.reset(seed=seeds[0])
    state, total, truncated = None, 0.0, False
    while not truncated:
        action, state = policy(observation, state)
        assert environment.action_space.contains(action)
        observation, reward, _, truncated, _ = environment.step(action)
        total += reward
    assert total == pytest.approx(record["episode_return"], rel=1e-4)


@pytest.mark.full
def test_an_action_alone_is_for_policies_without_a_memory(pendulum, chain):
    policy = agentkit.load(pendulum)
    rows = rows_for(policy)
    np.testing.assert_array_equal(policy.select_action(rows), policy(rows)[0])
    assert gymnasium.make("Pendulum-v1").action_space.contains(policy.select_action(rows[0]))
    with pytest.raises(ConfigError, match=r"keeps a state .* action, state = policy\(observation, state\)"):
        (recurrent := agentkit.load(chain)).select_action(rows_for(recurrent)[0])
    for word in ("predict", "act", "get_action"):
        with pytest.raises(AttributeError, match=r"policy.select_action\(observation\) returns the action alone"):
            getattr(policy, word)


def test_what_a_training_returned_is_judged_as_its_folder_is(tmp_path):
    """With a run folder or without one, as a result, a policy or a policy's file: the same episodes."""
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=10, batch_size=4))
    plan = agentkit.ExperimentConfig(agent, "agentkit:catch", 40, evaluation_period=0)
    kept = agentkit.run(dataclasses.replace(plan, run_directory=tmp_path / "run"))
    of_folder = agentkit.evaluate(tmp_path / "run", 1)
    assert (of_folder["steps"], of_folder["updates"]) == (40, kept.updates)
    loaded = agentkit.load(tmp_path / "run")
    for judged in (kept, kept.policy, loaded, agentkit.run(plan)):
        assert agentkit.evaluate(judged, 1) == of_folder
    assert loaded.select_action(np.zeros(loaded.observation_spec.shape)) in range(3)  # Epsilon-greedy, yet no count.
    with pytest.raises(UnknownNameError, match=r"of agentkit.LoadedPolicy.select_action 'deterministic'"):
        loaded.select_action(np.zeros(loaded.observation_spec.shape), deterministic=True)
    loaded.save(tmp_path / "policy.npz")
    file = agentkit.load(tmp_path / "policy.npz")
    with pytest.raises(ConfigError, match=r"file names no environment .* environment="):
        agentkit.evaluate(file)
    found = agentkit.evaluate(file, 1, environment="agentkit:catch")
    assert (found["steps"], found["episode_length"]) == (None, [9])
    with pytest.raises(ConfigError, match="no checkpoints: leave out checkpoint='best'"):
        agentkit.evaluate(loaded, checkpoint="best")
    with pytest.raises(AttributeError, match=r"Give: result.policy.select_action\(...\)"):
        kept.predict(rows_for(loaded))
    with pytest.raises(AttributeError, match=r"Give: result.policy.save\(...\)"):
        kept.save("policy.npz")


@pytest.mark.full
def test_a_batch_acts_as_its_rows_do(pendulum):
    policy = agentkit.load(pendulum)
    rows = rows_for(policy)
    batch, _ = policy(rows.astype(np.float64))
    assert batch.shape == (4, 1) and np.ptp(batch) > 0
    np.testing.assert_allclose(batch, [policy(row)[0] for row in rows], rtol=1e-5, atol=1e-6)


def test_who_explores_samples_by_the_seed(pendulum):
    actions = [agentkit.load(pendulum, explore=True, seed=seed)(np.zeros(3))[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(actions[0], actions[1])
    assert not np.array_equal(actions[0], actions[2])


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """A run whose epsilon has fallen to 0: who explores there does what the policy does that is judged."""
    config = dqn.Config(hidden_sizes=(4,), min_replay_size=1_000, epsilon=Linear(1.0, 0.0, 30))
    return train(tmp_path_factory.mktemp("runs") / "settled", dqn.make_agent(config), "agentkit:catch")


def test_who_explores_goes_on_where_the_training_stands(settled, tmp_path):
    policy = agentkit.load(settled, explore=True)
    policy.save(tmp_path / "policy.npz")
    rows = rows_for(policy, 30)
    expected = agentkit.load(settled)(rows)[0]
    for one in (policy, agentkit.load(tmp_path / "policy.npz", explore=True), pickle.loads(pickle.dumps(policy))):
        np.testing.assert_array_equal(one(rows)[0], expected)
    found, played = (record_episodes(settled, 4, explore=explore) for explore in (True, False))
    tree.map_structure(np.testing.assert_array_equal, found.episodes, played.episodes)


def test_a_file_that_does_not_say_where_exploration_stands_is_of_a_training_that_has_ended(settled, tmp_path):
    policy = agentkit.load(settled)
    policy.save(tmp_path / "new.npz")
    file, _ = read_policy(tmp_path / "new.npz")
    assert file.num_steps == 40
    write_policy(tmp_path / "old.npz", file._replace(num_steps=None), policy.arrays)
    rows = rows_for(policy, 30)
    np.testing.assert_array_equal(agentkit.load(tmp_path / "old.npz", explore=True)(rows)[0], policy(rows)[0])


@pytest.mark.full
def test_who_explores_is_sampled_judged_and_exported_where_the_training_stands(settled, tmp_path):
    policy = agentkit.load(settled, explore=True)
    policy.export(tmp_path / "policy.npz", "numpy")  # Where it began it would be refused, as one that draws.
    policy.save(tmp_path / "policy.npz")
    options = {"environment": "agentkit:catch"}
    file = agentkit.load(tmp_path / "policy.npz", explore=True)
    sampled, returns = agentkit.sample(settled, num_episodes=4), agentkit.evaluate(settled, 8)["episode_return"]
    for given in (policy, file):
        found = agentkit.sample(given, num_episodes=4, **options)
        np.testing.assert_array_equal(found.action, sampled.action)
        assert agentkit.evaluate(given, 8, **options)["episode_return"] == returns
    assert agentkit.evaluate(settled, 8, evaluation_samples=True)["episode_return"] == returns
    with agentkit.Sampler(policy, where="process") as sampler:
        np.testing.assert_array_equal(sampler.sample(num_episodes=4).action, sampled.action)


@pytest.mark.parametrize(
    ("steps", "state", "expected"),
    [
        (90, {}, 90),
        (90, {"launched": True, "explored": {"actor-0": 20, "actor-1": 40}}, 40),
        (90, {"explored": {"actor-0": 20, "actor-1": 40}, "steps_of_others": 30}, 60),
        (90, {"actors": {"a": {}, "b": {}}, "num_agent_steps": 80}, 40),
        (90, {"actors": {"a": {}, "b": {}}, "loop": {"num_agent_steps": 60}}, 30),  # As of before 28 November 2026.
        (90, {"actors": {"a": {}, "b": {}}}, 90),
        (90, {"launched": True}, 90),
    ],
)
def test_exploration_stands_at_the_steps_of_one_actor(steps, state, expected):
    assert steps_explored(state, steps) == expected


@pytest.mark.full
def test_memory_is_in_the_state_and_begins_anew_without_one(chain):
    policy = agentkit.load(chain)

    def memory_after(rows):
        state = None
        for row in rows:
            action, state = policy(row, state)
            assert policy.action_spec.validate(action) is not None
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.policy)])

    rows = rows_for(policy)
    np.testing.assert_array_equal(memory_after(rows), memory_after(rows))
    assert not np.allclose(memory_after(rows), memory_after(rows[2:]))


def test_an_episode_of_a_batch_begins_while_others_go_on(recurrent):
    """Row 0 is that of a batch that goes on, row 1 that of one that begins with the second observation."""
    policy = recurrent
    first, second = rows_for(policy, 2), rows_for(policy, 4)[2:]
    _, going_on = policy(first)
    kept, reset, mixed = (policy(second, state, **more)[1].policy for state, more in (
        (going_on, {}), (None, {}), (going_on, {"episode_start": np.array([False, True])}),
    ))  # fmt: skip
    for mine, old, new in zip(*map(jax.tree.leaves, (mixed, kept, reset)), strict=True):
        np.testing.assert_allclose(mine, np.stack([old[0], new[1]]), rtol=1e-6)
        assert not np.allclose(old[1], new[1])


OWN_PARTS = """
import sys, pickle
policy = pickle.loads(open(sys.argv[1], "rb").read())
print(type(policy.select_action([0.1, 0.2, 0.3, 0.4])).__name__)
"""


def test_one_with_parts_of_ones_own_is_unpickled_in_a_fresh_process(tmp_path):
    """Who unpickles trusts the code that it names, and need not name it again."""
    (tmp_path / "my_networks.py").write_text(
        "from agentkit.agents import dqn\n"
        "def make_networks(spec):\n    return dqn.make_networks(spec, dqn.Config(hidden_sizes=(4,)))\n"
    )
    code = (
        "import dataclasses, pickle, sys, agentkit, my_networks; from agentkit.agents import dqn; "
        "agent = dataclasses.replace(dqn.make_agent(), make_networks=my_networks.make_networks);"
        "result = agentkit.run(agentkit.ExperimentConfig(agent, 'gymnasium:CartPole-v1', 10, evaluation_period=0));"
        "open(sys.argv[1], 'wb').write(pickle.dumps(result.policy))"
    )
    beside = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}
    for each in (code, OWN_PARTS):
        done = subprocess.run(
            [sys.executable, "-c", each, str(tmp_path / "policy.pkl")], env=beside,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "int32"


def test_a_state_or_a_beginning_of_another_kind_is_refused(recurrent):
    policy = recurrent
    rows = rows_for(policy)
    of_one, of_two = policy(rows[0])[1], policy(rows[:2])[1]
    for state, observation in ((of_two, rows), (of_one, rows), (of_two, rows[0]), (3, rows), ((), rows[0])):
        with pytest.raises(SpecError, match="Unexpected state: expected what this policy returned beside its"):
            policy(observation, state)
    for begins in ([0, 1], [True], True):
        with pytest.raises(SpecError, match=r"episode_start: expected bool\[2\], whether an episode begins, found"):
            policy(rows[:2], of_two, episode_start=begins)


def test_it_says_that_it_acts_outside_of_jax(pendulum):
    policy = agentkit.load(pendulum)
    rows = rows_for(policy)
    for transformed in (jax.jit(policy), jax.vmap(policy), jax.jit(lambda _: policy(rows)[0])):
        with pytest.raises(ConfigError, match=r"policy\.pure_policy\.act\(params, key, observation, state\)"):
            transformed(rows)
    assert policy(rows)[0].shape == (4, 1), "it is as it was"


def test_it_can_be_pickled_and_copied_and_a_result_without_it(pendulum):
    """It goes on with its random numbers; a copy knows its run, too."""
    policy = agentkit.load(pendulum, explore=True, seed=1)
    policy(rows_for(policy))
    others = [pickle.loads(pickle.dumps(policy)), copy.copy(policy), copy.deepcopy(policy)]
    assert [each.origin is None for each in others] == [True, False, False]
    expected = policy(rows_for(policy))[0]
    for each in others:
        np.testing.assert_array_equal(each(rows_for(each))[0], expected)
    result = Result(3, 1, [{"episode_return": 1.0}], False, policies=lambda: None)
    kept = pickle.loads(pickle.dumps(result))
    assert kept == result
    with pytest.raises(ConfigError, match=r"pickled or copied, and has no policy. Take agentkit\.load"):
        kept.policy  # noqa: B018


@pytest.mark.parametrize("run", ["pendulum", pytest.param("chain", marks=pytest.mark.full)])
def test_a_file_holds_all_that_acting_needs(run, tmp_path, request):
    policy = agentkit.load(request.getfixturevalue(run))
    policy.save(tmp_path / "policy.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["policy.npz"]
    found = agentkit.load(tmp_path / "policy.npz")
    assert (found.agent, found.action_spec, found.observation_spec) == (
        policy.agent,
        policy.action_spec,
        policy.observation_spec,
    )
    rows = rows_for(policy)
    (action, state), (other_action, other_state) = policy(rows), found(rows)
    np.testing.assert_array_equal(action, other_action)
    jax.tree.map(np.testing.assert_array_equal, state.policy, other_state.policy)


@pytest.mark.full
def test_a_file_needs_no_simulator(pendulum, tmp_path):
    policy = agentkit.load(pendulum)
    policy.save(tmp_path / "policy.npz")
    code = f"""
import json, sys
sys.modules["gymnasium"] = None
import agentkit
action, _ = agentkit.load({str(tmp_path / "policy.npz")!r})([0.0, 1.0, 0.5])
print(json.dumps(action.tolist()))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    expected, _ = policy(np.array([0.0, 1.0, 0.5]))
    np.testing.assert_allclose(json.loads(done.stdout.splitlines()[-1]), expected, rtol=1e-6)


def test_a_folder_that_was_pushed_is_loaded_and_what_is_there_says_what_it_is(pendulum, tmp_path):
    pushed = agentkit.push(pendulum, str(tmp_path / "pushed"), num_episodes=1)
    rows = rows_for(policy := agentkit.load(pushed))
    np.testing.assert_array_equal(policy(rows)[0], agentkit.load(pendulum)(rows)[0])
    said = "observations float32[3] from -8 or more to 8 or less, actions float32[1] from -2 to 2"
    assert repr(policy) == f"LoadedPolicy(of sac, {said})"
    assert repr(agentkit.open_run(pendulum)) == f"Run({str(pendulum)!r}: sac in gymnasium:Pendulum-v1, logs learner)"
    result = Result(1_000, 7, [{"episode_return": 2.0}], interrupted=False, stopped_by="it was enough")
    said = "Result(steps=1_000, updates=7, 1 evaluation, the last with return 2.0, stopped_by='it was enough')"
    assert repr(result) == said
    with pytest.raises(ConfigError, match=r"found a Result. Its policies are its policy and best_policy"):
        agentkit.load(result)
    with pytest.raises(ConfigError, match=r"episodes: agentkit\.evaluate calls it 'num_episodes'"):
        agentkit.evaluate(pendulum, episodes=3)


def test_what_is_no_policy_is_refused(pendulum, tmp_path):
    policy = agentkit.load(pendulum)
    with pytest.raises(ConfigError, match=r"end in \.npz"):
        policy.save(tmp_path / "policy.pkl")
    with pytest.raises(ConfigError, match=r"no_folder/policy.npz cannot be written: there is no folder .*no_folder"):
        policy.save(tmp_path / "no_folder" / "policy.npz")
    with pytest.raises(ConfigError, match="path: expected a path, found a int"):
        policy.save(3)
    policy.save(tmp_path / "policy.npz")
    whole = (tmp_path / "policy.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("cut.npz", "other.npz"):
        with pytest.raises(ConfigError, match="no policy file, or is damaged"):
            agentkit.load(tmp_path / name)
    with pytest.raises(ConfigError, match="not a run folder"):
        agentkit.load(tmp_path / "nothing")
    wider = sac.make_agent(sac.Config(hidden_sizes=(9,)))
    with pytest.raises(agentkit.errors.CheckpointError, match=r"expected float32\[.*9"):
        agentkit.load(tmp_path / "policy.npz", agent=wider)


@pytest.mark.parametrize(
    "observation", [np.zeros(4), np.zeros((2, 4)), np.zeros((0, 2, 3)), {"a": np.zeros(3)}, "text"]
)
def test_an_observation_of_another_shape_is_refused(pendulum, observation):
    with pytest.raises(SpecError, match=r"xpected (an )?observation"):
        agentkit.load(pendulum)(observation)


class Discrete(EnvironmentWrapper):
    """Left or right at full force."""

    def action_spec(self):
        return specs.DiscreteArray(2, np.int32, "action")

    def step(self, action):
        return self.environment.step(np.array([2.0 * action - 1.0], np.float32))


def test_below_a_users_own_actions_nothing_is_looked_for():
    limited = make("gymnasium:Pendulum-v1", wrappers=[lambda inner: StepLimit(inner, 5)])
    assert own_actions(limited).maximum == 2.0 and limited.action_spec().maximum == 1.0
    discrete = make("gymnasium:Pendulum-v1", wrappers=[Discrete])
    assert own_actions(discrete) == discrete.action_spec() == specs.DiscreteArray(2, np.int32, "action")


class Reshaped(EnvironmentWrapper):
    """Takes an action of another shape, up to `high`, and turns its sum into Pendulum's."""

    def __init__(self, inner, shape, high):
        super().__init__(inner)
        self.shape, self.high = shape, high

    def action_spec(self):
        return specs.BoundedArray(self.shape, np.float32, 0.0, self.high, "action")

    def step(self, action):
        return self.environment.step(np.float32([np.clip(np.sum(action) / self.high - 1, -1, 1)]))


@pytest.mark.full
@pytest.mark.parametrize("shape", [(), (2, 3)])
def test_a_users_own_continuous_actions_are_as_the_run_had_them(shape, tmp_path):
    """Their shape and bounds are the agent's already: a policy that is loaded maps them no second time."""
    agent = ppo.make_agent(ppo.Config(hidden_sizes=(8,), segment_length=8, num_epochs=1))
    experiment = agentkit.ExperimentConfig(
        agent, "gymnasium:Pendulum-v1", 8, run_directory=tmp_path / "run", evaluation_period=0,
        wrappers=[functools.partial(Reshaped, shape=shape, high=8.0)],
    )  # fmt: skip
    agentkit.run(experiment)
    policy = agentkit.load(experiment)
    assert policy.action_spec == specs.BoundedArray(shape, np.float32, 0.0, 8.0, "action")
    rows = rows_for(policy, 3)
    agents = [policy.pure_policy.act(policy.arrays, jax.random.PRNGKey(0), row, ())[0] for row in rows]
    assert 2.0 < np.mean(agents) < 6.0
    np.testing.assert_allclose([policy(row)[0] for row in rows], agents, rtol=1e-5)
    np.testing.assert_allclose(policy(rows)[0], agents, rtol=1e-5)
    acting = acting_of(policy)
    np.testing.assert_allclose(acting.step(acting.params, {"observation": rows})["action"], agents, rtol=1e-5)


class FromElsewhere(gymnasium.Env):
    """Choices that count from 3 and from -1."""

    observation_space, action_space = gymnasium.spaces.Discrete(2, start=3), gymnasium.spaces.Discrete(3, start=-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return 3, {}

    def step(self, action):
        assert self.action_space.contains(action)
        self.time += 1
        return 3 + self.time % 2, float(action), False, self.time == 5, {}


@pytest.mark.full
def test_choices_are_the_environments_own(tmp_path):
    """Of a run's policy and of its file, single and in a batch; the agent sees and says them from 0."""
    settings = dqn.Config(hidden_sizes=(8,), min_replay_size=1_000)
    train(tmp_path / "run", dqn.make_agent(settings), FromElsewhere)
    policy = agentkit.load(tmp_path / "run", environment=FromElsewhere)
    policy.save(tmp_path / "policy.npz")
    loaded = agentkit.load(tmp_path / "policy.npz")
    rows = np.array([3, 4])
    pure = policy.pure_policy
    state = first_state(pure, jax.random.PRNGKey(0))
    values = [int(pure.act(policy.arrays, jax.random.PRNGKey(0), np.int32(row - 3), state)[0]) for row in rows]
    for each in (policy, loaded):
        assert (each.observation_spec.minimum, each.action_spec.minimum) == (3, -1)
        assert (each.agent_observation_spec.num_values, each.agent_action_spec.num_values) == (2, 3)
        np.testing.assert_array_equal(each(rows)[0], np.array(values) - 1)
        assert FromElsewhere.action_space.contains(each(4)[0][()])
        with pytest.raises(SpecError, match=r"expected int32.* from 3 to 4, found int64 2"):
            each(2)
    agentkit.sample(loaded, num_steps=10, environment=FromElsewhere)
    data = record_episodes(tmp_path / "run", 1, environment=FromElsewhere)
    assert data.actions["start"] == -1 and set(data.episodes[0].observations.tolist()) == {3, 4}
    assert data.episodes[0].actions.tolist() == data.episodes[0].rewards.tolist()
