import threading
import time

import pytest

from agentkit.loggers import BackgroundLogger, BestEffortLogger, InMemoryLogger


class Slow(InMemoryLogger):
    """A service that answers when it is told to."""

    def __init__(self):
        super().__init__()
        self.answers = threading.Event()
        self.closed = False

    def write(self, values):
        assert self.answers.wait(10)
        super().write(values)

    def close(self):
        self.closed = True


def test_rows_come_in_order_and_the_writer_does_not_wait():
    slow = Slow()
    logger = BackgroundLogger(slow, "slow")
    for step in range(100):
        logger.write({"steps": step})  # Would hang here.
    assert slow.rows == []
    slow.answers.set()
    logger.close()
    logger.close()
    assert [row["steps"] for row in slow.rows] == list(range(100)) and slow.closed
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 1})


def test_a_service_that_hangs_does_not_hold_up_the_end(capsys):
    slow = Slow()
    logger = BackgroundLogger(slow, "slow", close_seconds=0.1)
    logger.write({"steps": 1})
    start = time.monotonic()
    logger.close()
    assert time.monotonic() - start < 5 and not slow.closed
    assert "slow did not take its last rows within 0.1 s" in capsys.readouterr().err
    slow.answers.set()


def test_a_network_that_is_away_is_told_once_and_a_mistake_reaches_the_writer(capsys):
    class Away(InMemoryLogger):
        def write(self, values):
            raise ConnectionError("no route") if values["steps"] < 3 else KeyError("a mistake")

    logger = BackgroundLogger(BestEffortLogger(Away, "away"), "away")
    for step in range(3):
        logger.write({"steps": step})
    logger.write({"steps": 3})
    with pytest.raises(KeyError, match="a mistake"):
        logger.close()
    assert capsys.readouterr().err.count("away cannot be written: no route") == 1
