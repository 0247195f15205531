"""Gymnasium's vector environments as batches: in each autoreset mode the same episodes as in environments alone."""

import dataclasses
import functools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from agentkit import envs, specs
from agentkit.actors import BatchedPolicyActor, Policy
from agentkit.agents import dqn, ppo
from agentkit.core import Adder
from agentkit.datasets import ReplayDataset
from agentkit.envs import gymnasium as gymnasium_adapter
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.gymnasium_vector import VectorEnvironment
from agentkit.envs.members import Members
from agentkit.envs.wrapping import prepare
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, evaluate, open_run, run
from agentkit.experiment.launching.sharing.common import find_spec
from agentkit.experiment.policies.make_actor import make_adder, make_loop, make_own_tables
from agentkit.replay import InProcessReplay
from agentkit.testing.environment import BatchedEnvironmentContract, EnvironmentContract
from agentkit.types import FIRST, LAST, MID, WAIT
from agentkit.variables import VariableClient, VariableStore
from agentkit.wrappers.frame_stack import FrameStack

MODES = [mode.value for mode in AutoresetMode]
NAMES = {"CartPole-v1": {}, "Pendulum-v1": {"max_episode_steps": 9}, "FrozenLake-v1": {}}


def vector(mode, name="CartPole-v1", num_envs=3, **kwargs):
    return gymnasium.make_vec(
        name,
        num_envs,
        vectorization_mode="sync",
        vector_kwargs={"autoreset_mode": mode},
        **NAMES.get(name, {}),
        **kwargs,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
class TestMakeVec(BatchedEnvironmentContract):
    can_resume = False

    @pytest.fixture(autouse=True)
    def _given(self, mode, name):
        self.given = functools.partial(vector, mode, name)

    def make_environment(self):
        return envs.make(self.given, seed=7)


class TestFirst(EnvironmentContract):
    def make_environment(self):
        return envs.make(functools.partial(vector, "SameStep"), seed=7, evaluation=True)


class TestNamed(BatchedEnvironmentContract):
    can_resume = False

    def make_environment(self):
        return envs.make("gymnasium_vector:CartPole-v1", seed=7, num_envs=3)


class TestNamedAlone(EnvironmentContract):
    def make_environment(self):
        return envs.make("gymnasium_vector:CartPole-v1", seed=7)


def chosen(observation, lane):
    """Even environments lean one way and fall, odd ones balance until their time is over."""
    return int(observation[2] + observation[3] > 0) if lane % 2 else 1


def lanes(environment, num_steps):
    """Each environment's own steps in a batch, under the scripted policy, without those in which it waits."""
    timestep, found = environment.reset(), [[] for _ in range(environment.num_envs)]
    for _ in range(num_steps):
        for i, steps in enumerate(found):
            if timestep.step_type[i] != WAIT:
                steps.append([np.copy(part[i]) for part in timestep])
        actions = [chosen(observation, i) for i, observation in enumerate(timestep.observation)]
        timestep = environment.step(np.array(actions, np.int32))
    return found


@pytest.mark.parametrize("mode", MODES)
def test_episodes_are_those_of_environments_alone(mode):
    batch = VectorEnvironment(vector(mode, num_envs=4, max_episode_steps=20), seed=5)
    alone = [
        envs.make("gymnasium:CartPole-v1", 5 + i, raw=True, max_episode_steps=20) for i in range(4)
    ]  # By gymnasium's rule for seeds.
    for i, steps in enumerate(lanes(batch, 150)):
        timestep, kinds = alone[i].reset(), set()
        assert len(steps) > 100
        for step_type, reward, discount, observation in steps:
            np.testing.assert_array_equal(observation, timestep.observation, strict=True)
            assert step_type == timestep.step_type
            assert (reward, discount) == ((0, 1) if step_type == FIRST else (timestep.reward, timestep.discount))
            kinds.add((int(step_type), float(discount)))
            timestep = alone[i].step(np.int32(chosen(observation, i)))
        assert kinds == {(FIRST, 1.0), (MID, 1.0), (LAST, float(i % 2))}, "odd ones are truncated, even ones terminate"


@pytest.mark.parametrize("settings", [{}, {"vectorization_mode": "sync"}], ids=["own class", "sync"])
def test_without_a_limit_episodes_go_on(settings):
    batch = envs.make("gymnasium_vector:CartPole-v1", seed=1, num_envs=3, max_episode_steps=-1, **settings)
    timestep = batch.reset()
    for _ in range(510):  # Its own limit is 500.
        actions = [chosen(observation, 1) for observation in timestep.observation]
        timestep = batch.step(np.array(actions, np.int32))
        assert (timestep.step_type == MID).all()


class Clocks(gymnasium.vector.VectorEnv):
    """Counts each environment's steps; episode k of environment i has 1 + i (1 + k % 2), and a choice of 5 or 6."""

    single_observation_space = spaces.Dict(
        {"t": spaces.Box(0, 9, (1,), np.float32), "lane": spaces.Discrete(9, start=5)}
    )
    single_action_space = spaces.Discrete(2, start=5)

    def __init__(self, num_envs=3, mode=AutoresetMode.SAME_STEP, says=True, final="final_obs", in_objects=False):
        self.num_envs, self.mode, self.final, self.in_objects = num_envs, mode, final, in_objects
        self.metadata = {"autoreset_mode": mode} if says else gymnasium.vector.VectorEnv.metadata
        self.t, self.episode, self.ended = (np.zeros(num_envs, int) for _ in range(3))
        self.actions = []

    def observe(self):
        return {"t": self.t[:, None].astype(np.float32), "lane": np.arange(self.num_envs) + 5}

    def begin(self, mask):
        self.t = np.where(mask, 0, self.t)
        self.episode = self.episode + mask
        self.ended = np.where(mask, 0, self.ended)

    def reset(self, *, seed=None, options=None):
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        self.begin(mask)
        return self.observe(), {"began": mask}

    def step(self, actions):
        self.actions.append(actions)
        assert set(actions.tolist()) <= {5, 6} and actions.dtype == np.int64
        resets = self.ended > 0 if self.mode is AutoresetMode.NEXT_STEP else np.zeros(self.num_envs, bool)
        assert self.mode is AutoresetMode.NEXT_STEP or not self.ended.any(), "stepped after its end"
        self.t = self.t + 1
        self.begin(resets)
        ended = (self.t == 1 + np.arange(self.num_envs) * (1 + self.episode % 2)) & ~resets
        self.ended, info = ended.astype(int), {"t": self.t.copy(), "_t": ended}
        if ended.any() and self.mode is AutoresetMode.SAME_STEP:
            final = self.observe()
            if self.in_objects:
                rows = [
                    {name: leaf[i] for name, leaf in final.items()} if ended[i] else None for i in range(len(ended))
                ]
                final = np.array([*rows, None], object)[:-1]
            info = {self.final: final, "final_info": info}
            self.begin(ended)
        return self.observe(), np.where(resets, 0.0, 1.0), ended, np.zeros(self.num_envs, bool), info


@pytest.mark.parametrize("in_objects", [False, True])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_nests_choices_and_infos(mode, in_objects):
    batch = VectorEnvironment(Clocks(mode=mode, in_objects=in_objects))
    timestep, seen = batch.reset(), [[] for _ in range(3)]
    for _ in range(40):
        np.testing.assert_array_equal(timestep.observation["lane"], [0, 1, 2])
        for i, t in enumerate(timestep.observation["t"][:, 0].astype(int)):
            if timestep.step_type[i] == LAST:
                assert batch.environments[i].last_info == {"t": t}
            if timestep.step_type[i] != WAIT:
                seen[i].append((t, int(timestep.step_type[i])))
        timestep = batch.step(np.array([0, 1, 0], np.int32))
    for i, steps in enumerate(seen):
        expected = []
        for k in range(1, 50):
            length = 1 + i * (1 + k % 2)
            expected += [(t, FIRST if t == 0 else LAST if t == length else MID) for t in range(length + 1)]
        assert len(steps) > 20 and steps == expected[: len(steps)]


class Kept(Adder):
    """Keeps what one environment's adder is given, and how many actions the policy's memory had seen."""

    def __init__(self):
        self.rows = []

    def add_first(self, timestep):
        self.rows.append(("first", timestep.observation.tolist()))

    def add(self, action, next_timestep, extras=()):
        step_type, *numbers, observation = next_timestep
        self.rows.append((int(extras["seen"]), int(action), int(step_type), *map(float, numbers), observation.tolist()))

    def reset(self):
        raise NotImplementedError

    def close(self):
        pass


def act(params, key, observation, seen):
    return (observation[0] > 0.0).astype(jnp.int32), seen + 1, {"seen": seen}


COUNTING = Policy(act, init=lambda key: jnp.int32(0), reset=jnp.zeros_like)


def played(environment):
    """What a loop gives each environment's adder in 90 steps, the episodes' records, and its count of steps."""
    adders = [Kept() for _ in range(environment.num_envs)]
    store = VariableStore()
    store.publish(0, {"policy": ()})
    client = VariableClient(store)
    client.update(wait=True)
    actor = BatchedPolicyActor(COUNTING, jax.random.PRNGKey(0), client, adders, num_envs=environment.num_envs)
    loop = make_loop(environment, actor)
    records = loop.run(num_steps=300)
    return [adder.rows for adder in adders], sum(r["episode_length"] for r in records), loop.num_steps


@pytest.mark.parametrize("mode", MODES)
def test_adders_get_what_they_get_of_own_environments(mode):
    own = BatchedEnvironment(
        [prepare(gymnasium_adapter.make("CartPole-v1", 5 + i), concatenate=False) for i in range(3)]
    )
    found, counted, num_steps = played(prepare(VectorEnvironment(vector(mode), 5), concatenate=False))
    for rows, expected in zip(found, played(own)[0], strict=True):
        length = min(len(rows), len(expected))
        assert length > 80 and rows[:length] == expected[:length]
    assert num_steps == sum(row[0] != "first" for rows in found for row in rows) and 200 < counted <= num_steps


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_segments_have_no_steps_in_which_an_environment_waits(mode):
    agent = ppo.make_agent(ppo.Config(segment_length=5, num_minibatches=1, num_epochs=1)).with_num_envs(3)
    experiment = ExperimentConfig(agent, functools.partial(Clocks, mode=mode), 100, num_envs=3)
    environment = experiment.make_training_environment(0)
    spec = specs.make_environment_spec(environment)
    replay = InProcessReplay(make_own_tables(experiment, spec, environment), seed=0)
    adder, dataset = make_adder(environment, spec, [(agent, replay)]), ReplayDataset(replay, agent.batch_plan)
    extras = specs.zeros(specs.add_leading(agent.make_policy(agent.make_networks(spec)).extras_spec, 3))
    drawn, choice = [], np.zeros(3, np.int32)
    adder.add_first(environment.reset())
    while len(drawn) < 10:
        adder.add(choice, environment.step(choice), extras)
        if dataset.ready():
            drawn.append(next(dataset).sample.data)
    for data in drawn:
        t, begins = np.asarray(data.observation["t"])[..., 0], np.asarray(data.start_of_episode)
        t, begins = (x.reshape(-1, 6) for x in (t, begins))
        assert np.all(begins[:, 1:] | (t[:, 1:] == t[:, :-1] + 1))
        assert np.all(t[:, :-1][begins[:, :-1]] == 0)  # The row behind may be before the episode that begins there.


def silent(**kwargs):
    return VectorEnvironment(Clocks(says=False, **kwargs))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (silent(), "has no metadata.*NEXT_STEP, but info has final observations"),
        (silent(final="final_observation"), "has no metadata.*NEXT_STEP, but info has final observations"),
        (silent(mode=AutoresetMode.DISABLED), "stepped after its end"),
        (VectorEnvironment(Clocks(final="last")), r"expected info\['final_obs'\] .*environments \[0\].* found last"),
    ],
)
def test_what_resets_otherwise_than_it_says_is_refused(batch, message):
    batch.reset()
    with pytest.raises((SpecError, AssertionError), match=message):
        for _ in range(9):
            batch.step(np.zeros(3, np.int32))


def test_without_a_mode_it_is_gymnasiums_default_whatever_ales_has_left_behind(monkeypatch):
    monkeypatch.setitem(gymnasium.vector.VectorEnv.metadata, "autoreset_mode", AutoresetMode.SAME_STEP)
    assert not silent(mode=AutoresetMode.NEXT_STEP).begins_apart


def experiment(environment, **settings):
    small = dqn.Config(min_replay_size=50, hidden_sizes=(4,), replay_size=500)
    return ExperimentConfig(
        dqn.make_agent(small), environment, 200, evaluation_period=100, evaluation_episodes=2, **settings
    )


sizes = {"envs": 3}


def make_three():
    return vector("SameStep", num_envs=sizes["envs"], max_episode_steps=20)


def make_some(seed, num_envs):
    return gymnasium.make_vec("CartPole-v1", num_envs)


def test_an_experiment_takes_as_many_as_it_is_given():
    given = experiment(make_three)
    assert given.for_batch(given.make_training_environment(0)).num_envs == 3
    assert experiment(make_three, num_envs=3).make_training_environment(0).num_envs == 3
    assert experiment(make_some, num_envs=5).make_training_environment(0).num_envs == 5
    assert experiment(make_some).make_environment(0, evaluation=True).gymnasium_environment.num_envs == 1
    np.testing.assert_equal(given.make_environment(4, 3).reset(), given.make_environment(4).reset())


def test_an_evaluation_plays_the_episodes_of_a_single_environment():
    first = experiment(make_three).make_environment(4, evaluation=True)
    alone = envs.make("gymnasium:CartPole-v1", 4, max_episode_steps=20)
    np.testing.assert_equal(first.reset(), alone.reset())
    for step in range(60):
        np.testing.assert_equal(first.step(np.int32(step // 3 % 2)), alone.step(np.int32(step // 3 % 2)))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 4}, "expected the 3 environments that the vector environment make_three has, found 4"),
        ({"wrappers": [functools.partial(FrameStack, num_frames=2)]}, "batch of 3.*make_vec"),
    ],
)
def test_what_a_vector_environment_cannot_do_is_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        experiment(make_three, **settings).make_training_environment(0)


def test_a_worker_refuses_a_vector_environment():
    members = Members(make_three, 0, raw=False, wrappers=(), settings={})
    with pytest.raises(ConfigError, match=r"make_three is a vector environment, .* Leave --workers"):
        members.make(range(3))


def test_a_launched_program_is_told_how_many():
    with pytest.raises(ConfigError, match=r"make_three is a batch of 3 .*--num-envs 3"):
        find_spec(experiment(make_three))
    assert find_spec(experiment(make_three, num_envs=3)).observations.shape == (4,)


@pytest.mark.full
def test_a_run_is_repeated_evaluated_and_resumed(tmp_path, monkeypatch, capfd):
    first = run(experiment(make_three, run_directory=tmp_path / "a"))
    again = run(experiment(make_three, run_directory=tmp_path / "b"))
    assert first.updates > 0 and open_run(tmp_path / "a").config["num_envs"] == 3
    assert [row["episode_return"] for row in open_run(tmp_path / "a").rows("train")] == [
        row["episode_return"] for row in open_run(tmp_path / "b").rows("train")
    ]
    assert (again.steps, again.updates) == (first.steps, first.updates)
    in_vector = evaluate(tmp_path / "a", 3, imports=["tests"])
    alone = {"environment": "gymnasium:CartPole-v1", "environment_settings": {"max_episode_steps": 20}}
    assert in_vector == evaluate(tmp_path / "a", 3, **alone)
    longer = dataclasses.replace(experiment(make_three, run_directory=tmp_path / "a", progress=True), num_steps=300)
    assert run(longer, resume=True).steps >= 300
    assert "cannot be saved: every environment begins a new episode" in "".join(capfd.readouterr())
    monkeypatch.setitem(sizes, "envs", 2)
    with pytest.raises(CheckpointError, match="num_envs=3, and this experiment has 2"):
        run(longer, resume=True)


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("evaluation", [False, True])
def test_ales_rewards_are_clipped_and_lives_are_ends_in_training_only(num_envs, evaluation):
    """Nothing else notices it: the clipping is ALE's own default."""
    pytest.importorskip("ale_py")
    make = functools.partial(envs.make, "gymnasium_vector:ALE/SpaceInvaders-v5", 3, num_envs=num_envs)
    environment = make(evaluation=evaluation, episodic_life=True, noop_max=0)
    timestep, rewards, action = environment.reset(), set(), np.full(num_envs or (), 1, np.int32)
    life_lost = False
    for _ in range(400):  # Fires, and stays where the invaders aim.
        timestep = environment.step(action)
        rewards |= set(np.ravel(0.0 if timestep.reward is None else timestep.reward).tolist())
        ended = np.ravel(timestep.step_type)[0] == LAST
        if ended or (life_lost := life_lost or _lives(environment, num_envs) < 3):
            break
    environment.close()
    assert ended != evaluation
    assert max(rewards) >= 5 if evaluation else rewards == {0.0, 1.0}


def _lives(environment, num_envs):
    info = environment.last_info if num_envs is None else environment.environments[0].last_info
    return info["lives"]
