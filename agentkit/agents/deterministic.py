"""What agents with a deterministic policy share (DDPG, TD3, D4PG): settings, and exploring by noise on its actions.

How such a policy and its critic are improved is `learning.deterministic_actor_critic`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from agentkit import actors
from agentkit.agents.off_policy import OffPolicyConfig


@dataclasses.dataclass(frozen=True)
class DeterministicConfig(OffPolicyConfig):
    """Settings that each of these agents has.

    Attributes:
        hidden_sizes: units of each hidden layer, in the policy and in each critic.
        exploration_noise: standard deviation of the noise on an actor's actions, in units of half their range.
        num_random_steps: an actor's first steps, with uniform actions.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    exploration_noise: float = 0.1
    num_random_steps: int = 1_000


def explore(networks: Any, config: DeterministicConfig, evaluation: bool, correlation: float = 0.0) -> actors.Policy:
    """The network's actions; to explore, with Gaussian noise (Lillicrap et al. 2016, eq. 7), and uniform at first.

    Args:
        networks: have ``policy``, ``observation [B, ...] -> action [B, A]`` in [-1, 1], and ``action_shape``, ``(A,)``.
        config: has the noise and the number of uniform actions.
        evaluation: whether the policy is to be judged: then there is no noise.
        correlation: of the noise at one step with that at the next; see `actors.noisy`.
    """
    policy = networks.policy.apply
    if evaluation:
        return actors.noiseless(policy)
    sigma, num_random_steps = config.exploration_noise, config.num_random_steps
    return actors.noisy(policy, networks.action_shape, sigma, num_random_steps, correlation)
