import threading
import time
from collections.abc import Sequence

import pytest

from agentkit.core import VariableSource, Versioned
from agentkit.errors import ConfigError, UnknownNameError, VariablesTimeoutError
from agentkit.variables import VariableClient, VariableStore


class Counted(VariableSource):
    """A store that counts how often it is asked."""

    def __init__(self) -> None:
        self.store = VariableStore()
        self.num_calls = 0

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        self.num_calls += 1
        return self.store.get(names, newer_than)


def test_it_holds_the_newest_it_fetched_and_knows_its_version() -> None:
    store = VariableStore()
    client = VariableClient(store)
    assert client.version == -1
    store.publish(0, {"policy": "old"})
    assert (client.params, client.version) == ("old", 0)
    store.publish(8, {"policy": "new"})
    assert (client.params, client.version) == ("old", 0)
    client.update()
    assert (client.params, client.version) == ("new", 8)


def test_it_asks_every_so_many_calls_only() -> None:
    source = Counted()
    source.store.publish(0, {"policy": 0})
    client = VariableClient(source, update_period=3)
    for _ in range(9):
        client.update()
    assert source.num_calls == 3
    client.update(wait=True)
    assert source.num_calls == 4


def test_another_name_than_policy() -> None:
    store = VariableStore()
    store.publish(0, {"policy": 1, "critic": 2})
    assert VariableClient(store, "critic").params == 2
    with pytest.raises(UnknownNameError, match="Unknown variable 'citric'"):
        VariableClient(store, "citric").update()


def test_waiting_ends_with_a_named_error() -> None:
    client = VariableClient(VariableStore(), timeout=0.1)
    start = time.monotonic()
    with pytest.raises(VariablesTimeoutError, match=r"'policy' were published within 0\.1 s"):
        client.update(wait=True)
    with pytest.raises(VariablesTimeoutError):
        _ = client.params
    assert time.monotonic() - start < 5


def test_without_wait_nothing_published_is_no_error() -> None:
    client = VariableClient(VariableStore(), timeout=0.1)
    client.update()
    assert client.version == -1


def test_a_waiting_client_gets_the_first_version() -> None:
    store = VariableStore()
    timer = threading.Timer(0.1, store.publish, (0, {"policy": None}))
    timer.start()
    client = VariableClient(store, timeout=20)
    assert client.params is None and client.version == 0
    timer.join()


def test_a_wait_once_there_is_something_does_not_block() -> None:
    store = VariableStore()
    store.publish(0, {"policy": 1})
    client = VariableClient(store, timeout=20)
    client.update(wait=True)
    start = time.monotonic()
    client.update(wait=True)
    assert time.monotonic() - start < 5 and client.params == 1


def test_an_impossible_period_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1, found 0"):
        VariableClient(VariableStore(), update_period=0)
