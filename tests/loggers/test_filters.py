import math

import pytest

from agentkit.errors import ConfigError, SpecError
from agentkit.loggers import (
    Dispatcher,
    EveryNSeconds,
    InMemoryLogger,
    Logger,
)


def test_dispatcher_writes_and_closes_all_even_after_a_failure():
    class Fails(Logger):
        def write(self, values):
            pass

        def close(self):
            raise OSError("disk full")

    class Closes(Logger):
        closed = False

        def write(self, values):
            pass

        def close(self):
            self.closed = True

    last = Closes()
    dispatcher = Dispatcher([Fails(), last])
    with pytest.raises(OSError, match="disk full"):
        dispatcher.close()
    assert last.closed


def test_every_n_seconds_keeps_the_last_row():
    now = [0.0]
    sink = InMemoryLogger()
    logger = EveryNSeconds(sink, 10, clock=lambda: now[0])
    for second in range(26):
        now[0] = float(second)
        logger.write({"steps": second})
    assert [row["steps"] for row in sink.rows] == [0, 10, 20]
    logger.close()
    assert [row["steps"] for row in sink.rows] == [0, 10, 20, 25]


def test_every_n_seconds_with_zero_passes_all():
    sink = InMemoryLogger()
    with EveryNSeconds(sink, 0, clock=lambda: 0.0) as logger:
        logger.write({"a": 1})
        logger.write({"a": 2})
    assert len(sink.rows) == 2


@pytest.mark.parametrize("make", [lambda s: EveryNSeconds(s, -1), lambda s: EveryNSeconds(s, math.nan)])
def test_impossible_periods_are_refused(make):
    with pytest.raises(ConfigError, match="must be at least"):
        make(InMemoryLogger())


def test_an_error_passes_through_a_filter():
    with pytest.raises(SpecError, match="'x'"):
        Dispatcher([InMemoryLogger()]).write({"x": "text"})
