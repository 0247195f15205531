"""Runs the command `agentkit` as `python -m agentkit.cli`."""

import os
import sys

import agentkit

# Python puts the working directory first of all, in which a stranger's run folder may have a numpy.py; the command
# `agentkit` has it nowhere. Where agentkit itself is run from there, it is no stranger's.
_HERE = os.getcwd()
if sys.path[:1] == [_HERE] and os.path.dirname(os.path.dirname(os.path.abspath(agentkit.__file__))) != _HERE:
    del sys.path[0]

from agentkit.cli import main  # noqa: E402

raise SystemExit(main())
