import threading
import time

import pytest

from agentkit.errors import ConfigError, UnknownNameError
from agentkit.variables import VariableStore

pytestmark = pytest.mark.both_stacks


def held(store: VariableStore, *names: str) -> tuple[int, dict]:
    found = store.get(names or ["policy"])
    assert found is not None
    return found.version, found.variables


def test_nothing_published_is_none() -> None:
    store = VariableStore()
    assert store.get(["policy"]) is None
    assert store.version == -1


def test_the_newest_version_by_name() -> None:
    store = VariableStore()
    store.publish(0, {"policy": 1, "critic": 2})
    store.publish(5, {"policy": 3, "critic": 4})
    found = store.get(["policy"], newer_than=0)
    assert found is not None and found[:2] == (5, {"policy": 3})
    assert held(store, "critic", "policy") == (5, {"critic": 4, "policy": 3})
    assert store.get(["policy"], newer_than=5) is None


def test_version_0_is_newer_than_nothing() -> None:
    store = VariableStore()
    store.publish(0, {"policy": 0})
    assert held(store) == (0, {"policy": 0})
    assert store.get(["policy"], newer_than=0) is None


def test_an_unknown_name_is_refused_with_the_nearest() -> None:
    store = VariableStore()
    store.publish(0, {"policy": 0})
    with pytest.raises(UnknownNameError, match=r"'polcy'.*Did you mean 'policy'"):
        store.get(["polcy"])


def test_versions_never_go_down() -> None:
    store = VariableStore()
    store.publish(3, {"policy": 0})
    store.publish(3, {"policy": 1})
    with pytest.raises(ConfigError, match="version 2 were published after version 3"):
        store.publish(2, {"policy": 2})
    assert held(store) == (3, {"policy": 1})


def test_what_is_published_is_not_changed_by_the_publishers_dict() -> None:
    store, variables = VariableStore(), {"policy": 0}
    store.publish(0, variables)
    variables["policy"] = 9
    assert held(store) == (0, {"policy": 0})


def test_a_reader_never_sees_half_of_a_version() -> None:
    store, stop, wrong = VariableStore(), threading.Event(), []
    store.publish(0, {"a": 0, "b": 0})

    def read() -> None:
        while not stop.is_set():
            found = store.get(["a", "b"])
            if found is None or len({found.version, *found.variables.values()}) != 1:
                wrong.append(found)

    thread = threading.Thread(target=read)
    thread.start()
    for version in range(5_000):
        store.publish(version, {"a": version, "b": version})
    stop.set()
    thread.join()
    assert wrong == []


def test_it_says_when_it_was_published() -> None:
    store, start = VariableStore(), time.time()
    store.publish(0, {"policy": 0})
    found = store.get(["policy"])
    assert found is not None and start <= found.published <= time.time()
