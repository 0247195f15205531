"""A person at the keyboard plays, and DQN learns from it: an actor that asks, beside an agent's own learner.

In evaluation the agent's own policy acts, which `ActorParts.make_policy_actor` makes.

    python examples/own_boxes/human_at_the_keyboard.py   (a, s and d, each with Enter; Ctrl-C ends it)
"""

import dataclasses
import functools

import numpy as np

import agentkit
from agentkit import core
from agentkit.agents import dqn

KEYS = {"a": 0, "s": 1, "d": 2}  # Left, stay, right.


class Human(core.Actor):
    """Shows the board and asks for a key."""

    def __init__(self, parts, ask=input):
        self.adder, self.ask = parts.adder, ask

    def select_action(self, observation):
        """Returns the action of the first key that is one."""
        board = "\n".join("".join(".#"[int(cell)] for cell in row) for row in observation)
        while (key := self.ask(f"{board}\n{' '.join(KEYS)}> ")) not in KEYS:
            pass
        return np.int32(KEYS[key])

    def observe_first(self, timestep):
        """Records the start of an episode."""
        self.adder.add_first(timestep)

    def observe(self, action, next_timestep):
        """Records a step."""
        self.adder.add(action, next_timestep)

    def update(self, wait=False):
        """Does nothing: a person needs no parameters."""


def make_actor(parts, ask=input):
    """Makes what acts: the person, or in evaluation the agent."""
    return parts.make_policy_actor() if parts.evaluation else Human(parts, ask)


def make_agent(ask=input):
    """Returns DQN with a person as its actor."""
    config = dqn.Config(hidden_sizes=(32,), min_replay_size=50, batch_size=32, updates_per_step=4.0, n_step=1)
    return dataclasses.replace(dqn.make_agent(config), make_actor=functools.partial(make_actor, ask=ask))


if __name__ == "__main__":
    experiment = agentkit.ExperimentConfig(make_agent(), "agentkit:catch", 180, step_timeout=0, evaluation_period=0)
    returns = agentkit.evaluate(agentkit.run(experiment), num_episodes=20)["episode_return"]
    print(f"after your 180 steps, the agent's return is {np.mean(returns):.2f} (1 is perfect)")
