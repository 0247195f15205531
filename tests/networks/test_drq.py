"""DrQ-v2's convolutions, trunk and random shifts."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks as nets

KEY = jax.random.PRNGKey(3)
RNG = np.random.default_rng(0)
shift = jax.jit(nets.random_shift, static_argnums=2)


def shifted(image: np.ndarray, down: int, right: int) -> np.ndarray:
    """An image [H, W, C] moved by hand; what comes in from outside is the nearest pixel of the edge."""
    height, width, _ = image.shape
    rows = [min(max(i - down, 0), height - 1) for i in range(height)]
    columns = [min(max(i - right, 0), width - 1) for i in range(width)]
    return image[rows][:, columns]


def find_shift(before: np.ndarray, after: np.ndarray, most: int) -> tuple[int, int]:
    """The one movement that makes the one image of the other."""
    (found,) = [
        (down, right)
        for down in range(-most, most + 1)
        for right in range(-most, most + 1)
        if np.array_equal(shifted(before, down, right), after)
    ]
    return found


@pytest.mark.parametrize("layout", ["channels last", "channels first", "stack"])
def test_each_image_moves_as_a_whole_by_pixels_of_its_own(layout: str) -> None:
    images = RNG.integers(0, 256, (60, 12, 16, 6), np.uint8)
    to_layout: Any = {
        "channels last": lambda x: x,
        "channels first": lambda x: np.moveaxis(x, -1, 1),
        "stack": lambda x: np.moveaxis(x.reshape(*x.shape[:-1], 2, 3), -2, 1),
    }[layout]
    found = np.asarray(shift(to_layout(images), KEY, 2))
    assert found.dtype == np.uint8 and found.shape == to_layout(images).shape
    moved: Any = {
        "channels last": lambda x: x,
        "channels first": lambda x: np.moveaxis(x, 1, -1),
        "stack": lambda x: np.moveaxis(x, 1, -2).reshape(images.shape),
    }[layout](found)
    moves = {find_shift(before, after, 2) for before, after in zip(images, moved, strict=True)}
    assert {down for down, _ in moves} == {right for _, right in moves} == set(range(-2, 3))
    assert len(moves) > 15  # Of 25: the two directions are drawn for themselves.
    other = np.asarray(shift(to_layout(images), jax.random.PRNGKey(4), 2))
    assert np.any(other != found)


@pytest.mark.full
def test_numbers_beside_images_stay_and_two_cameras_move_apart() -> None:
    camera = RNG.random((8, 84, 84, 3)).astype(np.float32)
    nest = {"left": camera, "right": camera.copy(), "speed": RNG.random((8, 3)).astype(np.float32)}
    found = shift(nest, KEY, None)  # 4 of 84.
    np.testing.assert_array_equal(found["speed"], nest["speed"])
    pairs = {side: zip(camera, np.asarray(found[side]), strict=True) for side in ("left", "right")}
    left, right = ([find_shift(*pair, 4) for pair in pairs[side]] for side in ("left", "right"))
    assert left != right
    np.testing.assert_array_equal(shift(nest, KEY, 0)["left"], camera)


def test_the_encoder_is_drqs() -> None:
    """The sizes in 2107.09645's code: 39,200 features of 84 x 84 pixels, and 50 of them behind the trunk."""
    network = hk.without_apply_rng(hk.transform(lambda x: nets.trunk(nets.drq_torso(x), 50)))
    image = RNG.integers(0, 256, (2, 84, 84, 9), np.uint8)
    params = jax.eval_shape(network.init, KEY, image)
    shapes = {f"{name}/{key}": x.shape for name, layer in params.items() for key, x in layer.items()}
    assert shapes["drq_torso/conv2_d/w"] == (3, 3, 9, 32)
    assert [shapes[f"drq_torso/conv2_d_{i}/w"] for i in (1, 2, 3)] == [(3, 3, 32, 32)] * 3
    assert shapes["trunk/w"] == (32 * 35 * 35, 50) and shapes["trunk_norm/scale"] == (50,)


@pytest.mark.parametrize(("size", "left"), [(5, 3), (12, 6), (35, 18), (36, 11)])
def test_small_images_are_padded_so_that_something_is_left_of_them(size: int, left: int) -> None:
    network = hk.without_apply_rng(hk.transform(nets.drq_torso))
    image = jax.ShapeDtypeStruct((3, size, size, 1), np.uint8)
    params = jax.eval_shape(network.init, KEY, image)
    assert jax.eval_shape(network.apply, params, image).shape == (3, 32 * left * left)


@pytest.mark.full
def test_the_trunk_is_normalised_and_bounded() -> None:
    network = hk.without_apply_rng(hk.transform(lambda x: nets.trunk(x, 7)))
    features = 1e4 * RNG.random((5, 3)).astype(np.float32)
    found = network.apply(network.init(KEY, features), features)
    before = np.arctanh(np.asarray(found, np.float64))
    np.testing.assert_allclose(before.mean(axis=-1), 0, atol=1e-4)
    np.testing.assert_allclose(before.std(axis=-1), 1, atol=1e-3)


@pytest.mark.full
def test_convolutions_begin_orthogonal() -> None:
    init = nets.orthogonal(2.0**0.5)
    weights = hk.transform(lambda: hk.get_parameter("w", (3, 3, 2, 16), init=init)).init(KEY)["~"]["w"].reshape(18, 16)
    np.testing.assert_allclose(weights.T @ weights, 2 * jnp.eye(16), atol=1e-5)
