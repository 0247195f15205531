"""A planner: its actor looks ahead in copies of the environment, and trusts a learned table where it stops looking.

It tries every sequence of a few actions, and takes the first action of the best. The table is that of tabular
Q-learning, which learns from what the planner does. Evaluation plans, too.

    python examples/own_boxes/planner.py
"""

import copy
import functools

import numpy as np
from tabular_q_learning import CONFIG, QActor, QLearner, index

import agentkit
from agentkit.agents import Agent, Transitions


class Planner(QActor):
    """Looks `depth` steps ahead. It needs the environment itself, whose copy goes on from where that stands."""

    def __init__(self, parts, depth=3):
        super().__init__(parts)
        self.depth = depth

    def select_action(self, observation):
        """Returns the action whose look ahead ends best."""
        if self.random.random() < self.epsilon:
            return np.int32(self.random.integers(3))
        environment = self.parts.environment
        return np.int32(np.argmax([self.value(environment, action, self.depth) for action in range(3)]))

    def value(self, environment, action, depth):
        """Returns the reward of an action in a copy, and the discounted value of the best that can follow."""
        simulator = copy.deepcopy(environment)
        timestep = simulator.step(np.int32(action))
        if timestep.last():
            return timestep.reward
        if depth == 1:
            return timestep.reward + CONFIG.discount * self.parts.variables.params[index(timestep.observation)].max()
        return timestep.reward + CONFIG.discount * max(self.value(simulator, a, depth - 1) for a in range(3))


def make_agent(depth=3):
    """Returns the agent: a planner that looks so far ahead, and a table."""
    make_actor = functools.partial(Planner, depth=depth)
    return Agent(CONFIG, Transitions(CONFIG), make_actor=make_actor, make_learner=QLearner)


if __name__ == "__main__":
    experiment = agentkit.ExperimentConfig(make_agent(), "agentkit:catch", 600, evaluation_period=0)
    returns = agentkit.evaluate(agentkit.run(experiment), num_episodes=20)["episode_return"]
    print(f"return {np.mean(returns):.2f} (1 is perfect)")
