"""Advantages of a batch of segments, and the rows of them that a gradient step sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

import jax
import jax.numpy as jnp

from agentkit import losses
from agentkit import networks as nets
from agentkit.actors import PolicyVariables
from agentkit.types import LossOutput, Nest, Params, ReplaySample, Step, has_action, has_observation


class Minibatch(NamedTuple):
    """Holds rows to learn from, leaves ``[M, ...]``; of networks with a memory segments, ``[B, T, ...]``.

    Attributes:
        observation: normalised.
        extras: the sample that was drawn, and its log-probability then.
        advantage: by GAE.
        target: for the value network.
        old_value: the value network's output before the update.
        mask: 0 in rows without an action, else 1.
        memory: stored states that networks with a memory start from; else None.
    """

    observation: Nest
    extras: nets.PolicyExtras
    advantage: jax.Array
    target: jax.Array
    old_value: jax.Array
    mask: jax.Array
    memory: nets.Memory | None = None


class Trajectories(NamedTuple):
    """Holds segments as estimators of advantages and targets see them, in units of the rewards.

    Attributes:
        reward: float32 ``[B, T]``.
        discount: gamma times the environment's discount ``[B, T]``; 0 at a termination, and in rows without an action.
        values: of the rows' observations, and of the one that follows them ``[B, T + 1]``.
        mask: 0 in rows without an action, which come between two episodes, else 1 ``[B, T]``.
        log_ratio: of the newest policy to the one that acted ``[B, T]``; ``()`` where they are the same.
    """

    reward: jax.Array
    discount: jax.Array
    values: jax.Array
    mask: jax.Array
    log_ratio: jax.Array | tuple[()] = ()


class HasLambda(Protocol):
    """Has the settings of GAE."""

    @property
    def gae_lambda(self) -> float:
        """From 0 (one-step errors) to 1 (whole returns)."""
        ...


ConfigIn = TypeVar("ConfigIn", contravariant=True)


class EstimateAdvantages(Protocol[ConfigIn]):
    """Estimates advantages: ``(segments, config) -> advantages [B, T]``."""

    def __call__(self, segments: Trajectories, config: ConfigIn) -> jax.Array:
        """Returns a number for each row; what it is in rows without an action does not count."""
        ...


def estimate_advantages(segments: Trajectories, config: HasLambda) -> jax.Array:
    """Returns the advantages ``[B, T]`` by GAE(lambda) (Schulman et al. 2016)."""
    return losses.generalized_advantages(*segments[:4], config.gae_lambda)


class Advantages(NamedTuple):
    """Holds the result of `compute_advantages`.

    Attributes:
        rows: all rows of the batch.
        returns: the statistics of returns, with those of the batch.
        explained_variance: of the returns by the values before the update, ``[]``.
    """

    rows: Minibatch
    returns: nets.RunningStatistics
    explained_variance: jax.Array


def compute_advantages(
    networks: nets.PolicyValue,
    variables: PolicyVariables,
    returns: nets.RunningStatistics,
    segments: Step,
    estimate: Callable[[Trajectories], jax.Array],
    *,
    discount: float,
    normalize_values: bool,
) -> Advantages:
    """Computes advantages and value targets of segments.

    Args:
        networks: policy and value.
        variables: parameters, and the statistics that observations are normalised by: those of the policy that acted.
        returns: statistics of value targets ``[]`` before this batch.
        segments: leaves ``[B, T + 1, ...]``.
        estimate: ``trajectories -> advantages [B, T]``.
        discount: gamma.
        normalize_values: whether the value network predicts normalised returns.
    """
    valued = value_segments(networks, variables, returns, segments, normalize_values)
    mask = has_action(segments.start_of_episode)  # [B, T]
    reward, env_discount = (x[:, :-1].astype(jnp.float32) for x in (segments.reward, segments.discount))
    advantage = estimate(Trajectories(reward, discount * env_discount, valued.values, mask))
    return make_rows(networks, valued, returns, segments, advantage, normalize_values)


class Valued(NamedTuple):
    """Holds segments as the networks see and value them.

    Attributes:
        observation: normalised, leaves ``[B, T + 1, ...]``.
        memory: stored states that networks with a memory start from, and where episodes begin.
        outputs: the value network's, ``[B, T + 1]``.
        values: the same in units of the rewards.
    """

    observation: Nest
    memory: nets.Memory
    outputs: jax.Array
    values: jax.Array


def value_segments(
    networks: nets.PolicyValue,
    variables: PolicyVariables,
    returns: nets.RunningStatistics,
    segments: Step,
    normalize_values: bool,
) -> Valued:
    """Returns segments with the values of their observations; see `compute_advantages` for the arguments."""
    observation, memory = variables.normalized(segments.observation), nets.stored_memory(segments)
    _, outputs = networks.apply(variables.params, observation, memory)  # [B, T + 1]
    mean, std = mean_and_std(returns if normalize_values else ())
    return Valued(observation, memory, outputs, mean + std * outputs)


def make_rows(
    networks: nets.PolicyValue,
    valued: Valued,
    returns: nets.RunningStatistics,
    segments: Step,
    advantage: jax.Array,
    normalize_values: bool,
) -> Advantages:
    """Returns the rows to learn from, whose value targets ``advantage + value`` the statistics of returns take in.

    Args:
        networks: policy and value.
        valued: by `value_segments`.
        returns: statistics of value targets ``[]`` before this batch.
        segments: leaves ``[B, T + 1, ...]``.
        advantage: ``[B, T]``.
        normalize_values: whether the value network predicts normalised returns.
    """
    mask, values = has_action(segments.start_of_episode), valued.values[:, :-1]  # [B, T]
    target = advantage + values
    # A team has a value for each of its agents, [B, T, N].
    of_each = jnp.broadcast_to(jnp.expand_dims(mask, tuple(range(2, values.ndim))), values.shape)
    returns = nets.update_statistics(returns, jnp.ravel(target), jnp.ravel(of_each))
    mean, std = mean_and_std(returns if normalize_values else ())
    rows = Minibatch(
        observation=jax.tree.map(lambda x: x[:, :-1], valued.observation),
        extras=jax.tree.map(lambda x: x[:, :-1], segments.extras._replace(core=())),
        advantage=advantage,
        target=(target - mean) / std,
        old_value=valued.outputs[:, :-1],
        mask=mask,
    )
    if networks.has_memory:
        rows = rows._replace(memory=valued.memory._replace(start_of_episode=valued.memory.start_of_episode[:, :-1]))
    else:
        rows = jax.tree.map(merge_time, rows)
    return Advantages(rows, returns, losses.explained_variance(values, target, of_each))


def mean_and_std(returns: nets.RunningStatistics | tuple[()]) -> tuple[jax.Array | float, jax.Array | float]:
    """Returns by what values are normalised; 0 and 1 where there are no statistics."""
    return (returns.mean, nets.std(returns)) if isinstance(returns, nets.RunningStatistics) else (0.0, 1.0)


def observe_segments(
    variables: PolicyVariables,
    segments: Step,
    update: Callable[..., nets.NestStatistics] = nets.update_nest_statistics,
) -> nets.NestStatistics:
    """Returns the observations' statistics with those of segments, leaves ``[B, T + 1, ...]``, taken in.

    The row after the last is left out: it is the first of the next segment. So is the padding of whole episodes.

    Args:
        variables: with the statistics so far.
        segments: whose observations are taken in.
        update: ``(statistics, batch, mask) -> statistics``; of a team, `networks.update_team_statistics`.
    """
    seen = jax.tree.map(lambda x: merge_time(x[:, :-1]), segments.observation)
    mask = merge_time(has_observation(segments.start_of_episode))
    return update(variables.statistics, seen, mask)


def merge_time(x: jax.Array) -> jax.Array:
    """Merges batch and time: ``[B, T, ...]`` to ``[B T, ...]``."""
    return x.reshape(-1, *x.shape[2:])


def with_rows(batch: ReplaySample[Step], rows: Minibatch) -> ReplaySample[Minibatch]:
    """Returns a batch of segments with rows in their place, and all else that it has."""
    return ReplaySample(batch.info, rows, batch.num_updates, batch.num_steps)


def value_loss(
    networks: nets.PolicyValue, critic: Params, state: Any, batch: ReplaySample[Minibatch], key: jax.Array
) -> LossOutput:
    """Returns half the mean squared error ``[]`` of the value from its target, and the same as a metric.

    Args:
        networks: of policy and value, whose parameters are apart.
        critic: parameters of the value.
        state: has in its variables the parameters of the policy, which the value does not depend on.
        batch: rows of segments.
        key: of nothing.
    """
    del key
    rows = batch.data
    _, value = networks.apply(state.variables.params._replace(critic=critic), rows.observation)
    loss = losses.masked_mean(0.5 * jnp.square(value - rows.target), rows.mask)
    return LossOutput(loss, {"value_loss": loss})
