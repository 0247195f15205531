"""Logs a training to Weights & Biases, with hyperparameters; `agentkit train ... --log wandb` does the same."""

import agentkit
from agentkit.agents import dqn

agent = dqn.make_agent(dqn.Config(learning_rate=1e-3, min_replay_size=200))
agentkit.run(
    agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps=1_000, run_directory="runs/mine", loggers=["wandb"])
)
