"""Small data sets of agentkit's own environments, made by scripted behaviour, and trainings on them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from agentkit import envs
from agentkit.agents.common.agent import Agent
from agentkit.datasets import Episode, EpisodeRecorder
from agentkit.experiment import OfflineConfig, run_offline
from agentkit.testing.learning import check_returns

CATCH, POINT_MASS = "agentkit:catch", "agentkit:point_mass"


def best_action(environment: str, observation: np.ndarray) -> np.ndarray:
    """What the environment's docstring says is optimal."""
    if environment == POINT_MASS:
        return np.clip(-observation / 0.25, -1.0, 1.0).astype(np.float32)
    ball, paddle = int(np.argmax(observation[:-1].max(axis=0))), int(np.argmax(observation[-1]))
    return np.int32(np.sign(ball - paddle) + 1)


def make_episodes(environment: str, num_episodes: int, skills: Sequence[float], seed: int = 0) -> list[Episode]:
    """Episodes in which each action is the best one with the chance `skills[i]`, in turn, else a uniform one.

    A negative skill is the chance of the opposite of the best action, in the point mass.
    """
    rng = np.random.default_rng(seed)
    made = envs.make(environment, seed=seed)
    spec = made.action_spec()
    recorder = EpisodeRecorder()
    for number in range(num_episodes):
        timestep = made.reset()
        recorder.add_first(timestep)
        while not timestep.last():
            skill = skills[number % len(skills)]
            if rng.random() < abs(skill):
                action = best_action(environment, timestep.observation)
                action = action if skill > 0 else -action
            elif environment == CATCH:
                action = np.int32(rng.integers(3))
            else:
                action = rng.uniform(-1.0, 1.0, spec.shape).astype(np.float32)
            timestep = made.step(action)
            recorder.add(action, timestep)
    return recorder.episodes


def mean_return(episodes: Sequence[Episode]) -> float:
    return float(np.mean([np.sum(episode.rewards) for episode in episodes]))


def learns(agent: Agent, environment: str, episodes: Sequence[Episode], num_updates: int, threshold: float) -> None:
    """Trains on the data for three seeds; the mean return of 50 episodes must then be the threshold or more."""
    returns = []
    for seed in range(3):
        config: dict[str, Any] = {"evaluation_period": num_updates, "evaluation_episodes": 50, "seed": seed}
        result = run_offline(OfflineConfig(agent, episodes, num_updates, environment, **config))
        returns.append(result.evaluations[-1]["episode_return"])
    check_returns(returns, threshold, range(3), f"{num_updates:,} updates")
