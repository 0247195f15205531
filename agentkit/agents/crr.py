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
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit.agents import regression
from agentkit.agents.checks import check_counts
from agentkit.agents.off_policy import agent_of_loss, mean_loss
from agentkit.agents.regression import Networks, RegressionConfig, clipped_sample, fit_regression, make_policy
from agentkit.errors import unknown_name
from agentkit.learning import ActorCritic, ActorCriticLosses, Update
from agentkit.types import LossOutput, Nest, ReplaySample

Weights = Literal["exp", "binary"]


@dataclasses.dataclass(frozen=True)
class Config(RegressionConfig):
    """Settings of CRR, beside those of `RegressionConfig`.

    Attributes:
        weights: of the data's actions: "exp" of the advantage, or "binary", whether it is above 0.
        num_sampled_actions: m, of the policy, whose mean value an advantage is beyond; and as many for targets.
        max_weight: the largest weight; the paper's 20.
    """

    weights: Weights = "exp"
    num_sampled_actions: int = 4
    max_weight: float = 20.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_counts(self, "num_sampled_actions")
        if self.weights not in get_args(Weights):
            raise unknown_name("kind of weights", self.weights, get_args(Weights))


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy and twin critics."""
    return regression.make_networks(environment_spec, config, "CRR")


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The losses of critics and policy on a batch of `Transition`s ``[B, ...]``."""

    def least(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return jnp.minimum(*networks.critics.apply(critics, observation, action))

    def policy_value(policy: Any, critics: Any, observation: Nest, key: jax.Array) -> jax.Array:
        """The mean value ``[B]`` of actions that the policy draws."""
        distribution = networks.policy.apply(policy, observation)
        keys = jax.random.split(key, config.num_sampled_actions)
        values = jax.vmap(lambda key: least(critics, observation, clipped_sample(distribution, key)))(keys)
        return jnp.mean(values, axis=0)

    def critic_loss(critics: Any, targets: ActorCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        v_t = policy_value(targets.policy, targets.critic, o_t, key)
        twins = networks.critics.apply(critics, o_tm1, action)
        errors = [losses.action_value_error(q, reward, discount, v_t) for q in twins]
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


def fit(make_losses: Callable[[Networks, Config], ActorCriticLosses], networks: Networks, config: Config) -> Update:
    """A step on the critics and one on the policy (paper, algorithm 1)."""
    return fit_regression(make_losses(networks, config), networks.critics.init, networks, config)


Agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
