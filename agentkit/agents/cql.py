"""CQL: conservative Q-learning (Kumar et al. 2020, "Conservative Q-Learning for Offline RL", 2006.04779).

SAC, whose critics are pressed down where the policy or chance would act and up at the data's actions: then the value
of the policy is not overestimated, and it does not go where there are no data. This is CQL(H), on SAC.

Deviations from the paper:
  * The weight of the penalty is fixed; the paper can also tune it to a target gap by dual descent.
  * The penalty's integral is estimated with uniform actions and with the policy's in the same state; the authors'
    code adds the policy's actions in the next state.
  * One step size for all; the paper has 1e-4 for the policy. No first updates that clone the data.
  * Targets have SAC's entropy term (the authors' code leaves it out by default).
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents import sac
from agentkit.agents.common.ranges import Count, NotNegative
from agentkit.agents.off_policy import agent_of_loss
from agentkit.learning import Bootstrap, SoftLosses
from agentkit.types import LossOutput, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(sac.Config):
    """Settings of CQL, beside those of SAC.

    Attributes:
        conservative_weight: alpha, the penalty's weight beside the TD errors'; 0 is SAC.
        num_sampled_actions: of each of the two kinds that estimate the penalty's integral, at least 1.
    """

    conservative_weight: NotNegative = 5.0
    num_sampled_actions: Count = 10


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> sac.Networks:
    """SAC's."""
    return sac.make_networks(environment_spec, config, "CQL")


def sampled_log_sum_exp(q: jax.Array, log_density: jax.Array) -> jax.Array:
    """An estimate ``[B]`` of log of the integral of exp q(s, a) over actions a (paper, appendix F).

    log (1/N sum_i exp(q_i) / p_i): importance sampling, of actions drawn with density p.

    Args:
        q: of N sampled actions, ``[N, B]``.
        log_density: log p of these, ``[N, B]``.
    """
    return jax.nn.logsumexp(q - jax.lax.stop_gradient(log_density), axis=0) - jnp.log(q.shape[0])


def make_losses(networks: sac.Networks, config: Config) -> SoftLosses:
    """SAC's losses, and the penalty on the critics, on a batch of `Transition`s ``[B, ...]``."""
    soft = sac.make_losses(networks, config)

    def sampled_actions(policy: Any, batch: ReplaySample, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Uniform actions and the policy's ``[2 N, B, A]``, and the logarithms of their densities ``[2 N, B]``."""
        uniform_key, policy_key = jax.random.split(key)
        distribution = networks.policy.apply(policy, batch.data.observation)
        keys = jax.random.split(policy_key, config.num_sampled_actions)
        own, log_prob = jax.vmap(lambda key: nets.sample_and_log_prob(distribution, key))(keys)
        uniform = jax.random.uniform(uniform_key, own.shape, minval=-1.0, maxval=1.0)
        log_uniform = jnp.full(log_prob.shape, -own.shape[-1] * jnp.log(2.0))
        return jnp.concatenate([uniform, own]), jnp.concatenate([log_uniform, log_prob])

    def critic_loss(critics: Any, bootstrap: Bootstrap, batch: ReplaySample, key: jax.Array) -> LossOutput:
        td_key, sample_key = jax.random.split(key)
        td = soft.critic(critics, bootstrap, batch, td_key)
        observation = batch.data.observation
        actions, log_density = jax.lax.stop_gradient(sampled_actions(bootstrap.policy, batch, sample_key))
        gaps = []
        for params in critics:
            q_sampled = jax.vmap(lambda action, p=params: networks.critic.apply(p, observation, action))(actions)
            q_data = networks.critic.apply(params, observation, batch.data.action)
            gaps.append(jnp.mean(sampled_log_sum_exp(q_sampled, log_density) - q_data))  # eq. 4
        loss = td.loss + config.conservative_weight * (gaps[0] + gaps[1])
        return LossOutput(loss, {**td.metrics, "conservative_gap": gaps[0]}, td.priorities)

    return SoftLosses(critic_loss, soft.policy)


make_agent = agent_of_loss(Config, make_networks, sac.make_policy, make_losses, sac.fit)
