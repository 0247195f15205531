"""R2D2: recurrent replay distributed DQN (Kapturowski et al. 2019, "Recurrent Experience Replay in Distributed RL").

A duelling double Q-network with an LSTM learns from prioritised sequences. Each row is stored with the state that the
actor's LSTM had; the first rows of a sequence bring that up to date (burn-in), n-step targets teach the others.

Deviations from the paper (it has no arXiv number: openreview.net, r1lyTjAqYX):
  * Sequences run on into the next episode, where the LSTM's state begins anew; the paper's never cross an episode's
    end. Rows after an episode's start need no burn-in and are learned from, also in the first rows of a sequence.
  * Adam without the paper's small epsilon, and an optional clip of the gradients' global norm.
  * Epsilon falls linearly over `epsilon_steps` of an actor's own steps; the paper's ladder is a switch.
  * Rewards and actions before are no inputs of the network; `wrappers.ObservationActionReward` makes them some.
  * New sequences get priority 1, not one that the actor computes.
  * Truncated episodes bootstrap.
  * Defaults fit small problems, not Atari: the paper has an LSTM of 512 units, sequences of 80 steps every 40 with 40
    more to burn in, batches of 64, discount 0.997, targets 2,500 updates old, learning rate 1e-4.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.common.ranges import Count, Fraction
from agentkit.agents.off_policy import ValueConfig, explore_values, mean_loss
from agentkit.agents.sequences import agent_of_loss
from agentkit.errors import ConfigError
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample, has_action


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of R2D2, beside those of `ValueConfig`.

    There "transitions" are sequences here, but that `updates_per_step` are for each row of an actor.

    Attributes:
        core_size: units of the LSTM.
        sequence_length: rows that are unrolled, T; one more is stored, to bootstrap from.
        sequence_period: rows from the start of one sequence to the next; at most `sequence_length` - `burn_in`, so
            that each row is learned from.
        burn_in: first rows of a sequence that only set the state; see `networks.unroll_after_burn_in`.
        priority_max_weight: eta, how much of a sequence's priority is its largest error; the rest is their mean.
        rescale_values: learn h(q) and not q, where h is `losses.rescale`, so that rewards need no clipping.
    """

    hidden_sizes: tuple[int, ...] = (64,)
    n_step: Count = 5
    batch_size: int = 32
    updates_per_step: float = 0.125
    replay_size: int = 10_000
    min_replay_size: int = 50
    prioritized: bool = True
    priority_exponent: float = 0.9
    importance_exponent: float = 0.6
    core_size: Count = 64
    sequence_length: Count = 40
    sequence_period: Count = 20
    burn_in: int = 10
    priority_max_weight: Fraction = 0.9
    rescale_values: bool = True

    def __post_init__(self) -> None:
        """Refuses what is out of its range, and sequences too short for burn-in."""
        super().__post_init__()
        if not 0 <= self.burn_in <= self.sequence_length - self.sequence_period:
            raise ConfigError(
                f"Expected 0 <= burn_in <= sequence_length - sequence_period, or some rows are never learned from; "
                f"found burn_in={self.burn_in}, sequence_length={self.sequence_length}, "
                f"sequence_period={self.sequence_period}."
            )


Networks = nets.RecurrentNetwork
"""Its outputs are action values ``[B, A]``, rescaled where the config says so."""


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Q-networks with a memory, for an environment of discrete actions: ReLU layers, LSTM, duelling streams."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "R2D2")

    def trunk(observation: Nest) -> jax.Array:
        return nets.hidden_layers(observation, config.hidden_sizes)

    def head(features: jax.Array, observation: Nest) -> jax.Array:
        return nets.mask_illegal(nets.duelling_q_values(features, num_actions, (config.core_size,)), observation)

    return nets.recurrent_network(trunk, head, config.core_size, environment_spec.observations)


class Memory(NamedTuple):
    """The state of a policy that remembers and explores.

    Attributes:
        core: of the network; that of an episode's start at each reset.
        exploration: of the policy that chooses by values: an epsilon, or the number of steps taken.
    """

    core: Nest
    exploration: Nest


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy; its extras are the LSTM's state before the observation, and nothing in evaluation."""
    choose = explore_values(lambda _, q: q, config, evaluation)  # Of which the observations are the values.

    def init(key: jax.Array) -> Memory:
        return Memory(networks.initial_state, choose.init(key))

    def act(params: Any, key: jax.Array, observation: Nest, state: Memory) -> tuple[Nest, Memory, Nest]:
        q, core = nets.step_one(networks, params, observation, state.core)
        action, exploration, _ = choose.act((), key, q, state.exploration)
        return action, Memory(core, exploration), () if evaluation else state.core

    def reset(state: Memory) -> Memory:
        return state._replace(core=networks.initial_state)

    def spread(state: Memory, index: Any, count: int) -> Memory:
        return state._replace(exploration=choose.spread(state.exploration, index, count))

    return Policy(act, init, reset, spread)


def make_loss(networks: Networks, config: Config) -> Loss:
    """Squared n-step errors on a batch of `Step`s ``[B, T + 1, ...]``, and priorities of their sizes."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        steps = batch.data
        start = jnp.asarray(steps.start_of_episode)  # [B, T + 1]
        stored_state = jax.tree.map(lambda x: x[:, 0], steps.extras)

        def unroll(params: Any) -> jax.Array:
            return nets.unroll_after_burn_in(
                networks, params, steps.observation, start, stored_state, config.burn_in
            )  # [B, T + 1, A]

        q, q_target = unroll(params), unroll(target_params)
        action, reward, discount = (jnp.asarray(x)[:, :-1] for x in (steps.action, steps.reward, steps.discount))
        errors = losses.n_step_double_q_learning_error(
            q[:, :-1],
            action,
            reward.astype(jnp.float32),
            config.discount * discount.astype(jnp.float32),
            q_target[:, 1:],
            q[:, 1:],
            has_action(start),
            n=config.n_step,
            rescaled=config.rescale_values,
        )  # [B, T]
        mask = losses.taught_rows(start, config.burn_in)
        per_item = jnp.sum(0.5 * jnp.square(errors) * mask, axis=1) / config.sequence_length  # [B]
        metrics = {"q": nets.mean_legal(q), "taught_rows": jnp.mean(mask)}
        priorities = losses.sequence_priorities(errors, mask, config.priority_max_weight)
        return mean_loss(per_item, metrics, batch, config, priorities)

    return loss


make_agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
"""To plug in a loss: ``Agent(make_loss=lambda networks, config: my_loss)``."""
