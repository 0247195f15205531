"""A convolution whose gradients are as fast inside of a loop as outside of one, on a CPU, too.

XLA turns convolutions into the one arrangement of axes that its fast code for CPUs has, but only outside of loops; and
updates are loops, over epochs, minibatches or the batches of a call. There the two gradients of DQN's convolutions took
24 times as long (jaxlib 0.10 and 0.4.34). Here they have that arrangement from the start, and the same bits
(decision 98).
"""

from __future__ import annotations

import functools
import math
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_derivatives import SymbolicZero

from agentkit.types import Array

_FAST = ("NHWC", "HWIO", "NHWC")


class Conv2D(hk.Module):
    """Convolves images, as ``hk.Conv2D`` does, with parameters of the same names, shapes and first values."""

    def __init__(
        self,
        output_channels: int,
        kernel_shape: int,
        stride: int = 1,
        padding: str = "SAME",
        w_init: hk.initializers.Initializer | None = None,
        name: str | None = None,
    ):
        """Makes a `Conv2D`.

        Args:
            output_channels: features of each pixel of the output.
            kernel_shape: height and width of the kernel, pixels.
            stride: pixels from one position of the kernel to the next.
            padding: "SAME" or "VALID".
            w_init: of the kernel; None draws from a truncated normal of deviation ``1 / sqrt(inputs)``.
            name: of the module.
        """
        super().__init__(name=name)
        self._channels, self._size, self._stride = output_channels, kernel_shape, stride
        self._padding = padding
        self._w_init = w_init

    def __call__(self, image: Array) -> jax.Array:
        """Returns ``[B, H', W', output_channels]`` of images ``[B, H, W, C]``."""
        shape = (self._size, self._size, image.shape[-1], self._channels)
        w_init = self._w_init or hk.initializers.TruncatedNormal(1.0 / math.sqrt(math.prod(shape[:3])))
        kernel = hk.get_parameter("w", shape, image.dtype, w_init)
        bias = hk.get_parameter("b", (self._channels,), image.dtype, jnp.zeros)
        return conv2d(jnp.asarray(image), kernel, self._stride, self._padding) + bias[None, None, None]


@functools.partial(jax.custom_jvp, nondiff_argnums=(2, 3))
def conv2d(image: jax.Array, kernel: jax.Array, stride: int, padding: str) -> jax.Array:
    """Returns the convolution ``[B, H', W', F]`` of images ``[B, H, W, C]`` with a kernel ``[h, w, C, F]``."""
    return lax.conv_general_dilated(image, kernel, (stride, stride), padding, dimension_numbers=_FAST)


@functools.partial(conv2d.defjvp, symbolic_zeros=True)
def _conv2d_jvp(stride: int, padding: str, primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    """Returns the JVP, written so that its transpose (the gradient) is laid out for speed on a CPU."""
    (image, kernel), (image_dot, kernel_dot) = primals, tangents
    strides = (stride, stride)
    output = conv2d(image, kernel, stride, padding)
    output_dot = jnp.zeros_like(output)
    if not isinstance(image_dot, SymbolicZero):
        axes = ("NHWC", "HWOI", "NHWC")  # JAX transposes a convolution by exchanging the kernel's I and O.
        turned = kernel.transpose(0, 1, 3, 2)
        output_dot += lax.conv_general_dilated(image_dot, turned, strides, padding, dimension_numbers=axes)
    if not isinstance(kernel_dot, SymbolicZero):
        axes = ("CHWN", "IHWO", "HWNC")  # Images and output take part in the kernel's gradient as batches of channels.
        images, turned = image.transpose(3, 1, 2, 0), kernel_dot.transpose(2, 0, 1, 3)
        found = lax.conv_general_dilated(images, turned, strides, padding, dimension_numbers=axes)
        output_dot += found.transpose(2, 0, 1, 3)
    return output, output_dot
