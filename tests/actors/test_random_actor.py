"""Actions of chance on the host: among those that are allowed, and within their bounds."""

import numpy as np
import pytest

from agentkit import specs
from agentkit.actors.random_actor import RandomActor

MASK = np.array([0, 1, 0, 1], np.int8)


@pytest.mark.parametrize(
    "observation",
    [
        {"seen": np.zeros(2), specs.ACTION_MASK: MASK},
        {"board": {"pieces": np.zeros(2), specs.ACTION_MASK: MASK}, "clock": np.zeros(1)},
        (np.zeros(2), {specs.ACTION_MASK: MASK}),
    ],
    ids=["at the top", "below it", "in a tuple"],
)
def test_what_the_mask_allows_is_drawn_wherever_it_is(observation):
    """Networks and the loop of several agents find a mask at any depth."""
    actor = RandomActor(specs.DiscreteArray(4, dtype=np.int32), seed=1)
    drawn = [actor.select_action(observation) for _ in range(40)]
    assert {action.item() for action in drawn} == {1, 3} and drawn[0].dtype == np.int32


@pytest.mark.parametrize(("low", "high"), [(0.0, np.inf), (-np.inf, 0.5), ([0.0, -np.inf], np.inf), (5.0, np.inf)])
def test_what_has_one_finite_bound_is_drawn_within_it(low, high):
    spec = specs.BoundedArray((2,), np.float32, low, high)
    actor = RandomActor(spec, seed=1)
    drawn = np.stack([actor.select_action(None) for _ in range(40)])
    assert drawn.dtype == np.float32 and np.isfinite(drawn).all()
    assert (drawn >= spec.minimum).all() and (drawn <= spec.maximum).all()
