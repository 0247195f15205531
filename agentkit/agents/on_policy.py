"""What agents that learn on-policy from segments share: settings, networks, acting, advantages.

Data go round like this: N environments fill segments of T rows, a short queue hands each to the learner once (see
`segments`), an update turns all of them into `Rows` with advantages by GAE(lambda) (Schulman et al. 2016), improves
the parameters by these, and publishes what chooses the next action. An algorithm is its `Improve`: one function of
the rows. Those of a policy with a memory stay segments, from the state of whose first row the network is unrolled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.agents import recurrent_policy
from agentkit.agents.checks import check_counts, check_fractions, check_positive
from agentkit.learning import (
    RunningStatistics,
    Update,
    UpdateOutput,
    deviation,
    init_nest_statistics,
    init_statistics,
    normalize_nest,
    update_nest_statistics,
    update_statistics,
)
from agentkit.types import Nest, ReplaySample, Step, has_action

MAX_NORMALIZED = 10.0
"""Normalised observations are clipped to this absolute value."""


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig:
    """Settings that each of these agents has.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value.
        segment_length: rows that an environment fills for each update, T.
        batch_size: segments per update; None for one of each environment of an actor. An update then follows
            every T steps of all environments.
        discount: gamma, in [0, 1].
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        learning_rate: the optimiser's step size.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        normalize_observations: by running mean and deviation; those that are no floats never are.
        normalize_values: let the value network predict normalised returns.
        normalize_advantages: to mean 0 and deviation 1 in each gradient step.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    segment_length: int = 128
    batch_size: int | None = None
    discount: float = 0.99
    gae_lambda: float = 0.95
    learning_rate: float = 1e-3
    max_grad_norm: float | None = 0.5
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = True
    initial_std: float = 1.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        check_fractions(self, "discount", "gae_lambda")
        check_positive(self, "initial_std")
        check_counts(self, "segment_length", "batch_size")


class Networks(NamedTuple):
    """Pure functions of an environment's networks.

    Attributes:
        init: ``key -> params``.
        apply: ``(params, observation [B, ...]) -> (distribution, value [B])``; the distribution is a
            `networks.Categorical`, a `networks.DiagonalNormal`, or a `networks.Joint` of these.
        to_action: a sample of the distribution, without a batch axis, as the environment takes it.
        observation_spec: nest of the observations' specs.
    """

    init: Callable[[jax.Array], Any]
    apply: Callable[[Any, Nest], tuple[Any, jax.Array]]
    to_action: Callable[[jax.Array], jax.Array]
    observation_spec: Nest


class Acting(NamedTuple):
    """What is published: all that acting needs.

    Attributes:
        params: of the networks.
        statistics: of the observations' float leaves; ``()`` where they are not normalised.
    """

    params: Any
    statistics: tuple[RunningStatistics, ...]


class OnPolicyState(NamedTuple):
    """The training state of `learn_from_segments`.

    Attributes:
        acting: parameters and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_state: what the algorithm keeps beside the parameters.
        key: PRNG key ``uint32[2]``.
        num_updates: batches learned from, int32 ``[]``.
    """

    acting: Acting
    returns: RunningStatistics
    opt_state: Any
    key: jax.Array
    num_updates: jax.Array


class Memory(NamedTuple):
    """What a network with a memory needs beside the observations.

    Attributes:
        start_of_episode: where it begins anew, bool ``[B, T]``.
        core: its state before the first rows, ``[B, ...]``.
    """

    start_of_episode: jax.Array
    core: Nest


class Rows(NamedTuple):
    """What is learned from, leaves ``[M, ...]``; of networks with a memory ``[B, T, ...]``.

    Attributes:
        observation: normalised.
        sampled: what was drawn, and with which probability.
        advantage: by GAE.
        target: for the value network.
        old_value: the value network's output before the update.
        mask: 0 in rows without an action, else 1.
        memory: of networks with a memory, which `evaluate` needs; else None.
    """

    observation: Nest
    sampled: nets.Sampled
    advantage: jax.Array
    target: jax.Array
    old_value: jax.Array
    mask: jax.Array
    memory: Memory | None = None


class Progress(NamedTuple):
    """Where a training is when an update begins.

    Attributes:
        key: PRNG key ``uint32[2]`` of this update.
        num_updates: batches learned from before, int32 ``[]``.
        num_rows: rows that these had, float32 ``[]``.
    """

    key: jax.Array
    num_updates: jax.Array
    num_rows: jax.Array


Improve = Callable[[Any, Any, Rows, Progress], tuple[Any, Any, dict[str, jax.Array]]]
"""``(params, opt_state, rows, progress) -> (params, opt_state, metrics)``: an algorithm."""


def make_networks(environment_spec: specs.EnvironmentSpec, config: OnPolicyConfig) -> Networks:
    """Policy and value for an environment of one discrete, or of one bounded continuous action."""
    actions = environment_spec.actions
    nets.check_policy_actions(actions, "A policy-gradient agent")

    def network(observation: Nest) -> tuple[Any, jax.Array]:
        features = nets.torso(observation)
        value = nets.orthogonal_mlp(features, config.hidden_sizes, 1, activation=jnp.tanh)
        return nets.policy_head(features, actions, config.hidden_sizes, config.initial_std, observation), value[:, 0]

    transformed: hk.Transformed = hk.without_apply_rng(hk.transform(network))
    dummy = jax.tree.map(lambda x: x[None], specs.zeros(environment_spec.observations))
    return Networks(
        init=lambda key: transformed.init(key, dummy),
        apply=transformed.apply,
        to_action=nets.sample_to_action(actions),
        observation_spec=environment_spec.observations,
    )


def make_policy(
    networks: Networks | recurrent_policy.Networks, config: OnPolicyConfig, evaluation: bool = False
) -> Policy:
    """Samples the policy; in evaluation takes its mode."""
    if isinstance(networks, recurrent_policy.Networks):
        return _with_memory(recurrent_policy.make_policy(networks, config, evaluation))

    def act(acting: Acting, key: jax.Array, observation: Nest, state: Nest) -> tuple[Nest, Nest, Nest]:
        observation = normalize_nest(acting.statistics, observation, MAX_NORMALIZED)
        distribution, _ = networks.apply(acting.params, jax.tree.map(lambda x: x[None], observation))
        if evaluation:
            return networks.to_action(_first(distribution.mode())), state, ()
        sample = distribution.sample(key)
        extras = _first(nets.Sampled(sample, distribution.log_prob(sample)))
        return networks.to_action(extras.sample), state, extras

    return Policy(act)


def _first(batch: Any) -> Any:
    """What a batch of one holds."""
    return jax.tree.map(lambda x: x[0], batch)


def _with_memory(policy: Policy) -> Policy:
    """`policy`, of parameters and normalised observations, as one of `Acting` and observations."""

    def act(acting: Acting, key: jax.Array, observation: Nest, core: Nest) -> tuple[Nest, Nest, Nest]:
        observation = normalize_nest(acting.statistics, observation, MAX_NORMALIZED)
        return policy.act(acting.params, key, observation, core)

    return policy._replace(act=act)


def learn_from_segments(
    networks: Networks | recurrent_policy.Networks,
    config: OnPolicyConfig,
    init_opt_state: Callable[[Any], Any],
    improve: Improve,
) -> Update:
    """Turns each batch of segments into rows, improves the parameters by them, and takes in the statistics afterwards.

    Args:
        networks: of policy and value.
        config: says how to normalise and to discount.
        init_opt_state: ``params -> opt_state``.
        improve: the algorithm.

    Returns:
        An `Update` of batches of segments, which publishes `Acting` under the name "policy".
    """

    def init(key: jax.Array) -> OnPolicyState:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        opt_state, num_updates = init_opt_state(params), jnp.zeros((), jnp.int32)
        return OnPolicyState(Acting(params, statistics), init_statistics(()), opt_state, key, num_updates)

    def update(state: OnPolicyState, batch: ReplaySample) -> tuple[OnPolicyState, UpdateOutput]:
        key, improve_key = jax.random.split(state.key)
        rows, returns, explained_variance = prepare(networks, config, state, batch.data)
        progress = Progress(improve_key, state.num_updates, state.num_updates * float(rows.mask.size))
        params, opt_state, metrics = improve(state.acting.params, state.opt_state, rows, progress)
        seen = jax.tree.map(lambda x: _flat(x[:, :-1]), batch.data.observation)  # The rest is seen again.
        acting = Acting(params, update_nest_statistics(state.acting.statistics, seen))
        metrics |= {"explained_variance": explained_variance}
        return OnPolicyState(acting, returns, opt_state, key, state.num_updates + 1), UpdateOutput(metrics)

    return Update(init, update, lambda state: {"policy": state.acting})


def evaluate(networks: Any, params: Any, observation: Nest, memory: Memory | None) -> tuple[Any, jax.Array]:
    """(distribution, value) of rows: of each alone, ``[M]``, or with a memory of segments, ``[B, T]``."""
    if memory is None:
        return networks.apply(params, observation)
    outputs, _ = networks.network.unroll(params, observation, memory.start_of_episode, memory.core)
    return outputs


def advantages(config: OnPolicyConfig, rows: Rows) -> jax.Array:
    """What a gradient step on these rows weighs their actions by, shaped as they are."""
    return losses.standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage


def prepare(
    networks: Networks | recurrent_policy.Networks, config: OnPolicyConfig, state: OnPolicyState, segments: Step
) -> tuple[Rows, RunningStatistics, jax.Array]:
    """What is to be learned from segments, leaves ``[B, T + 1, ...]``, by the state they were made with.

    Returns: rows, the statistics of returns with these taken in, and the explained variance ``[]``. The rows are
    ``[B T, ...]``; of networks with a memory ``[B, T, ...]``, to be unrolled from the state that the actor had.
    """
    observation = normalize_nest(state.acting.statistics, segments.observation, MAX_NORMALIZED)
    sampled, memory = segments.extras, None
    if isinstance(networks, recurrent_policy.Networks):
        sampled, core = segments.extras
        memory = Memory(jnp.asarray(segments.start_of_episode), jax.tree.map(lambda x: x[:, 0], core))
    seen = jax.tree.map(_flat, observation) if memory is None else observation
    _, outputs = evaluate(networks, state.acting.params, seen, memory)
    outputs = outputs.reshape(segments.start_of_episode.shape)  # [B, T + 1]
    mean, scale = _scale(config, state.returns)
    values = mean + scale * outputs
    mask = has_action(segments.start_of_episode)  # [B, T]
    reward, discount = (x[:, :-1].astype(jnp.float32) for x in (segments.reward, segments.discount))
    advantages = losses.generalized_advantages(reward, config.discount * discount, values, mask, config.gae_lambda)
    targets = advantages + values[:, :-1]
    returns = update_statistics(state.returns, _flat(targets), _flat(mask))
    mean, scale = _scale(config, returns)
    rows = Rows(
        observation=jax.tree.map(lambda x: x[:, :-1], observation),
        sampled=jax.tree.map(lambda x: x[:, :-1], sampled),
        advantage=advantages,
        target=(targets - mean) / scale,
        old_value=outputs[:, :-1],
        mask=mask,
    )
    if memory is None:
        rows = jax.tree.map(_flat, rows)
    else:
        rows = rows._replace(memory=memory._replace(start_of_episode=memory.start_of_episode[:, :-1]))
    return rows, returns, losses.explained_variance(values[:, :-1], targets, mask)


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(-1, *x.shape[2:])


def _scale(config: OnPolicyConfig, returns: RunningStatistics) -> tuple[Any, Any]:
    """Mean and deviation of returns: the value network's output is in units of these."""
    return (returns.mean, deviation(returns)) if config.normalize_values else (0.0, 1.0)
