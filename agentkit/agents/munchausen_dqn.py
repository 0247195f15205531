"""Munchausen-DQN: DQN that is rewarded for its own confidence (Vieillard et al. 2020, "Munchausen RL", 2007.14430).

The policy softmax(q / temperature) is bootstrapped from softly, with its entropy, and the scaled log-probability of
the action taken is added to the reward: learning then keeps close to the policy before, without computing so.

Deviations from the paper:
  * Truncated episodes bootstrap.
  * Defaults fit small problems (CartPole), not Atari; the loss may be squared instead of Huber's.
  * With `n_step` above 1 (the paper's), only the first action of each return has its bonus.
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import jax

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.agents import dqn
from agentkit.agents.common.ranges import Fraction, Positive, Range
from agentkit.agents.off_policy import ValueConfig, agent_of_loss
from agentkit.learning import Loss
from agentkit.types import Transition


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of Munchausen-DQN, beside those of `ValueConfig`.

    Attributes:
        temperature: tau, > 0: how soft the policy is that is bootstrapped from.
        bonus_scale: alpha, how much of the log-probability is added to the reward, in [0, 1]; 0 for soft DQN.
        least_bonus: l_0, where temperature * log-probability is cut off, at most 0.
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
    """

    temperature: Positive = 0.03
    bonus_scale: Fraction = 0.9
    least_bonus: Annotated[float, Range("at most 0", lambda value: value <= 0)] = -1.0
    huber_delta: float | None = 1.0
    n_step: int = 1
    learning_rate: float = 5e-4
    target_update_period: int = 500


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> nets.Network:
    """Action values ``[B, A]`` for an environment of discrete actions."""
    return nets.value_network(
        environment_spec, "Munchausen-DQN", lambda o, num_actions: nets.q_values(o, num_actions, config.hidden_sizes)
    )


def make_loss(networks: nets.Network, config: Config) -> Loss:
    """The paper's eq. 2 on a batch of `Transition`s ``[B, ...]``."""

    def errors(q_tm1: jax.Array, params: Any, target_params: Any, transition: Transition) -> jax.Array:
        del params
        return losses.munchausen_error(
            q_tm1,
            transition.action,
            transition.reward,
            transition.discount,
            networks.apply(target_params, transition.observation),
            networks.apply(target_params, transition.next_observation),
            temperature=config.temperature,
            scale=config.bonus_scale,
            least_log=config.least_bonus,
        )

    return dqn.huber_loss(errors, networks, config, config.huber_delta)


make_agent = agent_of_loss(Config, make_networks, dqn.make_policy, make_loss)
