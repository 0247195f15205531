"""Values of gymnasium's spaces on their whole way to a network: told apart, finite, and of the size that is meant."""

import itertools
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np
import pytest
import tree

gymnasium = pytest.importorskip("gymnasium")

from agentkit import networks, specs  # noqa: E402
from agentkit.envs import given  # noqa: E402
from agentkit.envs.gymnasium import space_to_spec  # noqa: E402
from agentkit.envs.step_check import StepCheck  # noqa: E402
from agentkit.errors import SpecError  # noqa: E402
from agentkit.specs import make_environment_spec  # noqa: E402
from agentkit.wrappers.frame_stack import FrameStack  # noqa: E402
from agentkit.wrappers.one_hot import OneHot  # noqa: E402

spaces = gymnasium.spaces
MOST = float(np.finfo(np.float32).max)


class Shows(gymnasium.Env):
    """Shows these values of a space, one at each step."""

    action_space = spaces.Discrete(2)

    def __init__(self, space: Any, values: list[Any]):
        self.observation_space, self._values, self._next = space, values, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._next = 1
        return self._values[0], {}

    def step(self, action: Any) -> Any:
        self._next += 1
        return self._values[self._next - 1], 0.0, False, False, {}


def observe(space: Any, values: list[Any], *wrappers: Any) -> tuple[Any, Any]:
    """Returns the specs of the observations, and all of them in one batch, as the loop would have taken them."""
    environment = given.make(lambda: Shows(space, values), 0, {}, wrappers=wrappers)
    check = StepCheck(make_environment_spec(environment))
    seen = []
    for number in range(len(values)):
        timestep = environment.step(np.int32(0)) if number else environment.reset()
        check(timestep, None, number)
        seen.append(timestep.observation)
    return environment.observation_spec(), tree.map_structure(lambda *each: np.stack(each), *seen)


def seen_by_a_network(space: Any, values: list[Any], *wrappers: Any) -> np.ndarray:
    """Returns the numbers that a network's first layers get, ``[values, numbers]``."""
    spec, batch = observe(space, values, *wrappers)

    @jax.jit
    def see(batch: Any) -> list[Any]:
        leaves = jax.tree.leaves(networks.encode_inputs(spec, batch))
        return [networks.to_unit_image(leaf) if networks.is_image(leaf.shape[1:]) else leaf for leaf in leaves]

    return np.concatenate([np.reshape(leaf, (len(values), -1)) for leaf in see(batch)], axis=1).astype(np.float64)


def box(low: Any, high: Any, shape: tuple[int, ...], dtype: Any, *values: Any) -> "Case":
    """Returns a case with arrays that are of one number each."""
    with np.errstate(all="ignore"):
        space = spaces.Box(low, high, shape, dtype)
    return Case(space, [np.full(shape, value, dtype) for value in values])


class Case(NamedTuple):
    space: Any
    values: list[Any]


CASES: dict[str, tuple[Case, float]] = {
    # name: (space and values, the largest size that a network sees)
    "floats": (box(-3, 2, (3,), np.float32, -3, 0, 1e-6, 2), 3),
    "floats, half-infinite": (box(0, np.inf, (2,), np.float32, 0, 1, 7), 7),
    "floats, infinite": (box(-np.inf, np.inf, (2,), np.float64, -9, 0, 9), 9),
    "floats, as large as they get": (box(-MOST, MOST, (2,), np.float32, -1, 0, 2), 2),
    "image, as large as floats get": (box(-MOST, MOST, (6, 6, 1), np.float32, -1, 0, 2), 2),
    "image of floats": (box(0, 1, (6, 6, 1), np.float32, 0, 0.5, 1), 1),
    "image of floats below 0": (box(-10, 5, (6, 6, 1), np.float32, -10, 0, 5), 1),
    "image of doubles": (box(0, 1000, (6, 6, 1), np.float64, 0, 1, 1000), 1),
    "integers": (box(-2, 3, (2,), np.int32, -2, 0, 3), 3),
    "integers, infinite": (box(-np.inf, np.inf, (2,), np.int64, -5, 0, 2_000), 2_000),
    "large integers": (box(0, 10**6, (1,), np.int32, 0, 1, 10**6), 1),
    "large integers beside small ones": (box(np.array([0, 0]), np.array([10, 10**6]), (2,), np.int64, 0, 1, 10), 10),
    "integers far from 0": (box(2**30, 2**30 + 3, (2,), np.int32, *range(2**30, 2**30 + 4)), 1),
    "unsigned integers far from 0": (box(2**31, 2**31 + 3, (1,), np.uint64, *range(2**31, 2**31 + 4)), 1),
    "integers beyond int32": (box(0, 2**40, (1,), np.int64, 0, 2**39, 2**40), 2**40),
    "bytes": (box(0, 255, (4,), np.uint8, 0, 1, 254, 255), 1),
    "image HWC": (box(0, 255, (8, 9, 3), np.uint8, 0, 1, 254, 255), 1),
    "image CHW": (box(0, 255, (3, 8, 9), np.uint8, 0, 1, 254, 255), 1),
    "image HW": (box(0, 255, (8, 9), np.uint8, 0, 1, 254, 255), 1),
    "stack of images CHW": (box(0, 255, (2, 3, 8, 9), np.uint8, 0, 1, 254, 255), 1),
    "board of int8": (box(0, 1, (6, 7, 2), np.int8, 0, 1), 1),
    "board of uint8": (box(0, 1, (8, 8, 4), np.uint8, 0, 1), 1),
    "board HW": (box(0, 1, (8, 8), np.uint8, 0, 1), 1),
    "board of two sides": (box(-1, 1, (8, 8, 1), np.int8, -1, 0, 1), 1),
    "board of int32": (box(0, 10, (8, 8, 1), np.int32, 0, 1, 9, 10), 1),
    "one value": (box(0, 0, (8, 8, 1), np.int32, 0), 0),
    "image of integers without bounds": (box(-np.inf, np.inf, (8, 8, 1), np.int32, 0, 1, 255), 1),
    "depth": (box(0, 65_535, (8, 8, 1), np.uint16, 0, 1, 65_534, 65_535), 1),
    "depth HW": (box(0, 65_535, (8, 9), np.uint16, 0, 1, 65_534, 65_535), 1),
    "choice": (Case(spaces.Discrete(4, start=-2), list(range(-2, 2))), 1),
    "choice of many": (Case(spaces.Discrete(5_000), [0, 1, 4_998, 4_999]), 1),
    "choices": (
        Case(spaces.MultiDiscrete([3, 2], start=[1, 5]), [np.array([a, b]) for a in (1, 2, 3) for b in (5, 6)]),
        1,
    ),
    "choices of many": (Case(spaces.MultiDiscrete([70, 70]), [np.array([a, b]) for a in (0, 69) for b in (0, 69)]), 69),
    "board of choices": (
        Case(spaces.MultiDiscrete(np.full((6, 6, 2), 3)), [np.full((6, 6, 2), value) for value in range(3)]),
        1,
    ),
    "bits": (Case(spaces.MultiBinary(3), [np.array(bits, np.int8) for bits in itertools.product((0, 1), repeat=3)]), 1),
    "board of bits": (
        Case(spaces.MultiBinary((6, 6, 2)), [np.zeros((6, 6, 2), np.int8), np.ones((6, 6, 2), np.int8)]),
        1,
    ),
    "dictionary": (
        Case(
            spaces.Dict({"cell": spaces.Discrete(3, start=1), "board": spaces.Box(0, 1, (6, 6, 1), np.int8)}),
            [{"cell": cell, "board": np.full((6, 6, 1), bit, np.int8)} for cell in (1, 2, 3) for bit in (0, 1)],
        ),
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_of_any_space_are_told_apart_and_of_the_size_that_is_meant(name: str) -> None:
    (space, values), largest = CASES[name]
    seen = seen_by_a_network(space, values)
    assert np.isfinite(seen).all()
    assert len({row.tobytes() for row in seen}) == len(values)
    assert np.abs(seen).max() == pytest.approx(largest, abs=1e-6)


@pytest.mark.parametrize(
    "name", ["bytes", "image HWC", "image CHW", "image HW", "stack of images CHW", "board HW", "depth HW", "choices"]
)
def test_so_they_are_in_stacks_of_frames(name: str) -> None:
    (space, values), largest = CASES[name]
    seen = seen_by_a_network(space, values, lambda inner: FrameStack(inner, 3))
    assert np.isfinite(seen).all() and len({row.tobytes() for row in seen}) == len(values)
    assert np.abs(seen).max() == pytest.approx(largest, abs=1e-6)


@pytest.mark.parametrize(
    ("space", "values", "message"),
    [
        (spaces.Discrete(4), [0, 4], r"expected int32\[\] from 0 to 3, found int64 4"),
        (spaces.Discrete(4), [0, -1], r"expected int32\[\] from 0 to 3, found int64 -1"),
        (spaces.Discrete(2, start=5), [5, 4], r"expected int32\[\] from 5 to 6, found int64 4"),
        (spaces.Discrete(5_000), [0, 5_000], r"expected int32\[\] from 0 to 4999, found int64 5000"),
        (spaces.MultiDiscrete([3, 2]), [[0, 0], [3, 0]], r"expected int32\[2\] from 0 to 2, found int64 3 at \[0\]"),
        (spaces.MultiDiscrete([3, 2]), [[0, 0], [0, 2]], r"expected int32\[2\] from 0 to 1, found int64 2 at \[1\]"),
        (spaces.MultiDiscrete([3, 2]), [[0, 0], [0, -1]], r"expected int32\[2\] from 0 to 1, found int64 -1 at \[1\]"),
    ],
)
def test_choices_out_of_their_range_are_refused(space: Any, values: list[Any], message: str) -> None:
    arrays = [np.array(value) for value in values]
    with pytest.raises(SpecError, match=f"step 1 of an episode: observation: {message}"):
        observe(space, arrays)


class _ShowsFour(dm_env.Environment):
    """Shows choice 4 of 0 to 3; no adapter stands before it."""

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(np.array(4, np.int32))

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.termination(0.0, np.array(4, np.int32))

    def observation_spec(self) -> Any:
        return specs.DiscreteArray(4)

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)


def test_one_hot_checks_choices_for_itself() -> None:
    with pytest.raises(SpecError, match=r"one_hot: found 4|one_hot: found \["):
        OneHot(_ShowsFour()).reset()


def test_one_choice_of_a_batch_or_of_a_nest_is_refused_by_its_place() -> None:
    spec = specs.EnvironmentSpec(
        {"cell": specs.DiscreteArray(3), "cards": specs.BoundedArray((2,), np.int32, 0, [2, 1])},
        specs.DiscreteArray(2), specs.Array((), np.float32), specs.Array((), np.float32),
    )  # fmt: skip
    check = StepCheck(spec, num_envs=2)

    def step(cell: list[int], cards: list[list[int]]) -> None:
        observation = {"cell": np.array(cell, np.int32), "cards": np.array(cards, np.int32)}
        ones = np.ones(2, np.float32)
        check(dm_env.TimeStep(np.ones(2, np.int32), ones, ones, observation), np.zeros(2, np.int32), 7)

    step([0, 2], [[2, 1], [0, 0]])
    with pytest.raises(
        SpecError, match=r"step 7 the environment's observation/cell of environment 1: .* 0 to 2, .* 3\. Mend"
    ):
        step([0, 3], [[2, 1], [0, 0]])
    with pytest.raises(SpecError, match=r"observation/cards of environment 0: .* 0 to 1, found int32 2 at \[1\]"):
        step([0, 0], [[2, 2], [0, 0]])


def test_images_of_bytes_reach_a_torso_as_they_are() -> None:
    """What augments or stores them keeps a byte a pixel, and agents their bits."""
    for shape in ((8, 8, 3), (3, 84, 84), (2, 8, 8, 1)):
        image = np.zeros((1, *shape), np.uint8)
        for spec in (specs.BoundedArray(shape, np.uint8, 0, 255), specs.Array(shape, np.uint8)):
            assert networks.encode_inputs(spec, image) is image


@pytest.mark.parametrize(
    "space", [spaces.Discrete(2**40), spaces.Discrete(2**40, start=1), spaces.MultiDiscrete([2**40, 3])]
)
def test_choices_beyond_int32_are_refused(space: Any) -> None:
    with pytest.raises(SpecError, match=r"^The action space .* has a choice of 1,099,511,627,776 values, expected at"):
        space_to_spec(space, "action")
