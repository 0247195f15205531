import math
import threading
import time
from collections.abc import Sequence

import pytest

from agentkit.core import VariableSource, Versioned
from agentkit.errors import ConfigError, UnknownNameError, VariablesTimeoutError
from agentkit.variables import VariableClient, VariableStore

pytestmark = pytest.mark.both_stacks


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


def test_each_version_is_put_in_its_place_once() -> None:
    placed: list[str] = []
    store = VariableStore()
    client = VariableClient(store, place=lambda params: placed.append(params) or f"placed {params}")
    store.publish(0, {"policy": "old"})
    assert (client.params, client.params) == ("placed old", "placed old")
    client.update()
    assert placed == ["old"]
    store.publish(8, {"policy": "new"})
    client.update()
    assert client.params == "placed new" and placed == ["old", "new"]


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


class Away(Counted):
    """A source that can be out of reach."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        found = super().get(names, newer_than)
        if self.error is not None:
            raise self.error
        return found


def test_it_asks_at_most_so_often() -> None:
    source = Counted()
    source.store.publish(0, {"policy": 0})
    client = VariableClient(source, update_seconds=0.2)
    for _ in range(1000):
        client.update()
    assert source.num_calls == 1
    client.update(wait=True)
    assert source.num_calls == 2
    time.sleep(0.25)
    client.update()
    client.update()
    assert source.num_calls == 3


class Large(Counted):
    """Takes its time to hand out what is new."""

    seconds = 0.02

    def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
        found = super().get(names, newer_than)
        if found is not None:
            time.sleep(self.seconds)
        return found


def test_what_takes_long_to_fetch_is_asked_for_less_often_but_once_in_a_second() -> None:
    source = Large()
    client = VariableClient(source, update_seconds=0.001)
    for version, seconds, least in ((0, 0.02, 0.4), (1, 0.1, 1.0)):
        source.store.publish(version, {"policy": version})
        source.seconds = seconds
        client.update(wait=True)
        fetched = time.monotonic() - seconds
        calls = source.num_calls
        while source.num_calls == calls:
            time.sleep(0.002)
            client.update()
        assert least - 0.01 <= time.monotonic() - fetched < 5 * least  # A busy machine sleeps longer.


@pytest.mark.parametrize("settings", [{"update_seconds": -1}, {"update_seconds": 2, "max_age_seconds": 2}])
def test_impossible_times_are_refused(settings) -> None:
    with pytest.raises(ConfigError, match="update_seconds >= 0, and max_age_seconds longer"):
        VariableClient(VariableStore(), **settings)
    with pytest.raises(ConfigError):
        VariableClient(VariableStore(), max_age_seconds=math.nan)


def test_it_knows_how_old_its_parameters_are() -> None:
    store = VariableStore()
    client = VariableClient(store)
    assert client.age_seconds == math.inf
    store.publish(0, {"policy": 0})
    time.sleep(0.2)
    client.update()
    assert 0.2 <= client.age_seconds < 5


def test_the_age_counts_from_the_fetch_where_no_one_says_when_it_was_published() -> None:
    class Silent(VariableSource):
        def get(self, names: Sequence[str], newer_than: int = -1) -> Versioned | None:
            return Versioned(0, {"policy": 0})

    client = VariableClient(Silent())
    client.update()
    assert client.age_seconds < 5


@pytest.mark.parametrize("error", [ConnectionError("no route"), TimeoutError("too late")])
def test_a_lost_source_is_no_crash(error: Exception) -> None:
    source = Away(error)
    client = VariableClient(source, timeout=0.1)
    client.update()
    assert client.lost and client.version == -1
    with pytest.raises(VariablesTimeoutError, match=rf"Is the learner alive\? {error}") as raised:
        _ = client.params
    assert raised.value.__cause__ is error
    source.error = None
    source.store.publish(0, {"policy": 7})
    assert client.params == 7 and not client.lost
    source.error = error
    client.update()
    client.update(wait=True)
    assert client.params == 7 and client.lost


def test_parameters_older_than_the_limit_are_waited_for() -> None:
    store = VariableStore()
    client = VariableClient(store, max_age_seconds=0.2, timeout=20)
    client.update()  # Nothing is held: nothing is too old.
    store.publish(0, {"policy": 0})
    client.update()
    time.sleep(0.25)
    stop = threading.Event()

    def publish() -> None:
        """Begins late and goes on, as a learner does: what is fetched a moment too late is too old again."""
        version = 1
        while not stop.wait(0.3 if version == 1 else 0.02):
            store.publish(version, {"policy": version})
            version += 1

    publisher = threading.Thread(target=publish)
    publisher.start()
    start = time.monotonic()
    client.update()
    waited = time.monotonic() - start
    stop.set()
    publisher.join()
    assert client.params >= 1 and 0.1 < waited < 10


def test_past_the_limit_it_ends_with_a_named_error() -> None:
    source = Away(ConnectionError("no route"))
    source.error = None
    source.store.publish(0, {"policy": 0})
    client = VariableClient(source, update_seconds=0.1, max_age_seconds=0.2, timeout=0.2)
    client.update()
    time.sleep(0.25)
    with pytest.raises(VariablesTimeoutError, match=r"0\.\d s old, the limit is 0\.2 s, .* within 0\.2 s"):
        client.update()
    source.error = ConnectionError("no route")
    with pytest.raises(VariablesTimeoutError, match=r"gone.*no route"):
        client.update()
    # The parameters are still there for whoever wants to go on with them.
    assert client.params == 0
    source.error = None
    source.store.publish(1, {"policy": 1})
    client.update()
    assert client.params == 1


def test_without_a_limit_old_parameters_are_never_waited_for() -> None:
    store = VariableStore()
    store.publish(0, {"policy": 0})
    client = VariableClient(store, timeout=20)
    client.update()
    time.sleep(0.2)
    start = time.monotonic()
    client.update(wait=True)
    assert time.monotonic() - start < 5
