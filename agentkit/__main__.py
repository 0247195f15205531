"""Runs the command `agentkit` as `python -m agentkit`."""

import agentkit.cli.__main__  # noqa: F401 (runs it)
