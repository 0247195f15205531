"""A wrapper whose statistics go on over episodes."""

from typing import ClassVar

import numpy as np
import tree

from agentkit import specs
from agentkit.wrappers.base import ObservationWrapper


class RunningMean(ObservationWrapper):
    """Subtracts the mean of all observations so far, the new one among them."""

    keeps_statistics: ClassVar[bool] = True

    def __init__(self, environment):
        super().__init__(environment)
        self.count = 0
        self._spec = tree.map_structure(
            lambda leaf: specs.Array(leaf.shape, np.float32, leaf.name), environment.observation_spec()
        )
        self._sums = [np.zeros(leaf.shape) for leaf in tree.flatten(self._spec)]

    def _transform(self, timestep):
        leaves = [np.asarray(leaf, np.float64) for leaf in tree.flatten(timestep.observation)]
        self.count += 1
        self._sums = [total + leaf for total, leaf in zip(self._sums, leaves, strict=True)]
        shown = [np.float32(leaf - total / self.count) for total, leaf in zip(self._sums, leaves, strict=True)]
        return timestep._replace(observation=tree.unflatten_as(self._spec, shown))

    def observation_spec(self):
        return self._spec

    def _save(self):
        return {"count": self.count, "sums": {str(i): np.array(total) for i, total in enumerate(self._sums)}}

    def _restore(self, state):
        self.count = int(state["count"])
        self._sums = [np.array(state["sums"][str(i)]) for i in range(len(self._sums))]
