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
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, feed_forward
from agentkit.agents.checks import check_not_negative
from agentkit.agents.off_policy import OffPolicyConfig, agent_of_loss, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(OffPolicyConfig):
    """Settings of Rainbow, beside those of `OffPolicyConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer of both streams (after the convolutions, for images).
        noise: sigma_0, the initial size of the noise on weights, >= 0.
        num_atoms: returns that the distributions are made of, at least 2 (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
        n_step: rewards summed before bootstrapping (the paper's 3).
        learning_rate: Adam's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        target_update_period: updates between copies to the target network.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    noise: float = 0.5
    num_atoms: int = 101
    vmin: float = -100.0
    vmax: float = 100.0
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

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_not_negative(self, "noise")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        logits: ``(params, key, observation [B, ...]) -> [B, A, N]``, of the probability of each atom; noise on the
            weights is drawn from `key`, one draw for all of the batch, and there is none where it is None.
        atoms: the returns, rising, float32 ``[N]``.
    """

    init: Callable[[jax.Array], Any]
    logits: Callable[[Any, jax.Array | None, Nest], jax.Array]
    atoms: jax.Array


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """A noisy duelling network of return distributions for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Rainbow")

    def logits(observation: Nest) -> jax.Array:
        return nets.noisy_duelling_logits(observation, num_actions, config.num_atoms, config.hidden_sizes, config.noise)

    network: hk.Transformed = hk.transform(logits)
    example = specs.zeros(specs.add_leading(environment_spec.observations, 1))
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return Networks(lambda key: network.init(key, example), network.apply, atoms)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Greedy in the mean return under fresh noise; in evaluation without noise."""
    del config

    def act(params: Any, key: jax.Array, observation: Nest) -> jax.Array:
        batch = jax.tree.map(lambda x: x[None], observation)
        logits = networks.logits(params, None if evaluation else key, batch)
        q = nets.mask_illegal(nets.categorical_mean(logits, networks.atoms), batch)
        return jnp.argmax(q[0]).astype(jnp.int32)

    return feed_forward(act)


def make_loss(networks: Networks, config: Config) -> Loss:
    """The paper's section 4 on a batch of `Transition`s ``[B, ...]``; the loss of each is its priority."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        o_tm1, action, reward, discount, o_t, _ = batch.data
        online_key, target_key, selector_key = jax.random.split(key, 3)  # independent noise: 1706.10295, eq. 15
        logits_tm1 = networks.logits(params, online_key, o_tm1)  # [B, A, N]
        logits_t = networks.logits(target_params, target_key, o_t)
        selector = nets.categorical_mean(networks.logits(params, selector_key, o_t), networks.atoms)
        selector = nets.mask_illegal(selector, o_t)
        per_item = losses.categorical_q_learning_loss(
            logits_tm1, action, reward, discount, logits_t, selector, networks.atoms
        )  # [B]
        q_tm1 = nets.categorical_mean(logits_tm1, networks.atoms)
        return mean_loss(per_item, {"q": jnp.mean(q_tm1)}, batch, config)

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
