"""The residual convolutions of IMPALA's larger network, for images."""

from __future__ import annotations

import haiku as hk
import jax

from agentkit.errors import SpecError
from agentkit.networks.convolution import Conv2D
from agentkit.networks.torsos import check_has_image, torso
from agentkit.types import Array, Nest

_MIN_PIXELS = 8
_SECTIONS = (16, 32, 32)
_BLOCKS = 2
_NUM_FEATURES = 256


class ResidualTorso(hk.Module):
    """Turns images ``[B, H, W, C]`` into features ``[B, 256]`` (Espeholt et al. 2018, figure 3 right).

    Three sections of 16, 32 and 32 channels: a convolution, a max-pooling that halves height and width (rounded up),
    and two residual blocks, x + conv(relu(conv(relu(x)))). Then ReLU, a linear layer and ReLU. All windows are 3 x 3
    and zero-padded, as in the authors' code. The figure's LSTM is a `core_size` of the agent.

    Raises:
        SpecError: images of less than 8 x 8 pixels, whose last pooling would have nothing to halve.
    """

    def __call__(self, observation: Array) -> jax.Array:
        """Returns the features of a batch of images, as `torsos.to_unit_image` gives them, float32."""
        if min(observation.shape[1:3]) < _MIN_PIXELS:
            raise SpecError(
                f"The residual torso halves images three times and needs at least {_MIN_PIXELS} x {_MIN_PIXELS} "
                f"pixels, found {list(observation.shape[1:3])}. Enlarge them, or take another torso."
            )
        x = observation
        for channels in _SECTIONS:
            x = Conv2D(channels, kernel_shape=3)(x)
            x = hk.max_pool(x, window_shape=(3, 3, 1), strides=(2, 2, 1), padding="SAME")
            for _ in range(_BLOCKS):
                change = Conv2D(channels, kernel_shape=3)(jax.nn.relu(x))
                x = x + Conv2D(channels, kernel_shape=3)(jax.nn.relu(change))
        return jax.nn.relu(hk.Linear(_NUM_FEATURES)(jax.nn.relu(hk.Flatten()(x))))


def residual_torso(observation: Nest) -> jax.Array:
    """Returns features ``[B, F]``: of each image 256 by a `ResidualTorso`, of all else the numbers.

    Args:
        observation: an array ``[B, ...]`` or a nest of them. An action mask is left out.

    Raises:
        SpecError: it has no image, or too small a one.
    """
    check_has_image(observation, "impala")
    return torso(observation, lambda image: ResidualTorso()(image))
