"""Observations with mean 0 and variance 1, by running statistics."""

from __future__ import annotations

from typing import Any, ClassVar, final

import dm_env
import numpy as np
import tree

from agentkit import specs
from agentkit.errors import CheckpointError, ConfigError
from agentkit.types import Nest
from agentkit.wrappers.base import ObservationWrapper


@final
class NormalizeObservations(ObservationWrapper):
    """Subtracts the running mean and divides by the running standard deviation, element by element.

    Every observation updates the statistics (Welford's algorithm, float64) before it is normalised.
    Observations already given are not normalised again, so what replay holds was normalised with the
    statistics of its time.

    It is for loops of your own. A run of agentkit refuses it: its environments would each have other statistics, and a
    saved policy none. `agents.addons.with_normalization` (``--normalize observations``) keeps them with the parameters.
    For evaluation give another environment the statistics and freeze it, which a run takes, too:

        evaluation.restore(training.save())
        evaluation.freeze()

    Args:
        environment: an environment with float observations.
        clip: normalised values are clipped to [-clip, clip]; None for no clipping.
        epsilon: added to the variance.

    Raises:
        ConfigError: if an observation is not a float, or `clip` or `epsilon` is not positive.
    """

    keeps_statistics: ClassVar[bool] = True

    def __init__(self, environment: dm_env.Environment, clip: float | None = 10.0, epsilon: float = 1e-8):
        super().__init__(environment)
        if (clip is not None and clip <= 0) or epsilon <= 0:
            raise ConfigError(f"Expected a positive clip and epsilon, found {clip} and {epsilon}.")
        inner = environment.observation_spec()
        for name, leaf in zip(specs.leaf_names(inner), tree.flatten(inner), strict=True):
            if leaf.dtype.kind != "f":
                raise ConfigError(
                    f"NormalizeObservations expects floats, found {leaf.dtype.name} in {name!r}. "
                    "Images are scaled by the network instead."
                )
        self._clip = clip
        self._epsilon = epsilon
        self._frozen = False
        self._count = 0
        self._shapes = [leaf.shape for leaf in tree.flatten(inner)]
        self._means = [np.zeros(shape) for shape in self._shapes]
        self._sums = [np.zeros(shape) for shape in self._shapes]  # Of squared deviations.
        self._spec = tree.map_structure(lambda s: specs.Array(s.shape, np.float32, s.name), inner)

    @property
    def num_observations(self) -> int:
        """Counts the observations that the statistics hold."""
        return self._count

    @property
    def frozen(self) -> bool:
        """Returns whether the statistics stay as they are."""
        return self._frozen

    def freeze(self, frozen: bool = True) -> None:
        """Stops updating the statistics (or goes on with it)."""
        self._frozen = frozen

    def _transform(self, timestep: dm_env.TimeStep) -> dm_env.TimeStep:
        leaves = [np.asarray(leaf, np.float64) for leaf in tree.flatten(timestep.observation)]
        if not self._frozen:
            self._count += 1
            for i, leaf in enumerate(leaves):
                delta = leaf - self._means[i]
                self._means[i] = self._means[i] + delta / self._count
                self._sums[i] = self._sums[i] + delta * (leaf - self._means[i])
        normalised = [self._normalise(leaf, i) for i, leaf in enumerate(leaves)]
        return timestep._replace(observation=tree.unflatten_as(self._spec, normalised))

    def _normalise(self, leaf: np.ndarray, i: int) -> np.ndarray:
        if self._count < 2:  # No variance yet.
            value = leaf - self._means[i]
        else:
            value = (leaf - self._means[i]) / np.sqrt(self._sums[i] / self._count + self._epsilon)
        if self._clip is not None:
            value = np.maximum(np.minimum(value, self._clip), -self._clip)
        return np.asarray(value, np.float32)

    def observation_spec(self) -> Nest:
        """Returns float32 arrays without bounds."""
        return self._spec

    def _save(self) -> dict[str, Any]:
        return {
            "count": self._count,
            "means": {str(i): np.array(mean) for i, mean in enumerate(self._means)},
            "sums": {str(i): np.array(total) for i, total in enumerate(self._sums)},
        }

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            count = int(state["count"])
            parts = [
                [np.array(state[name][str(i)], np.float64) for i in range(len(self._shapes))]
                for name in ("means", "sums")
            ]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"Expected saved statistics, found {state!r}.") from error
        for part in parts:
            if [leaf.shape for leaf in part] != self._shapes:
                raise CheckpointError(
                    f"Expected statistics of shapes {self._shapes}, found {[leaf.shape for leaf in part]}. "
                    "They are of another environment."
                )
        self._count = count
        self._means, self._sums = parts
