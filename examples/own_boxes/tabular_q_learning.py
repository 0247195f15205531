"""Tabular Q-learning in numpy: an actor and a learner of one's own, with no network and no JAX in them.

Watkins 1989: q(s, a) <- q(s, a) + alpha (r + gamma max q(s', .) - q(s, a)), of transitions drawn from replay. The
same agent trains here, launched in many processes, is resumed and evaluated: see docs/compose_an_agent.md.

    python examples/own_boxes/tabular_q_learning.py
"""

import argparse

import numpy as np

import agentkit
from agentkit import core
from agentkit.agents import Agent, ReplayConfig, Transitions

CONFIG = ReplayConfig(batch_size=16, min_replay_size=100, replay_size=10_000)


def index(boards):
    """Numbers of the states on catch's boards ``[..., 10, 5]``: the ball's place, and the paddle's in the last row."""
    ball = boards[..., :-1, :].reshape(*boards.shape[:-2], -1).argmax(-1)
    return 5 * ball + boards[..., -1, :].argmax(-1)


class QActor(core.Actor):
    """Acts epsilon-greedily by the learner's table."""

    def __init__(self, parts: core.ActorParts, epsilon: float = 0.1):
        self.parts, self.epsilon = parts, 0.0 if parts.evaluation else epsilon
        self.random = np.random.default_rng(parts.seed)

    def select_action(self, observation):
        """Returns a number of an action."""
        if self.random.random() < self.epsilon:
            return np.int32(self.random.integers(3))
        return np.int32(self.parts.variables.params[index(observation)].argmax())

    def observe_first(self, timestep):
        """Records the start of an episode."""
        self.parts.adder.add_first(timestep)

    def observe(self, action, next_timestep):
        """Records a step."""
        self.parts.adder.add(action, next_timestep)

    def update(self, wait=False):
        """Fetches the newest table."""
        self.parts.variables.update(wait)


class QLearner:
    """Learns the table; has the methods of `core.Learner`."""

    def __init__(self, parts: core.LearnerParts, step_size: float = 0.3):
        self.dataset, self.step_size = parts.dataset, step_size
        self.q = np.zeros((5 * 45, 3))

    def step(self):
        """Draws a batch and learns from it."""
        _, sample = next(self.dataset)
        t = sample.data  # A Transition; its discount has gamma in it already.
        s, target = index(t.observation), t.reward + t.discount * self.q[index(t.next_observation)].max(-1)
        self.q[s, t.action] += self.step_size * (target - self.q[s, t.action])

    def variables(self):
        """Returns what actors may fetch."""
        return {"policy": self.q}

    def save(self):
        """Returns what a checkpoint holds."""
        return {"q": self.q.copy()}

    def restore(self, state):
        """Takes it back."""
        self.q = np.array(state["q"])


def make_agent(config=CONFIG):
    """Returns the agent: two boxes of its own, and replay of transitions."""
    return Agent(config, Transitions(config), make_actor=QActor, make_learner=QLearner)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_steps", type=int, default=5_000)
    steps = parser.parse_args().num_steps
    experiment = agentkit.ExperimentConfig(make_agent(), "agentkit:catch", steps, evaluation_period=0)
    result = agentkit.run(experiment)
    returns = agentkit.evaluate(result, num_episodes=50)["episode_return"]
    print(f"after {result.steps} steps: return {np.mean(returns):.2f} (1 is perfect)")
