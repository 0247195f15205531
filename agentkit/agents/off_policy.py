"""What agents that learn off-policy from transitions share: settings, how experience is kept, how they explore.

Data go round like this: an actor's steps become n-step `Transition`s in one replay table, the learner draws batches
of them as often as the settings say, and may write back priorities. An algorithm is what `OffPolicyAgent` is made
of: three functions in a file of its own.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, final

import jax
import jax.numpy as jnp

from agentkit import specs
from agentkit.actors import Policy, epsilon_greedy_policy, epsilon_ladder_policy, linear, noiseless, noisy
from agentkit.adders import NStepAdder
from agentkit.agents.common.ranges import Fraction, Positive, check_ranges
from agentkit.core import BatchPlan
from agentkit.learning import Loss, Update, adam, periodic, rate_limit, sgd
from agentkit.replay import Prioritized, Replay, Table, Uniform
from agentkit.types import LossOutput, ReplaySample

TABLE = "transitions"


@dataclasses.dataclass(frozen=True)
class OffPolicyConfig:
    """Settings that each of these agents has.

    Attributes:
        discount: gamma, in [0, 1].
        n_step: rewards summed before bootstrapping (Sutton 1988).
        batch_size: transitions per update.
        updates_per_step: gradient updates per item inserted: one a step, and n_step - 1 more an episode.
        updates_per_call: updates run in one compiled call; learning is as frequent, in larger portions.
        replay_size: transitions held.
        min_replay_size: transitions held before learning begins.
        prioritized: draw transitions by the size of their errors or losses (Schaul et al. 2016), and not alike.
        priority_exponent: alpha, how much prioritisation is used, where `prioritized`.
        importance_exponent: beta, how much of its bias is undone, where `prioritized`.
    """

    discount: Fraction = 0.99
    n_step: int = 1
    batch_size: int = 256
    updates_per_step: float = 1.0
    updates_per_call: int = 1
    replay_size: int = 1_000_000
    min_replay_size: int = 1_000
    prioritized: bool = False
    priority_exponent: float = 0.6
    importance_exponent: float = 0.4

    def __post_init__(self) -> None:
        """Refuses what is out of its field's `checks.Range`; what concerns replay is refused by it."""
        check_ranges(self)


@dataclasses.dataclass(frozen=True)
class ValueConfig(OffPolicyConfig):
    """Settings of those that learn the values of discrete actions; the defaults fit small problems (CartPole).

    Attributes:
        hidden_sizes: units of each hidden layer (after the convolutions, for images).
        learning_rate: Adam's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        target_update_period: updates between copies to the target network.
        epsilon_start: chance of a random action at first.
        epsilon_end: chance of a random action after `epsilon_steps`.
        epsilon_steps: steps of an actor over which epsilon falls linearly.
        epsilon_evaluation: chance of a random action in evaluation.
        epsilon_ladder: instead of falling, epsilon is fixed, from 0.4 for the first of the actors and environments
            that explore together down to 0.0007 for the last (Horgan et al. 2018, Ape-X).
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    n_step: int = 10
    learning_rate: float = 1e-3
    max_grad_norm: float | None = 10.0
    batch_size: int = 128
    target_update_period: int = 200
    updates_per_step: float = 0.5
    replay_size: int = 100_000
    epsilon_start: float = 1.0
    epsilon_end: float = 0.05
    epsilon_steps: int = 5_000
    epsilon_evaluation: float = 0.0
    epsilon_ladder: bool = False


@dataclasses.dataclass(frozen=True)
class ActorCriticConfig(OffPolicyConfig):
    """Settings of those with a policy that is a distribution of continuous actions, and critics (SAC, IQL, CRR).

    Attributes:
        hidden_sizes: units of each hidden layer, in the policy and in each critic.
        learning_rate: Adam's step size, for all that is learned.
        tau: fraction by which the targets move at each update, in (0, 1].
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 3e-4
    tau: float = 0.005


@dataclasses.dataclass(frozen=True)
class SoftConfig(ActorCriticConfig):
    """Settings of those with soft values, which maximise rewards and the policy's entropy (SAC and its relatives).

    Attributes:
        initial_temperature: alpha at the start, > 0.
        learn_temperature: tune alpha to a target entropy; False keeps `initial_temperature`.
        num_random_steps: an actor's first steps, with uniform actions.
    """

    initial_temperature: Positive = 1.0
    learn_temperature: bool = True
    num_random_steps: int = 5_000


@dataclasses.dataclass(frozen=True)
class DeterministicConfig(OffPolicyConfig):
    """Settings of those with a deterministic policy of continuous actions (DDPG, TD3, D4PG).

    Attributes:
        hidden_sizes: units of each hidden layer, in the policy and in each critic.
        exploration_noise: standard deviation of the noise on an actor's actions, in units of half their range.
        num_random_steps: an actor's first steps, with uniform actions.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    exploration_noise: float = 0.1
    num_random_steps: int = 1_000


def explore_values(
    q_values: Callable[..., jax.Array], config: ValueConfig, evaluation: bool, draws: bool = False
) -> Policy:
    """Epsilon-greedy: as judged in evaluation, else on the ladder of Ape-X, or with an epsilon that falls.

    Args:
        q_values: ``(params, observation [B, ...]) -> [B, A]``; where it `draws`, with a PRNG key as third argument.
        config: has the epsilons.
        evaluation: whether the policy is to be judged.
        draws: whether `q_values` draws something.
    """
    if evaluation:
        return epsilon_greedy_policy(q_values, lambda _: config.epsilon_evaluation, draws)
    if config.epsilon_ladder:
        return epsilon_ladder_policy(q_values, draws)
    return epsilon_greedy_policy(
        q_values, linear(config.epsilon_start, config.epsilon_end, config.epsilon_steps), draws
    )


def explore_actions(networks: Any, config: DeterministicConfig, evaluation: bool, correlation: float = 0.0) -> Policy:
    """The network's actions; to explore, with Gaussian noise (Lillicrap et al. 2016, eq. 7), and uniform at first.

    Args:
        networks: have ``policy``, ``observation [B, ...] -> action [B, A]`` in [-1, 1], and ``action_shape``, ``(A,)``.
        config: has the noise and the number of uniform actions.
        evaluation: whether the policy is to be judged: then there is no noise.
        correlation: of the noise at one step with that at the next; see `actors.noisy`.
    """
    policy = networks.policy.apply
    if evaluation:
        return noiseless(policy)
    sigma, num_random_steps = config.exploration_noise, config.num_random_steps
    return noisy(policy, networks.action_shape, sigma, num_random_steps, correlation)


def fit_values(loss: Loss, networks: Any, config: Any) -> Update:
    """Adam on a loss, with a target network that is copied now and then (Mnih et al. 2015, algorithm 1).

    Args:
        loss: what to minimise.
        networks: have ``init: key -> params``.
        config: has the step size and the period.
    """
    optimizer = adam(config.learning_rate, config.max_grad_norm)
    return sgd(loss, networks.init, optimizer, periodic(config.target_update_period))


def fit_loss(
    fit: Callable[[Any, Any, Any], Update], make_loss: Callable[[Any, Any], Any], networks: Any, config: Any
) -> Update:
    """`fit` of what `make_loss` makes."""
    return fit(make_loss(networks, config), networks, config)


def importance_weights(probability: jax.Array, table_size: jax.Array, exponent: float) -> jax.Array:
    """Weights ``[B]`` that undo prioritised sampling (Schaul et al. 2016, section 3.4).

    (N P(i))^-beta, divided by the largest in the batch so that they only scale updates down.

    Args:
        probability: P(i), ``[B]``.
        table_size: N, ``[B]``.
        exponent: beta; 1 undoes the bias in full, 0 not at all.
    """
    weights = (probability * table_size) ** -exponent
    return weights / jnp.max(weights)


def mean_loss(
    per_item: jax.Array,
    metrics: dict[str, jax.Array],
    batch: ReplaySample,
    config: OffPolicyConfig,
    priorities: jax.Array | None = None,
) -> LossOutput:
    """The mean over a batch; where replay is prioritised, weighted against the bias of that, with new priorities.

    Args:
        per_item: what to minimise for each transition, ``[B]``.
        metrics: scalars to log.
        batch: of which `per_item` is the loss.
        config: says whether to prioritise.
        priorities: of the transitions, ``[B]``, such as absolute errors; None for `per_item`.
    """
    if not config.prioritized:
        return LossOutput(jnp.mean(per_item), metrics)
    info = batch.info
    weights = importance_weights(info.probability, info.table_size, config.importance_exponent)
    return LossOutput(jnp.mean(weights * per_item), metrics, per_item if priorities is None else priorities)


@final
@dataclasses.dataclass(frozen=True)
class OffPolicyAgent:
    """An algorithm's functions with one table of n-step transitions: a `core.Agent`.

    Attributes:
        config: the settings that the functions are given.
        networks: ``(environment_spec, config) -> networks``.
        policy: ``(networks, config, evaluation) -> Policy``.
        update: ``(networks, config) -> Update``, of batches of `Transition`s ``[B, ...]``.
    """

    config: Any
    networks: Callable[[specs.EnvironmentSpec, Any], Any]
    policy: Callable[[Any, Any, bool], Policy]
    update: Callable[[Any, Any], Update]

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        return BatchPlan(TABLE, self.config.batch_size, self.config.updates_per_call)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Any:
        """See `core.Agent`."""
        return self.networks(environment_spec, self.config)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return self.policy(networks, self.config, evaluation)

    def make_update(self, networks: Any) -> Update:
        """See `core.Agent`."""
        return self.update(networks, self.config)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`."""
        config = self.config
        return [
            Table(
                TABLE,
                NStepAdder.layout(environment_spec),
                max_size=config.replay_size,
                sampler=Prioritized(config.priority_exponent) if config.prioritized else Uniform(),
                rate_limiter=rate_limit(self.batch_plan, config.updates_per_step, config.min_replay_size),
            )
        ]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> NStepAdder:
        """See `core.Agent`; new items get priority 1 (what the update says of them replaces it once they are drawn)."""
        config = self.config
        writer = replay.writer(NStepAdder.history(config.n_step))
        return NStepAdder(writer, environment_spec, tables=TABLE, n=config.n_step, discount=config.discount)


def agent_of_loss(
    config_class: type,
    make_networks: Callable[[specs.EnvironmentSpec, Any], Any],
    make_policy: Callable[[Any, Any, bool], Policy],
    make_loss: Callable[[Any, Any], Any],
    fit: Callable[[Any, Any, Any], Update] = fit_values,
) -> Callable[..., OffPolicyAgent]:
    """What an algorithm's file calls `Agent`, where a loss (or several) says what is learned.

    Args:
        config_class: of the settings.
        make_networks: ``(environment_spec, config) -> networks``.
        make_policy: ``(networks, config, evaluation) -> Policy``.
        make_loss: ``(networks, config) -> loss``.
        fit: ``(loss, networks, config) -> Update`` that minimises it.

    Returns:
        ``(config=None, *, make_networks=..., make_loss=...) -> OffPolicyAgent``: with default settings where none
        are given, and with other networks or another loss than the file's where they are.
    """

    def make(config: Any = None, *, make_networks: Any = make_networks, make_loss: Any = make_loss) -> OffPolicyAgent:
        update = functools.partial(fit_loss, fit, make_loss)
        return OffPolicyAgent(config_class() if config is None else config, make_networks, make_policy, update)

    return make


def agent_of_update(
    config_class: type,
    make_networks: Callable[[specs.EnvironmentSpec, Any], Any],
    make_policy: Callable[[Any, Any, bool], Policy],
    make_update: Callable[[Any, Any], Update],
) -> Callable[..., OffPolicyAgent]:
    """What an algorithm's file calls `Agent`, where learning is more than a loss.

    Returns: ``(config=None, *, make_networks=..., make_update=...) -> OffPolicyAgent``; see `agent_of_loss`.
    """

    def make(
        config: Any = None, *, make_networks: Any = make_networks, make_update: Any = make_update
    ) -> OffPolicyAgent:
        return OffPolicyAgent(config_class() if config is None else config, make_networks, make_policy, make_update)

    return make
