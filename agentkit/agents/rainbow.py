"""Rainbow: six improvements of DQN in one agent (Hessel et al. 2018, "Rainbow: Combining Improvements", 1710.02298).

All of them, always:
  * double Q-learning (van Hasselt et al. 2016): the online network chooses the action to bootstrap from;
  * duelling networks (Wang et al. 2016): value and advantage streams, for each atom;
  * prioritised replay (Schaul et al. 2016), by the loss;
  * n-step returns (Sutton 1988);
  * distributions of returns (C51, Bellemare et al. 2017);
  * noisy networks (Fortunato et al. 2018, 1706.10295) for exploration, and no epsilon.

Differences from the paper:
  * The correction of prioritised sampling does not grow, unless `importance_exponent` is a schedule.
  * An actor draws new noise at each step.
  * Adam with another epsilon, and optional clipping of the global gradient norm.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: the atoms cover the returns of rewards up to 1 at gamma 0.99.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, stateless_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import (
    Count,
    CountFromTwo,
    Finite,
    Fraction,
    NotNegative,
    Positive,
    Sizes,
    check_order,
)
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of Rainbow, in addition to those of `ReplayConfig`.

    Attributes:
        num_atoms: N, returns that the distributions are made of (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
        hidden_sizes: units of each hidden layer of both streams (after the convolutions, for images).
        noise: sigma_0, the initial size of the noise on weights.
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
    """

    n_step: Count = 10
    batch_size: Count = 128
    updates_per_step: Positive = 0.5
    replay_size: Count = 100_000
    prioritized: bool = True
    priority_exponent: NotNegative = 0.5
    importance_exponent: Fraction | Schedule = 0.5
    num_atoms: CountFromTwo = 101
    vmin: Finite = -100.0
    vmax: Finite = 100.0
    hidden_sizes: Sizes = (64, 64)
    noise: NotNegative = 0.5
    learning_rate: Positive | Schedule = 5e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and bounds in the wrong order."""
        super().__post_init__()
        check_order(self, "vmin", "vmax")


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.CategoricalNetwork:
    """Builds a noisy duelling network, whose `logits` are of ``(params, key, observation [B, ...])``.

    Noise on the weights is drawn from `key`, one draw for all of the batch; None stands for no noise.
    """
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Rainbow")

    def logits(observation: Nest) -> jax.Array:
        observation = nets.encode_inputs(environment_spec.observations, observation)
        return nets.noisy_duelling_logits(
            observation, num_actions, config.num_atoms, config.hidden_sizes, config.noise, torso
        )

    network: hk.Transformed = hk.transform(logits)
    example = specs.zeros(specs.add_leading(environment_spec.observations, 1))
    atoms = nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms)
    return nets.CategoricalNetwork(lambda key: network.init(key, example), network.apply, atoms)


def make_policy(network: nets.CategoricalNetwork, config: Config, evaluation: bool = False) -> Policy:
    """Takes the action of the greatest mean return, under fresh noise; in evaluation without noise."""
    del config

    def act(params: Params, key: jax.Array, observation: Nest) -> jax.Array:
        batch = jax.tree.map(lambda x: x[None], observation)
        q = network.q_values(network.logits(params, None if evaluation else key, batch), batch)
        return jnp.argmax(q[0]).astype(jnp.int32)

    return stateless_policy(act)


def make_loss(network: nets.CategoricalNetwork, config: Config) -> Loss:
    """Builds the divergence from the projected target (section 4), on a batch of `Transition`s ``[B, ...]``.

    With prioritised replay, each transition's loss is its new priority.
    """

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        online_key, target_key, selector_key = jax.random.split(key, 3)  # independent noise: 1706.10295, eq. 15
        logits_tm1 = network.logits(params, online_key, o_tm1)  # [B, A, N]
        logits_t = network.logits(state.target_params, target_key, o_t)
        q_t = network.q_values(network.logits(params, selector_key, o_t), o_t)  # [B, A]
        per_item = losses.categorical_q_learning_loss(
            logits_tm1, a_tm1, r_t, discount_t, logits_t, q_t, network.atoms
        )  # [B]
        q_tm1 = network.q_values(logits_tm1, o_tm1)
        at_edge = nets.share_at_edge(q_tm1, config.vmin, config.vmax, nets.is_legal(q_tm1))
        metrics = {"q": nets.mean_legal(q_tm1), "at_edge": at_edge}
        return importance_weighted_loss(per_item, metrics, batch, config)

    return loss


def make_update(
    network: nets.CategoricalNetwork, loss: Loss, config: Config, optimizer: Optimizer | None = None
) -> Update:
    """Takes a step of Adam on the loss; copies the target network every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, network.init, optimizer, periodic(config.target_update_period))


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.CategoricalNetwork] = make_networks,
    make_policy: MakePolicy[nets.CategoricalNetwork, Config] = make_policy,
    make_loss: Callable[[nets.CategoricalNetwork, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    make_update: Callable[[nets.CategoricalNetwork, Loss, Config], Update] = make_update,
) -> Agent[nets.CategoricalNetwork]:
    """Returns Rainbow as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
