"""A person at the keyboard plays, and DQN learns from it: an actor that asks, beside an agent's own learner.

In evaluation the agent's own policy acts, which `ActorParts.make_policy_actor` makes. Launched in processes, which have
no terminal, the person is the first actor, at the terminal whose name the variable KEYBOARD has; the learner goes on
while the person thinks. Further actors act by the agent's policy, at its speed.

    python examples/own_boxes/human_at_the_keyboard.py   (a, s and d, each with Enter; Ctrl-C ends it)
    KEYBOARD=$(tty) python examples/own_boxes/human_at_the_keyboard.py --num_actors 1
"""

import argparse
import dataclasses
import functools
import os

import numpy as np

import agentkit
from agentkit import core
from agentkit.agents import dqn
from agentkit.errors import ConfigError

KEYS = {"a": 0, "s": 1, "d": 2}  # Left, stay, right.


def ask_at_terminal(text):
    """Shows a text at the terminal that KEYBOARD names, or else at this process's own, and returns the answer."""
    terminal = os.environ.get("KEYBOARD")
    try:
        if terminal is None:
            return input(text)
        with open(terminal, "r+b", buffering=0, opener=lambda *at: os.open(at[0], at[1] | os.O_NOCTTY)) as opened:
            opened.write(text.encode())
            if answer := opened.readline():
                return answer.decode().strip()
            raise EOFError(f"{terminal} was closed")
    except (EOFError, OSError) as error:
        raise ConfigError(f"Nobody is at the keyboard ({error}). Set KEYBOARD=$(tty), and launch again.") from error


class Human(core.Actor):
    """Shows the board and asks for a key."""

    def __init__(self, parts, ask=ask_at_terminal):
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


def make_actor(parts, ask=ask_at_terminal):
    """Makes what acts: the person; or the agent, in evaluation and beside the person."""
    return parts.make_policy_actor() if parts.evaluation or parts.actor_id > 0 else Human(parts, ask)


def make_agent(ask=ask_at_terminal):
    """Returns DQN with a person as its first actor."""
    config = dqn.Config(hidden_sizes=(32,), min_replay_size=50, batch_size=32, updates_per_step=4.0, n_step=1)
    return dataclasses.replace(dqn.make_agent(config), make_actor=functools.partial(make_actor, ask=ask))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_steps", type=int, default=180)
    parser.add_argument("--num_actors", type=int, default=0)
    parser.add_argument("--run")
    words = parser.parse_args()
    experiment = agentkit.ExperimentConfig(
        make_agent(), "agentkit:catch", words.num_steps, step_timeout=0, evaluation_period=0, run_directory=words.run
    )
    result = agentkit.launch(experiment, num_actors=words.num_actors) if words.num_actors else agentkit.run(experiment)
    returns = agentkit.evaluate(words.run or result, num_episodes=20)["episode_return"]
    print(f"after {result.steps} steps, the agent's return is {np.mean(returns):.2f} (1 is perfect)")
