"""BC: behavioural cloning (Pomerleau 1991, "Efficient Training of Neural Networks for Autonomous Navigation").

The policy is fitted to the data's actions as in any regression or classification; rewards are not looked at. It is as
good as whoever made the data, and the measure of what an algorithm for offline RL adds.

Deviations from the paper:
  * A multilayer perceptron (or the convolutions of Mnih et al. 2015, for images) and Adam instead of the paper's
    network of one hidden layer and its augmented camera images.
  * Discrete actions are classified (cross-entropy), continuous ones regressed (squared error of a tanh layer).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, deterministic_policy, epsilon_greedy, feed_forward
from agentkit.agents.common.ranges import Fraction
from agentkit.agents.off_policy import OffPolicyConfig, agent_of_loss, mean_loss
from agentkit.learning import Loss, Update, adam, sgd
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(OffPolicyConfig):
    """Settings of BC, beside those of `OffPolicyConfig`; `discount` and `n_step` change nothing but what is stored.

    Attributes:
        hidden_sizes: units of each hidden layer.
        learning_rate: Adam's step size.
        random_actions: chance of a uniform action where it acts to explore; none in evaluation.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    random_actions: Fraction = 0.05


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1], or logits ``[B, A]`` of discrete actions.
        num_actions: A of discrete actions; None of continuous ones.
        action_shape: ``(A,)``, or ``()`` of discrete actions.
    """

    policy: nets.Network
    num_actions: int | None
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A policy for an environment of discrete actions, or of continuous ones in [-1, 1]."""
    observations, actions = environment_spec.observations, environment_spec.actions
    sizes = config.hidden_sizes
    if isinstance(actions, specs.DiscreteArray):
        count = int(actions.num_values)
        return Networks(
            nets.network(lambda observation: nets.q_values(observation, count, sizes), observations), count, ()
        )
    size = specs.canonical_action_size(actions, "BC")
    policy = nets.network(lambda observation: nets.tanh_action(observation, size, sizes), observations)
    return Networks(policy, None, (size,))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """The likeliest action, or the network's; to explore, now and then a uniform one."""
    chance = 0.0 if evaluation else config.random_actions
    if networks.num_actions is not None:
        return epsilon_greedy(networks.policy.apply, lambda _: chance)
    if evaluation:
        return deterministic_policy(networks.policy.apply)

    def act(params: Any, key: jax.Array, observation: Nest) -> jax.Array:
        action = networks.policy.apply(params, jax.tree.map(lambda x: x[None], observation))[0]
        chance_key, uniform_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, networks.action_shape, minval=-1.0, maxval=1.0)
        return jnp.where(jax.random.uniform(chance_key) < chance, uniform, action)

    return feed_forward(act)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Cross-entropy, or squared error, on the actions of a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del target_params, key
        output, action = networks.policy.apply(params, batch.data.observation), batch.data.action
        if networks.num_actions is None:
            per_item = jnp.sum(jnp.square(output - action), axis=-1)  # [B]
            return mean_loss(per_item, {}, batch, config)
        agreement = jnp.mean(jnp.argmax(output, axis=-1) == action)
        return mean_loss(losses.action_cross_entropy(output, action), {"agreement": agreement}, batch, config)

    return loss


def fit(loss: Loss, networks: Networks, config: Config) -> Update:
    """Adam on the loss."""
    return sgd(loss, networks.policy.init, adam(config.learning_rate))


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss, fit)
