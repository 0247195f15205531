"""DQN: deep Q-network (Mnih et al. 2015, "Human-level control through deep reinforcement learning").

Switches add double Q-learning (van Hasselt et al. 2016), duelling networks (Wang et al. 2016), n-step
returns (Sutton 1988; as in Hessel et al. 2018) and prioritised replay (Schaul et al. 2016).

Deviations from the paper:
  * Adam instead of RMSProp, and an optional clip of the gradients' global norm; the TD error goes
    through a Huber loss, whose gradient is the paper's clipped error.
  * Epsilon falls linearly over `epsilon_steps` of an actor's own steps.
  * Truncated episodes bootstrap.
  * New transitions get priority 1, not the largest priority so far.
  * Defaults fit small problems (CartPole), not Atari.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of DQN, beside those of `ValueConfig`.

    Attributes:
        duelling: separate value and advantage streams (Wang et al. 2016).
        double: select the bootstrap action with the online network (van Hasselt et al. 2016).
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
    """

    duelling: bool = False
    double: bool = True
    huber_delta: float | None = 1.0


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        q_values: ``(params, observation [B, ...]) -> [B, A]``.
        num_actions: A.
    """

    init: Callable[[jax.Array], Any]
    q_values: Callable[[Any, Nest], jax.Array]
    num_actions: int


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Q-networks for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "DQN")
    head = nets.duelling_q_values if config.duelling else nets.q_values

    def q_values(observation: Nest) -> jax.Array:
        return head(observation, num_actions, config.hidden_sizes)

    network = nets.network(q_values, environment_spec.observations)
    return Networks(network.init, network.apply, num_actions)


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy."""
    return explore_values(networks.q_values, config, evaluation)


def make_loss(networks: Networks, config: Config) -> Loss:
    """The TD loss on a batch of `Transition`s ``[B, ...]``; where replay is prioritised, by the absolute error."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        transition = batch.data
        q_tm1 = networks.q_values(params, transition.observation)  # [B, A]
        q_target_t = networks.q_values(target_params, transition.next_observation)  # [B, A]
        arguments = (q_tm1, transition.action, transition.reward, transition.discount, q_target_t)
        if config.double:
            q_selector_t = networks.q_values(params, transition.next_observation)
            errors = losses.double_q_learning_error(*arguments, q_selector_t)  # [B]
        else:
            errors = losses.q_learning_error(*arguments)
        per_item = losses.huber(errors, config.huber_delta)
        return mean_loss(per_item, {"q": nets.mean_legal(q_tm1)}, batch, config, priorities=jnp.abs(errors))

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
"""To plug in a loss: ``Agent(make_loss=lambda networks, config: my_loss)``."""
