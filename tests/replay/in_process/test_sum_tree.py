import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.replay.in_process.sum_tree import TOP, SumTree


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=60), st.integers(0, 2**32 - 1))
def test_slots_are_those_of_the_prefix_sums(weights, seed):
    weights = np.array(weights)
    tree = SumTree(100)
    for slot, weight in enumerate(weights):
        tree.set(slot, weight)
    assert tree.total == pytest.approx(weights.sum())
    if tree.total > 0:
        uniforms = np.append(np.random.default_rng(seed).random(50), [0.0, np.nextafter(1.0, 0.0)])
        slots = tree.sample(uniforms)
        assert (weights[slots] > 0).all(), "weight zero is never drawn"
        ends = weights.cumsum()
        slack = 1e-9 * ends[-1]
        assert (uniforms * ends[-1] <= ends[slots] + slack).all()
        assert (uniforms * ends[-1] >= ends[slots] - weights[slots] - slack).all()


@pytest.mark.parametrize("size", [5, 17, 5_000, 70_000])
def test_no_drift_and_a_refilled_tree_is_the_same_bit_for_bit(size):
    rng = np.random.default_rng(size)
    tree, weights = SumTree(2 * size), np.zeros(size)
    for slot in range(size):
        weights[slot] = rng.random()
        tree.set(slot, weights[slot])
    for _ in range(200):
        slots = rng.integers(0, size, 64)
        values = rng.random(64) * 10.0 ** rng.integers(-8, 8)
        weights[slots] = values  # of repeated slots the last value counts
        tree.set_many(slots, values)
        if rng.random() < 0.3:
            tree.sample(rng.random(3))
    np.testing.assert_array_equal(tree.get(np.arange(size)), weights)
    other = SumTree(2 * size)
    other.fill(tree.weights(size))
    assert other.total == tree.total == pytest.approx(weights.sum(), rel=1e-12)
    uniforms = rng.random(1000)
    np.testing.assert_array_equal(other.sample(uniforms), tree.sample(uniforms))


@pytest.mark.parametrize("size", [TOP, TOP + 1, 20_000])
def test_every_slot_of_several_levels_has_its_share(size):
    """Whole weights add up without rounding: one target in the middle of each slot's stretch finds that slot."""
    weights = np.random.default_rng(size).integers(0, 4, size).astype(float)
    weights[[0, 1, size - 1]] = [0.0, 3.0, 2.0]
    tree = SumTree(size)
    tree.fill(weights)
    positive = np.flatnonzero(weights)
    middle = weights.cumsum()[positive] - 0.5 * weights[positive]
    np.testing.assert_array_equal(tree.sample(middle / weights.sum()), positive)


def test_chi_square_at_a_hundred_thousand():
    size, draws = 100_000, 400_000
    rng = np.random.default_rng(0)
    weights = rng.random(size) ** 4
    weights[rng.random(size) < 0.1] = 0.0
    tree = SumTree(size)
    tree.fill(weights)
    counts = np.bincount(tree.sample(rng.random(draws)), minlength=size)
    assert counts[weights == 0].sum() == 0
    # In 100 groups of equal expected counts: 99 degrees of freedom, exceeded once in 10**6.
    groups = np.minimum((100 * weights.cumsum() / weights.sum()).astype(int), 99)
    observed = np.bincount(groups, counts, minlength=100)
    expected = np.bincount(groups, weights / weights.sum() * draws, minlength=100)
    assert ((observed - expected) ** 2 / expected).sum() < 175
    # And within a group, neighbours are told apart.
    best = np.argsort(weights)[-50:]
    np.testing.assert_allclose(counts[best].sum(), draws * weights[best].sum() / weights.sum(), rtol=0.3)


def test_extreme_weights():
    tree = SumTree(40)
    for slot, weight in enumerate([0.0, 5e-324, 1e290, 0.0, 1e-300]):
        tree.set(slot, weight)
    assert set(tree.sample(np.linspace(0, 1, 50, endpoint=False)).tolist()) <= {1, 2}
    tree.set(2, 0.0)
    tree.set(4, 0.0)
    assert tree.sample(np.array([0.0, 0.5, 0.999])).tolist() == [1, 1, 1]
    tree.set(1, 0.0)
    assert tree.total == 0.0


def test_a_target_between_two_ways_of_rounding_a_sum():
    """Sums of blocks are rounded otherwise than prefix sums; a target in between takes a positive weight."""
    tree = SumTree(5000)
    weights = np.zeros(5000)
    weights[:15] = [1.0] + [1e-16] * 14
    tree.fill(weights)
    assert tree.total > weights[:16].cumsum()[-1], "else this tests nothing"
    assert (weights[tree.sample(np.nextafter(1.0, np.linspace(0.0, 0.9, 5)))] > 0).all()
