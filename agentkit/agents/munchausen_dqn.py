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
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents.checks import check_fractions, check_positive
from agentkit.agents.off_policy import ValueConfig, agent_of_loss, explore_values, mean_loss
from agentkit.errors import ConfigError
from agentkit.learning import Loss
from agentkit.types import LossOutput, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class Config(ValueConfig):
    """Settings of Munchausen-DQN, beside those of `ValueConfig`.

    Attributes:
        temperature: tau, > 0: how soft the policy is that is bootstrapped from.
        bonus_scale: alpha, how much of the log-probability is added to the reward, in [0, 1]; 0 for soft DQN.
        least_bonus: l_0, where temperature * log-probability is cut off, at most 0.
        huber_delta: where the loss turns from squared to linear; None for squared everywhere.
    """

    temperature: float = 0.03
    bonus_scale: float = 0.9
    least_bonus: float = -1.0
    huber_delta: float | None = 1.0
    n_step: int = 1
    learning_rate: float = 5e-4
    target_update_period: int = 500

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_positive(self, "temperature")
        check_fractions(self, "bonus_scale")
        if not self.least_bonus <= 0:
            raise ConfigError(f"least_bonus must be at most 0, found {self.least_bonus}.")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        q_values: ``(params, observation [B, ...]) -> [B, A]``.
    """

    init: Callable[[jax.Array], Any]
    q_values: Callable[[Any, Nest], jax.Array]


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Q-networks for an environment of discrete actions."""
    num_actions = specs.num_discrete_actions(environment_spec.actions, "Munchausen-DQN")

    def q_values(observation: Nest) -> jax.Array:
        return nets.q_values(observation, num_actions, config.hidden_sizes)

    return Networks(*nets.network(q_values, environment_spec.observations))


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
    """Epsilon-greedy, as in the paper's experiments."""
    return explore_values(networks.q_values, config, evaluation)


def make_loss(networks: Networks, config: Config) -> Loss:
    """The paper's eq. 2 on a batch of `Transition`s ``[B, ...]``."""

    def loss(params: Any, target_params: Any, batch: ReplaySample, key: jax.Array) -> LossOutput:
        del key
        o_tm1, action, reward, discount, o_t, _ = batch.data
        q_tm1 = networks.q_values(params, o_tm1)  # [B, A]
        errors = losses.munchausen_error(
            q_tm1,
            action,
            reward,
            discount,
            networks.q_values(target_params, o_tm1),
            networks.q_values(target_params, o_t),
            temperature=config.temperature,
            scale=config.bonus_scale,
            least_log=config.least_bonus,
        )
        per_item = losses.huber(errors, config.huber_delta)
        return mean_loss(per_item, {"q": nets.mean_legal(q_tm1)}, batch, config, priorities=jnp.abs(errors))

    return loss


Agent = agent_of_loss(Config, make_networks, make_policy, make_loss)
