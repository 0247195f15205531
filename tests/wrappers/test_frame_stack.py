"""Stacked images: a network sees the frames' channels side by side, whatever the layout that they came in."""

import json
import pickle

import dm_env
import numpy as np
import pytest
import tree

from agentkit import networks, specs
from agentkit.experiment.policies.policy_file import decode_spec, encode_spec
from agentkit.networks.torsos import describe_input
from agentkit.wrappers.frame_stack import FrameStack
from agentkit.wrappers.single_precision import SinglePrecision


class Frames(dm_env.Environment):
    """Shows these frames, one at each step, with a mask of legal actions beside them."""

    def __init__(self, frames):
        self.frames = frames

    def reset(self):
        self.number = 0
        return dm_env.restart(self.observe())

    def step(self, action):
        self.number += 1
        return dm_env.transition(0.0, self.observe())

    def observe(self):
        return {"image": self.frames[self.number], specs.ACTION_MASK: np.arange(2) == self.number % 2}

    def observation_spec(self):
        frame = self.frames[0]
        return {
            "image": specs.BoundedArray(frame.shape, frame.dtype, 0, 255),
            specs.ACTION_MASK: specs.Array((2,), bool),
        }

    def action_spec(self):
        return specs.DiscreteArray(2)


def as_network_sees(image):
    return np.rint(np.asarray(networks.to_unit_image(image[None]))[0] * 255)


@pytest.mark.parametrize(
    ("shape", "stacked"),
    [
        ((84, 84, 3), (84, 84, 12)),
        ((3, 84, 84), (12, 84, 84)),
        ((1, 84, 84), (4, 84, 84)),
        ((84, 84), (84, 84, 4)),
        ((6, 7), (6, 7, 4)),
        # Joined along an axis, these would be taken for images of another layout.
        ((8, 10, 3), (4, 8, 10, 3)),
        ((3, 8, 8), (4, 3, 8, 8)),
        ((5, 84, 2), (4, 5, 84, 2)),
    ],
)
def test_the_frames_of_an_image_are_its_channels(shape, stacked):
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 256, shape, np.uint8) for _ in range(6)]
    environment = FrameStack(Frames(frames), 4)
    spec = environment.observation_spec()["image"]
    environment.reset()
    seen = [environment.step(0).observation["image"] for _ in range(5)][-1]
    assert seen.shape == spec.shape == spec.minimum.shape == stacked and seen.dtype == np.uint8
    singles = [as_network_sees(frame[..., None] if frame.ndim == 2 else frame) for frame in frames[2:]]
    np.testing.assert_array_equal(as_network_sees(seen), np.concatenate(singles, axis=-1))


def test_gray_images_lower_than_the_stack_is_deep_become_a_stack_of_images():
    environment = FrameStack(Frames([np.full((5, 84), i, np.uint8) for i in range(9)]), 8)
    environment.reset()
    seen = [environment.step(0).observation["image"] for _ in range(8)][-1]
    assert seen.shape == environment.observation_spec()["image"].shape == (8, 5, 84, 1)
    np.testing.assert_array_equal(as_network_sees(seen)[0, 0], np.arange(1, 9))


def test_stacks_of_images_with_the_channels_first_are_joined_along_them():
    stack = np.random.default_rng(0).integers(0, 256, (2, 3, 9, 8), np.uint8)
    np.testing.assert_array_equal(as_network_sees(stack), as_network_sees(np.moveaxis(stack, 1, -1)))
    assert specs.image_axes(stack.shape) == (2, 3) and specs.image_axes((2, 9, 8, 3)) == (1, 2)
    deeper = FrameStack(Frames([stack]), 4).observation_spec()["image"]
    assert deeper.shape == (8, 3, 9, 8)  # As 12 channels they would be more than there are pixels.


def test_a_mask_of_legal_actions_stays_the_newest():
    environment = FrameStack(Frames([np.zeros((6, 6, 1), np.uint8)] * 3), 3)
    environment.reset()
    for number in (1, 2):
        mask = environment.step(0).observation[specs.ACTION_MASK]
        np.testing.assert_array_equal(mask, np.arange(2) == number % 2)
    assert environment.observation_spec()[specs.ACTION_MASK] == specs.Array((2,), bool)


class Parts(dm_env.Environment):
    """Shows ones in each part of its spec."""

    def __init__(self, spec):
        self.spec = spec

    def reset(self):
        return dm_env.restart({name: np.ones(leaf.shape, leaf.dtype) for name, leaf in self.spec.items()})

    def step(self, action):
        return self.reset()._replace(step_type=dm_env.StepType.MID, reward=0.0, discount=1.0)

    def observation_spec(self):
        return self.spec

    def action_spec(self):
        return specs.DiscreteArray(2)


PARTS = {
    "image": specs.BoundedArray((7, 7, 20), np.uint8, 0, 255),
    "speed": specs.Array((), np.float32),
    "cell": specs.DiscreteArray(500, np.int32),
    "small": specs.DiscreteArray(3, np.int8),
    "several": specs.BoundedArray((3,), np.int32, 0, [4, 4, 2]),
}


def test_scalars_beside_an_image_are_stacked_and_leave_the_image_as_it_is():
    environment = FrameStack(Parts(PARTS), 4)
    spec, seen = environment.observation_spec(), environment.reset().observation
    assert {name: leaf.shape for name, leaf in spec.items()} == {
        "image": (7, 7, 80), "speed": (4,), "cell": (4,), "small": (4,), "several": (12,)
    }  # fmt: skip
    specs.validate(seen, spec)
    assert describe_input(spec["image"]) == "an image of 7 x 7 pixels and 80 channels, divided by 255"


def test_stacked_choices_stay_choices_in_32_bits_and_in_a_policy_file():
    environment = SinglePrecision(FrameStack(Parts(PARTS | {"cell": specs.DiscreteArray(500, np.int64)}), 4))
    spec = specs.make_environment_spec(environment)
    for each in (spec, decode_spec(json.loads(json.dumps(encode_spec(spec))))):
        found = each.observations
        assert found["cell"].dtype == np.int32
        assert [len(specs.num_choices(found[name])) for name in ("cell", "small", "several")] == [4, 4, 12]
        assert tree.map_structure(repr, found) == tree.map_structure(repr, spec.observations)


@pytest.mark.parametrize("flatten", [True, False])
@pytest.mark.parametrize("name", ["cell", "small", "several"])
def test_stacked_choices_are_the_indicators_of_each_frame(name, flatten):
    """As numbers they would be up to 499."""
    plain, stacked = Parts({name: PARTS[name]}), FrameStack(Parts({name: PARTS[name]}), 4, flatten)
    spec, inner = stacked.observation_spec()[name], PARTS[name]
    assert isinstance(pickle.loads(pickle.dumps(spec)), specs.Choices)
    one, four = (
        np.asarray(networks.encode_inputs(each.observation_spec(), {name: each.reset().observation[name][None]})[name])
        for each in (plain, stacked)
    )
    assert four.shape == (1, 4 * one.size) and four.sum() == 4 * one.sum() == 4 * max(np.prod(inner.shape), 1)
