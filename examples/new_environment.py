"""An environment of your own: a dm_env class, given to an experiment as a function ``seed -> environment``.

Four methods are dm_env's. The fifth, `reseed`, is agentkit's and optional: with it episodes can be repeated,
so that evaluations are reproducible and a run resumes in mid-episode, bit for bit.

    python examples/new_environment.py --num_steps 3000
"""

import argparse

import dm_env
import numpy as np
from dm_env import specs

import agentkit
from agentkit.agents import dqn
from agentkit.learning import Linear


class Thermostat(dm_env.Environment):
    """Keep a leaking house at 20 degrees: 0 cools, 1 is off, 2 heats; minus the error is the reward."""

    def __init__(self, seed: int = 0):
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """The next reset begins an episode that depends on `seed` alone."""
        self._rng = np.random.default_rng(seed)
        self._steps = None  # There is no episode before the first reset.

    def reset(self) -> dm_env.TimeStep:
        """Starts at 10 to 30 degrees."""
        self._steps, self._degrees = 0, self._rng.uniform(10.0, 30.0)
        return dm_env.restart(self._observation())

    def step(self, action: int) -> dm_env.TimeStep:
        """A quarter of an hour; after LAST it starts a new episode."""
        if self._steps is None:
            return self.reset()
        leak = 0.1 * (5.0 - self._degrees)  # It is 5 degrees outside.
        self._degrees += 2.5 * (int(action) - 1) + leak + self._rng.normal(0.0, 0.1)
        self._steps += 1
        reward = -abs(self._degrees - 20.0)
        if self._steps < 30:
            return dm_env.transition(reward, self._observation())
        self._steps = None
        # Time is up, but the house stays: discount 1 says "truncated, bootstrap". Where an episode truly
        # ends, return dm_env.termination(reward, observation), whose discount is 0.
        return dm_env.truncation(reward, self._observation(), discount=1.0)

    def _observation(self) -> np.ndarray:
        return np.array([(self._degrees - 20.0) / 10.0], np.float32)

    def observation_spec(self) -> specs.Array:
        """Degrees above 20, in tens: float32 ``[1]``."""
        return specs.Array((1,), np.float32, "temperature")

    def action_spec(self) -> specs.DiscreteArray:
        """0 cool, 1 off, 2 heat."""
        return specs.DiscreteArray(3, name="action")


def main(num_steps: int = 3_000, seed: int = 0) -> float:
    """Trains DQN on it; the mean return of the last evaluation."""
    config = dqn.Config(discount=0.9, min_replay_size=300, epsilon=Linear(1.0, 0.05, 1_500), target_update_period=50)
    agent = dqn.make_agent(config)
    experiment = agentkit.ExperimentConfig(agent, Thermostat, num_steps, seed, evaluation_period=num_steps)
    result = agentkit.run(experiment).evaluations[-1]["episode_return"]
    print(f"Mean error after {num_steps} steps: {-result / 30:.2f} degrees (always off: 10.8, at best: 0.76)")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_steps", type=int, default=3_000)
    main(**vars(parser.parse_args()))
