"""Reads what a run has written: its config and its logs, as plain rows or as pandas data frames."""

from __future__ import annotations

import dataclasses
import pathlib
import re
from typing import Any, final

from agentkit.errors import ConfigError, missing_extra, says_what_was_meant, unknown_name
from agentkit.experiment.runs.config_json import read_record
from agentkit.loggers import read_csv

_LOGS = ("evaluation", "learner", "program", "train")
"""What runs write by themselves, sooner or later."""


@final
@dataclasses.dataclass(frozen=True)
class Run:
    """Reads a run folder, of a run that has ended or that goes on. `agentkit.open_run` makes one.

    ``agentkit.open_run("runs/mine").log("evaluation").plot(x="steps", y="episode_return")`` draws a curve.

    Attributes:
        directory: the run folder.
        config: what ``config.json`` holds: ``agent``, ``agent_config``, ``environment``, ``seed``, ``versions``, ...
    """

    directory: pathlib.Path
    config: dict[str, Any]

    def __repr__(self) -> str:
        """Returns where it is, what was run and which logs there are."""
        agent, environment = (self.config[name] or "of your own" for name in ("agent", "environment"))
        return f"Run({str(self.directory)!r}: {agent} in {environment}, logs {', '.join(self.logs) or 'none'})"

    @property
    def logs(self) -> list[str]:
        """Returns the names of the logs that there are, e.g. "evaluation", "learner" and "train"."""
        return sorted({self._name_of(path) for path in (self.directory / "logs").glob("*.csv")})

    def rows(self, log: str) -> list[dict[str, float]]:
        """Returns the rows of a log in order of their steps, without the values that a row lacks.

        Of a program of many processes, the rows of all nodes that write this log. None of a log that the run may yet
        write.

        Raises:
            ConfigError: the log is damaged.
            UnknownNameError: there is no such log; proposes the nearest one.
        """
        known = {*_LOGS, *self._of_policies(), *self.logs}
        if log not in known:
            raise unknown_name(f"log of {self.directory}", log, known)
        found: list[dict[str, float]] = []
        for path in sorted((self.directory / "logs").glob(f"{log}*.csv")):
            if self._name_of(path) != log:
                continue
            try:
                for row in read_csv(path)[1]:
                    found.append({name: float(value) for name, value in row.items() if value})
            except ValueError as error:
                if isinstance(error, ConfigError):
                    raise
                raise ConfigError(f"The log {path} is damaged: {error}. Mend it, or move it away.") from error
        return sorted(found, key=lambda row: row.get("steps", -1.0))

    def _name_of(self, path: pathlib.Path) -> str:
        """Returns the log that a file is of: ``train-1.csv`` is another node's part of ``train``."""
        return path.stem if path.stem in self._of_policies() else re.sub(r"-\d+$", "", path.stem)

    def _of_policies(self) -> set[str]:
        return {f"learner-{policy_id}" for policy_id in self.config.get("policies", ())}

    def log(self, name: str) -> Any:
        """Returns a log as a `pandas.DataFrame`, a column for each number; see `rows`. Needs pandas.

        Raises:
            ConfigError: there is no such log, or it is damaged.
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise missing_extra("pandas", "pandas") from error
        if name not in self.logs:
            raise ConfigError(
                f"The run {self.directory} has no log {name!r} (yet). It has: {', '.join(self.logs) or 'none'}."
            )
        return pandas.DataFrame(self.rows(name))


@says_what_was_meant
def open_run(directory: str | pathlib.Path) -> Run:
    """Opens a run folder to read.

    Raises:
        ConfigError: it is none.
    """
    return Run(pathlib.Path(directory), read_record(directory))
