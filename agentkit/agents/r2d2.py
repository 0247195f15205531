"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed RL").

A duelling double Q-network with an LSTM learns from prioritised sequences. Each row is stored with the state that the
actor's LSTM had. The first rows of a sequence bring that state up to date (burn-in); the loss counts the others.

Differences from the paper (it has no arXiv number: openreview.net, r1lyTjAqYX):
  * Sequences run on into the next episode, where the LSTM's state begins anew; the paper's never cross an episode's
    end. Rows after an episode's start need no burn-in and count, also among the first rows of a sequence.
  * Adam with another epsilon than the paper's, and an optional clip of the gradients' global norm.
  * Epsilon falls linearly over an actor's steps, of all its environments; the paper's ladder is a switch.
  * The last reward and action are no inputs of the network; ``--wrapper observation_action_reward`` makes them some.
  * New sequences get the largest priority seen, not one that the actor computes.
  * Truncated episodes bootstrap.
  * Defaults fit small problems, not Atari: the paper has an LSTM of 512 units, sequences of 80 steps every 40 with 40
    more to burn in, batches of 64, n-step 5, targets 2,500 updates old, learning rate 1e-4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, fixed_epsilon_policy
from agentkit.agents.common.agent import Agent, Configured, MakePolicy, UpdateOfLoss, check_config, checks_parts, given
from agentkit.agents.common.experience import Sequences, SequencesConfig
from agentkit.agents.common.optimizers import Optimizer, optimizer_of
from agentkit.agents.common.prioritized import importance_weighted_loss
from agentkit.agents.common.ranges import Count, CountFromZero, Fraction, NotNegative, Positive, ScheduleOfSteps, Sizes
from agentkit.agents.common.torso import with_torso
from agentkit.errors import ConfigError
from agentkit.learning import Linear, Loss, Schedule, SgdState, Update, adam, periodic, sgd
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Step, has_action


@dataclasses.dataclass(frozen=True)
class Config(SequencesConfig):
    """Holds the hyperparameters of R2D2, in addition to those of `SequencesConfig`.

    An "item" there is a sequence here, but `updates_per_step` counts updates for each row of an actor.

    Attributes:
        sequence_length: rows that are unrolled, T; one more is stored, to bootstrap from.
        sequence_period: rows from the start of one sequence to the next; at most `sequence_length` - `burn_in`, so
            that each row is learned from.
        hidden_sizes: units of each hidden layer before the memory (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clips the gradients' global norm; None for no clipping.
        adam_epsilon: added to the root of Adam's second moment.
        target_update_period: updates between copies to the target network.
        epsilon: probability of a random action; a schedule counts the steps of all environments of an actor.
        epsilon_evaluation: probability of a random action in evaluation.
        epsilon_ladder: a fixed epsilon for each actor instead, from 0.4 to 0.0007 (Horgan et al. 2018).
        core_size: units of the memory.
        core: the kind of memory: "lstm", "gru", "gtrxl" or a `networks.GTrXL`.
        burn_in: first rows of a sequence that only set the state; see `networks.unroll_after_burn_in`.
        max_priority_weight: eta, the weight of the largest error in a sequence's priority; the rest is their mean's.
        rescale_values: learn h(q) and not q, where h is `losses.signed_hyperbolic`, so that rewards need no clipping.
    """

    discount: Fraction = 0.997
    n_step: Count = 10
    batch_size: Count = 32
    updates_per_step: Positive = 0.125
    replay_size: Count = 10_000
    min_replay_size: Count = 50
    prioritized: bool = True
    priority_exponent: NotNegative = 0.9
    importance_exponent: Fraction | Schedule = 0.6
    sequence_length: Count = 40
    sequence_period: Count = 20
    hidden_sizes: Sizes = (64,)
    learning_rate: Positive | Schedule = 3e-4
    max_grad_norm: Positive | None = 10.0
    adam_epsilon: Positive = 1e-8
    target_update_period: Count = 50
    epsilon: Fraction | ScheduleOfSteps = Linear(1.0, 0.05, 5_000)
    epsilon_evaluation: Fraction = 0.0
    epsilon_ladder: bool = False
    core_size: Count = 64
    core: nets.CoreName | nets.GTrXL = dataclasses.field(default="lstm", kw_only=True)
    burn_in: CountFromZero = 10
    max_priority_weight: Fraction = 0.9
    rescale_values: bool = True

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range, and sequences too short for burn-in."""
        super().__post_init__()
        nets.check_core(self.core)
        if self.burn_in > self.sequence_length - self.sequence_period:
            raise ConfigError(
                f"Expected burn_in <= sequence_length - sequence_period, or some rows are never learned from; found "
                f"burn_in={self.burn_in}, sequence_length={self.sequence_length}, "
                f"sequence_period={self.sequence_period}."
            )


Networks = nets.RecurrentNetwork
"""Its outputs are action values ``[B, A]``, rescaled where the config says so."""


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config, torso: nets.Torso = nets.torso) -> Networks:
    """Builds ReLU layers, a memory and duelling streams, for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "R2D2")

    def trunk(observation: Nest) -> jax.Array:
        return nets.hidden_layers(observation, config.hidden_sizes, torso)

    def head(features: jax.Array, observation: Nest) -> jax.Array:
        return nets.mask_illegal(nets.duelling_q_values(features, num_actions, (config.core_size,)), observation)

    return nets.recurrent_network(trunk, head, config.core_size, environment_spec.observations, config.core)


class PolicyState(NamedTuple):
    """Holds the state of the policy.

    Attributes:
        core: the memory's; an episode begins with the initial one.
        exploration: the epsilon-greedy policy's: an epsilon, or the number of steps taken.
    """

    core: Nest
    exploration: Nest


def make_policy(network: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Explores epsilon-greedily; epsilon falls or is on the ladder, in evaluation it is fixed.

    Its extras are the memory's state before the observation; in evaluation there are none.
    """
    if evaluation:
        chooser = fixed_epsilon_policy(identity_q_values, config.epsilon_evaluation)
    elif config.epsilon_ladder:
        chooser = epsilon_ladder_policy(identity_q_values)
    else:
        chooser = epsilon_greedy_policy(identity_q_values, config.epsilon)

    def init(key: jax.Array) -> PolicyState:
        return PolicyState(network.initial_state, chooser.init(key))

    def act(params: Params, key: jax.Array, observation: Nest, state: PolicyState) -> tuple[Nest, PolicyState, Nest]:
        q, core = nets.step_one(network, params, observation, state.core)
        action, exploration, _ = chooser.act((), key, q, state.exploration)
        return action, PolicyState(core, exploration), () if evaluation else state.core

    def reset(state: PolicyState) -> PolicyState:
        return state._replace(core=network.initial_state)

    def diversify(state: PolicyState, index: jax.Array, count: int) -> PolicyState:
        return state._replace(exploration=chooser.diversify(state.exploration, index, count))

    def begin(state: PolicyState, num_steps: jax.Array, num_envs: int) -> PolicyState:
        return state._replace(exploration=chooser.begin(state.exploration, num_steps, num_envs))

    return Policy(act, init, reset, diversify, begin, extras_spec=() if evaluation else nets.state_spec(network))


def identity_q_values(params: Params, q: jax.Array) -> jax.Array:
    """Returns `q` itself ``[B, A]``: the epsilon-greedy policy sees the memory's action values as its observation."""
    del params
    return q


def make_loss(network: Networks, config: Config) -> Loss:
    """Builds the squared n-step errors (section 2.3), on a batch of `Step`s ``[B, T + 1, ...]``."""

    def loss(params: Params, state: SgdState, batch: ReplaySample[Step], key: jax.Array) -> LossOutput:
        del key
        steps = batch.data
        start = jnp.asarray(steps.start_of_episode)  # [B, T + 1]
        stored_state = jax.tree.map(lambda x: x[:, 0], steps.extras)

        def unroll(params: Params) -> jax.Array:
            q: jax.Array = nets.unroll_after_burn_in(
                network, params, steps.observation, start, stored_state, config.burn_in
            )
            return q  # [B, T + 1, A]

        q, q_target = unroll(params), unroll(state.target_params)
        a_tm1, r_t, discount_t = (jnp.asarray(x)[:, :-1] for x in (steps.action, steps.reward, steps.discount))
        errors = losses.n_step_double_q_learning_error(
            q[:, :-1],
            a_tm1,
            r_t.astype(jnp.float32),
            config.discount * discount_t.astype(jnp.float32),
            q_target[:, 1:],
            q[:, 1:],
            has_action(start),
            n=config.n_step,
            rescaled=config.rescale_values,
        )  # [B, T]
        mask = losses.loss_mask(start, config.burn_in)
        errors = losses.masked(errors, mask)  # Not their squares, whose gradient multiplies by them: 0 * nan.
        per_item = jnp.sum(0.5 * jnp.square(errors), axis=1) / config.sequence_length  # [B]
        metrics = {"q": nets.mean_legal(q), "loss_mask": jnp.mean(mask)}
        priorities = losses.sequence_priorities(errors, mask, config.max_priority_weight)
        return importance_weighted_loss(per_item, metrics, batch, config, priorities)

    return loss


def make_update(network: Networks, loss: Loss, config: Config, optimizer: Optimizer | None = None) -> Update:
    """Takes a step of Adam on the loss; copies the target network every `target_update_period` updates."""
    default = adam(config.learning_rate, config.max_grad_norm, epsilon=config.adam_epsilon)
    optimizer = optimizer_of(optimizer, config, default)
    return sgd(loss, network.init, optimizer, periodic(config.target_update_period))


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
    """Returns R2D2 as an agent, with any of its parts replaced."""
    check_config(config, Config)
    return Agent(
        config,
        Sequences(config),
        with_torso(make_networks, config, torso),
        Configured(make_policy, config),
        UpdateOfLoss(given(make_update, optimizer=optimizer), make_loss, config),
    )
