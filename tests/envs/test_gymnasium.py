"""The gymnasium adapter: the contract on real environments, ends of episodes, spaces, refusals."""

import dm_env
import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from agentkit import envs, specs  # noqa: E402
from agentkit.envs.gymnasium import GymnasiumEnvironment, space_to_spec  # noqa: E402
from agentkit.errors import MissingExtraError, SpecError, UnknownNameError  # noqa: E402
from agentkit.testing.environment import BatchedEnvironmentContract, EnvironmentContract  # noqa: E402

spaces = gymnasium.spaces


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "InvertedPendulum-v5"])
class TestGymnasium(EnvironmentContract):
    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return envs.make(f"gymnasium:{self.name}", seed=7, max_episode_steps=60)


class TestRaw(EnvironmentContract):
    can_resume = False

    def make_environment(self):
        return envs.make("gymnasium:Pendulum-v1", seed=7, raw=True)


class TestBatch(BatchedEnvironmentContract):
    def make_environment(self):
        return envs.make("gymnasium:CartPole-v1", seed=7, num_envs=3)


class Scripted(gymnasium.Env):
    """Ends its episodes as told; gives the same buffer at every step."""

    action_space = spaces.Discrete(3, start=5)
    observation_space = spaces.Box(-1, 1, (2,), np.float64)

    def __init__(self, terminated=False, truncated=False):
        self.end = (terminated, truncated)
        self.buffer = np.zeros(2)
        self.actions = []
        self.closed = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        self.buffer[:] = 0
        return self.buffer, {}

    def step(self, action):
        self.actions.append(action)
        self.time += 1
        self.buffer += 0.1
        end = self.end if self.time == 3 else (False, False)
        return self.buffer, 1, *end, {"time": self.time}

    def close(self):
        self.closed = True


@pytest.mark.parametrize(
    ("terminated", "truncated", "discount"), [(True, False, 0.0), (False, True, 1.0), (True, True, 0.0)]
)
def test_ends_of_episodes(terminated, truncated, discount):
    environment = GymnasiumEnvironment(Scripted(terminated, truncated))
    steps = [environment.reset()] + [environment.step(0) for _ in range(4)]
    assert [int(step.step_type) for step in steps] == [0, 1, 1, 2, 0]
    assert [step.discount for step in steps] == [None, 1.0, 1.0, discount, None]
    assert environment.last_info == {}


def test_observations_are_copies_and_info_is_kept():
    environment = GymnasiumEnvironment(Scripted())
    first = environment.reset()
    environment.step(0)
    np.testing.assert_array_equal(first.observation, [0, 0])
    assert environment.last_info == {"time": 1}


def test_discrete_actions_count_from_zero_outside_and_are_ints_inside():
    inner = Scripted()
    environment = GymnasiumEnvironment(inner)
    assert environment.action_spec() == specs.DiscreteArray(3, dtype=np.int32, name="action")
    environment.reset()
    environment.step(np.array(2, np.int32))
    environment.step(np.int32(0))
    assert inner.actions == [7, 5] and all(type(action) is int for action in inner.actions)


def test_close_closes():
    inner = Scripted()
    GymnasiumEnvironment(inner).close()
    assert inner.closed


class Nested(gymnasium.Env):
    """Dict and Tuple spaces; echoes what it is given."""

    observation_space = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 2), np.uint8),
            "pair": spaces.Tuple([spaces.Discrete(4, start=-2), spaces.MultiBinary(3)]),
        }
    )
    action_space = spaces.Tuple(
        [spaces.Discrete(2, start=1), spaces.MultiDiscrete([3, 4]), spaces.Box(-2, 2, (2,), np.float32)]
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def observe(self):
        return {"image": np.ones((2, 2), np.uint8), "pair": (np.int64(1), np.zeros(3, np.int8))}

    def step(self, action):
        self.action = action
        return self.observe(), 0.0, False, False, {}


class TestNested(EnvironmentContract):
    num_steps = 20
    can_resume = True

    def make_environment(self):
        from agentkit.envs.resumable import ResumableEnvironment

        return ResumableEnvironment(GymnasiumEnvironment(Nested()), seed=1)


def test_nested_spaces():
    inner = Nested()
    environment = GymnasiumEnvironment(inner)
    spec = environment.observation_spec()
    assert spec["pair"][0] == specs.DiscreteArray(4, dtype=np.int32, name="pair_0")
    timestep = environment.reset()
    assert timestep.observation["pair"][0] == 3  # 1 counted from -2
    environment.step((np.int32(0), np.array([2, 3], np.int32), np.array([0.5, -2], np.float32)))
    assert inner.action_space.contains(inner.action)
    assert inner.action[0] == 1


SPACES = {
    "text": (spaces.Text(4), "observation space Text has text"),
    "graphs": (spaces.Graph(spaces.Box(0, 1, (2,)), None), "observation space Graph has graphs"),
    "sequences": (spaces.Sequence(spaces.Discrete(2)), "observation space Sequence has sequences of any length"),
    "one of": (spaces.OneOf([spaces.Discrete(2), spaces.Box(0, 1, (2,))]), "OneOf has values of no fixed shape"),
    "nested": (
        spaces.Dict(seen=spaces.Box(0, 1, (2,)), told=spaces.Dict(words=spaces.Text(4))),
        "words space Text has",
    ),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces_without_a_spec_are_refused_in_words(name):
    space, message = SPACES[name]
    with pytest.raises(SpecError, match=f"{message}.*, for which there is no network; expected Box"):
        space_to_spec(space, "observation")


def test_vector_environments_are_refused():
    with pytest.raises(SpecError, match=r"use envs\.make"):
        GymnasiumEnvironment(gymnasium.make_vec("CartPole-v1", num_envs=2))


def test_an_observation_that_breaks_its_space_is_refused():
    class Broken(Scripted):
        def reset(self, *, seed=None, options=None):
            return np.zeros(3), {}

    with pytest.raises(SpecError, match=r"expected float64\[2\], found float64\[3\]"):
        GymnasiumEnvironment(Broken()).reset()


def test_unknown_names_get_the_nearest_match():
    with pytest.raises(UnknownNameError, match="Did you mean 'HalfCheetah-v5'"):
        envs.make("gymnasium:HalfChetah-v5")


def test_render_says_what_is_missing():
    environment = GymnasiumEnvironment(Scripted())
    environment.gymnasium_environment.render = lambda: None
    with pytest.raises(SpecError, match="render_mode"):
        environment.render()


def test_time_limit_of_gymnasium_is_a_truncation():
    environment = envs.make("gymnasium:Pendulum-v1")
    timestep = environment.reset()
    count = 0
    while not timestep.last():
        timestep = environment.step(np.zeros(1, np.float32))
        count += 1
    assert count == 200 and timestep.discount == 1.0
    assert timestep.step_type is dm_env.StepType.LAST


def test_mujoco_writes_no_log_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    envs.make("gymnasium:HalfCheetah-v5").close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [gymnasium.error.DependencyNotInstalled, ImportError])
def test_gymnasiums_own_advice_on_what_to_install_is_passed_on(error, monkeypatch):
    def make_without_box2d(name, **kwargs):
        raise error('run `pip install "gymnasium[box2d]"`')

    monkeypatch.setattr(gymnasium, "make", make_without_box2d)
    with pytest.raises(MissingExtraError, match=r"LunarLander-v3 needs .* `pip install \"gymnasium\[box2d\]\"`$"):
        envs.make("gymnasium:LunarLander-v3")
