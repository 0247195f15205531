"""The gymnasium adapter: the contract on real environments, ends of episodes, spaces, refusals."""

import sys

import dm_env
import numpy as np
import pytest
import tree

gymnasium = pytest.importorskip("gymnasium")

from agentkit import envs, specs  # noqa: E402
from agentkit.envs.gymnasium import GymnasiumEnvironment, space_to_spec  # noqa: E402
from agentkit.envs.rendering import prepare_gymnasium  # noqa: E402
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
        return envs.make("gymnasium:Pendulum-v1", seed=7, raw=True, max_episode_steps=60)


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


class InPlace(gymnasium.Env):
    """Adds noise to the action that it was given, where it lies."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        action += 1
        return np.zeros(2, np.float32), 0.0, False, False, {}


@pytest.mark.parametrize("space", [spaces.Box(-1, 1, (2,), np.float32), spaces.MultiDiscrete([3, 3])])
def test_an_environment_may_change_the_action_that_it_was_given(space):
    """Replay and the actions that a resume takes again have what the policy said."""
    environment = GymnasiumEnvironment(InPlace(space))
    environment.reset()
    action = np.zeros(2, space.dtype)
    environment.step(action)
    np.testing.assert_array_equal(action, 0)
    action.setflags(write=False)  # As JAX's are.
    environment.step(action)


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
    sees_ends = False
    can_resume = True

    def make_environment(self):
        from agentkit.envs.resumable import ResumableEnvironment

        return ResumableEnvironment(GymnasiumEnvironment(Nested()), seed=1)


def test_a_contract_that_has_seen_no_end_says_so():
    """Else what follows a LAST would pass unseen."""
    alone, together = TestNested(), TestBatch()
    alone.sees_ends, together.num_steps = True, 2
    for check in (
        alone.test_every_step_fits_its_spec_and_follows_from_the_last,
        together.test_elements_are_reset_after_their_last_step_only,
    ):
        with pytest.raises(AssertionError, match=r"no episode has ended in .* set num_steps to more than an episode"):
            check()


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


class Returning(gymnasium.Env):
    """Returns from reset and step what it is told."""

    action_space = spaces.Discrete(2)

    def __init__(self, space, observation, changed=None, found=None):
        self.observation_space, self.observation = space, observation
        self.found = {"reset": lambda o: (o, {}), "step": lambda o: (o, 1.0, False, False, {})} | {changed: found}

    def reset(self, *, seed=None, options=None):
        return self.found["reset"](self.observation)

    def step(self, action):
        return self.found["step"](self.observation)


BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("space", "observation", "message"),
    [
        (spaces.Box(0, 255, (2, 2), np.uint8), np.full((2, 2), 0.7), r"expected uint8\[2, 2\], .*such as 0\.7"),
        (spaces.Box(0, 255, (3,), np.uint8), np.array([-1, 256, 3]), r"from 0 to 255, found int64 -1 at \[0\]"),
        (spaces.Box(-5, 5, (3,), np.int32), np.array([0.0, 2.6, 1]), r"expected int32\[3\], .*such as 2\.6"),
        (spaces.Box(0, 1, (40, 40), np.uint8), np.full((40, 40), 2, np.uint8), "from 0 to 1, found uint8 2"),
        (spaces.Discrete(4), 2.9, "found float64.*2.9"),
        (spaces.Discrete(4, start=2), np.int64(6), r"from 2 to 5, found int64 6"),
        (spaces.MultiDiscrete([3, 2]), np.array([2, 2]), r"found int64 2 at \[1\]"),
        (spaces.Dict(a=BOX), {"b": np.zeros(2)}, ": expected a dictionary with a, found .* of b"),
        (spaces.Dict(a=BOX), {"a": "text"}, "/a: .* found str 'text'"),
        (spaces.Tuple([BOX]), (), "expected a tuple of 1"),
        (BOX, None, "found None"),
    ],
)
def test_what_is_not_of_the_space_is_refused_at_once_and_later(space, observation, message):
    """At the first step and in the middle of an episode; bounds of large arrays at the first step alone."""
    with pytest.raises(SpecError, match=f"^Returning, step 0 of an episode: observation.*{message}") as caught:
        GymnasiumEnvironment(Returning(space, observation)).reset()
    assert "\n" not in str(caught.value)
    environment = GymnasiumEnvironment(Returning(space, space.sample()))
    environment.reset()
    environment.step(0)
    environment.gymnasium_environment.observation = observation
    if np.size(observation) < 1_000:
        with pytest.raises(SpecError, match=f"^Returning, step 2 of an episode: observation.*{message}"):
            environment.step(0)


@pytest.mark.parametrize(
    "space",
    [
        BOX,
        spaces.Box(-1, 1, (2,), np.float64),
        spaces.Box(0, 255, (4, 4, 3), np.uint8),
        spaces.Box(-3, 7, (5,), np.int16),
        spaces.Box(-(2**62), 2**62, (3,), np.int64),
        spaces.Discrete(5),
        spaces.Discrete(5, start=-2),
        spaces.MultiDiscrete([3, 4], start=[1, -5]),
        spaces.MultiBinary(3),
        spaces.Dict(a=spaces.Tuple([spaces.Discrete(3, start=1), BOX]), b=spaces.Box(0, 1, (300,), np.int8)),
    ],
)
def test_what_is_of_the_space_is_taken_number_for_number(space):
    spec = space_to_spec(space, "observation")
    space.seed(0)
    for _ in range(20):
        sample = space.sample()
        environment = GymnasiumEnvironment(Returning(space, sample))
        for timestep in (environment.reset(), environment.step(0)):
            specs.validate(timestep.observation, spec)
            theirs = specs.to_own_terms(timestep.observation, spec)
            assert all(
                np.array_equal(found, given)
                for found, given in zip(
                    tree.flatten(theirs),
                    tree.flatten(dict(sample) if isinstance(sample, dict) else sample),
                    strict=True,
                )
            )


def test_other_dtypes_that_hold_the_same_numbers_are_taken():
    for space, value in [
        (BOX, [0, 1]),
        (BOX, np.zeros(2, np.float64)),
        (spaces.Box(0, 255, (2,), np.uint8), np.array([0, 255])),
        (spaces.Discrete(2), True),
        (spaces.MultiBinary(2), np.array([True, False])),
    ]:
        observation = GymnasiumEnvironment(Returning(space, value)).reset().observation
        np.testing.assert_array_equal(observation, np.asarray(value))
        specs.validate(observation, space_to_spec(space, "observation"))


@pytest.mark.both_stacks
@pytest.mark.parametrize("reward", [1, 1.0, True, np.float32(1), np.int64(1), np.array(1.0), np.array([1.0]), [1.0]])
def test_a_reward_is_a_number_or_an_array_of_one(reward):
    environment = GymnasiumEnvironment(Returning(BOX, np.zeros(2), "step", lambda o: (o, reward, False, np.False_, {})))
    environment.reset()
    assert type(environment.step(0).reward) is float and environment.step(0).reward == 1.0


STEPS = {
    "reward None": (lambda o: (o, None, False, False, {}), "reward: expected one number, found None"),
    "rewards by name": (lambda o: (o, {"a": 1.0}, False, False, {}), "reward: .* found a dictionary of a"),
    "reward text": (lambda o: (o, "1.0", False, False, {}), "reward: .* found str '1.0'"),
    "several rewards": (lambda o: (o, np.ones(3), False, False, {}), r"reward: .* found ndarray array\(\[1"),
    "ends by name": (lambda o: (o, 0.0, {"__all__": False}, False, {}), "terminated: expected True or False"),
    "end None": (lambda o: (o, 0.0, False, None, {}), "truncated: .* found None"),
    "ends of several": (lambda o: (o, 0.0, np.zeros(2, bool), False, {}), "terminated: .* found ndarray"),
    "info": (lambda o: (o, 0.0, False, False, "x"), "info: expected a dictionary, found str"),
    "four": (lambda o: (o, 0.0, False, {}), "step.. returned 4 values; expected five.* gym before 0.26.* shimmy"),
    "one": (lambda o: o, "step.. returned ndarray .*; expected five"),
}


@pytest.mark.both_stacks
@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_is_nearly_right_is_refused_in_one_line(name, limited):
    """The same where gymnasium's own time limit is around the environment and takes the step first."""
    found, message = STEPS[name]
    inner = Returning(BOX, np.zeros(2, np.float32), "step", found)
    environment = GymnasiumEnvironment(gymnasium.wrappers.TimeLimit(inner, 10) if limited else inner)
    environment.reset()
    if limited and name == "one":
        message = r"step\(\) returned 2 values; expected five"
    with pytest.raises(SpecError, match=f"^Returning, step 1 of an episode: {message}") as caught:
        environment.step(0)
    assert "\n" not in str(caught.value)


RESETS = {
    "no info": (lambda o: o, "returned ndarray .*expected two values"),
    "info None of a tuple": (lambda o: (o, 0.0), "returned tuple .*expected two values"),
    "three": (lambda o: (o, 0.0, {}), "returned tuple .*expected two values"),
}


@pytest.mark.both_stacks
@pytest.mark.parametrize("name", RESETS)
def test_a_reset_that_is_nearly_right_is_refused_in_one_line(name):
    found, message = RESETS[name]
    with pytest.raises(SpecError, match=rf"^Returning, step 0 of an episode: reset\(\) {message}"):
        GymnasiumEnvironment(Returning(BOX, np.zeros(2, np.float32), "reset", found)).reset()


@pytest.mark.both_stacks
@pytest.mark.parametrize("limited", [False, True])
def test_a_reset_without_seed_is_refused_in_one_line(limited):
    class NoSeed(Scripted):
        def reset(self):
            return np.zeros(2), {}

    environment = gymnasium.wrappers.TimeLimit(NoSeed(), 10) if limited else NoSeed()
    with pytest.raises(
        SpecError, match=r"^NoSeed, step 0 .*reset\(\) takes no '.*'; expected def reset\(self, \*, seed"
    ):
        GymnasiumEnvironment(environment).reset()


def test_an_error_of_the_environments_own_stays():
    def fail(observation):
        raise ValueError("not enough values to unpack (expected 5, got 2)")

    environment = GymnasiumEnvironment(Returning(BOX, np.zeros(2, np.float32), "step", fail))
    environment.reset()
    with pytest.raises(ValueError, match=r"^not enough") as caught:
        environment.step(0)
    assert type(caught.value) is ValueError


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
@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("LunarLander-v3", "box2d"),
        ("CarRacing-v3", "box2d"),
        ("HalfCheetah-v5", "gymnasium"),
        ("CartPole-v1", "gymnasium"),
        ("FrozenLake-v1", "gymnasium"),
        ("phys2d/CartPole-v1", "gymnasium"),
        ("LunarLander", "box2d"),  # Not in the registry without its version: gymnasium's advice tells.
    ],
)
def test_the_extra_that_brings_what_is_missing_is_named_before_gymnasiums_own_advice(error, name, extra, monkeypatch):
    def make_without_box2d(name, **kwargs):
        raise error('run `pip install "gymnasium[box2d]"`')

    monkeypatch.setattr(gymnasium, "make", make_without_box2d)
    words = rf"gymnasium:{name} needs a package that is not installed: pip install 'agentkit-rl\[{extra}\]'"
    with pytest.raises(MissingExtraError, match=rf"^{words}.* `pip install \"gymnasium\[box2d\]\"`$"):
        envs.make(f"gymnasium:{name}")


def test_without_box2d_its_extra_is_named(monkeypatch):
    for module in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "Box2D", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'agentkit-rl\[box2d\]'"):
        envs.make("gymnasium:LunarLander-v3")


def test_what_draws_and_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pygame", None)
    environment = envs.make("gymnasium:FrozenLake-v1", render_mode="rgb_array")
    environment.reset()
    with pytest.raises(MissingExtraError, match=r"gymnasium:FrozenLake-v1 needs .*'agentkit-rl\[gymnasium\]'"):
        environment.render()


@pytest.mark.parametrize(
    ("name", "settings", "follows"),
    [
        ("HalfCheetah-v5", {}, True),
        ("HalfCheetah-v5", {"default_camera_config": {"distance": 9.0}}, False),
        ("Ant-v5", {}, True),
        ("Hopper-v5", {}, False),  # Its free camera is bound to the body.
        ("Reacher-v5", {}, False),
    ],
)
def test_the_models_camera_follows_where_the_free_one_would_stay_behind(monkeypatch, name, settings, follows):
    environment = envs.make(f"gymnasium:{name}", render_mode="rgb_array", **settings).gymnasium_environment.unwrapped
    if environment.mujoco_renderer.camera_id != -1:
        return  # Gymnasium before 1.4 takes that camera itself.
    monkeypatch.setattr("agentkit.envs.rendering.prepare_mujoco", lambda model: None)
    prepare_gymnasium(environment)
    assert environment.mujoco_renderer.camera_id == (0 if follows else -1)


@pytest.mark.parametrize("num_envs", [None, 2])
def test_it_follows_before_the_first_image(monkeypatch, num_envs):
    monkeypatch.setattr("agentkit.envs.rendering.prepare_mujoco", lambda model: None)
    prefix = "gymnasium" if num_envs is None else "gymnasium_vector"
    environment = envs.make(f"{prefix}:HalfCheetah-v5", num_envs=num_envs, render_mode="rgb_array")
    inside = environment.gymnasium_environment
    each = [inside.unwrapped] if num_envs is None else [one.unwrapped for one in inside.unwrapped.envs]
    for one in each:
        monkeypatch.setattr(one, "render", lambda one=one: np.full((2, 2, 3), one.mujoco_renderer.camera_id, np.uint8))
    environment.reset()
    np.testing.assert_array_equal(environment.render(), np.zeros((2, 2, 3), np.uint8))
