"""From observations to features: convolutions for each image, and one vector of all that is no image."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from agentkit import specs
from agentkit.errors import SpecError
from agentkit.networks.action_mask import split_action_mask
from agentkit.networks.convolution import Conv2D
from agentkit.specs import is_channels_first, is_image
from agentkit.types import Array, Nest

Torso = Callable[[Nest], Array]
"""Returns features ``[B, F]`` of observations ``[B, ...]``, as `encode_inputs` gives them; may use Haiku modules."""

_ATARI_PIXELS = 36
_SHALLOW_PIXELS = 20
_BYTE = 255
_MAX_SIZE = 1024
_MAX_EXACT = 2**24


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
            f"The torso {name!r} is for images, [H, W, C] of at least {specs.MIN_PIXELS} x {specs.MIN_PIXELS} pixels, "
            f"found observations of shapes {[list(leaf.shape[1:]) for leaf in leaves]}. Take another one."
        )


def to_unit_image(leaf: Array) -> jax.Array:
    """Returns images ``[B, H, W, C]`` in float32; integers are divided by 255, floats and bools stay as they are.

    Of integers with other bounds than bytes have, `encode_inputs` has made floats.

    Args:
        leaf: ``[B, H, W, C]``, ``[B, C, H, W]`` where the first axis is the smallest, or ``[B, S, H, W, C]`` or
            ``[B, S, C, H, W]``, stacks of S images, whose channels are joined.
    """
    if is_channels_first(leaf.shape[1:]):
        leaf = jnp.moveaxis(leaf, -3, -1)
    if leaf.ndim == 5:
        leaf = jnp.moveaxis(leaf, 1, -2)
        leaf = leaf.reshape(*leaf.shape[:3], -1)
    image = leaf.astype(jnp.float32)
    return image / 255.0 if jnp.issubdtype(leaf.dtype, jnp.integer) else image


def encode_inputs(spec: Nest, nest: Nest) -> Nest:
    """Returns a network's inputs as it should see them: choices as indicators, images and large integers of order 1.

    A choice's number is no size: see `specs.num_choices`. An action mask stays as it is.

    Args:
        spec: of `nest`, without a batch axis.
        nest: leaves ``[B, ...]``.

    Returns:
        The nest with float32 ``[B, n]`` for each leaf of choices between n values in all. Images are divided by the
        largest size within their bounds, those of floats only if it is above 1; so are integers that are no image, but
        have bounds beyond 1,024, and bytes (uint8) in [0, 255]. Of integers that float32 would not tell apart the bound
        next to 0 is taken off before. Images of bytes are left to `to_unit_image`, and what has no bounds is as it was.
    """

    def encode(path: tuple[Any, ...], leaf: specs.Array, x: Array) -> Array:
        if path and getattr(path[-1], "key", None) == specs.ACTION_MASK:
            return x
        if counts := specs.num_choices(leaf):
            # One comparison: an indicator for each of many choices would compile for minutes.
            columns, most = jnp.reshape(x, (x.shape[0], len(counts), 1)), max(counts)
            indicators = (columns == np.arange(most)[None, None]).astype(jnp.float32)  # [B, len(counts), most]
            if min(counts) == most:
                return jnp.reshape(indicators, (x.shape[0], len(counts) * most))
            return jnp.concatenate([indicators[:, i, :n] for i, n in enumerate(counts)], axis=-1)
        scaling = _scaling(leaf)
        if scaling is None:
            return x
        if np.any(scaling.offset):
            x = x - scaling.offset
        return jnp.asarray(x, jnp.float32) / scaling.divisor

    return jax.tree_util.tree_map_with_path(encode, spec, nest, is_leaf=specs.is_spec)


def describe_input(spec: specs.Array) -> str:
    """Returns in words what `encode_inputs` and a torso make of one part of an observation."""
    if counts := specs.num_choices(spec):
        choices = "a choice" if len(counts) == 1 else f"{len(counts)} choices"
        return f"{choices} as {sum(counts)} indicators"
    scaling = _scaling(spec)
    if not is_image(spec.shape):
        count = math.prod(spec.shape)
        if scaling is not None:
            return f"{count} {'byte' if spec.dtype == np.uint8 else 'number'}{_s(count)}, {scaling}"
        return "1 number as it is" if count == 1 else f"{count} numbers as they are"
    height, width = (spec.shape[axis] for axis in specs.image_axes(spec.shape))
    channels = spec.shape[-3 if is_channels_first(spec.shape) else -1]
    images = f"a stack of {spec.shape[0]} images" if len(spec.shape) == 4 else "an image"
    if scaling is None and spec.dtype.kind in "iu":
        scaling = _Scaling(0, _BYTE)
    scaled = "" if scaling in (None, _Scaling(0, 1)) else f", {scaling}"
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


class _Scaling(NamedTuple):
    """How to make an input of order 1: ``(x - offset) / divisor``, each a number or an array of the input's shape."""

    offset: Any
    divisor: Any

    def __str__(self) -> str:
        if np.ndim(self.divisor) or np.ndim(self.offset):
            return "scaled by their bounds"
        return f"{f'less {self.offset:g}, ' if self.offset else ''}divided by {self.divisor:g}"


def _scaling(spec: specs.Array) -> _Scaling | None:
    """Returns how an input is scaled by its bounds; None for one that stays, as floats do that are no image."""
    is_whole, is_pixels = spec.dtype.kind in "iu", is_image(spec.shape)
    if not isinstance(spec, specs.BoundedArray) or not (is_whole or (is_pixels and spec.dtype.kind == "f")):
        return None
    low, high = (np.broadcast_to(bound, spec.shape) for bound in (spec.minimum, spec.maximum))
    if is_pixels:  # All of them by the same number.
        low, high = np.min(low), np.max(high)
    if spec.dtype == np.uint8 and (high == _BYTE).all():
        return None if is_pixels or (low != 0).any() else _Scaling(0, _BYTE)
    is_bounded = specs.is_finite_bound(low, spec.dtype) & specs.is_finite_bound(high, spec.dtype)
    low, high = (np.where(is_bounded, bound, 0).astype(np.float64) for bound in (low, high))
    largest = np.maximum(np.abs(low), np.abs(high))
    # A board of 0 and 1 is divided by 1, so that it is not taken for bytes.
    is_scaled = is_bounded & ((largest > (1 if is_pixels else _MAX_SIZE)) | (is_pixels and is_whole))
    if not is_scaled.any():
        return None
    nearest = np.clip(0, low, high)
    is_blurred = is_scaled & is_whole & (largest > _MAX_EXACT) & (high - low < np.abs(nearest))
    offset = np.where(is_blurred, nearest, 0)
    divisor = np.where(is_scaled, np.maximum(np.where(is_blurred, high - low, largest), 1), 1)
    return _Scaling(_one_for_all(offset.astype(spec.dtype)), _one_for_all(divisor.astype(np.float32)))


def _one_for_all(values: np.ndarray) -> Any:
    """Returns the number that all of an array are, else the array with a batch axis."""
    return values.flat[0] if (values == values.flat[0]).all() else values[None]


def _flat(leaf: Array) -> jax.Array:
    return leaf.reshape(leaf.shape[0], -1).astype(jnp.float32)
