"""Loggers: rows of named numbers to the terminal, CSV files, TensorBoard, or through filters.

A logger has `write(values)` and `close()`, and is a context manager. Acme's users know the names:
`Dispatcher` to several, `EveryNSeconds` to thin out, `BestEffortLogger` to outlive a full disk, `InMemoryLogger` to
look at.
"""

from agentkit.loggers.base import InMemoryLogger, Logger, to_numbers
from agentkit.loggers.best_effort import BestEffortLogger
from agentkit.loggers.csv import CsvLogger, read_csv
from agentkit.loggers.filters import (
    Dispatcher,
    EveryNSeconds,
)
from agentkit.loggers.tensorboard import TensorboardLogger
from agentkit.loggers.terminal import TerminalLogger

__all__ = [
    "BestEffortLogger",
    "CsvLogger",
    "Dispatcher",
    "EveryNSeconds",
    "InMemoryLogger",
    "Logger",
    "TensorboardLogger",
    "TerminalLogger",
    "read_csv",
    "to_numbers",
]
