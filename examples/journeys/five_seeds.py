"""Trains DQN with several seeds, two at a time: ``python five_seeds.py 50_000 5``."""

import statistics
import sys

import agentkit
from agentkit.agents import dqn

num_steps, num_seeds = map(int, sys.argv[1:])
experiment = agentkit.ExperimentConfig(
    dqn.make_agent(), "gymnasium:CartPole-v1", num_steps, run_directory="runs/five-seeds", progress=True
)
results = agentkit.run_seeds(experiment, seeds=range(num_seeds), jobs=2)
returns = [result.evaluations[-1]["episode_return"] for result in results]
print(f"return {statistics.mean(returns):.1f} +- {statistics.stdev(returns):.1f}")
