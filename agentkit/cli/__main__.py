"""Runs the command `agentkit` as `python -m agentkit.cli`."""

from agentkit.cli import main

raise SystemExit(main())
