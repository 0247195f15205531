"""Logs where the hopper ended up, a number of gymnasium's info, with every episode and evaluation."""

import agentkit
from agentkit.agents import registry
from agentkit.callbacks import info_metrics

agent, folder = registry.make("sac"), "runs/own_metric"
experiment = agentkit.ExperimentConfig(
    agent, "gymnasium:Hopper-v5", 100_000, run_directory=folder, evaluation_period=10_000
)
result = agentkit.run(experiment, callbacks=[info_metrics("x_position")])
print([round(record["x_position"], 2) for record in result.evaluations])  # And in logs/*.csv.
