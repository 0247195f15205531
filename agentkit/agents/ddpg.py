"""DDPG: deep deterministic policy gradient (Lillicrap et al. 2016, "Continuous control with deep RL", 1509.02971).

A deterministic policy climbs a critic that is learned off-policy, both with lagged targets.

Deviations from the paper:
  * The exploration noise is independent from step to step, which Fujimoto et al. (2018) found as good as the
    paper's Ornstein-Uhlenbeck process; `noise_correlation` 0.85 and `exploration_noise` 0.38 are the latter.
  * An actor's first `num_random_steps` actions are uniform, so that the first batches are varied.
  * Actions enter the critic at its first layer; no batch normalisation, no weight decay.
  * Weights begin orthogonal, those of the policy's last layer small.
  * Larger batches, and targets that follow five times as fast (as in Fujimoto et al. 2018).
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import learning, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.off_policy import DeterministicConfig, agent_of_loss, explore_actions, mean_loss
from agentkit.learning import ActorCriticLosses, PolicyCritic, Update
from agentkit.networks import ActorCriticNetworks
from agentkit.types import LossOutput, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(DeterministicConfig):
    """Settings of DDPG, beside those of `DeterministicConfig`.

    Attributes:
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        tau: fraction by which both targets move at each update, in (0, 1].
        noise_correlation: of the noise at one step with that at the next, in [0, 1).
    """

    hidden_sizes: tuple[int, ...] = (400, 300)
    policy_learning_rate: float = 1e-4
    critic_learning_rate: float = 1e-3
    tau: float = 0.005
    noise_correlation: float = 0.0
    batch_size: int = 128


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> ActorCriticNetworks:
    """Policy and critic for an environment of continuous actions in [-1, 1]."""
    return nets.deterministic_networks(environment_spec, "DDPG", config.hidden_sizes, nets.action_value)


def make_policy(networks: ActorCriticNetworks, config: Config, evaluation: bool = False) -> Policy:
    """The network's actions; to explore, with noise that may drift like the paper's."""
    return explore_actions(networks, config, evaluation, config.noise_correlation)


def make_losses(networks: ActorCriticNetworks, config: Config) -> ActorCriticLosses:
    """The two losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``."""
    policy_at, q_at = networks.policy.apply, networks.critic.apply

    def critic_loss(critic: Any, targets: PolicyCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        q_t = q_at(targets.critic, o_t, policy_at(targets.policy, o_t))  # [B]
        q_tm1 = q_at(critic, o_tm1, action)  # [B]
        errors = learning.action_value_error(q_tm1, reward, discount, q_t)  # eq. 4 and 5
        return mean_loss(jnp.square(errors), {"q": jnp.mean(q_tm1)}, batch, config, priorities=jnp.abs(errors))

    return ActorCriticLosses(critic_loss, learning.deterministic_policy_loss(policy_at, q_at))  # eq. 6


def fit(losses: ActorCriticLosses, networks: ActorCriticNetworks, config: Config) -> Update:
    """A step on the critic and one on the policy, after which both targets move (paper, algorithm 1)."""
    rates = (config.policy_learning_rate, config.critic_learning_rate)
    return learning.adam_actor_critic(losses, networks, rates, learning.polyak(config.tau))


make_agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
