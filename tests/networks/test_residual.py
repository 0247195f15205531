"""IMPALA's residual torso: its size, its arithmetic against numpy, and the images it refuses."""

from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import networks
from agentkit.errors import SpecError
from agentkit.testing.programs import quickly_compiled

NETWORK = hk.without_apply_rng(hk.transform(networks.residual_torso))


def parameters(shape: tuple[int, ...], seed: int = 0) -> dict[str, Any]:
    return NETWORK.init(jax.random.PRNGKey(seed), np.zeros((1, *shape), np.uint8))


def some_images(shape: tuple[int, ...], size: int = 2) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (size, *shape), np.uint8)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(84, 84, 4), (9, 13, 2)])
def test_images_of_any_size_become_256_features(shape: tuple[int, ...]) -> None:
    params = jax.jit(parameters, static_argnums=0)(shape)
    features = jax.jit(NETWORK.apply)(params, some_images(shape))
    assert features.shape == (2, 256) and features.dtype == jnp.float32
    assert np.all(np.asarray(features) >= 0) and np.any(np.asarray(features[0] != features[1]))


def size_by_hand(height: int, width: int, channels: int) -> int:
    """Figure 3: weights and biases of 3 x 3 convolutions, five to a section, and of the linear layer of 256 units."""

    def conv(inputs: int, outputs: int) -> int:
        return 3 * 3 * inputs * outputs + outputs

    for _ in range(3):
        height, width = -(-height // 2), -(-width // 2)
    sections = [(channels, 16), (16, 32), (32, 32)]
    convolutions = sum(conv(before, after) + 4 * conv(after, after) for before, after in sections)
    return convolutions + (height * width * 32) * 256 + 256


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84, 4), 97_744 + (11 * 11 * 32 + 1) * 256),
        ((64, 64, 3), 97_600 + (8 * 8 * 32 + 1) * 256),
        # The frames of the paper: 1.0 million, and the figure's 1.6 million with an LSTM of 0.6 million behind.
        ((72, 96, 3), 982_592),
    ],
)
def test_it_has_as_many_parameters_as_the_papers_figure(shape: tuple[int, ...], expected: int) -> None:
    params = jax.eval_shape(lambda: parameters(shape))
    leaves = jax.tree.leaves(params)
    assert sum(leaf.size for leaf in leaves) == expected == size_by_hand(*shape)
    kernels = [leaf.shape for leaf in leaves if len(leaf.shape) == 4]
    assert len(kernels) == 15 and {kernel[:2] for kernel in kernels} == {(3, 3)}


def padded(x: np.ndarray, stride: int, fill: float) -> np.ndarray:
    """``[H, W, C]`` with what TensorFlow's "SAME" adds for windows of 3: the odd one behind."""
    pads = []
    for size in x.shape[:2]:
        total = max((-(-size // stride) - 1) * stride + 3 - size, 0)
        pads.append((total // 2, total - total // 2))
    return np.pad(x, [*pads, (0, 0)], constant_values=fill)


def convolved(x: np.ndarray, layer: Any) -> np.ndarray:
    height, width = x.shape[:2]
    wide = padded(x, 1, 0.0)
    shifts = [(i, j) for i in range(3) for j in range(3)]
    return sum(wide[i : i + height, j : j + width] @ layer["w"][i, j] for i, j in shifts) + layer["b"]


def pooled(x: np.ndarray) -> np.ndarray:
    height, width = (-(-size // 2) for size in x.shape[:2])
    wide = padded(x, 2, -np.inf)
    rows = [[wide[2 * i : 2 * i + 3, 2 * j : 2 * j + 3].max(axis=(0, 1)) for j in range(width)] for i in range(height)]
    return np.array(rows)


def features_by_hand(params: Any, image: np.ndarray) -> np.ndarray:
    """The figure's boxes, from left to right, on one image ``[H, W, C]``."""
    names = [f"residual_torso/conv2_d{'' if i == 0 else f'_{i}'}" for i in range(15)]
    layers = iter([jax.tree.map(np.float64, params[name]) for name in names])
    x = image / 255.0
    for _ in range(3):
        x = pooled(convolved(x, next(layers)))
        for _ in range(2):
            inside = convolved(np.maximum(x, 0), next(layers))
            x = x + convolved(np.maximum(inside, 0), next(layers))
    linear = jax.tree.map(np.float64, params["residual_torso/linear"])
    return np.maximum(np.maximum(x, 0).reshape(-1) @ linear["w"] + linear["b"], 0)


@pytest.mark.full
@pytest.mark.parametrize("shape", [(8, 12, 3), (11, 9, 1)])
def test_its_features_are_those_of_the_figure_worked_out_in_numpy(shape: tuple[int, ...]) -> None:
    """Even and odd sizes, with biases that are not 0."""
    rng = np.random.default_rng(1)
    params = jax.tree.map(lambda leaf: leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32), parameters(shape))
    images = some_images(shape)
    expected = np.stack([features_by_hand(params, image) for image in images])
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(NETWORK.apply(params, images), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.full
def test_integers_are_divided_by_255_and_floats_are_not() -> None:
    images, params = some_images((16, 16, 3)), parameters((16, 16, 3))
    expected = NETWORK.apply(params, images)
    for same in (images.astype(np.int32), images / np.float32(255)):
        np.testing.assert_allclose(NETWORK.apply(params, same), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.full
def test_its_gradient_reaches_every_layer() -> None:
    params = parameters((16, 16, 3))
    grads = jax.grad(lambda params: jnp.sum(NETWORK.apply(params, some_images((16, 16, 3)))))(params)
    for path, leaf in jax.tree_util.tree_leaves_with_path(grads):
        assert np.any(np.asarray(leaf) != 0), path


@pytest.mark.full
def test_images_come_with_an_action_mask_or_without() -> None:
    images = some_images((16, 16, 3))
    params = parameters((16, 16, 3))
    masked = {"pixels": images, "action_mask": np.ones((2, 5), bool)}
    np.testing.assert_array_equal(NETWORK.apply(params, masked), NETWORK.apply(params, images))


@pytest.mark.parametrize("shape", [(7, 7, 3), (84, 6, 1)])
def test_too_small_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match=rf"at least 8 x 8.*\[{shape[0]}, {shape[1]}\].*take another torso"):
        parameters(shape)


def test_what_comes_beside_an_image_stays_as_its_numbers() -> None:
    nest = {"image": some_images((16, 16, 3)), "speed": np.ones((2, 3), np.float32)}
    params = quickly_compiled(NETWORK.init)(jax.random.PRNGKey(0), nest)
    features = quickly_compiled(NETWORK.apply)(params, nest)
    assert features.shape == (2, 256 + 3)
    np.testing.assert_array_equal(features[:, 256:], nest["speed"])


def test_observations_without_an_image_are_refused() -> None:
    with pytest.raises(SpecError, match=r"'impala' is for images.*found observations of shapes \[\[3\]\]"):
        NETWORK.init(jax.random.PRNGKey(0), np.zeros((2, 3), np.float32))
