import doctest
import threading

import pytest

from agentkit import counting
from agentkit.counting import Counter
from agentkit.errors import CheckpointError, ConfigError


def test_the_docstring_tells_the_truth() -> None:
    result = doctest.testmod(counting)
    assert result.attempted >= 4 and result.failed == 0


def test_parent_and_children_read_everything() -> None:
    parent = Counter()
    child, other = Counter(parent, "child"), Counter(parent)
    parent.increment(steps=1)
    assert child.increment(steps=2, episodes=0) == {"steps": 1, "child_steps": 2, "child_episodes": 0}
    other.increment(steps=4)
    for counter in (parent, child, other):
        assert counter.counts() == {"steps": 5, "child_steps": 2, "child_episodes": 0}
    assert (parent.get("steps"), child.get("steps"), other.get("steps"), child.get("none")) == (5, 2, 5, 0)


def test_grandchildren_join_prefixes_and_find_their_own() -> None:
    root = Counter(prefix="run")
    leaf = Counter(Counter(root, "actor"), "0")
    assert leaf.increment(steps=3) == {"run_actor_0_steps": 3}
    assert leaf.get("steps") == 3


def test_counts_only_grow_and_a_refused_call_changes_nothing() -> None:
    counter = Counter()
    with pytest.raises(ConfigError, match=r"'episodes', found -1"):
        counter.increment(steps=1, episodes=-1)
    assert counter.counts() == {}


def test_what_is_returned_is_a_copy() -> None:
    counter = Counter()
    counter.increment(steps=1)["steps"] = 100
    counter.counts()["steps"] = 100
    assert counter.get("steps") == 1


def test_nothing_is_lost_between_threads() -> None:
    parent = Counter()
    children = [Counter(parent, f"c{i % 2}") for i in range(4)]

    def work(counter: Counter) -> None:
        for _ in range(2_000):
            counter.increment(steps=1)

    threads = [threading.Thread(target=work, args=(child,)) for child in children]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert parent.counts() == {"c0_steps": 4_000, "c1_steps": 4_000}


def test_save_and_restore_at_the_root_only() -> None:
    parent = Counter()
    child = Counter(parent, "child")
    child.increment(steps=7)
    state = child.save()
    fresh = Counter()
    fresh.restore(state)
    assert fresh.counts() == {"child_steps": 7}
    with pytest.raises(CheckpointError, match="Restore the parent"):
        child.restore(state)
