"""DrQ-v2's encoder of images, the trunk behind it, and its augmentation (Yarats et al. 2021, 2107.09645)."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.networks.convolution import Conv2D
from agentkit.networks.mlp import orthogonal
from agentkit.networks.torsos import torso
from agentkit.specs import image_axes, is_image
from agentkit.types import Array, Nest

_VALID_PIXELS = 36
_SHIFT_OF_84 = 4


class DrqTorso(hk.Module):
    """Applies DrQ-v2's convolutions: images ``[B, H, W, C]`` to features ``[B, F]``, 39,200 of 84 x 84 pixels.

    Four convolutions of 32 channels and 3 x 3, the first with stride 2, on pixels in [-0.5, 0.5]. Images of less than
    36 x 36 pixels are zero-padded at each, so that something is left of them.
    """

    def __call__(self, image: Array) -> jax.Array:
        """Returns the features of a batch of images, as `to_unit_image` gives them."""
        padding = "VALID" if min(image.shape[1:3]) >= _VALID_PIXELS else "SAME"
        x = image - 0.5
        for stride in (2, 1, 1, 1):
            x = jax.nn.relu(Conv2D(32, 3, stride, padding=padding, w_init=orthogonal(2.0**0.5))(x))
        return hk.Flatten()(x)


def drq_torso(observation: Nest) -> jax.Array:
    """Returns features ``[B, F]``: of each image by DrQ-v2's convolutions, of all else the numbers themselves.

    Args:
        observation: an array ``[B, ...]`` or a nest of them. An action mask is left out.
    """
    return torso(observation, lambda image: DrqTorso()(image))


def trunk(features: Array, size: int) -> jax.Array:
    """Returns ``[B, size]`` in [-1, 1] of features ``[B, F]``: a linear layer, layer normalisation and tanh."""
    x = hk.Linear(size, w_init=orthogonal(1.0), name="trunk")(features)
    return jnp.tanh(hk.LayerNorm(-1, create_scale=True, create_offset=True, name="trunk_norm")(x))


def random_shift(observation: Nest, key: jax.Array, max_shift: int | None = None) -> Nest:
    """Shifts each image by up to `max_shift` pixels along both of its axes; its edge is repeated.

    Each item of the batch is shifted by numbers of its own, the same for all frames and channels of a stack. Dtypes
    stay, and so does all that is no image.

    Args:
        observation: an array ``[B, ...]`` or a nest of them.
        key: PRNG key ``uint32[2]``.
        max_shift: in pixels; None for `default_shift` of each image.
    """
    leaves, structure = jax.tree.flatten(observation)
    for i, leaf in enumerate(leaves):
        if is_image(leaf.shape[1:]):
            most = default_shift(leaf.shape[1:]) if max_shift is None else max_shift
            leaves[i] = _shift(leaf, jax.random.fold_in(key, i), most)
    return jax.tree.unflatten(structure, leaves)


def default_shift(shape: tuple[int, ...]) -> int:
    """Returns by how many pixels an image of this shape is shifted at most: DrQ-v2's 4 of 84, to scale.

    >>> tuple(default_shift((size, size, 3)) for size in (10, 24, 84))
    (0, 1, 4)
    """
    return round(_SHIFT_OF_84 * min(shape[axis] for axis in image_axes(shape)) / 84)


def _shift(images: Array, key: jax.Array, most: int) -> Array:
    """Shifts images ``[B, ...]`` of any layout."""
    if most == 0:
        return images
    height, width = image_axes(images.shape[1:])
    around = [(most, most) if axis in (height, width) else (0, 0) for axis in range(images.ndim - 1)]
    padded = jnp.pad(images, [(0, 0), *around], mode="edge")
    corners = jax.random.randint(key, (images.shape[0], 2), 0, 2 * most + 1)  # [B, 2]

    def cut(image: Array, corner: Array) -> Array:
        start = [0] * image.ndim
        start[height], start[width] = corner[0], corner[1]
        return jax.lax.dynamic_slice(image, start, images.shape[1:])

    return jax.vmap(cut)(padded, corners)
