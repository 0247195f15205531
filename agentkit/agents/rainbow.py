"""Rainbow: six improvements of DQN in one agent (Hessel et al. 2018, "Rainbow: Combining Improvements", 1710.02298).

All of them, always:
  * double Q-learning (van Hasselt et al. 2016): the online network chooses the action to bootstrap from;
  * duelling networks (Wang et al. 2016): value and advantage streams, for each atom;
  * prioritised replay (Schaul et al. 2016), by the loss;
  * n-step returns (Sutton 1988);
  * distributions of returns (C51, Bellemare et al. 2017);
  * noisy networks (Fortunato et al. 2018, 1706.10295) for exploration, and no epsilon.

Deviations from the paper:
  * The correction of prioritised sampling does not grow in the course of training: `importance_exponent` is fixed.
  * New transitions get priority 1, not the largest priority so far.
  * An actor draws new noise at each step.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: see `c51` on the atoms.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, feed_forward
from agentkit.agents.c51 import AtomsConfig, divergence_loss
from agentkit.agents.common.ranges import NotNegative
from agentkit.agents.off_policy import OffPolicyConfig, agent_of_loss
from agentkit.learning import Loss
from agentkit.types import Nest


@dataclasses.dataclass(frozen=True)
class Config(AtomsConfig, OffPolicyConfig):
    """Settings of Rainbow, beside those of `AtomsConfig` and `OffPolicyConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of both streams (after the convolutions, for images).
        noise: sigma_0, the initial size of the noise on weights, >= 0.
        n_step: rewards summed before bootstrapping (the paper's 3).
        learning_rate: Adam's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        target_update_period: updates between copies to the target network.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    noise: NotNegative = 0.5
    n_step: int = 10
    learning_rate: float = 5e-4
    max_grad_norm: float | None = 10.0
    batch_size: int = 128
    target_update_period: int = 200
    updates_per_step: float = 0.5
    replay_size: int = 100_000
    prioritized: bool = True
    priority_exponent: float = 0.5
    importance_exponent: float = 0.5


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.CategoricalNetwork:
    """A noisy duelling network of return distributions; its `logits` are of ``(params, key, observation [B, ...])``.

    Noise on the weights is drawn from `key`, one draw for all of the batch, and there is none where it is None.
    """
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Rainbow")

    def logits(observation: Nest) -> jax.Array:
        return nets.noisy_duelling_logits(observation, num_actions, config.num_atoms, config.hidden_sizes, config.noise)

    network: hk.Transformed = hk.transform(logits)
    example = specs.zeros(specs.add_leading(environment_spec.observations, 1))
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return nets.CategoricalNetwork(lambda key: network.init(key, example), network.apply, atoms)


def make_policy(networks: nets.CategoricalNetwork, config: Config, evaluation: bool = False) -> Policy:
    """Greedy in the mean return under fresh noise; in evaluation without noise."""
    del config

    def act(params: Any, key: jax.Array, observation: Nest) -> jax.Array:
        batch = jax.tree.map(lambda x: x[None], observation)
        q = networks.q_values(networks.logits(params, None if evaluation else key, batch), batch)
        return jnp.argmax(q[0]).astype(jnp.int32)

    return feed_forward(act)


def make_loss(networks: nets.CategoricalNetwork, config: Config) -> Loss:
    """The paper's section 4 on a batch of `Transition`s ``[B, ...]``; the loss of each is its priority."""

    def outputs(params: Any, target_params: Any, o_tm1: Nest, o_t: Nest, key: jax.Array) -> tuple[jax.Array, ...]:
        online_key, target_key, selector_key = jax.random.split(key, 3)  # independent noise: 1706.10295, eq. 15
        logits_tm1 = networks.logits(params, online_key, o_tm1)
        logits_t = networks.logits(target_params, target_key, o_t)
        return logits_tm1, logits_t, networks.q_values(networks.logits(params, selector_key, o_t), o_t)

    return divergence_loss(outputs, networks, config)


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
