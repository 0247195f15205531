"""`python -m agentkit.cli` is the command `agentkit`."""

from agentkit.cli import main

raise SystemExit(main())
