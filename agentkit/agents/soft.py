"""What agents with soft values share (SAC, discrete SAC, REDQ, DroQ): settings, networks, acting, and how they fit.

Rewards and the policy's entropy are maximised together (Haarnoja et al. 2018, 1812.05905); what an algorithm adds is
its critics' and its policy's loss. Their steps are `learning.soft_actor_critic`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.agents.checks import check_positive
from agentkit.agents.off_policy import OffPolicyConfig
from agentkit.learning import ActorCritic, SoftLosses, Temperature, Update, adam, polyak, soft_actor_critic
from agentkit.types import Nest


@dataclasses.dataclass(frozen=True)
class SoftConfig(OffPolicyConfig):
    """Settings that each of these agents has.

    Attributes:
        hidden_sizes: units of each hidden layer of policy and critics.
        learning_rate: Adam's step size, for policy, critics and temperature.
        tau: fraction by which the target critics move to the critics at each update, in (0, 1].
        initial_temperature: alpha at the start, > 0.
        learn_temperature: tune alpha to a target entropy; False keeps `initial_temperature`.
        num_random_steps: an actor's first steps, with uniform actions.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    tau: float = 0.005
    initial_temperature: float = 1.0
    learn_temperature: bool = True
    num_random_steps: int = 5_000

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        super().__post_init__()
        check_positive(self, "initial_temperature")


@dataclasses.dataclass(frozen=True)
class ContinuousConfig(SoftConfig):
    """Settings of those with continuous actions.

    Attributes:
        target_entropy: entropy in nats that the temperature is tuned to; None for minus the number
            of action dimensions (Haarnoja et al. 2018, appendix D).
        min_log_std: least log standard deviation of the policy before tanh.
        max_log_std: greatest one.
    """

    target_entropy: float | None = None
    min_log_std: float = -10.0
    max_log_std: float = 2.0


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        policy: ``observation [B, ...] -> TanhNormal`` of ``[B, A]``.
        critic: one critic, ``observation [B, ...], action [B, A] -> q [B]``.
        action_shape: ``(A,)``.
    """

    policy: nets.Network
    critic: nets.Network
    action_shape: tuple[int, ...]


def make_networks(environment_spec: specs.EnvironmentSpec, config: ContinuousConfig, agent: str = "SAC") -> Networks:
    """Policy and critic for an environment of continuous actions in (-1, 1); `agent` is who needs them."""
    observations, actions = environment_spec.observations, environment_spec.actions
    size = specs.canonical_action_size(actions, agent)

    def policy(observation: Nest) -> nets.TanhNormal:
        outputs = nets.orthogonal_mlp(nets.torso(observation), config.hidden_sizes, 2 * size, output_scale=0.01)
        mean, log_std = jnp.split(outputs, 2, axis=-1)
        return nets.TanhNormal(mean, jnp.clip(log_std, config.min_log_std, config.max_log_std))

    def critic(observation: Nest, action: jax.Array) -> jax.Array:
        return nets.critic(observation, action, config.hidden_sizes)[:, 0]

    return Networks(nets.network(policy, observations), nets.network(critic, observations, actions), (size,))


def make_policy(networks: Networks, config: ContinuousConfig, evaluation: bool = False) -> Policy:
    """Samples the policy (uniform at first); in evaluation takes its mode. State: int32 steps ``[]``."""

    def uniform(key: jax.Array, observation: Nest) -> jax.Array:
        del observation
        return jax.random.uniform(key, networks.action_shape, minval=-1.0, maxval=1.0)

    return sampled(networks.policy.apply, nets.mode if evaluation else nets.sample, uniform, config, evaluation)


def sampled(
    distribution_at: Callable[[Any, Nest], Any],
    choose: Callable[..., jax.Array],
    uniform: Callable[[jax.Array, Nest], Nest],
    config: SoftConfig,
    evaluation: bool,
) -> Policy:
    """Actions of a distribution, uniform ones at first; in evaluation its mode. State: int32 steps ``[]``.

    Args:
        distribution_at: ``(params, observation [B, ...]) -> distribution`` of a batch.
        choose: ``(distribution, key) -> action [B, ...]``; ``distribution -> action`` in evaluation.
        uniform: ``(key, observation [1, ...]) -> action``, without a batch axis.
        config: has the number of uniform actions.
        evaluation: whether the policy is to be judged.
    """

    def act(params: Any, key: jax.Array, observation: Nest, num_steps: jax.Array) -> tuple[Nest, Nest, Nest]:
        batch = jax.tree.map(lambda x: x[None], observation)
        distribution = distribution_at(params, batch)
        if evaluation:
            return choose(distribution)[0], num_steps, ()
        sample_key, uniform_key = jax.random.split(key)
        action = choose(distribution, sample_key)[0]
        return jnp.where(num_steps < config.num_random_steps, uniform(uniform_key, batch), action), num_steps + 1, ()

    return Policy(act, init=lambda key: jnp.zeros((), jnp.int32))


def squashed_entropy(networks: Networks, config: ContinuousConfig) -> float:
    """The target entropy of a tanh-Gaussian policy, in nats."""
    return -float(networks.action_shape[0]) if config.target_entropy is None else config.target_entropy


def fit_soft(
    losses: SoftLosses,
    init_params: ActorCritic,
    num_critics: int,
    config: SoftConfig,
    target_entropy: float,
    policy_period: int = 1,
) -> Update:
    """Adam on critics, policy and temperature; see `learning.soft_actor_critic`."""
    temperature = Temperature(config.initial_temperature, target_entropy if config.learn_temperature else None)
    optimizer, follow = adam(config.learning_rate), polyak(config.tau)
    return soft_actor_critic(losses, init_params, num_critics, optimizer, follow, temperature, policy_period)
