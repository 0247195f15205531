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
from typing import Any

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.learning import Loss
from agentkit.types import LossOutput, ReplaySample, Transition


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


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.Network:
    """Action values ``[B, A]`` for an environment of discrete actions."""
    head = nets.duelling_q_values if config.duelling else nets.q_values
    return nets.value_network(environment_spec, "DQN", lambda o, num_actions: head(o, num_actions, config.hidden_sizes))


def make_policy(networks: nets.Network, config: ValueConfig, evaluation: bool = False) -> Policy:
    """Epsilon-greedy."""
    return explore_values(networks.apply, config, evaluation)


def make_loss(networks: nets.Network, config: Config) -> Loss:
    """The TD loss on a batch of `Transition`s ``[B, ...]``."""

    def errors(q_tm1: jax.Array, params: Any, target_params: Any, transition: Transition) -> jax.Array:
        q_target_t = networks.apply(target_params, transition.next_observation)  # [B, A]
        arguments = (q_tm1, transition.action, transition.reward, transition.discount, q_target_t)
        if not config.double:
            return losses.q_learning_error(*arguments)  # [B]
        return losses.double_q_learning_error(*arguments, networks.apply(params, transition.next_observation))

    return huber_loss(errors, networks, config, config.huber_delta)


def huber_loss(
    errors: Callable[..., jax.Array], networks: nets.Network, config: ValueConfig, delta: float | None
) -> Loss:
    """Of TD errors; where replay is prioritised, by their absolute values.

    Args:
        errors: ``(q_tm1 [B, A], params, target_params, Transition) -> [B]``.
        networks: action values.
        config: says whether to prioritise.
        delta: where the loss turns from squared to linear; None for squared everywhere.
    """

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        q_tm1 = networks.apply(params, batch.data.observation)  # [B, A]
        found = errors(q_tm1, params, target_params, batch.data)
        metrics = {"q": nets.mean_legal(q_tm1)}
        return mean_loss(losses.huber(found, delta), metrics, batch, config, priorities=jnp.abs(found))

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
"""To plug in a loss: ``Agent(make_loss=lambda networks, config: my_loss)``."""
