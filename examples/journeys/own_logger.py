"""Logs a training to a database of one's own; `agentkit train ... --log own_logger:Sqlite --import own_logger`."""

import sqlite3

import agentkit
from agentkit.agents import dqn


class Sqlite(agentkit.loggers.Logger):
    """Writes each number as a row: run, name, step, value."""

    def __init__(self, run: agentkit.loggers.RunInfo):
        self.run, self.db = run.name, sqlite3.connect("metrics.db", isolation_level=None)
        self.db.execute("CREATE TABLE IF NOT EXISTS metrics (run, name, step, value)")

    def write(self, values):
        """Takes ``{"steps": 900, "train/episode_return": 12.0, ...}``."""
        rows = [(self.run, name, values["steps"], value) for name, value in values.items()]
        self.db.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?)", rows)


if __name__ == "__main__":
    agent = dqn.make_agent(dqn.Config(min_replay_size=200))
    agentkit.run(agentkit.ExperimentConfig(agent, "agentkit:catch", 1_000, run_directory="runs/mine", loggers=[Sqlite]))
