"""Plots evaluations while a run goes on, as a cell of a notebook does."""

import matplotlib.pyplot as plt

import agentkit
from agentkit.agents import registry

experiment = agentkit.ExperimentConfig(
    registry.make("dqn"), "gymnasium:CartPole-v1", 20_000, evaluation_period=2_000, evaluation_episodes=5
)
returns = {}
for row in agentkit.iterate(experiment):
    if row.log == "evaluation":
        returns[row.record["steps"]] = row.record["episode_return"]
        plt.plot(returns.keys(), returns.values(), color="C0")
plt.savefig("returns.png")
