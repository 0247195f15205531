"""QR-DQN: quantile regression DQN (Dabney et al. 2018, "Distributional RL with Quantile Regression", 1710.10044).

The network gives N quantiles of each action's return, at fixed fractions, so that returns need no bounds. Actions are
chosen by their mean.

Differences from the paper:
  * The quantile Huber loss is divided by `huber_delta`, as in Dabney et al. 2018 (1806.06923), so that it tends to
    quantile regression as `huber_delta` tends to 0; at the paper's 1 there is no difference.
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Adam with another epsilon, and optional clipping of the global gradient norm.
  * Epsilon falls linearly over each actor's steps, of all its environments.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: 51 quantiles instead of 200.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, NotNegative, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of QR-DQN, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        num_quantiles: N, quantiles of each action's return.
        huber_delta: kappa, where the loss turns from squared to linear; 0 for quantile regression proper (the
            paper's QR-DQN-0).
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
    num_quantiles: Count = 51
    huber_delta: NotNegative = 1.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.Network:
    """Builds the quantiles ``[B, N, A]`` of each action's return; the i-th of N is at the fraction (2 i + 1) / 2 N."""

    def quantiles(observation: Nest, num_actions: int) -> jax.Array:
        outputs = nets.action_outputs(observation, num_actions, config.num_quantiles, config.hidden_sizes, torso)
        return nets.mask_illegal(jnp.swapaxes(outputs, 1, 2), observation)

    return nets.value_network(environment_spec, "QR-DQN", quantiles)


def make_policy(network: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily by the quantiles' mean; epsilon falls, is on the ladder, or fixed in evaluation."""

    def q_values(params: Params, observation: Nest) -> jax.Array:
        return jnp.mean(network.apply(params, observation), axis=1)  # Q of algorithm 1, [B, A]

    if evaluation:
        return fixed_epsilon_policy(q_values, config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(q_values)
    return epsilon_greedy_policy(q_values, config.epsilon)


def make_loss(network: nets.Network, config: Config) -> Loss:
    """Builds the quantile Huber loss (algorithm 1), on a batch of `Transition`s ``[B, ...]``."""
    midpoints = (jnp.arange(config.num_quantiles) + 0.5) / config.num_quantiles  # lemma 2, [N]

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        quantiles_tm1, quantiles_t = network.apply(params, o_tm1), network.apply(state.target_params, o_t)  # [B, N, A]
        taus = jnp.broadcast_to(midpoints, quantiles_tm1.shape[:2])  # [B, N]
        per_item = losses.quantile_q_learning_loss(
            quantiles_tm1, taus, a_tm1, r_t, discount_t, quantiles_t, quantiles_t, config.huber_delta
        )  # [B], eq. 10
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
    """Returns QR-DQN as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
