"""IQL: implicit Q-learning (Kostrikov et al. 2021, "Offline RL with Implicit Q-Learning", 2110.06169).

The value of a state is an upper expectile of the values of the actions that the data have there, so that no action
is ever judged that they do not have; the policy imitates their actions, the better ones more.

Deviations from the paper:
  * The policy climbs the critics and the value as this update has just made them; the authors' code has the target
    critics, and the value before its step.
  * One step size throughout; the paper lets the policy's fall by a cosine. No dropout.
  * Rewards are not scaled by the data's range of returns.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import learning, losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, clipped_samples
from agentkit.agents.common.ranges import Positive, Range
from agentkit.agents.off_policy import ActorCriticConfig, agent_of_loss, mean_loss
from agentkit.learning import ActorCriticLosses, PolicyCritic, Update
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ActorCriticConfig):
    """Settings of IQL, beside those of `ActorCriticConfig`.

    Attributes:
        expectile: tau, in (0, 1): at 0.5 values are those of whoever made the data, near 1 of the best in them.
        temperature: 1 / beta of the paper, > 0: what an advantage is divided by before the exponential that weighs
            actions; the less, the greedier.
        max_weight: the largest such weight, > 0.
    """

    expectile: Annotated[float, Range("in (0, 1)", lambda value: 0 < value < 1)] = 0.7
    temperature: Positive = 1.0 / 3.0
    max_weight: Positive = 100.0


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> DiagonalNormal`` of ``[B, A]``, its means in [-1, 1].
        critics: ``observation [B, ...], action [B, A] -> (q [B], q [B])``, two critics that share nothing.
        value: ``observation [B, ...] -> [B]``.
    """

    policy: nets.Network
    critics: nets.Network
    value: nets.Network


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy, twin critics and a value for an environment of continuous actions in [-1, 1]."""
    sizes = config.hidden_sizes
    policy, critics, _ = nets.actor_critic_networks(
        environment_spec,
        "IQL",
        policy=lambda observation, size: nets.gaussian_action(observation, size, sizes),
        critic=lambda observation, action: nets.twin_action_values(observation, action, sizes),
    )
    value = nets.make_network(lambda observation: nets.state_value(observation, sizes), environment_spec.observations)
    return Networks(policy, critics, value)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """A sample of the policy, clipped to [-1, 1]; in evaluation its mean."""
    del config
    return clipped_samples(networks.policy.apply, evaluation)


def make_losses(networks: Networks, config: Config) -> ActorCriticLosses:
    """The losses on a batch of `Transition`s ``[B, ...]``; what judges is ``{"critics": ..., "value": ...}``."""

    def least(critics: Any, observation: Nest, action: jax.Array) -> jax.Array:
        return jnp.minimum(*networks.critics.apply(critics, observation, action))

    def critic_loss(judges: Any, targets: PolicyCritic, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        v_tm1 = networks.value.apply(judges["value"], o_tm1)  # [B]
        v_t = networks.value.apply(jax.lax.stop_gradient(judges["value"]), o_t)
        q_target = least(targets.critic["critics"], o_tm1, action)
        value_loss = losses.expectile_loss(jax.lax.stop_gradient(q_target) - v_tm1, config.expectile)  # eq. 5
        twins = networks.critics.apply(judges["critics"], o_tm1, action)
        errors = [learning.action_value_error(q, reward, discount, v_t) for q in twins]  # eq. 6
        per_item = jnp.square(errors[0]) + jnp.square(errors[1]) + value_loss
        metrics = {"q": jnp.mean(twins[0]), "value": jnp.mean(v_tm1)}
        return mean_loss(per_item, metrics, batch, config, priorities=jnp.abs(errors[0]))

    def policy_loss(policy: Any, judges: Any, batch: ReplaySample) -> jax.Array:
        observation, action = batch.data.observation, batch.data.action
        advantage = least(judges["critics"], observation, action) - networks.value.apply(judges["value"], observation)
        weights = losses.exponential_weights(advantage, config.temperature, config.max_weight)
        return -jnp.mean(weights * networks.policy.apply(policy, observation).log_prob(action))  # eq. 7

    return ActorCriticLosses(critic_loss, policy_loss)


def fit(losses: ActorCriticLosses, networks: Networks, config: Config) -> Update:
    """A step on value, critics and policy (paper, algorithm 1; the policy, which changes no value, beside them)."""

    def init_judges(key: jax.Array) -> dict[str, Any]:
        critics_key, value_key = jax.random.split(key)
        return {"critics": networks.critics.init(critics_key), "value": networks.value.init(value_key)}

    init, optimizer = PolicyCritic(networks.policy.init, init_judges), learning.adam(config.learning_rate)
    both = PolicyCritic(optimizer, optimizer)
    return learning.deterministic_actor_critic(losses, init, both, learning.polyak(config.tau))


make_agent = agent_of_loss(Config, make_networks, make_policy, make_losses, fit)
