"""Whatever bounds an action has, the environment is given finite numbers within them."""

import dm_env
import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from agentkit import specs
from agentkit.agents import ppo, sac
from agentkit.envs.wrapping import prepare
from agentkit.errors import ConfigError, SpecError
from agentkit.specs import make_environment_spec
from agentkit.wrappers.bound_actions import BoundActions
from agentkit.wrappers.canonical_actions import CanonicalActions, to_bounds
from agentkit.wrappers.discretise import Discretise

MOST = float(np.finfo(np.float32).max)
FINITE = st.floats(
    min_value=float(-np.nextafter(MOST, 0, dtype=np.float32)),
    max_value=float(np.nextafter(MOST, 0, dtype=np.float32)),
    width=32,
)


class Listener(dm_env.Environment):
    """Remembers its actions."""

    def __init__(self, low, high, dtype=np.float32, shape=(1,)):
        self.spec = specs.BoundedArray(shape, dtype, low, high, "action")
        self.actions = []

    def reset(self):
        return dm_env.restart(np.float32(0))

    def step(self, action):
        self.actions.append(action)
        return dm_env.transition(0.0, np.float32(0))

    def observation_spec(self):
        return specs.Array((), np.float32)

    def action_spec(self):
        return self.spec

    def check(self):
        assert self.actions
        for action in self.actions:
            assert np.isfinite(action).all(), action
            assert (self.spec.minimum <= action).all() and (action <= self.spec.maximum).all(), action


@hypothesis.given(bounds=st.tuples(FINITE, FINITE), action=st.floats(-1, 1, width=32))
@hypothesis.example(bounds=(-3.4e38, 3.4e38), action=0.5)
@hypothesis.example(bounds=(-0.1, 0.7), action=-1.0)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_actions_between_finite_bounds_arrive_within_them(dtype, bounds, action):
    low, high = map(dtype, bounds)
    hypothesis.assume(low < high)
    inner = Listener(low, high, dtype)
    canonical, grid = prepare(inner, concatenate=False), Discretise(inner, 5)
    assert canonical.action_spec() == specs.BoundedArray((1,), np.float32, -1.0, 1.0, "action")
    for value in (-1.0, action, 1.0):
        canonical.step(np.array([value], np.float32))
        inner.actions.append(to_bounds(np.array([value], np.float32), canonical.action_spec(), inner.spec))
    first, last = inner.actions[0], inner.actions[-1]
    np.testing.assert_allclose(
        [first[0], last[0]], [low, high], rtol=1e-5, atol=max(1e-5 * abs(low), 1e-5 * abs(high), 1e-37)
    )
    for number in range(5):
        grid.step(np.int32(number))
    np.testing.assert_allclose(np.ravel([inner.actions[-5], inner.actions[-1]]), [low, high], rtol=0, atol=1e-44)
    inner.check()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("low, high", [(-0.1, 0.3), (0.1, 0.7), (-1, 1), (-1 - 1e-12, 1 + 1e-12), (-1e30, 1e-30)])
def test_bounds_of_64_bits_hold_in_the_32_of_jax(low, high, dtype):
    inner = Listener(*(np.clip([low, high], -6e4, 6e4) if dtype is np.float16 else (low, high)), dtype)
    agents = specs.BoundedArray((1,), np.float32, -1.0, 1.0)
    for own in (agents, inner.spec):  # Mapped, and only clipped.
        for value in (-3, -1, 0.25, 1, 3):
            action = np.array([value], np.float32)
            inner.actions.append(np.asarray(to_bounds(action, own, inner.spec, jnp)))
            expected = to_bounds(action, own, inner.spec)
            assert inner.actions[-1].dtype == np.dtype(dtype if dtype is np.float16 else np.float32)
            np.testing.assert_allclose(inner.actions[-1], expected, rtol=3e-7 if dtype is np.float64 else 0)
    inner.check()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_bounds_as_large_as_floats_get_are_no_bounds(dtype):
    most = np.finfo(dtype).max
    inner = Listener(-most, most, dtype)
    environment = prepare(inner, concatenate=False)
    for agent in (sac, ppo):
        with pytest.raises(SpecError, match=r"bound_actions\(minimum=-1, maximum=1\)"):
            agent.make_agent().make_networks(make_environment_spec(environment))
    with pytest.raises(SpecError, match=r"expected one array of actions with finite bounds.*bound_actions"):
        Discretise(environment, 3)
    bounded = BoundActions(environment, minimum=-2, maximum=2)
    bounded.step(np.float32([0.5]))
    np.testing.assert_array_equal(inner.actions, [[1.0]])


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, np.inf, (0, 1, 2)),
        (-np.inf, 0.5, (-2, -0.75, 0.5)),
        (-np.inf, np.inf, (-2, 0, 2)),
        (-1, 1, (-1, 0, 1)),
        (-MOST, 1, (-2, -0.5, 1)),
    ],
)
def test_bound_actions_keeps_to_the_bounds_that_there_are(low, high, expected):
    inner = Listener(low, high, np.float64, (2, 1))
    environment = BoundActions(inner, minimum=-2, maximum=2)
    assert environment.action_spec() == specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")
    for value in (-1, 0, 1):
        environment.step(np.full(2, value, np.float32))
    np.testing.assert_array_equal(np.ravel(inner.actions), np.repeat(expected, 2))
    inner.check()


@pytest.mark.parametrize("bounds", [(3, np.inf), (2, 9), (-np.inf, -2)])
def test_bounds_that_share_nothing_with_the_environments_own_are_refused(bounds):
    with pytest.raises(ConfigError, match="bound_actions: -2 to 2 has nothing in common with the environment's own"):
        BoundActions(Listener(*bounds), minimum=-2, maximum=2)


@pytest.mark.parametrize("bounds", [(-np.inf, 1), (-1, 1e39), (1, -1)])
def test_bounds_that_are_none_are_refused(bounds):
    with pytest.raises(ConfigError, match="expected finite bounds, the minimum below the maximum"):
        BoundActions(Listener(-np.inf, np.inf), *bounds)


def test_whole_actions_beyond_int32_stay_whole():
    environment = prepare(Listener(0, 2**40, np.int64), concatenate=False)
    assert environment.action_spec() == specs.BoundedArray((1,), np.int32, 0, 2**31 - 1, "action")
    with pytest.raises(SpecError, match="at most 16,384"):
        ppo.make_agent().make_networks(make_environment_spec(environment))


def test_the_middle_of_bounds_is_what_it_was():
    """Halving before and not after a sum changes no bit of what fits."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        low, high = np.sort(rng.normal(size=(2, 50)) * 10.0 ** rng.integers(-6, 7, 50), axis=0).astype(dtype)
        inner = Listener(low, high, dtype, (50,))
        action = rng.uniform(-1, 1, 50).astype(np.float32)
        CanonicalActions(inner, clip=True).step(action)
        np.testing.assert_array_equal(
            inner.actions[0], np.clip(action * ((high - low) / 2) + (high + low) / 2, low, high)
        )
        expected = [np.linspace(*ends, 7).astype(dtype) for ends in zip(low[:2], high[:2], strict=True)]
        grid = Discretise(inner := Listener(low[:2], high[:2], dtype, (2,)), 7)
        for number in range(49):
            grid.step(np.int32(number))
        found = np.stack(inner.actions).reshape(7, 7, 2)
        np.testing.assert_array_equal(found[:, 0, 0], expected[0])
        np.testing.assert_array_equal(found[0, :, 1], expected[1])
