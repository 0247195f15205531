"""PQN: parallelised Q-network (Gallici et al. 2024, "Simplifying Deep Temporal Difference Learning", 2407.04811).

Q(lambda) without replay and without a target network: many environments fill segments of T rows, whose lambda returns
of the largest values the learner regresses to in epochs of minibatches. Layer normalisation keeps the values from
diverging.

Differences from the paper:
  * Adam, whose step size stays unless it is a schedule; the authors' code has RAdam, and a step size that falls to 0.
  * Orthogonal initial weights. The convolutions of images are not normalised, only the layers behind them.
  * Where a segment ends in mid-episode or an episode is truncated, the return ends with the value of what follows.
  * An episode's final observation takes one of the T rows; only its value is of use.
  * 16 minibatches of 2,048 rows, and an epsilon that falls over 25,000 steps; the authors have 32 of 4,096 on MinAtar,
    and a tenth of the run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, epsilon_greedy_policy, fixed_epsilon_policy
from agentkit.agents.common.advantages import merge_time
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.epochs import Fitted, run_epochs
from agentkit.agents.common.experience import Segments, SegmentsConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
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
    value_in_update,
)
from agentkit.losses import lambda_returns, masked_mean
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Step, has_action

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Config(SegmentsConfig):
    """Holds the hyperparameters of PQN, in addition to those of `SegmentsConfig`.

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images), layer norm and ReLU behind each.
        q_lambda: from 0 (one-step targets) to 1 (whole returns).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        num_epochs: passes over the data of an update.
        num_minibatches: gradient steps per epoch; divides batch_size * segment_length.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
    """

    hidden_sizes: Sizes = (128, 128)
    q_lambda: Fraction = 0.65
    learning_rate: Positive | Schedule = 5e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    num_epochs: Count = 2
    num_minibatches: Count = 16
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 25_000)
    epsilon_evaluation: Fraction = 0.0


def make_networks(
    environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso
) -> nets.Network:
    """Builds action values ``[B, A]`` for an environment of discrete actions, with layer normalisation."""

    def normalize(x: jax.Array) -> jax.Array:
        return jax.nn.relu(hk.LayerNorm(axis=-1, create_scale=True, create_offset=True)(x))

    def q_values(observation: Nest, num_actions: int) -> jax.Array:
        q = nets.orthogonal_mlp(torso(observation), config.hidden_sizes, num_actions, activation=normalize)
        return nets.mask_illegal(q, observation)

    return nets.value_network(environment_spec, "PQN", q_values)


def make_policy(network: nets.Network, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily, by a falling epsilon; in evaluation by a fixed one."""
    if evaluation:
        return fixed_epsilon_policy(network.apply, config.epsilon_evaluation)
    return epsilon_greedy_policy(network.apply, config.epsilon)


class State(NamedTuple):
    """Holds the training state of PQN.

    Attributes:
        params: of the action values.
        opt_state: of the parameters.
        key: PRNG key ``uint32[2]``.
    """

    params: Params
    opt_state: optax.OptState
    key: jax.Array


class Rows(NamedTuple):
    """Holds rows to learn from, leaves ``[M, ...]``.

    Attributes:
        observation: of the row.
        action: that was taken.
        target: the lambda return that followed.
        mask: 0 in rows without an action, else 1.
    """

    observation: Nest
    action: jax.Array
    target: jax.Array
    mask: jax.Array


def make_rows(network: nets.Network, params: Params, segments: Step, config: Config) -> Rows:
    """Returns the rows ``[B T, ...]`` of segments ``[B, T + 1, ...]``, with their targets by Q(lambda)."""
    q = network.apply(params, jax.tree.map(merge_time, segments.observation))  # [B (T + 1), A]
    v_t = jnp.max(q, axis=-1).reshape(segments.reward.shape)[:, 1:]  # [B, T]
    mask = has_action(segments.start_of_episode)  # [B, T]
    reward, discount = (x[:, :-1].astype(jnp.float32) for x in (segments.reward, segments.discount))
    target = lambda_returns(reward, config.discount * discount, v_t, mask, config.q_lambda)
    observation, action = jax.tree.map(lambda x: x[:, :-1], (segments.observation, segments.action))
    rows: Rows = jax.tree.map(merge_time, Rows(observation, action, target, mask))
    return rows


def make_loss(network: nets.Network, config: Config) -> Loss:
    """Builds the squared errors from the lambda returns (algorithm 1), on a batch of `Rows`."""
    del config

    def loss(params: Params, state: State, batch: ReplaySample[Rows], key: jax.Array) -> LossOutput:
        del state, key
        rows = batch.data
        q = network.apply(params, rows.observation)  # [M, A]
        chosen = jnp.take_along_axis(q, rows.action[:, None].astype(jnp.int32), axis=1)[:, 0]
        value = masked_mean(0.5 * jnp.square(chosen - jax.lax.stop_gradient(rows.target)), rows.mask)
        return LossOutput(value, {"loss": value, "q": masked_mean(chosen, rows.mask)})

    return loss


def make_update(network: nets.Network, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step on each minibatch of each epoch, towards targets of the parameters from before the update."""
    # Adam is of step size 1: `optimizer_step` multiplies its steps by the learning rate, which may be scheduled. An
    # optimiser of one's own has its learning rate in it.
    step_size = config.learning_rate if optimizer is None else 1.0
    transformation = optimizer_of(optimizer, config, adam(1.0, config.max_grad_norm, epsilon=config.adam_epsilon))

    def init(key: jax.Array) -> State:
        key, params_key = jax.random.split(key)
        params = network.init(params_key)
        return State(params, transformation.init(params), key)

    def update(state: State, batch: ReplaySample[Step]) -> tuple[State, UpdateOutput]:
        key, epochs_key = jax.random.split(state.key)
        rows = make_rows(network, state.params, batch.data, config)
        learning_rate = value_in_update(step_size, batch, rows.mask)

        def step(learned: Fitted, minibatch: Rows, loss_key: jax.Array) -> tuple[Fitted, dict[str, jax.Array]]:
            data = ReplaySample(batch.info, minibatch, batch.num_updates, batch.num_steps)
            grads, output = jax.grad(objective(loss), has_aux=True)(learned[0], state, data, loss_key)
            metrics = {**output.metrics, "grad_norm": global_norm(grads)}
            return optimizer_step(transformation, grads, *learned, learning_rate), metrics

        (params, opt_state), metrics = run_epochs(
            step,
            (state.params, state.opt_state),
            rows,
            epochs_key,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            mask=rows.mask,
        )
        return State(params, opt_state, key), UpdateOutput(metrics)

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
    """Returns PQN as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Segments(config, num_minibatches=config.num_minibatches),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
