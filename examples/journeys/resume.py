"""Trains, and trains the same run for longer: bit for bit as if it had never stopped."""

import agentkit
from agentkit.agents import registry

agent, folder = registry.make("dqn"), "runs/resume"
experiment = agentkit.ExperimentConfig(agent, "gymnasium:CartPole-v1", 20_000, run_directory=folder)
agentkit.run(experiment)
result = agentkit.resume(folder, num_steps=40_000)
print(f"{result.steps:,} steps, {result.updates:,} updates")
