"""IQN: implicit quantile networks (Dabney et al. 2018, "Implicit Quantile Networks for Distributional RL", 1806.06923).

The network takes a fraction tau beside the observation and gives that quantile of each action's return, so it holds
the whole distribution. Actions are chosen by the mean of sampled quantiles, or by the mean of the worst part.

Differences from the paper:
  * Of its risk-sensitive policies the conditional value at risk (`risk_level` < 1), and the neutral one (1).
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Adam with another epsilon, and optional clipping of the global gradient norm.
  * Epsilon falls linearly over each actor's steps, of all its environments.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, Rate, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of IQN, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images), at least one.
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        num_quantiles: N, fractions drawn for each transition and learned at.
        huber_delta: kappa, where the loss turns from squared to linear; 0 for quantile regression proper.
        num_cosines: features of a fraction tau, before the layer that embeds it (eq. 4).
        num_target_quantiles: N', fractions drawn for each target.
        num_policy_quantiles: K, fractions drawn to choose an action by.
        risk_level: the share of the worst returns whose mean chooses actions, in (0, 1]; 1 for all of them.
    """

    n_step: Count = 10
    batch_size: Count = 128
    updates_per_step: Positive = 0.5
    replay_size: Count = 100_000
    hidden_sizes: Sizes = (64, 64)
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 5_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False
    num_quantiles: Count = 8
    huber_delta: NotNegative = 1.0
    num_cosines: Count = 64
    num_target_quantiles: Count = 8
    num_policy_quantiles: Count = 32
    risk_level: Rate = 1.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and networks without a hidden layer to join fractions at."""
        super().__post_init__()
        if not self.hidden_sizes:
            raise ConfigError(f"hidden_sizes needs at least one layer, found {self.hidden_sizes}. Give one, as (64,).")


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.Network:
    """Builds ``(params, observation [B, ...], taus [B, N]) -> [B, N, A]``, the quantiles `taus` of each return."""

    def quantiles(observation: Nest, num_actions: int, taus: jax.Array) -> jax.Array:
        return nets.implicit_quantiles(observation, taus, num_actions, config.hidden_sizes, config.num_cosines, torso)

    taus_spec = specs.Array((config.num_quantiles,), np.float32)
    return nets.value_network(environment_spec, "IQN", quantiles, taus_spec)


def draw_policy_taus(key: jax.Array, batch_size: int, config: Config) -> jax.Array:
    """Draws the fractions ``[B, K]`` to choose actions by, uniform in the worst share of returns (section 3, CVaR)."""
    return config.risk_level * jax.random.uniform(key, (batch_size, config.num_policy_quantiles))


def make_policy(network: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily by the mean of K quantiles; epsilon falls, is on the ladder, or fixed in evaluation."""

    def q_values(params: Params, observation: Nest, key: jax.Array) -> jax.Array:
        (batch_size, *_) = jax.tree.leaves(observation)[0].shape
        taus = draw_policy_taus(key, batch_size, config)  # [B, K]
        return jnp.mean(network.apply(params, observation, taus), axis=1)  # [B, A]

    if evaluation:
        return fixed_epsilon_policy(q_values, config.epsilon_evaluation, takes_key=True)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(q_values, takes_key=True)
    return epsilon_greedy_policy(q_values, config.epsilon, takes_key=True)


def make_loss(network: nets.Network, config: Config) -> Loss:
    """Builds the quantile Huber loss at drawn fractions (algorithm 1), on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        key_tm1, key_t, selector_key = jax.random.split(key, 3)
        taus_tm1 = jax.random.uniform(key_tm1, (*r_t.shape, config.num_quantiles))
        taus_t = jax.random.uniform(key_t, (*r_t.shape, config.num_target_quantiles))
        taus_selector = draw_policy_taus(selector_key, r_t.shape[0], config)
        quantiles_tm1 = network.apply(params, o_tm1, taus_tm1)  # [B, N, A]
        quantiles_t = network.apply(state.target_params, o_t, taus_t)  # [B, N', A]
        selector_t = network.apply(state.target_params, o_t, taus_selector)  # [B, K, A]
        per_item = losses.quantile_q_learning_loss(
            quantiles_tm1, taus_tm1, a_tm1, r_t, discount_t, quantiles_t, selector_t, config.huber_delta
        )  # [B], eq. 3
        return importance_weighted_loss(per_item, {"q": nets.mean_legal(quantiles_tm1)}, batch, config)

    return loss


def make_update(network: nets.Network, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss; copies the target network every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, network.init, optimizer, periodic(config.target_update_period))


@checks_parts
def make_agent(
    config: Config = Config(),
    *,
    torso: nets.Torso | str | None = None,
    make_networks: Callable[[specs.EnvironmentSpec, Config], nets.Network] = make_networks,
    make_policy: MakePolicy[nets.Network, Config] = make_policy,
    make_loss: Callable[[nets.Network, Config], Loss] = make_loss,
    optimizer: Optimizer | None = None,
    make_update: Callable[[nets.Network, Loss, Config], Update] = make_update,
) -> Agent[nets.Network]:
    """Returns IQN as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
