"""Actions of chance on the host: among those that are allowed, and within their bounds."""

import numpy as np
import pytest
import tree

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


def test_a_mask_that_allows_none_allows_all():
    actor = RandomActor(specs.DiscreteArray(4, dtype=np.int32), seed=1)
    drawn = {actor.select_action({specs.ACTION_MASK: np.zeros(4, bool)}).item() for _ in range(40)}
    assert drawn == {0, 1, 2, 3}


def test_a_mask_says_nothing_of_actions_that_are_no_single_choice():
    seen = {"board": {specs.ACTION_MASK: MASK}}
    for spec in (
        specs.BoundedArray((2,), np.float32, -1.0, 1.0),
        {"a": specs.DiscreteArray(4), "b": specs.Array((), float)},
    ):
        with_mask, without = (RandomActor(spec, seed=1).select_action(each) for each in (seen, None))
        tree.map_structure(np.testing.assert_array_equal, with_mask, without)


MAX = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, np.inf),
        (-np.inf, 0.5),
        ([0.0, -np.inf], np.inf),
        (5.0, np.inf),
        ([-1.0, 5.0], [1.0, np.inf]),
        (-MAX, MAX),
        (-np.finfo(float).max, np.finfo(float).max),
        (7.0, np.finfo(float).max),
    ],
)
def test_what_lacks_a_bound_is_drawn_within_the_other(low, high):
    spec = specs.BoundedArray((2,), np.float32 if np.max(high) in (MAX, np.inf) else np.float64, low, high)
    actor = RandomActor(spec, seed=1)
    drawn = np.stack([actor.select_action(None) for _ in range(40)])
    assert drawn.dtype == spec.dtype and np.abs(drawn).max() < 20
    assert (drawn >= spec.minimum).all() and (drawn <= spec.maximum).all()
    assert all(len(np.unique(each)) == 40 for each in drawn.T)
