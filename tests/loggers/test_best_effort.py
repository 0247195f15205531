import errno

import pytest

from agentkit.loggers import BestEffortLogger, InMemoryLogger


class Disk(InMemoryLogger):
    """A log on a disk that may be full."""

    full = False

    def write(self, values):
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().write(values)


def test_rows_are_dropped_while_the_disk_is_full_and_it_is_told_once(capsys):
    disk, counts = Disk(), []
    logger = BestEffortLogger(lambda: disk, "train.csv", on_drop=counts.append)
    for step in range(6):
        disk.full = 2 <= step < 5
        logger.write({"steps": step})
    assert [row["steps"] for row in disk.rows] == [0, 1, 5] and logger.num_dropped == 3 and counts == [1, 2, 3]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 2
    assert "train.csv cannot be written: [Errno 28] No space left on device" in told[0]
    assert "is written again; 3 rows are missing" in told[1]


def test_a_log_that_cannot_be_made_is_made_later(capsys):
    disk, now, tries = Disk(), [0.0], []

    def make():
        tries.append(now[0])
        if now[0] < 7.0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return disk

    logger = BestEffortLogger(make, "train.csv", retry_seconds=5.0, clock=lambda: now[0])
    for second in range(12):
        now[0] = float(second)
        logger.write({"steps": second})
    assert tries == [0.0, 5.0, 10.0] and [row["steps"] for row in disk.rows] == [10, 11]
    assert logger.num_dropped == 10 and len(capsys.readouterr().err.splitlines()) == 2


def test_other_errors_are_not_hidden():
    def make():
        raise ValueError("a mistake")

    with pytest.raises(ValueError, match="a mistake"):
        BestEffortLogger(make, "train.csv")
    logger = BestEffortLogger(InMemoryLogger, "train.csv")
    logger.close()
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 1})
