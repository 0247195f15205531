"""From observations to features: convolutions for each image, and one vector of all that is no image."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.networks.action_mask import split_action_mask
from agentkit.networks.convolution import Conv2D
from agentkit.types import Array, Nest

Torso = Callable[[Nest], Array]
"""Returns features ``[B, F]`` of observations ``[B, ...]``, as `encode_inputs` gives them; may use Haiku modules."""

_ATARI_PIXELS = 36
_SHALLOW_PIXELS = 20
_GRID_PIXELS = 5
_MAX_VALUES, _MAX_VALUES_OF_MANY = 1024, 64


class AtariTorso(hk.Module):
    """Applies the convolutions of Mnih et al. (2015): images ``[B, H, W, C]`` to features ``[B, F]``.

    Raises:
        SpecError: images of less than 36 x 36 pixels, of which the convolutions would leave nothing.
    """

    def __call__(self, image: Array) -> jax.Array:
        """Returns the features of a batch of images, as `to_unit_image` gives them."""
        return _convolve(image, ((32, 8, 4), (64, 4, 2), (64, 3, 1)), _ATARI_PIXELS)


class ShallowTorso(hk.Module):
    """Applies the two convolutions of Mnih et al. (2013, 1312.5602): images ``[B, H, W, C]`` to features ``[B, F]``.

    They are those of the "shallow" network of IMPALA's paper, too (Espeholt et al. 2018, 1802.01561), and cost a third
    of `AtariTorso`.

    Raises:
        SpecError: images of less than 20 x 20 pixels, of which the convolutions would leave nothing.
    """

    def __call__(self, image: Array) -> jax.Array:
        """Returns the features of a batch of images, as `to_unit_image` gives them."""
        return _convolve(image, ((16, 8, 4), (32, 4, 2)), _SHALLOW_PIXELS)


class GridTorso(hk.Module):
    """Applies the one convolution of Young & Tian (2019, 1903.03176), 16 channels of 3 x 3, for small images."""

    def __call__(self, image: Array) -> jax.Array:
        """Returns the features ``[B, F]`` of images ``[B, H, W, C]`` of at least 5 x 5 pixels."""
        return hk.Flatten()(jax.nn.relu(Conv2D(16, 3, padding="VALID")(image)))


def convolve(image: Array) -> jax.Array:
    """Returns the features ``[B, F]`` of images: DQN's convolutions, or a `GridTorso` for less than 36 pixels."""
    return (AtariTorso() if min(image.shape[1:3]) >= _ATARI_PIXELS else GridTorso())(image)


def torso(observation: Nest, image_torso: Callable[[Array], jax.Array] = convolve) -> jax.Array:
    """Returns features ``[B, F]`` of observations: of each image by convolutions, of all else the numbers themselves.

    Leaves of three axes and at least 5 x 5 pixels are images. An action mask is left out.

    Args:
        observation: an array ``[B, ...]`` or a nest of them.
        image_torso: from images ``[B, H, W, C]``, as `to_unit_image` gives them, to features.
    """
    leaves, _ = split_action_mask(observation)
    parts = [image_torso(to_unit_image(leaf)) if is_image(leaf.shape[1:]) else _flat(leaf) for leaf in leaves]
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=-1)


def nature_torso(observation: Nest) -> jax.Array:
    """Returns features ``[B, F]``: of each image by DQN's convolutions, whatever its size, of all else the numbers.

    Raises:
        SpecError: an observation without an image, or with one of less than 36 x 36 pixels.
    """
    check_has_image(observation, "nature")
    return torso(observation, lambda image: AtariTorso()(image))


def flatten_torso(observation: Nest) -> jax.Array:
    """Returns all numbers of an observation in one vector ``[B, F]``, images' pixels in [0, 1] among them."""
    return torso(observation, hk.Flatten())


def shallow_torso(observation: Nest) -> jax.Array:
    """Returns features ``[B, F]``: of each image by a `ShallowTorso`, of all else the numbers.

    Raises:
        SpecError: an observation without an image, or with one of less than 20 x 20 pixels.
    """
    check_has_image(observation, "shallow")
    return torso(observation, lambda image: ShallowTorso()(image))


def check_has_image(observation: Nest, name: str) -> None:
    """Refuses observations without an image, for a torso of convolutions that somebody asked for.

    Raises:
        SpecError: the message names the torso.
    """
    leaves, _ = split_action_mask(observation)
    if not any(is_image(leaf.shape[1:]) for leaf in leaves):
        raise SpecError(
            f"The torso {name!r} is for images, [H, W, C] of at least {_GRID_PIXELS} x {_GRID_PIXELS} pixels, found "
            f"observations of shapes {[list(leaf.shape[1:]) for leaf in leaves]}. Take another one."
        )


def is_image(shape: tuple[int, ...]) -> bool:
    """Returns whether an array of this shape, without a batch axis, is taken for an image, or a stack of images."""
    if len(shape) == 4:  # [S, H, W, C]
        return is_image(shape[1:])
    return len(shape) == 3 and min(_image_shape(shape)[:2]) >= _GRID_PIXELS


def image_axes(shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns which axes of an image of this shape, without a batch axis, are its height and its width."""
    first = 1 if len(shape) == 4 or _is_channels_first(shape) else 0
    return first, first + 1


def to_unit_image(leaf: Array) -> jax.Array:
    """Returns images ``[B, H, W, C]`` in float32; integers are divided by 255, floats and bools stay as they are.

    Args:
        leaf: ``[B, H, W, C]``, ``[B, C, H, W]`` where the first axis is the smallest, or ``[B, S, H, W, C]``, a stack
            of S images, whose channels are joined.
    """
    if leaf.ndim == 5:
        leaf = jnp.moveaxis(leaf, 1, -2)
        leaf = leaf.reshape(*leaf.shape[:3], -1)
    elif _is_channels_first(leaf.shape[1:]):
        leaf = jnp.moveaxis(leaf, 1, -1)
    image = leaf.astype(jnp.float32)
    return image / 255.0 if jnp.issubdtype(leaf.dtype, jnp.integer) else image


def encode_inputs(spec: Nest, nest: Nest) -> Nest:
    """Returns a network's inputs as it should see them: choices as indicators, images of floats in [0, 1].

    A choice's number is no size. Choices are each DiscreteArray of at most 1,024 values, and each vector of int32 or
    int64 that begin at 0 and have at most 64 values (gymnasium's MultiDiscrete). An action mask stays as it is.

    Args:
        spec: of `nest`, without a batch axis.
        nest: leaves ``[B, ...]``.

    Returns:
        The nest with float32 ``[B, n]`` for each leaf of choices between n values in all; images of floats whose
        bounds are 0 and a number above 1, such as 255, are divided by it, and bytes (uint8) in [0, 255] that are no
        image by 255.
    """

    def encode(path: tuple[Any, ...], leaf: specs.Array, x: Array) -> Array:
        if path and getattr(path[-1], "key", None) == specs.ACTION_MASK:
            return x
        counts = _num_choices(leaf)
        if not counts:
            return x / largest if (largest := _largest(leaf)) else x
        columns = jnp.reshape(x, (x.shape[0], -1))  # [B, len(counts)]
        return jnp.concatenate([jax.nn.one_hot(columns[:, i], n) for i, n in enumerate(counts)], axis=-1)

    return jax.tree_util.tree_map_with_path(encode, spec, nest, is_leaf=specs.is_spec)


def describe_input(spec: specs.Array) -> str:
    """Returns in words what `encode_inputs` and a torso make of one part of an observation."""
    if counts := _num_choices(spec):
        choices = "a choice" if len(counts) == 1 else f"{len(counts)} choices"
        return f"{choices} as {sum(counts)} indicators"
    if not is_image(spec.shape):
        count = math.prod(spec.shape)
        if largest := _largest(spec):
            return f"{count} byte{_s(count)}, divided by {largest:g}"
        return "1 number as it is" if count == 1 else f"{count} numbers as they are"
    *_, height, width, channels = _image_shape(spec.shape[-3:])
    images = f"a stack of {spec.shape[0]} images" if len(spec.shape) == 4 else "an image"
    largest = 255.0 if spec.dtype.kind in "iu" else _largest(spec)
    scaled = f", divided by {largest:g}" if largest else ""
    return f"{images} of {height} x {width} pixels and {channels} channel{_s(channels)}{scaled}"


def _convolve(image: Array, layers: tuple[tuple[int, int, int], ...], pixels: int) -> jax.Array:
    """Applies layers of (channels, kernel, stride) with ReLUs to images of at least so many pixels each way."""
    if min(image.shape[1:3]) < pixels:
        raise SpecError(
            f"These convolutions need images of at least {pixels} x {pixels} pixels, found "
            f"{list(image.shape[1:3])}. Give the agent networks of your own: make_agent(make_networks=...)."
        )
    for channels, kernel, stride in layers:
        image = jax.nn.relu(Conv2D(channels, kernel, stride, padding="VALID")(image))
    return hk.Flatten()(image)


def _s(count: int) -> str:
    return "" if count == 1 else "s"


def _largest(spec: specs.Array) -> float:
    """Returns what to divide an input by: floats of an image beyond [0, 1], or bytes in [0, 255]; 0 for nothing."""
    if not isinstance(spec, specs.BoundedArray) or (spec.minimum != 0).any():
        return 0.0
    if not is_image(spec.shape):
        return 255.0 if spec.dtype == np.uint8 and (spec.maximum == 255).all() else 0.0
    highest = float(np.max(spec.maximum)) if spec.dtype.kind == "f" else 0.0
    return highest if 1.0 < highest < np.inf else 0.0


def _num_choices(spec: specs.Array) -> list[int]:
    """Returns how many values each number of a leaf chooses from; nothing where its numbers are sizes."""
    if isinstance(spec, specs.DiscreteArray):
        return [int(spec.num_values)] if spec.num_values <= _MAX_VALUES else []
    is_vector = isinstance(spec, specs.BoundedArray) and len(spec.shape) == 1
    if not is_vector or spec.dtype not in (np.int32, np.int64) or (spec.minimum != 0).any():
        return []
    counts = [int(n) + 1 for n in np.broadcast_to(spec.maximum, spec.shape)]
    return counts if max(counts, default=0) <= _MAX_VALUES_OF_MANY else []


def _is_channels_first(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[0] < min(shape[1:])


def _image_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[1:], shape[0]) if _is_channels_first(shape) else shape


def _flat(leaf: Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
