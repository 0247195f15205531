"""CRR: critic-regularized regression (Wang et al. 2020, "Critic Regularized Regression", 2006.15134).

The policy imitates those actions of the data that its critic finds better than its own: all of them weighted by their
advantage ("exp"), or just those with any ("binary").

Deviations from the paper:
  * The critics are twins whose smaller value counts; the paper has one, with a distribution of returns.
  * The policy is one Gaussian whose deviation does not depend on the observation; the paper has a mixture of five.
  * Networks are multilayer perceptrons; the paper's are residual, with layer normalisation.
  * Targets follow a little at each update; the paper copies them every 100.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from agentkit import learning, losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, clipped_samples
from agentkit.agents.common.ranges import Count, Positive
from agentkit.agents.off_policy import ActorCriticConfig, agent_of_loss, mean_loss
from agentkit.errors import unknown_name
from agentkit.learning import ActorCriticLosses, PolicyCritic, Update
from agentkit.networks import ActorCriticNetworks
from agentkit.types import LossOutput, Nest, ReplaySample

Weights = Literal["exp", "binary"]


@dataclasses.dataclass(frozen=True)
class Config(ActorCriticConfig):
    """Settings of CRR, beside those of `ActorCriticConfig`.

    Attributes:
        weights: of the data's actions: "exp" of the advantage, or "binary", whether it is above 0.
        num_sampled_actions: m, of the policy, whose mean value an advantage is beyond; and as many for targets.
        temperature: what an advantage is divided by before "exp", > 0; the less, the greedier.
        max_weight: the largest weight, > 0; the paper's 20.
    """

    weights: Weights = "exp"
    num_sampled_actions: Count = 4
    temperature: Positive = 1.0
    max_weight: Positive = 20.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        if self.weights not in get_args(Weights):
            raise unknown_name("kind of weights", self.weights, get_args(Weights))


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> ActorCriticNetworks:
    """A Gaussian policy and twin critics for an environment of continuous actions in [-1, 1]."""
    return nets.actor_critic_networks(
        environment_spec,
        "CRR",
        policy=lambda observation, size: nets.gaussian_action(observation, size, config.hidden_sizes),
        critic=lambda observation, action: nets.twin_action_values(observation, action, config.hidden_sizes),
    )


def make_policy(networks: ActorCriticNetworks, config: Config, evaluation: bool = False) -> Policy:
    """A sample of the policy, clipped to [-1, 1]; in evaluation its mean."""
    del config
    return clipped_samples(networks.policy.apply, evaluation)


def make_losses(networks: ActorCriticNetworks, config: Config) -> ActorCriticLosses:
    """The losses of critics and policy on a batch of `Transition`s ``[B, ...]``."""

    def least(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return jnp.minimum(*networks.critic.apply(critics, observation, action))

    def policy_value(policy: Any, critics: Any, observation: Nest, key: jax.Array) -> jax.Array:
        """The mean value ``[B]`` of actions that the policy draws."""
        distribution = networks.policy.apply(policy, observation)
        keys = jax.random.split(key, config.num_sampled_actions)
        values = jax.vmap(lambda key: least(critics, observation, jnp.clip(distribution.sample(key), -1.0, 1.0)))(keys)
        return jnp.mean(values, axis=0)

    def critic_loss(critics: Any, targets: PolicyCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        v_t = policy_value(targets.policy, targets.critic, o_t, key)
        twins = networks.critic.apply(critics, o_tm1, action)
        errors = [learning.action_value_error(q, reward, discount, v_t) for q in twins]
        per_item = jnp.square(errors[0]) + jnp.square(errors[1])  # [B]
        return mean_loss(per_item, {"q": jnp.mean(twins[0])}, batch, config, priorities=jnp.abs(errors[0]))

    def policy_loss(policy: Any, critics: Any, batch: ReplaySample, key: jax.Array) -> jax.Array:
        observation, action = batch.data.observation, batch.data.action
        advantage = least(critics, observation, action) - policy_value(policy, critics, observation, key)  # eq. 5
        if config.weights == "binary":
            weights = losses.binary_weights(advantage)
        else:
            weights = losses.exponential_weights(advantage, config.temperature, config.max_weight)  # eq. 4
        return -jnp.mean(weights * networks.policy.apply(policy, observation).log_prob(action))  # eq. 1

    return ActorCriticLosses(critic_loss, policy_loss, draws=True)


def fit(losses: ActorCriticLosses, networks: ActorCriticNetworks, config: Config) -> Update:
    """A step on the critics and one on the policy (paper, algorithm 1)."""
    rates = (config.learning_rate, config.learning_rate)
    return learning.adam_actor_critic(losses, networks, rates, learning.polyak(config.tau))


make_agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
