"""Loggers: rows of named numbers to the terminal, CSV and JSON files, TensorBoard, W&B, MLflow, or through filters.

A logger has `write(values)` and `close()`, and is a context manager. Acme's users know the names:
`Dispatcher` to several, `EveryNSeconds` to thin out, `BestEffortLogger` to outlive a full disk, `InMemoryLogger` to
look at.
"""

from agentkit.loggers.background import BackgroundLogger
from agentkit.loggers.base import InMemoryLogger, Logger, RunInfo, to_numbers
from agentkit.loggers.best_effort import BestEffortLogger
from agentkit.loggers.csv import CsvLogger, read_csv
from agentkit.loggers.filters import (
    Dispatcher,
    EveryNSeconds,
    Labelled,
    Timed,
)
from agentkit.loggers.jsonl import JsonLinesLogger, read_jsonl
from agentkit.loggers.mlflow import MlflowLogger
from agentkit.loggers.tensorboard import TensorboardLogger
from agentkit.loggers.terminal import TerminalLogger, in_notebook
from agentkit.loggers.wandb import WandbLogger, check_login

__all__ = [
    "BackgroundLogger",
    "BestEffortLogger",
    "CsvLogger",
    "Dispatcher",
    "EveryNSeconds",
    "InMemoryLogger",
    "JsonLinesLogger",
    "Labelled",
    "Logger",
    "MlflowLogger",
    "RunInfo",
    "TensorboardLogger",
    "TerminalLogger",
    "Timed",
    "WandbLogger",
    "check_login",
    "in_notebook",
    "read_csv",
    "read_jsonl",
    "to_numbers",
]
