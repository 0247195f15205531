"""DQN: deep Q-network (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

Options add double Q-learning (van Hasselt et al. 2016), duelling networks (Wang et al. 2016), n-step returns (Sutton
1988) and prioritised replay (Schaul et al. 2016).

Differences from the paper:
  * Double Q-learning and 10-step returns by default; `double` False and `n_step` 1 are the paper's.
  * Adam instead of RMSProp, with optional clipping of the global gradient norm; Huber loss instead of clipped errors
    (the same gradient).
  * Epsilon falls linearly over each actor's steps, of all its environments; in evaluation it is 0, the paper's 0.05.
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari.

The paper's settings, with its words for them (extended data table 1, and its text), and the defaults here::

    Config(
        # Of `ReplayConfig`:
        batch_size=32,  # minibatch size | 128
        replay_size=1_000_000,  # replay memory size | 100_000
        min_replay_size=50_000,  # replay start size | 1_000
        updates_per_step=0.25,  # update frequency: every 4 actions | 0.5
        discount=0.99,  # discount factor | 0.99
        n_step=1,  # targets of one step | 10
        # DQN's own:
        target_update_period=10_000,  # target network update frequency | 200
        learning_rate=2.5e-4,  # learning rate | 1e-3
        max_grad_norm=None,  # none, but errors are clipped | 10.0
        huber_delta=1.0,  # errors are clipped to [-1, 1] | 1.0
        # Initial exploration, final exploration and final exploration frame:
        epsilon=Linear(1.0, 0.1, 1_000_000),  # one schedule | Linear(1.0, 0.05, 5_000)
        epsilon_evaluation=0.05,  # evaluation procedure | 0.0
        double=False,  # the target network chooses | True
        hidden_sizes=(512,),  # last hidden layer, behind convolutions | (64, 64)
    )

The table's other lines: agent history length (4), action repeat (4) and no-op max (30) are the environment's,
``atari:NAME`` with ``max_noops=30``; gradient momentum (0.95), squared gradient momentum (0.95) and min squared
gradient (0.01) are RMSProp's, which `make_agent` takes as its `optimizer`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, Fraction, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.learning import (
    Linear,
    Loss,
    Schedule,
    Update,
    UpdateOutput,
    adam,
    global_norm,
    objective,
    optimizer_step,
)
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Transition

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Config(ReplayConfig):
    """Holds the hyperparameters of DQN, in addition to those of `ReplayConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        duelling: separate value and advantage streams (Wang et al. 2016).
        double: select the bootstrap action with the online network (van Hasselt et al. 2016).
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
    """

    n_step: Count = 10
    batch_size: Count = 128
    updates_per_step: Positive = 0.5
    replay_size: Count = 100_000
    hidden_sizes: Sizes = (64, 64)
    duelling: bool = False
    double: bool = True
    huber_delta: Positive | None = 1.0
    learning_rate: Positive | Schedule = 1e-3
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 200
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 5_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.Network:
    """Builds action values ``[B, A]`` for an environment of discrete actions."""
    head = nets.duelling_q_values if config.duelling else nets.q_values

    def q_values(observation: Nest, num_actions: int) -> jax.Array:
        q: jax.Array = head(observation, num_actions, config.hidden_sizes, torso)
        return q

    return nets.value_network(environment_spec, "DQN", q_values)


def make_policy(network: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily: by a falling epsilon or on the ladder; in evaluation by a fixed epsilon."""
    if evaluation:
        return fixed_epsilon_policy(network.apply, config.epsilon_evaluation)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(network.apply)
    return epsilon_greedy_policy(network.apply, config.epsilon)


class State(NamedTuple):
    """Holds the training state of DQN.

    Attributes:
        params: theta, the parameters of the action values.
        target_params: theta^-, which were theta up to `target_update_period` updates ago.
        opt_state: of the parameters.
        key: PRNG key ``uint32[2]``, for losses that draw.
        num_updates: batches learned from, int32 ``[]``.
    """

    params: Params
    target_params: Params
    opt_state: optax.OptState
    key: jax.Array
    num_updates: jax.Array


def make_loss(network: nets.Network, config: Config) -> Loss:
    """Builds the Huber loss of the TD errors, on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Params, state: State, batch: ReplaySample[Transition], key: jax.Array) -> LossOutput:
        del key
        o_tm1, a_tm1, r_t, discount_t, o_t, _extras = batch.data
        # r_t is a sum of n rewards; discount_t is gamma^n, and 0 where the episode terminated (`adders.NStepAdder`).
        q_tm1, q_target_t = network.apply(params, o_tm1), network.apply(state.target_params, o_t)  # [B, A]
        if config.double:
            q_t = network.apply(params, o_t)
            errors = losses.double_q_learning_error(q_tm1, a_tm1, r_t, discount_t, q_target_t, q_t)  # [B]
        else:
            errors = losses.q_learning_error(q_tm1, a_tm1, r_t, discount_t, q_target_t)
        per_item = losses.huber(errors, config.huber_delta)
        metrics = {"q": nets.mean_legal(q_tm1)}  # Where a mask forbids actions, of the others.
        return importance_weighted_loss(per_item, metrics, batch, config, priorities=jnp.abs(errors))

    return loss


def make_update(network: nets.Network, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a gradient step on each batch, and copies the target network now and then (algorithm 1).

    Args:
        network: of the action values.
        loss: of `make_loss`.
        config: the hyperparameters.
        optimizer: as `make_agent` takes it; None for Adam.
    """
    import optax  # Not at import time: actors load this file, and optimise nothing.

    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    transformation = optimizer_of(optimizer, config, default)

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = network.init(params_key)
        target_params = jax.tree.map(jnp.copy, params)
        return State(params, target_params, transformation.init(params), key, jnp.zeros((), jnp.int32))

    def update(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key = jax.random.fold_in(state.key, state.num_updates)  # Not split: XLA drops it if the loss ignores it.
        grads, output = jax.grad(objective(loss), has_aux=True)(state.params, state, batch, key)
        params, opt_state = optimizer_step(transformation, grads, state.params, state.opt_state)
        num_updates = state.num_updates + 1
        target_params = optax.periodic_update(params, state.target_params, num_updates, config.target_update_period)
        metrics = {"loss": output.loss, "grad_norm": global_norm(grads), **output.metrics}
        state = State(params, target_params, opt_state, state.key, num_updates)
        return state, UpdateOutput(metrics, output.priorities)

    return Update(init, update, lambda state: {"policy": state.params})


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
    """Returns DQN as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Transitions(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
