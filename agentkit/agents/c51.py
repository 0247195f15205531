"""C51: categorical DQN (Bellemare et al. 2017, "A Distributional Perspective on RL", 1707.06887).

The network gives the probability of each of a fixed set of returns, and learns the whole distribution. Actions are
chosen by its mean.

Differences from the paper:
  * The loss is the paper's cross-entropy less the target's entropy: the same gradient, and 0 at best.
  * n-step returns (Sutton 1988); `n_step` 1 is the paper's.
  * Adam with another epsilon, and optional clipping of the global gradient norm.
  * Epsilon falls linearly over each actor's steps, of all its environments.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari: the atoms cover the returns of rewards up to 1 at gamma 0.99,
    where the paper's -10 to 10 are for clipped rewards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import (
    Count,
    CountFromTwo,
    Finite,
    Fraction,
    Positive,
    ScheduleOfSteps,
    Sizes,
    check_order,
)
from agentkit.agents.common.torso import with_torso
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of C51, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        num_atoms: N, returns that the distributions are made of (the paper's 51).
        vmin: the least of them; smaller returns count as this one.
        vmax: the greatest; rewards up to 1 have returns up to 1 / (1 - discount).
    """

    n_step: Count = 10
    batch_size: Count = 128
    updates_per_step: Positive = 0.5
    replay_size: Count = 100_000
    hidden_sizes: Sizes = (64, 64)
    learning_rate: Positive | Schedule = 5e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 5_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False
    num_atoms: CountFromTwo = 101
    vmin: Finite = -100.0
    vmax: Finite = 100.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and bounds in the wrong order."""
        super().__post_init__()
        check_order(self, "vmin", "vmax")


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.CategoricalNetwork:
    """Builds the distributions' logits ``[B, A, N]`` for an environment of discrete actions."""

    def logits(observation: Nest, num_actions: int) -> jax.Array:
        return nets.action_outputs(observation, num_actions, config.num_atoms, config.hidden_sizes, torso)

    init, apply = nets.value_network(environment_spec, "C51", logits)
    return nets.CategoricalNetwork(init, apply, nets.evenly_spaced_atoms(config.vmin, config.vmax, config.num_atoms))


def make_policy(network: nets.CategoricalNetwork, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily by the mean return; epsilon falls or is on the ladder, in evaluation it is fixed."""

    def mean_returns(params: Params, observation: Nest) -> jax.Array:
        return network.q_values(network.logits(params, observation), observation)

    if evaluation:
        return fixed_epsilon_policy(mean_returns, config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(mean_returns)
    return epsilon_greedy_policy(mean_returns, config.epsilon)


def make_loss(network: nets.CategoricalNetwork, config: Config) -> Loss:
    """Builds the divergence from the projected target (algorithm 1), on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _ = batch.data
        logits_tm1, logits_t = network.logits(params, o_tm1), network.logits(state.target_params, o_t)  # [B, A, N]
        q_t = network.q_values(logits_t, o_t)  # [B, A]; its argmax is a* of algorithm 1
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
    """Returns C51 as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
