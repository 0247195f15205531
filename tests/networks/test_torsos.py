"""What a network sees of observations: images of any layout and dtype, choices as indicators, parts side by side."""

from typing import Any

import dm_env
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks, specs
from agentkit.agents import dqn
from agentkit.envs.catch import Catch
from agentkit.errors import SpecError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.specs import make_environment_spec
from agentkit.testing.learning import learns

NETWORK = hk.without_apply_rng(hk.transform(networks.torso))
KEY = jax.random.PRNGKey(0)
RNG = np.random.default_rng(0)


@pytest.mark.one_case
@pytest.mark.parametrize("pixels", [(84, 84, 4), (36, 40, 1), (10, 12, 7), (5, 5, 2)])
def test_an_image_is_the_same_in_any_layout_and_dtype(pixels: tuple[int, ...]) -> None:
    image = RNG.integers(0, 256, (2, *pixels), np.uint8)
    params = NETWORK.init(KEY, image)
    expected = NETWORK.apply(params, image)
    assert expected.shape[0] == 2 and np.ptp(expected) > 0
    for same in (image.astype(np.int32), image / np.float32(255), np.moveaxis(image, -1, 1)):
        np.testing.assert_allclose(NETWORK.apply(params, same), expected, rtol=1e-4, atol=1e-5)
    stack = np.stack([image[..., i : i + 1] for i in range(pixels[-1])], axis=1)  # [B, C, H, W, 1]
    np.testing.assert_allclose(NETWORK.apply(params, stack), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_small_images_have_the_one_convolution_of_minatar_and_smaller_arrays_none() -> None:
    image = RNG.random((3, 10, 10, 4)) < 0.5
    params = NETWORK.init(KEY, image)
    assert {name: weights["w"].shape for name, weights in params.items()} == {"grid_torso/conv2_d": (3, 3, 4, 16)}
    assert NETWORK.apply(params, image).shape == (3, 8 * 8 * 16)
    small = RNG.random((3, 4, 9, 2), np.float32)
    np.testing.assert_array_equal(NETWORK.apply({}, small), small.reshape(3, -1))
    with pytest.raises(SpecError, match=r"at least 36 x 36.*\[10, 10\]"):
        hk.transform(lambda x: networks.AtariTorso()(x)).init(KEY, np.zeros((2, 10, 10, 3), np.float32))


def test_the_convolution_of_small_images_is_haikus() -> None:
    """The first weights of a seed, too, so that checkpoints and seeds mean the same."""
    image = RNG.random((3, 10, 8, 4), np.float32)
    theirs = hk.without_apply_rng(
        hk.transform(lambda x: hk.Flatten()(jax.nn.relu(hk.Conv2D(16, 3, padding="VALID")(x))))
    )
    ours = hk.without_apply_rng(hk.transform(lambda x: networks.GridTorso()(x)))
    params = ours.init(KEY, image)["grid_torso/conv2_d"]
    expected = theirs.init(KEY, image)["conv2_d"]
    jax.tree.map(np.testing.assert_array_equal, params, expected)
    params["b"] += 0.1
    found = ours.apply({"grid_torso/conv2_d": params}, image)
    np.testing.assert_allclose(found, theirs.apply({"conv2_d": params}, image), rtol=1e-4, atol=1e-5)


@pytest.mark.full
def test_every_part_of_a_nest_is_seen_and_each_image_has_convolutions_of_its_own() -> None:
    nest = {
        "near": RNG.random((2, 40, 40, 3), np.float32),
        "far": RNG.random((2, 8, 8, 1), np.float32),
        "speed": RNG.random((2, 3), np.float32),
    }
    params = NETWORK.init(KEY, nest)
    assert set(params) == {
        "atari_torso/conv2_d",
        "atari_torso/conv2_d_1",
        "atari_torso/conv2_d_2",
        "grid_torso/conv2_d",
    }
    seen = jax.grad(lambda x: jnp.sum(NETWORK.apply(params, x) ** 2))(nest)
    assert all(np.any(leaf != 0) for leaf in jax.tree.leaves(seen))


def test_choices_are_indicators_and_pixels_and_bytes_in_the_unit_interval_and_sizes_stay_numbers() -> None:
    spec = {
        "cell": specs.DiscreteArray(4),
        "cards": specs.BoundedArray((2,), np.int64, 0, np.array([1, 2])),
        "ram": specs.BoundedArray((3,), np.uint8, 0, 255),
        "level": specs.BoundedArray((1,), np.uint8, 0, 30),
        "count": specs.BoundedArray((1,), np.int32, 0, 1000),
        "shift": specs.BoundedArray((1,), np.int32, -1, 1),
        specs.ACTION_MASK: specs.BoundedArray((2,), np.int32, 0, 1),
    }
    values = {
        "cell": np.int32([2]),
        "cards": np.int64([[1, 0]]),
        "ram": np.uint8([[7, 8, 9]]),
        "level": np.uint8([[4]]),
        "count": np.int32([[12]]),
        "shift": np.int32([[-1]]),
        specs.ACTION_MASK: np.int32([[0, 1]]),
    }
    found = networks.encode_inputs(spec, values)
    np.testing.assert_array_equal(found["cell"], [[0, 0, 1, 0]])
    np.testing.assert_array_equal(found["cards"], [[0, 1, 1, 0, 0]])
    np.testing.assert_allclose(found["ram"], np.float32([[7, 8, 9]]) / 255)
    for same in ("level", "count", "shift", specs.ACTION_MASK):
        assert found[same] is values[same]
    pixels = specs.BoundedArray((6, 6, 1), np.float32, 0, 255)
    np.testing.assert_allclose(networks.encode_inputs(pixels, np.full((1, 6, 6, 1), 51, np.float32)), 0.2)
    assert networks.encode_inputs(specs.DiscreteArray(3), np.int32([1, 0])).tolist() == [[0, 1, 0], [1, 0, 0]]


class Clues(dm_env.Environment):
    """Asks for the action that one of three parts of the observation shows; which one, changes each episode."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self._answer = 0

    def observation_spec(self) -> Any:
        return {
            "cell": specs.DiscreteArray(18),
            "image": specs.BoundedArray((1, 6, 6), np.uint8, 0, 255),
            "vector": specs.Array((2,), np.float32),
        }

    def action_spec(self) -> Any:
        return specs.DiscreteArray(2)

    def reset(self) -> dm_env.TimeStep:
        self._answer, part = self._rng.integers(2), self._rng.integers(3)
        image, vector = np.zeros((1, 6, 6), np.uint8), np.zeros(2, np.float32)
        image[0, :, 3 * self._answer : 3 * self._answer + 3] = 255 * (part == 1)
        vector[self._answer] = part == 2
        # Cells 0 and 1 say nothing; of the others the odd ones mean one action, which their size hardly shows.
        cell = 2 * self._rng.integers(1, 9) + self._answer if part == 0 else 0
        return dm_env.restart({"cell": np.int32(cell), "image": image, "vector": vector})

    def step(self, action: Any) -> dm_env.TimeStep:
        return dm_env.termination(float(action == self._answer), self.reset().observation)


@pytest.mark.full
def test_dqn_learns_what_needs_every_part_of_its_observation() -> None:
    config = dqn.Config(
        hidden_sizes=(32,), n_step=1, min_replay_size=100, learning_rate=3e-3, epsilon=0.5, target_update_period=50
    )
    learns(dqn.make_agent(config), Clues, 1_500, 0.95, num_episodes=60)


def test_networks_that_cannot_be_made_are_refused_before_the_run_begins() -> None:
    experiment = ExperimentConfig(dqn.make_agent(make_networks=_no_networks), Clues, num_steps=10)
    with pytest.raises(SpecError, match="too small"):
        check_fit(experiment, make_environment_spec(Clues(0)))


@pytest.mark.parametrize(
    ("function", "found"),
    [
        (lambda x, n: hk.Linear(n + 1)(hk.Flatten()(x)), r"\[1, 4\]"),
        (lambda x, n: hk.Linear(n)(hk.Flatten()(x))[..., None], r"\[1, 3, 1\]"),
        (lambda x, n: {"q": hk.Linear(n)(hk.Flatten()(x))}, r"\{'q': \[1, 3\]\}"),
    ],
)
def test_values_that_are_not_one_for_each_action_are_refused_before_the_run_begins(function: Any, found: str) -> None:
    spec = make_environment_spec(Catch())

    def of(function: Any) -> ExperimentConfig:
        def make(spec: Any, config: Any) -> networks.Network:
            return networks.make_network(lambda x: function(x, spec.actions.num_values), spec.observations)

        return ExperimentConfig(dqn.make_agent(make_networks=make), Catch, num_steps=10)

    with pytest.raises(SpecError, match=rf"\[1, 3\] .*a value for each action \[B, A\]; found {found}"):
        check_fit(of(function), spec)
    check_fit(of(lambda x, n: hk.Linear(n)(hk.Flatten()(x))), spec)


def _no_networks(environment_spec: Any, config: Any) -> networks.Network:
    def refuse(observation: Any) -> Any:
        raise SpecError("too small")

    return networks.make_network(refuse, environment_spec.observations)


def test_many_choices_are_one_comparison() -> None:
    """An indicator for each by itself compiled for minutes; what is none of the values is no choice."""
    leaf = specs.Choices((50, 3), np.int32, [1, 2, 2])
    numbers = np.random.default_rng(0).integers(-1, 4, (4, 50, 3)).astype(np.int32)
    found = np.asarray(networks.encode_inputs(leaf, numbers))
    expected = [
        number[..., None] == np.arange(n) for number, n in zip(np.moveaxis(numbers, 2, 0), (2, 3, 3), strict=True)
    ]
    np.testing.assert_array_equal(found, np.concatenate(expected, axis=-1).reshape(4, -1))
    equal = specs.Choices((400,), np.int32, 4)
    text = str(jax.make_jaxpr(lambda x: networks.encode_inputs(equal, x))(np.zeros((2, 400), np.int32)))
    assert text.count(" eq ") == 1 and len(text.splitlines()) < 15
