"""What agents that learn on-policy from segments share: settings, networks, acting, advantages, how experience is kept.

Data go round like this: N environments fill segments of T rows (see `agentkit.adders.BatchedSegmentAdder`), a short
queue hands each to the learner once, an update turns all of them into `Rows` with advantages by GAE(lambda)
(Schulman et al. 2016), improves the parameters by these, and publishes what chooses the next action. An algorithm
is its `Improve`: one function of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, final

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Policy
from agentkit.adders import BatchedSegmentAdder, SegmentAdder, segment_layout
from agentkit.agents.checks import check_counts, check_fractions, check_positive
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
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
from agentkit.replay import Fifo, Queue, Replay, Table
from agentkit.types import Nest, ReplaySample, Step

TABLE = "segments"
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
            `networks.Categorical` or a `networks.DiagonalNormal`.
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


class Rows(NamedTuple):
    """What is learned from, leaves ``[M, ...]``.

    Attributes:
        observation: normalised.
        sampled: what was drawn, and with which probability.
        advantage: by GAE.
        target: for the value network.
        old_value: the value network's output before the update.
        mask: 0 in rows without an action, else 1.
    """

    observation: Nest
    sampled: nets.Sampled
    advantage: jax.Array
    target: jax.Array
    old_value: jax.Array
    mask: jax.Array


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
        return nets.policy_head(features, actions, config.hidden_sizes, config.initial_std), value[:, 0]

    transformed: hk.Transformed = hk.without_apply_rng(hk.transform(network))
    dummy = jax.tree.map(lambda x: x[None], specs.zeros(environment_spec.observations))
    return Networks(
        init=lambda key: transformed.init(key, dummy),
        apply=transformed.apply,
        to_action=nets.sample_to_action(actions),
        observation_spec=environment_spec.observations,
    )


def make_policy(networks: Networks, config: OnPolicyConfig, evaluation: bool = False) -> Policy:
    """Samples the policy; in evaluation takes its mode."""
    del config

    def act(acting: Acting, key: jax.Array, observation: Nest, state: Nest) -> tuple[Nest, Nest, Nest]:
        observation = normalize_nest(acting.statistics, observation, MAX_NORMALIZED)
        distribution, _ = networks.apply(acting.params, jax.tree.map(lambda x: x[None], observation))
        if evaluation:
            return networks.to_action(distribution.mode()[0]), state, ()
        sample = distribution.sample(key)
        extras = nets.Sampled(sample[0], distribution.log_prob(sample)[0])
        return networks.to_action(sample[0]), state, extras

    return Policy(act)


def learn_from_segments(
    networks: Networks, config: OnPolicyConfig, init_opt_state: Callable[[Any], Any], improve: Improve
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


def advantages(config: OnPolicyConfig, rows: Rows) -> jax.Array:
    """What a gradient step on these rows weighs their actions by, ``[M]``."""
    return losses.standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage


def prepare(
    networks: Networks, config: OnPolicyConfig, state: OnPolicyState, segments: Step
) -> tuple[Rows, RunningStatistics, jax.Array]:
    """What is to be learned from segments, leaves ``[B, T + 1, ...]``, by the state they were made with.

    Returns: rows ``[B T, ...]``, the statistics of returns with these taken in, and the explained variance ``[]``.
    """
    observation = normalize_nest(state.acting.statistics, segments.observation, MAX_NORMALIZED)
    _, outputs = networks.apply(state.acting.params, jax.tree.map(_flat, observation))
    outputs = outputs.reshape(segments.start_of_episode.shape)  # [B, T + 1]
    mean, scale = _scale(config, state.returns)
    values = mean + scale * outputs
    mask = losses.has_action(segments.start_of_episode)  # [B, T]
    reward, discount = (x[:, :-1].astype(jnp.float32) for x in (segments.reward, segments.discount))
    advantages = losses.generalized_advantages(reward, config.discount * discount, values, mask, config.gae_lambda)
    targets = advantages + values[:, :-1]
    returns = update_statistics(state.returns, _flat(targets), _flat(mask))
    mean, scale = _scale(config, returns)
    rows = Rows(
        observation=jax.tree.map(lambda x: x[:, :-1], observation),
        sampled=jax.tree.map(lambda x: x[:, :-1], segments.extras),
        advantage=advantages,
        target=(targets - mean) / scale,
        old_value=outputs[:, :-1],
        mask=mask,
    )
    return jax.tree.map(_flat, rows), returns, losses.explained_variance(values[:, :-1], targets, mask)


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(-1, *x.shape[2:])


def _scale(config: OnPolicyConfig, returns: RunningStatistics) -> tuple[Any, Any]:
    """Mean and deviation of returns: the value network's output is in units of these."""
    return (returns.mean, deviation(returns)) if config.normalize_values else (0.0, 1.0)


def _sampled_spec(environment_spec: specs.EnvironmentSpec, config: Any) -> nets.Sampled:
    del config
    return nets.sampled_spec(environment_spec.actions)


@final
@dataclasses.dataclass(frozen=True)
class OnPolicyAgent:
    """An algorithm's functions with a queue of segments: a `core.Agent`.

    Attributes:
        config: the settings that the functions are given.
        networks: ``(environment_spec, config) -> networks``.
        policy: ``(networks, config, evaluation) -> Policy``.
        update: ``(networks, config) -> Update``, of batches of `Step`s ``[B, T + 1, ...]``.
        extras_spec: ``(environment_spec, config) -> nest of specs`` of what the policy emits.
        num_envs: environments of an actor.
    """

    config: Any
    networks: Callable[[specs.EnvironmentSpec, Any], Any]
    policy: Callable[[Any, Any, bool], Policy]
    update: Callable[[Any, Any], Update]
    extras_spec: Callable[[specs.EnvironmentSpec, Any], Nest] = _sampled_spec
    num_envs: int = 1

    def with_num_envs(self, num_envs: int) -> OnPolicyAgent:
        """See `core.Agent`."""
        return dataclasses.replace(self, num_envs=num_envs)

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        size = self.config.batch_size
        return BatchPlan(TABLE, self.num_envs if size is None else size)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Any:
        """See `core.Agent`."""
        return self.networks(environment_spec, self.config)

    def make_policy(self, networks: Any, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return self.policy(networks, self.config, evaluation)

    def make_update(self, networks: Any) -> Update:
        """See `core.Agent`; a ConfigError where the rows of an update cannot be divided into the minibatches."""
        num_segments, length = self.batch_plan.batch_size, self.config.segment_length
        num_minibatches = getattr(self.config, "num_minibatches", 1)  # Not all have some.
        if num_segments * length % num_minibatches:
            raise ConfigError(
                f"num_minibatches={num_minibatches} does not divide the rows of an update: {num_segments} "
                f"segments of {length}. Choose a divisor."
            )
        return self.update(networks, self.config)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`: a queue, as short as can be, so that what is learned from is new, or of ``queue_size``."""
        num_segments = self.batch_plan.batch_size
        least = num_segments if num_segments % self.num_envs == 0 else num_segments + self.num_envs - 1
        wanted = getattr(self.config, "queue_size", None)  # Not all have one.
        size = least if wanted is None else wanted
        if size < least:
            raise ConfigError(
                f"queue_size must be at least {least} for batches of {num_segments} segments from {self.num_envs} "
                f"environments, found {size}. Raise it, or leave it out."
            )
        layout = segment_layout(environment_spec, **self._segments(environment_spec))
        return [Table(TABLE, layout, size, Fifo(), rate_limiter=Queue(size), max_times_sampled=1)]

    def make_adder(self, replay: Replay, environment_spec: specs.EnvironmentSpec) -> SegmentAdder:
        """See `core.Agent`."""
        settings = self._segments(environment_spec)
        return SegmentAdder(replay.writer(1), environment_spec, tables=TABLE, **settings)

    def make_batched_adder(
        self, replay: Replay, environment_spec: specs.EnvironmentSpec, num_envs: int
    ) -> BatchedSegmentAdder:
        """See `core.Agent`."""
        settings = self._segments(environment_spec)
        return BatchedSegmentAdder(replay.writer(1), environment_spec, tables=TABLE, num_envs=num_envs, **settings)

    def _segments(self, environment_spec: specs.EnvironmentSpec) -> dict[str, Any]:
        extras_spec = self.extras_spec(environment_spec, self.config)
        return {"length": self.config.segment_length, "extras_spec": extras_spec}


def agent_of_update(
    config_class: type,
    make_networks: Callable[[specs.EnvironmentSpec, Any], Any],
    make_policy: Callable[[Any, Any, bool], Policy],
    make_update: Callable[[Any, Any], Update],
    extras_spec: Callable[[specs.EnvironmentSpec, Any], Nest] = _sampled_spec,
) -> Callable[..., OnPolicyAgent]:
    """What an algorithm's file calls `Agent`.

    Args:
        config_class: of the settings.
        make_networks: ``(environment_spec, config) -> networks``.
        make_policy: ``(networks, config, evaluation) -> Policy``.
        make_update: ``(networks, config) -> Update``.
        extras_spec: ``(environment_spec, config) -> nest of specs`` of what the policy emits.

    Returns:
        ``(config=None, *, make_networks=..., make_update=...) -> OnPolicyAgent``: with default settings where none
        are given, and with other networks or another update than the file's where they are.
    """

    def make(
        config: Any = None, *, make_networks: Any = make_networks, make_update: Any = make_update
    ) -> OnPolicyAgent:
        config = config_class() if config is None else config
        return OnPolicyAgent(config, make_networks, make_policy, make_update, extras_spec)

    return make
