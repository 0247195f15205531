import threading
import time

import pytest

from agentkit.errors import ConfigError
from agentkit.variables import BackgroundPublisher, VariableStore

pytestmark = pytest.mark.both_stacks

LONG = 20.0


class Slow:
    """Publishes when it is let."""

    def __init__(self):
        self.go, self.versions, self.closed = threading.Event(), [], False

    def publish(self, version, variables):
        assert self.go.wait(LONG)
        self.versions.append((version, variables["policy"]))

    def close(self):
        self.closed = True


def test_the_learner_never_waits_and_only_the_newest_goes_next():
    slow = Slow()
    publisher = BackgroundPublisher(slow)
    publisher.publish(0, {"policy": 0})
    while publisher._next is not None:
        time.sleep(0.001)
    for version in range(1, 100):
        publisher.publish(version, {"policy": version})
    assert not slow.versions  # The first is still under way.
    slow.go.set()
    publisher.close()
    assert slow.versions == [(0, 0), (99, 99)] and slow.closed
    with pytest.raises(ConfigError, match="closed"):
        publisher.publish(100, {"policy": 100})
    publisher.close()


def test_an_error_reaches_the_learner_at_its_next_publication():
    store = VariableStore()
    publisher = BackgroundPublisher(store)
    publisher.publish(5, {"policy": 5})
    while store.version < 5:
        time.sleep(0.001)
    publisher.publish(4, {"policy": 4})
    publisher._thread.join(LONG)
    with pytest.raises(ConfigError, match="version 4 were published after version 5"):
        publisher.publish(6, {"policy": 6})
    publisher = BackgroundPublisher(store)
    publisher.publish(3, {"policy": 3})
    with pytest.raises(ConfigError, match="version 3"):
        publisher.close()


def test_not_more_often_than_told_but_the_last_one_at_once():
    store = VariableStore()
    publisher = BackgroundPublisher(store, min_seconds=3_600.0)
    publisher.publish(0, {"policy": 0})
    while store.version < 0:
        time.sleep(0.001)
    publisher.publish(1, {"policy": 1})
    time.sleep(0.1)
    assert store.version == 0
    publisher.close()
    assert store.version == 1
    with pytest.raises(ConfigError, match="at least 0, found -1"):
        BackgroundPublisher(store, min_seconds=-1)


def test_a_publisher_that_hangs_does_not_hold_up_the_end():
    slow = Slow()
    publisher = BackgroundPublisher(slow)
    publisher.publish(0, {"policy": 0})
    publisher.close(timeout=0.1)
    assert slow.closed and not slow.versions
    slow.go.set()
