"""Trains until CartPole is solved or gets no better, and takes the best policy away in a file."""

import agentkit
from agentkit.agents import registry
from agentkit.callbacks import keep_best, stop_at, stop_when_flat

agent, folder = registry.make("dqn"), "runs/early_stop"
experiment = agentkit.ExperimentConfig(
    agent, "gymnasium:CartPole-v1", 100_000, run_directory=folder, evaluation_period=2_000
)
result = agentkit.run(experiment, callbacks=[keep_best(), stop_at(return_above=475), stop_when_flat(evaluations=10)])
print(f"After {result.steps:,} steps: {result.stopped_by}")
result.best_policy.save("best.npz")
