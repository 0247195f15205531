import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentkit.errors import CheckpointError
from agentkit.replay.in_process.slots import Slots


def check(slots: Slots, order: list[int]) -> None:
    assert slots.size == len(order)
    assert slots.by_age().tolist() == order
    assert sorted(slots.at(np.arange(len(order))).tolist()) == sorted(order)
    if order:
        assert (slots.oldest(), slots.newest()) == (order[0], order[-1])


@settings(max_examples=300, deadline=None)
@given(st.integers(1, 9), st.lists(st.sampled_from(["add", "add", "old", "new", "any", "save"]), max_size=60))
def test_order_of_age_under_any_removals(capacity, operations):
    slots, order = Slots(capacity), []
    for i, what in enumerate(operations):
        if what == "save":
            values, lists = slots.save()
            assert {n: len(x) for n, x in lists.items()} == Slots.array_lengths(values)
            slots = Slots(capacity)
            slots.restore(values, lists)
        elif what == "add":
            if len(order) < capacity:
                slot = slots.add()
                assert slot not in order and 0 <= slot < capacity
                order.append(slot)
        elif order:
            slots.remove(order.pop({"old": 0, "new": -1, "any": i % len(order)}[what]))
        check(slots, order)


@pytest.mark.parametrize(("capacity", "length"), [(1, 1), (3, 3), (3, 2), (5, 4)])
def test_a_ring_goes_round_and_hands_out_each_slot_in_turn(capacity, length):
    """As a full table does that frees its oldest: four times round, and restored after every step."""
    slots, order = Slots(capacity), []
    for i in range(4 * capacity):
        if len(order) == length:
            slots.remove(order.pop(0))
        assert slots.add() == i % capacity
        order.append(i % capacity)
        check(slots, order)
        assert slots.num_used == min(i + 1, capacity)
        values, lists = slots.save()
        assert not lists, "where only the oldest was ever freed, two numbers say everything"
        slots = Slots(capacity)
        slots.restore(values, lists)
        check(slots, order)


def test_an_emptied_table_begins_with_the_first_slot_again():
    """A queue that is read at once stays in few slots, whose memory grows with the greatest one."""
    slots = Slots(9)
    for removals in ([0], [0], [0, 1], [1, 0, 2], [2, 1, 0], [0]):
        assert [slots.add() for _ in removals] == list(range(len(removals)))
        for slot in removals:
            slots.remove(slot)
    assert slots.size == 0 and slots.num_used == 3


def test_contradictions_are_refused():
    slots = Slots(5)
    for _ in range(4):
        slots.add()
    slots.remove(1)
    values, lists = slots.save()
    for bad_values, bad_lists in [
        (values | {"size": 9}, lists),
        (values | {"head": -1}, lists),
        (values, lists | {"order": np.array([0, 2, 2])}),
        (values, lists | {"dense": np.array([0, 1, 2])}),
        (values, lists | {"free": np.array([3])}),
    ]:
        with pytest.raises(CheckpointError):
            Slots(5).restore(bad_values, bad_lists)
