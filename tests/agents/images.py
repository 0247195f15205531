"""A point to be steered to the middle of an image, and a small encoder of such images."""

from collections.abc import Callable
from typing import Any

import haiku as hk
import jax
import numpy as np

from agentkit import envs, specs
from agentkit.envs.point_mass import PointMass
from agentkit.wrappers.base import ObservationWrapper

SIZE = 12


class Drawn(ObservationWrapper):
    """Draws a point mass as a white square of 2 x 2 pixels, uint8 [12, 12, 1]."""

    stateless = True

    def _transform(self, timestep: Any) -> Any:
        row, column = np.round((timestep.observation + 1) / 2 * (SIZE - 2)).astype(int)
        image = np.zeros((SIZE, SIZE, 1), np.uint8)
        image[row : row + 2, column : column + 2] = 255
        return timestep._replace(observation=image)

    def observation_spec(self) -> specs.BoundedArray:
        return specs.BoundedArray((SIZE, SIZE, 1), np.uint8, 0, 255, "image")


def drawn_point_mass(seed: int) -> Any:
    """Ten steps of up to half the distance from the middle to an edge: at best about -0.5, at random about -6."""
    return envs.make(PointMass, seed, speed=0.5, max_steps=10, wrappers=[Drawn])


def narrow_torso(image: Any) -> Any:
    """Makes 4 numbers of an image: random ones say too little of where the point is, and have to be learned."""
    x = jax.nn.relu(hk.Conv2D(8, 3, stride=2, name="own_convolution")(image))
    return hk.Linear(4, name="own_linear")(hk.Flatten()(x))


def run_once(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function compiled without most of XLA's optimisations, which take longer than what runs once."""
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        return jax.jit(function)(*arguments)
    finally:
        jax.config.update("jax_disable_most_optimizations", False)
