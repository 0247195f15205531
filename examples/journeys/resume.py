"""Trains; started again after Ctrl-C, kill -9 or a power failure, goes on from the newest checkpoint, to the bit."""

from pathlib import Path

import agentkit
from agentkit.agents import dqn

if Path("runs/mine/checkpoints").exists():
    result = agentkit.resume("runs/mine")
else:
    result = agentkit.run(
        agentkit.ExperimentConfig(
            dqn.make_agent(), "agentkit:catch", num_steps=2_000, checkpoint_period=100, run_directory="runs/mine"
        )
    )
print(f"{result.steps} steps, {result.updates} updates")
