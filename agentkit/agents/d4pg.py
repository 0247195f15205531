"""D4PG: distributed distributional DDPG (Barth-Maron et al. 2018, "Distributed Distributional ...", 1804.08617).

DDPG whose critic predicts the distribution of n-step returns, as probabilities of fixed atoms. The "distributed"
of its name is `agentkit launch d4pg --actors N`.

Deviations from the paper:
  * Policy and critic are updated one after the other, the policy on the critic as it has just become.
  * The distribution is categorical; the paper's mixture of Gaussians, which it found worse, is left out.
  * Prioritised replay is off by default (the paper found that it helps little); the priority of an item is the
    divergence of the critic from its target, and importance weights are divided by the largest of the batch.
  * An actor's first `num_random_steps` actions are uniform.
  * Smaller networks, and a learning rate that fits short trainings (the paper's is 1e-4).
  * Weights begin orthogonal, those of the policy's last layer small.
  * Truncated episodes bootstrap.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import learning, losses, specs
from agentkit import networks as nets
from agentkit.agents.off_policy import DeterministicConfig, agent_of_loss, explore_actions, mean_loss
from agentkit.learning import ActorCriticLosses, PolicyCritic, Update
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(DeterministicConfig):
    """Settings of D4PG, beside those of `DeterministicConfig`.

    Attributes:
        num_atoms: values that the critic's distribution is spread over, at least 2.
        vmin: the least of them; choose the range so that it holds all discounted returns.
        vmax: the greatest.
        policy_learning_rate: Adam's step size for the policy.
        critic_learning_rate: Adam's step size for the critic.
        target_update_period: updates between copies to both targets.
    """

    num_atoms: int = 51
    vmin: float = -150.0
    vmax: float = 150.0
    n_step: int = 5
    policy_learning_rate: float = 3e-4
    critic_learning_rate: float = 3e-4
    target_update_period: int = 100
    exploration_noise: float = 0.3


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1].
        critic: ``observation [B, ...], action [B, A] -> logits [B, N]``, of the atoms' probabilities.
        atoms: the values that a return can take, rising, float32 ``[N]``.
        action_shape: ``(A,)``.
    """

    policy: nets.Network
    critic: nets.Network
    atoms: jax.Array
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy and a distributional critic for an environment of continuous actions in [-1, 1]."""

    def logits(observation: Nest, action: jax.Array, hidden_sizes: Sequence[int]) -> jax.Array:
        return nets.critic(observation, action, hidden_sizes, config.num_atoms)

    made = nets.deterministic_networks(environment_spec, "D4PG", config.hidden_sizes, logits)
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return Networks(made.policy, made.critic, atoms, made.action_shape)


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The two losses of algorithm 1 on a batch of `Transition`s ``[B, ...]``."""
    policy_at, logits_at, atoms = networks.policy.apply, networks.critic.apply, networks.atoms

    def critic_loss(critic: Any, targets: PolicyCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        logits_t = logits_at(targets.critic, o_t, policy_at(targets.policy, o_t))  # [B, N]
        logits_tm1 = logits_at(critic, o_tm1, action)
        divergence = losses.categorical_td_loss(logits_tm1, reward, discount, logits_t, atoms)  # [B], eq. 4
        return mean_loss(divergence, {"q": jnp.mean(nets.categorical_mean(logits_tm1, atoms))}, batch, config)

    def mean_at(critic: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return nets.categorical_mean(logits_at(critic, observation, action), atoms)

    return ActorCriticLosses(critic_loss, learning.deterministic_policy_loss(policy_at, mean_at))  # eq. 5


def fit(losses: ActorCriticLosses, networks: Networks, config: Config) -> Update:
    """A step on the critic and one on the policy; both targets are copied now and then (paper, algorithm 1)."""
    rates = (config.policy_learning_rate, config.critic_learning_rate)
    return learning.adam_actor_critic(losses, networks, rates, learning.periodic(config.target_update_period))


make_agent = agent_of_loss(Config, make_networks, explore_actions, make_losses, fit)
