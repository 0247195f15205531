"""BC: behavioural cloning (Pomerleau 1991, "Efficient Training of Neural Networks for Autonomous Navigation").

The policy is fitted to the data's actions as in any regression or classification, and rewards are ignored. It is as
good as whoever made the data, and the measure of what an algorithm for offline RL adds.

Differences from the paper:
  * A multilayer perceptron (or the convolutions of Mnih et al. 2015, for images) and Adam instead of the paper's
    network of one hidden layer and its augmented camera images.
  * Discrete actions are classified (cross-entropy), continuous ones regressed (squared error of a tanh layer).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import (
    Policy,
    deterministic_policy,
    epsilon_greedy_policy,
    fixed_epsilon_policy,
    stateless_policy,
)
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Fraction, Positive, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Loss, Schedule, SgdState, Update, adam, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of BC, in addition to those of `ReplayConfig`.

    `discount` and `n_step` change what is stored, and nothing else.

    Attributes:
        hidden_sizes: units of each hidden layer.
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        random_actions: probability of a uniform action where the agent explores; none in evaluation.
    """

    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = None
    adam_epsilon: Positive = 1e-8
    random_actions: Fraction = 0.05


class Networks(NamedTuple):
    """Holds the pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> action [B, A]`` in [-1, 1], or logits ``[B, A]`` of discrete actions.
        num_actions: A of discrete actions; None of continuous ones.
        action_shape: ``(A,)``, or ``()`` of discrete actions.
    """

    policy: nets.Network
    num_actions: int | None
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds a policy for an environment of discrete actions, or of continuous ones in [-1, 1]."""
    observations, actions = environment_spec.observations, environment_spec.actions
    sizes = config.hidden_sizes
    if isinstance(actions, specs.DiscreteArray):
        count = int(actions.num_values)
        return Networks(
            nets.make_network(lambda observation: nets.q_values(observation, count, sizes, torso), observations),
            count,
            (),
        )
    size = specs.canonical_action_size(actions, "BC")
    policy = nets.make_network(lambda observation: nets.tanh_action(observation, size, sizes, torso), observations)
    return Networks(policy, None, (size,))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Takes the likeliest action, or the network's; explores by a uniform action now and then."""
    if networks.num_actions is not None:
        if evaluation:
            return fixed_epsilon_policy(networks.policy.apply, 0.0)
        return epsilon_greedy_policy(networks.policy.apply, config.random_actions)
    if evaluation:
        return deterministic_policy(networks.policy.apply)

    def act(params: Params, key: jax.Array, observation: Nest) -> jax.Array:
        action = networks.policy.apply(params, jax.tree.map(lambda x: x[None], observation))[0]
        chance_key, uniform_key = jax.random.split(key)
        uniform = jax.random.uniform(uniform_key, networks.action_shape, minval=-1.0, maxval=1.0)
        return jnp.where(jax.random.uniform(chance_key) < config.random_actions, uniform, action)

    return stateless_policy(act)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Builds the cross-entropy, or the squared error, of the actions of a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del state, key
        output, action = networks.policy.apply(params, batch.data.observation), batch.data.action
        if networks.num_actions is None:
            per_item = jnp.sum(jnp.square(output - action), axis=-1)  # [B]
            return importance_weighted_loss(per_item, {}, batch, config)
        agreement = jnp.mean(jnp.argmax(output, axis=-1) == action)
        per_item = losses.action_cross_entropy(output, action)  # [B]
        return importance_weighted_loss(per_item, {"agreement": agreement}, batch, config)

    return loss


def make_update(networks: Networks, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss."""
    return sgd(
        loss,
        networks.policy.init,
        optimizer_of(optimizer, config, adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)),
    )


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
    make_policy: MakePolicy[Networks, Config] = make_policy,
    make_loss: Callable[[Networks, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    make_update: Callable[[Networks, Loss, Config], Update] = make_update,
) -> Agent[Networks]:
    """Returns BC as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
