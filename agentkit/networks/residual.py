"""The residual convolutions of IMPALA's larger network, for images."""

from __future__ import annotations

import haiku as hk
import jax

from agentkit.errors import SpecError
from agentkit.networks.action_mask import split_action_mask
from agentkit.networks.torsos import to_unit_image
from agentkit.types import Array, Nest

_MIN_PIXELS = 8
_SECTIONS = (16, 32, 32)
_BLOCKS = 2
_NUM_FEATURES = 256


class ResidualTorso(hk.Module):
    """Turns images ``[B, H, W, C]`` into features ``[B, 256]`` (Espeholt et al. 2018, figure 3 right).

    Three sections of 16, 32 and 32 channels: a convolution, a max-pooling that halves height and width (rounded up),
    and two residual blocks, x + conv(relu(conv(relu(x)))). Then ReLU, a linear layer and ReLU. All windows are 3 x 3
    and zero-padded, as in the authors' code. The figure's LSTM is a `lstm_size` of the agent.

    Raises:
        SpecError: images of less than 8 x 8 pixels, whose last pooling would have nothing to halve.
    """

    def __call__(self, observation: Array) -> jax.Array:
        """Returns the features of a batch of images, as `torsos.to_unit_image` gives them, float32."""
        if min(observation.shape[1:3]) < _MIN_PIXELS:
            raise SpecError(
                f"The residual torso halves images three times and needs at least {_MIN_PIXELS} x {_MIN_PIXELS} "
                f"pixels, found {list(observation.shape[1:3])}. Enlarge them, or set residual_torso=False."
            )
        x = observation
        for channels in _SECTIONS:
            x = hk.Conv2D(channels, kernel_shape=3)(x)
            x = hk.max_pool(x, window_shape=(3, 3, 1), strides=(2, 2, 1), padding="SAME")
            for _ in range(_BLOCKS):
                change = hk.Conv2D(channels, kernel_shape=3)(jax.nn.relu(x))
                x = x + hk.Conv2D(channels, kernel_shape=3)(jax.nn.relu(change))
        return jax.nn.relu(hk.Linear(_NUM_FEATURES)(jax.nn.relu(hk.Flatten()(x))))


def residual_torso(observation: Nest) -> jax.Array:
    """Returns features ``[B, 256]`` of a batch of images, which may come with an action mask.

    Args:
        observation: an array ``[B, H, W, C]``, or a nest with this array and an action mask.

    Raises:
        SpecError: it is anything else, or the images are too small.
    """
    leaves, _ = split_action_mask(observation)
    if len(leaves) != 1 or leaves[0].ndim not in (4, 5):
        raise SpecError(
            f"The residual torso needs observations that are one image [H, W, C], found arrays of shapes "
            f"{[list(leaf.shape[1:]) for leaf in leaves]}. Set residual_torso=False."
        )
    return ResidualTorso()(to_unit_image(leaves[0]))
