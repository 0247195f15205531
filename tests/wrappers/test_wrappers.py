"""Every wrapper: the contract around a real environment, and what it changes."""

import dm_env
import numpy as np
import pytest

from agentkit import envs, specs, wrappers
from agentkit.actors.random_actor import sample_action
from agentkit.envs.bandit import Bandit
from agentkit.envs.base import Environment
from agentkit.envs.batched import BatchedEnvironment
from agentkit.envs.catch import Catch
from agentkit.envs.point_mass import PointMass
from agentkit.envs.resumable import ResumableEnvironment
from agentkit.errors import CheckpointError, ConfigError, SpecError, UnknownNameError
from agentkit.testing.environment import EnvironmentContract, assert_same_timestep
from agentkit.wrappers import registry
from agentkit.wrappers.action_repeat import ActionRepeat
from agentkit.wrappers.base import EnvironmentWrapper
from agentkit.wrappers.canonical_actions import CanonicalActions
from agentkit.wrappers.concat_observations import ConcatObservations
from agentkit.wrappers.frame_stack import FrameStack
from agentkit.wrappers.hide import Hide
from agentkit.wrappers.observation_action_reward import OAR, ObservationActionReward
from agentkit.wrappers.one_hot import OneHot
from agentkit.wrappers.single_precision import SinglePrecision
from agentkit.wrappers.soft_horizon import SoftHorizon
from agentkit.wrappers.step_limit import StepLimit
from agentkit.wrappers.terminations_as_truncations import TerminationsAsTruncations
from tests.wrappers.running_mean import RunningMean


class Counter(Environment):
    """Observation: the time; reward: the time; ends as told, after `length` steps."""

    def __init__(self, length=7, terminates=True, discount=1.0, seed=0):
        super().__init__(seed)
        self.length, self.terminates, self.discount = length, terminates, discount
        self.actions = []

    def _start(self):
        self.time = 0
        return {"time": np.array([0.0]), "scalar": np.float64(self._rng.normal())}

    def _advance(self, action):
        self.actions.append(action)
        self.time += 1
        return (
            {"time": np.array([float(self.time)]), "scalar": np.float64(-self.time)},
            float(self.time),
            self.terminates and self.time == self.length,
        )

    def step(self, action):
        timestep = super().step(action)
        return timestep._replace(discount=self.discount) if timestep.mid() else timestep

    def observation_spec(self):
        return {"time": specs.Array((1,), np.float64), "scalar": specs.Array((), np.float64)}

    def action_spec(self):
        return specs.BoundedArray((2,), np.float64, [-3.0, 0.0], [1.0, 10.0])


WRAPPED = {
    "single_precision": SinglePrecision,
    "canonical_actions": lambda inner: CanonicalActions(inner, clip=True),
    "step_limit": lambda inner: StepLimit(inner, 5),
    "soft_horizon": lambda inner: SoftHorizon(inner, 5),
    "terminations_as_truncations": TerminationsAsTruncations,
    "action_repeat": lambda inner: ActionRepeat(inner, 3),
    "frame_stack": lambda inner: FrameStack(ConcatObservations(inner), 4),
    "frame_stack_nested": lambda inner: FrameStack(inner, 2, flatten=False),
    "observation_action_reward": ObservationActionReward,
    "concat_observations": ConcatObservations,
    "hide": lambda inner: Hide(ConcatObservations(inner), [0]),
    "running_mean": RunningMean,
    "many": lambda inner: FrameStack(RunningMean(ConcatObservations(ActionRepeat(inner, 3))), 2),
}


@pytest.mark.parametrize("name", sorted(WRAPPED))
class TestWrappers(EnvironmentContract):
    """Around each wrapper a resumable layer; statistics go on over `reseed`, frames do not."""

    num_steps = 50

    @pytest.fixture(autouse=True)
    def _name(self, name):
        self.name = name

    def make_environment(self):
        return ResumableEnvironment(WRAPPED[self.name](Counter()), seed=2)

    def test_reseed_repeats_the_episodes(self):
        if self.name not in ("running_mean", "many"):  # Their statistics go on, as they should.
            super().test_reseed_repeats_the_episodes()


class TestWrappersAlone(TestWrappers):
    """Without the resumable layer, which would turn a step after LAST into a reset."""

    can_resume = False

    def make_environment(self):
        return WRAPPED[self.name](Counter())


@pytest.mark.parametrize("name", sorted(WRAPPED.keys() - {"terminations_as_truncations"}))
@pytest.mark.parametrize(("terminates", "discount"), [(True, 0.0), (False, 1.0)])
def test_every_wrapper_keeps_the_kind_of_ending(name, terminates, discount):
    environment = WRAPPED[name](StepLimit(Counter(length=4, terminates=terminates), 4))
    assert last_of(environment, np.zeros(2))[-1].discount == discount


def last_of(environment, action):
    timestep = environment.reset()
    steps = []
    while not timestep.last():
        timestep = environment.step(action)
        steps.append(timestep)
    return steps


def test_base_delegates_public_names_only():
    inner = Catch()
    wrapper = EnvironmentWrapper(inner)
    wrapper.reset()
    np.testing.assert_array_equal(wrapper.render(), inner.render())
    assert wrapper.environment is inner
    assert hasattr(wrapper, "reseed") and not hasattr(wrapper, "num_envs")
    with pytest.raises(AttributeError, match="_secret"):
        _ = wrapper._secret
    with pytest.raises(SpecError, match="Expected a dm_env environment, found object"):
        EnvironmentWrapper(object())


def test_base_closes_the_inside(monkeypatch):
    inner, closed = Catch(), []
    monkeypatch.setattr(inner, "close", lambda: closed.append(True))
    StepLimit(SinglePrecision(inner), 3).close()
    assert closed == [True]


def test_only_elementwise_wrappers_take_batches():
    batch = BatchedEnvironment([Counter(), Counter()])
    for make in (WRAPPED[name] for name in ("step_limit", "action_repeat", "frame_stack", "many")):
        with pytest.raises(ConfigError, match="found a batch of 2"):
            make(batch)
    with pytest.raises(ConfigError, match="found a batch of 2"):
        ObservationActionReward(batch)
    ready = SinglePrecision(CanonicalActions(ConcatObservations(batch), clip=True))
    ready.reset()
    timestep = ready.step(np.ones((2, 2), np.float32))
    assert timestep.observation.shape == (2, 2)
    assert {timestep.observation.dtype, timestep.reward.dtype, timestep.discount.dtype} == {np.dtype("f4")}


def test_single_precision_narrows_and_leaves_the_rest():
    class Mixed(Counter):
        def observation_spec(self):
            return {
                "f8": specs.BoundedArray((2,), np.float64, -1e300, 1e300),
                "i8": specs.BoundedArray((), np.int64, -(2**40), 2**40),
                "u1": specs.Array((3,), np.uint8),
            }

        def _start(self):
            return {"f8": np.ones(2), "i8": np.int64(3), "u1": np.zeros(3, np.uint8)}

        def action_spec(self):
            return specs.DiscreteArray(4, dtype=np.int64)

    environment = SinglePrecision(Mixed())
    spec = environment.observation_spec()
    # Bounds beyond int32 make a float of it: its values would wrap around.
    assert [spec[k].dtype for k in ("f8", "i8", "u1")] == [np.float32, np.float32, np.uint8]
    assert (spec["i8"].minimum, spec["i8"].maximum) == (-(2**40), 2**40)
    assert environment.action_spec() == specs.DiscreteArray(4, dtype=np.int32)
    observation = environment.reset().observation
    specs.validate(observation, spec)


class Whole(Counter):
    """Observations of one int64, and rewards of another, that grow by 3e9 at each step."""

    def __init__(self, spec):
        self._spec = spec
        super().__init__()

    def observation_spec(self):
        return self._spec

    def _start(self):
        self._value = np.int64(0)
        return self._value if self._spec.shape == () else np.full(self._spec.shape, self._value)

    def _advance(self, action):
        self._value += 3_000_000_000
        return (self._value if self._spec.shape == () else np.full(self._spec.shape, self._value)), 0.0, False


@pytest.mark.parametrize(
    "spec",
    [
        specs.Array((), np.int64, "clock"),
        specs.Array((2,), np.int64, "clock"),
        specs.BoundedArray((2,), np.int64, 0, 100, "clock"),
        specs.BoundedArray((), np.int64, -(2**63), 2**63 - 1, "clock"),
    ],
)
def test_a_whole_number_that_does_not_fit_is_refused_and_not_wrapped(spec):
    environment = SinglePrecision(Whole(spec))
    assert environment.observation_spec().dtype == np.int32
    environment.reset()
    with pytest.raises(SpecError, match=r"clock: found 3000000000, which does not fit into int32"):
        environment.step(np.zeros(2, np.float32))


@pytest.mark.parametrize(
    ("spec", "value", "message"),
    [
        (specs.Array((2,), np.int64), np.array([0.0, 2.6]), r"observation: expected int64\[2\], .*such as 2\.6"),
        (specs.Array((2,), np.float64), "text", r"observation: expected float64\[2\], found str 'text'"),
        ({"a": specs.Array((), np.int64)}, {"a": 2.6}, r"observation/a: expected int64\[\], .*such as 2\.6"),
        ({"a": specs.Array((), np.int64)}, {}, r"expected leaves \['a'\], found \[\]"),
    ],
)
def test_what_is_not_of_the_spec_is_refused_before_it_is_cast(spec, value, message):
    class Odd(Counter):
        def observation_spec(self):
            return spec

        def _start(self):
            return value

    with pytest.raises(SpecError, match=message):
        SinglePrecision(Odd()).reset()


def test_a_whole_number_whose_bounds_say_that_it_is_large_becomes_a_float():
    environment = SinglePrecision(Whole(specs.BoundedArray((2,), np.int64, 0, 2**40, "clock")))
    environment.reset()
    observation = environment.step(np.zeros(2, np.float32)).observation
    specs.validate(observation, environment.observation_spec())
    np.testing.assert_array_equal(observation, np.full(2, 3e9, np.float32))


def test_more_choices_than_int32_has_are_refused():
    with pytest.raises(SpecError, match="clock: expected at most 2147483647 values, found 3000000000"):
        SinglePrecision(Whole(specs.DiscreteArray(3_000_000_000, np.int64, "clock")))


@pytest.mark.parametrize(
    ("action", "inside"),
    [([-1, -1], [-3, 0]), ([1, 1], [1, 10]), ([0, 0], [-1, 5]), ([-7, 9], [-3, 10])],
)
def test_canonical_actions(action, inside):
    inner = Counter()
    environment = CanonicalActions(inner, clip=True)
    spec = environment.action_spec()
    assert (spec.minimum == -1).all() and (spec.maximum == 1).all()
    environment.reset()
    environment.step(np.array(action, np.float32))
    np.testing.assert_allclose(inner.actions[0], inside)


def test_canonical_actions_without_clipping_and_of_other_shapes():
    inner = Counter()
    environment = CanonicalActions(inner)
    environment.reset()
    environment.step(np.array([2.0, -2.0]))
    np.testing.assert_allclose(inner.actions[0], [3.0, -5.0])
    with pytest.raises(SpecError, match=r"expected shape \[2\], found \[1\]"):
        environment.step(np.zeros(1))
    with pytest.raises(SpecError, match=r"found \[\]"):
        environment.step(0.0)


def test_canonical_actions_leave_discrete_and_unbounded_ones():
    assert CanonicalActions(Catch()).action_spec() == Catch().action_spec()

    class Unbounded(Counter):
        def action_spec(self):
            return specs.BoundedArray((2,), np.float64, -np.inf, 1.0)

    inner = Unbounded()
    environment = CanonicalActions(inner, clip=True)
    assert environment.action_spec() == inner.action_spec()
    environment.reset()
    environment.step(np.array([5.0, 6.0]))
    np.testing.assert_array_equal(inner.actions[0], [5.0, 6.0])


def test_canonical_actions_refuse_empty_bounds():
    class Empty(Counter):
        def action_spec(self):
            return specs.BoundedArray((2,), np.float64, 0.0, [0.0, 1.0])

    with pytest.raises(ConfigError, match="every minimum below its maximum"):
        CanonicalActions(Empty())


@pytest.mark.parametrize(
    ("length", "terminates", "limit", "count", "discount"),
    [(7, True, 3, 3, 1.0), (3, True, 3, 3, 0.0), (2, True, 3, 2, 0.0), (9, False, 1, 1, 1.0)],
)
def test_step_limit(length, terminates, limit, count, discount):
    environment = StepLimit(Counter(length, terminates), limit)
    for _ in range(2):
        steps = last_of(environment, np.zeros(2))
        assert len(steps) == count and steps[-1].discount == discount
    assert environment.step(np.zeros(2)).first()


def test_step_limit_keeps_the_discount_of_the_step():
    environment = StepLimit(Counter(discount=0.5), 2)
    assert last_of(environment, np.zeros(2))[-1].discount == 0.5


def test_action_repeat():
    inner = Counter(length=7, discount=0.5)
    steps = last_of(ActionRepeat(inner, 3), np.zeros(2))
    # Times 1..3, 4..6, 7; discounts 0.5 but for the last, which is 0.
    assert [step.reward for step in steps] == [1 + 2 / 2 + 3 / 4, 4 + 5 / 2 + 6 / 4, 7.0]
    assert [step.discount for step in steps] == [0.125, 0.125, 0.0]
    assert [float(step.observation["time"][0]) for step in steps] == [3.0, 6.0, 7.0]
    assert len(inner.actions) == 7


@pytest.mark.parametrize(("dtype", "summed"), [(np.int32, np.float64), (np.float32, np.float32), (bool, np.float32)])
def test_action_repeat_sums_to_what_its_spec_says(dtype, summed):
    class Typed(EnvironmentWrapper):
        def reward_spec(self):
            return specs.BoundedArray((), dtype, 0, 1, "reward")

        def step(self, action):
            timestep = self._environment.step(action)
            return timestep if timestep.first() else timestep._replace(reward=dtype(1))

    environment = ActionRepeat(Typed(Counter(length=4, discount=0.5)), 3)
    found = environment.reward_spec()
    assert found == specs.Array((), summed, "reward") and not isinstance(found, specs.BoundedArray)
    rewards = [step.reward for step in last_of(environment, np.zeros(2))]
    assert rewards == [1.75, 1.0]
    for reward in rewards:
        specs.validate(reward, found, "reward")
    assert isinstance(ActionRepeat(Typed(Counter()), 1).reward_spec(), specs.BoundedArray)


def test_frame_stack():
    environment = FrameStack(ConcatObservations(Counter(), names=["time"]), 3)
    assert environment.observation_spec().shape == (3,)
    seen = [environment.reset().observation.tolist()]
    seen += [step.observation.tolist() for step in last_of(environment, np.zeros(2))]
    assert seen[:4] == [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    assert environment.step(np.zeros(2)).observation.tolist() == [0, 0, 0]  # Nothing leaks over.


def test_frame_stack_shapes_and_bounds():
    flat, new = FrameStack(Catch(), 4), FrameStack(Catch(), 4, flatten=False)
    assert flat.observation_spec().shape == flat.reset().observation.shape == (10, 20)
    assert new.observation_spec().shape == new.reset().observation.shape == (10, 5, 4)
    assert isinstance(flat.observation_spec(), specs.BoundedArray)
    with pytest.raises(ConfigError, match="at least 1"):
        FrameStack(Catch(), 0)


def test_observation_action_reward():
    environment = ObservationActionReward(Bandit())
    first = environment.reset().observation
    assert isinstance(first, OAR) and first.action == 0 and first.reward == 0
    specs.validate(first, environment.observation_spec())
    arm = int(first.observation.argmax())
    then = environment.step(arm).observation
    assert then.action == arm and then.action.dtype == np.int32 and then.reward == 1.0
    specs.validate(then, environment.observation_spec())


def test_hidden_numbers_are_left_out_of_one_environment_and_of_a_batch():
    inner = PointMass(num_dimensions=3, seed=1)
    environment = Hide(PointMass(num_dimensions=3, seed=1), columns=[1])
    spec = environment.observation_spec()
    assert spec == specs.BoundedArray((2,), np.float32, -1.0, 1.0, "position")
    action = np.array([0.5, 0.2, -1.0], np.float32)
    for timestep, all_seen in [(environment.reset(), inner.reset()), (environment.step(action), inner.step(action))]:
        spec.validate(timestep.observation)
        np.testing.assert_array_equal(timestep.observation, all_seen.observation[[0, 2]])
        assert timestep[:3] == all_seen[:3]
    batch = Hide(envs.make("agentkit:point_mass", num_envs=2, seed=0), columns=[0])
    assert batch.reset().observation.shape == (2, 1)


@pytest.mark.parametrize(
    ("environment", "columns", "found"),
    [
        (PointMass(), [2], "columns from 0 to 1, found 2"),
        (PointMass(), [0, 1], "leave one of 2 columns, found"),
        (PointMass(), ["x"], "columns from 0 to 1, found 'x'"),
        (PointMass(), 2, "columns as a list, such as .*, found 2"),
        (PointMass(), "01", "columns from 0 to .*, found '0'"),
        (Counter(), [0], "a vector .*found"),
    ],
)
def test_what_cannot_be_hidden_is_refused(environment, columns, found):
    with pytest.raises((ConfigError, SpecError), match=f"hide: expected .*{found}"):
        Hide(environment, columns)


def test_concat_observations():
    environment = ConcatObservations(Counter(), names=["time", "scalar"])
    environment.reset()
    observation = environment.step(np.zeros(2)).observation
    assert observation.dtype == np.float32 and observation.tolist() == [1.0, -1.0]
    with pytest.raises(UnknownNameError, match="Did you mean 'time'"):
        ConcatObservations(Counter(), names=["tim"])
    with pytest.raises(SpecError, match="expects a dict observation, found BoundedArray"):
        ConcatObservations(Catch())


def test_state_without_the_wrappers_own_is_refused():
    with pytest.raises(CheckpointError, match="same wrappers"):
        RunningMean(PointMass()).restore({})


def test_state_for_a_stateless_wrapper_is_refused():
    environment = SinglePrecision(PointMass())
    with pytest.raises(CheckpointError, match="keeps no state"):
        environment.restore(RunningMean(PointMass()).save())


def test_make_with_every_wrapper_resumes():
    def make():
        return envs.make(
            "agentkit:catch",
            seed=1,
            wrappers=[
                RunningMean,
                lambda e: FrameStack(e, 2),
                lambda e: StepLimit(e, 6),
                ObservationActionReward,
            ],
        )

    one, other = make(), make()
    rng = np.random.default_rng(0)
    one.reset()
    for _ in range(33):
        last = one.step(sample_action(one.action_spec(), rng))
    assert_same_timestep(other.restore(one.save()), last)
    assert isinstance(last, dm_env.TimeStep)
    for _ in range(20):
        action = sample_action(one.action_spec(), rng)
        assert_same_timestep(one.step(action), other.step(action))


def test_wrappers_are_found_by_the_name_of_their_class() -> None:
    for name, cls in registry.classes().items():
        assert getattr(wrappers, cls) is registry.find(name)
    assert issubclass(wrappers.FrameStack, wrappers.EnvironmentWrapper)
    with pytest.raises(AttributeError, match=r"no attribute 'FrameStacks'. It has: .*FrameStack,"):
        _ = wrappers.FrameStacks


class Masked(Counter):
    """Has two of four actions that may be taken."""

    def _start(self):
        super()._start()
        return self._seen()

    def _advance(self, action):
        _, reward, terminated = super()._advance(action)
        return self._seen(), reward, terminated

    def _seen(self):
        return {"action_mask": np.array([1, 0, 1, 0], np.int8), "place": np.int32(self.time), "time": np.zeros(1)}

    def observation_spec(self):
        mask = specs.BoundedArray((4,), np.int8, 0, 1, "action_mask")
        return {"action_mask": mask, "place": specs.DiscreteArray(9), "time": specs.Array((1,), np.float64)}


@pytest.mark.parametrize("num_envs", [None, 2])
@pytest.mark.parametrize("names", [None, ["time", "place"]])
def test_concat_observations_keeps_an_action_mask_as_it_is(names, num_envs):
    inner = Masked() if num_envs is None else BatchedEnvironment([Masked() for _ in range(num_envs)])
    environment = ConcatObservations(inner, names)
    spec = environment.observation_spec()
    assert spec["observation"] == specs.Array((2,), np.float32) and spec["action_mask"].dtype == np.int8
    seen = environment.reset().observation
    assert seen.keys() == spec.keys() and seen["observation"].shape == (() if num_envs is None else (2,)) + (2,)
    np.testing.assert_array_equal(seen["action_mask"], np.broadcast_to([1, 0, 1, 0], seen["action_mask"].shape))
    with pytest.raises(SpecError, match="expects an entry to take"):
        ConcatObservations(inner, ["action_mask"])


def test_one_hot_keeps_an_action_mask_as_it_is():
    environment = OneHot(Masked())
    assert environment.observation_spec()["action_mask"] == Masked().observation_spec()["action_mask"]
    assert environment.reset().observation["action_mask"].tolist() == [1, 0, 1, 0]
    assert environment.observation_spec()["place"].shape == (9,)


@pytest.mark.parametrize("value", [0, 2.5, "a", True, None])
@pytest.mark.parametrize(
    ("wrapper", "setting"), [(StepLimit, "max_steps"), (ActionRepeat, "num_repeats"), (FrameStack, "num_frames")]
)
def test_counts_are_whole_numbers(wrapper, setting, value):
    with pytest.raises(ConfigError, match=f"^{setting}: expected a whole number of at least 1, found {value!r}"):
        wrapper(PointMass(), value)
