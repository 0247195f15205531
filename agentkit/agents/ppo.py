"""PPO: proximal policy optimization (Schulman et al. 2017, "Proximal Policy Optimization Algorithms", 1707.06347).

On-policy: N environments fill segments of T rows, the learner takes each once, makes some epochs of minibatches
over them, and publishes the parameters that choose the next action. Advantages are GAE(lambda) (Schulman et al.
2016).

Deviations from the paper (most are of the authors' code, github.com/openai/baselines, ppo2):
  * Advantages are normalised in each minibatch, gradients clipped to a global norm, weights begin orthogonal,
    those of the policy's last layer small. Policy and value share nothing but the convolutions of images.
  * Observations and returns are normalised by running statistics, which are learned and published with the
    parameters. An update uses those of the acting policy for observations, and takes in its data afterwards.
  * Truncated episodes and unfinished segments bootstrap.
  * An episode's final observation takes one of the T rows; only its value is of use.
  * Gaussian actions are clipped to the bounds on their way to the environment; the densities are of the
    unclipped ones. The standard deviation does not depend on the observation.
  * Optional: a clipped value loss, an end of the epochs by the KL, a learning rate that falls. The clip stays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.adders import BatchedSegmentAdder, SegmentAdder, segment_layout
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import (
    RunningStatistics,
    Update,
    UpdateOutput,
    adam,
    deviation,
    init_nest_statistics,
    init_statistics,
    normalize_nest,
    run_epochs,
    update_nest_statistics,
    update_statistics,
)
from agentkit.replay import Fifo, Queue, Replay, Table
from agentkit.types import Nest, ReplaySample, Step

TABLE = "segments"
MAX_NORMALIZED = 10.0
"""Normalised observations are clipped to this absolute value."""


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of PPO.

    Attributes:
        hidden_sizes: units of each tanh layer of policy and value.
        segment_length: rows that an environment fills for each update, T.
        batch_size: segments per update; None for one of each environment of an actor. An update then follows
            every T steps of all environments.
        num_epochs: passes over the data of an update.
        num_minibatches: gradient steps per epoch; divides batch_size * segment_length.
        discount: gamma, in [0, 1].
        gae_lambda: from 0 (one-step errors) to 1 (whole returns).
        clip_epsilon: the ratio's clip (paper, eq. 7).
        value_clip: clip of the value's move from before the update, in units of the value network; None for none.
        value_cost: weight of the value loss.
        entropy_cost: weight of the entropy bonus (paper, eq. 9).
        target_kl: the epochs end where a minibatch's KL from the acting policy is above this; None for never.
        learning_rate: Adam's step size.
        anneal_steps: rows (steps, in all environments) in which the learning rate falls linearly to 0; None: never.
        max_grad_norm: clip the gradients to this global norm; None for no clipping.
        normalize_observations: by running mean and deviation; those that are no floats never are.
        normalize_values: let the value network predict normalised returns.
        normalize_advantages: to mean 0 and deviation 1 in each minibatch.
        initial_std: standard deviation of continuous actions at first, in units of half the bounds' distance.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    segment_length: int = 128
    batch_size: int | None = None
    num_epochs: int = 10
    num_minibatches: int = 4
    discount: float = 0.99
    gae_lambda: float = 0.95
    clip_epsilon: float = 0.2
    value_clip: float | None = None
    value_cost: float = 0.5
    entropy_cost: float = 0.0
    target_kl: float | None = None
    learning_rate: float = 1e-3
    anneal_steps: int | None = None
    max_grad_norm: float | None = 0.5
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = True
    initial_std: float = 1.0


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


class TrainingState(NamedTuple):
    """What PPO learns.

    Attributes:
        acting: parameters and statistics of observations.
        returns: statistics of the value targets ``[]``.
        opt_state: the optimiser's state.
        key: PRNG key ``uint32[2]``.
        num_updates: batches learned from, int32 ``[]``.
    """

    acting: Acting
    returns: RunningStatistics
    opt_state: Any
    key: jax.Array
    num_updates: jax.Array


class Rows(NamedTuple):
    """What minibatches are made of, leaves ``[M, ...]``.

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


def make_networks(environment_spec: specs.EnvironmentSpec, config: Config) -> Networks:
    """Policy and value for an environment of one discrete, or of one bounded continuous action."""
    actions = environment_spec.actions
    nets.check_policy_actions(actions, "PPO")

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


def make_policy(networks: Networks, config: Config, evaluation: bool = False) -> Policy:
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


def make_loss(networks: Networks, config: Config) -> Callable[[Any, Rows], tuple[jax.Array, dict[str, jax.Array]]]:
    """``(params, minibatch of Rows) -> (loss, metrics)`` (paper, eq. 9)."""
    from agentkit import losses  # Not at import time: actors load this file, and rlax is slow to import.

    def loss(params: Any, rows: Rows) -> tuple[jax.Array, dict[str, jax.Array]]:
        distribution, value = networks.apply(params, rows.observation)
        log_ratio = distribution.log_prob(rows.sampled.sample) - rows.sampled.log_prob
        # Of the zeros in rows without an action any number may come, also one whose exponential overflows.
        log_ratio = jnp.where(rows.mask > 0, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        advantage = losses.standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage
        policy_losses = losses.clipped_policy_loss(ratio, advantage, config.clip_epsilon)
        value_losses = losses.clipped_value_loss(value, rows.old_value, rows.target, config.value_clip)
        means = {
            "policy_loss": policy_losses,
            "value_loss": value_losses,
            "entropy": distribution.entropy(),
            "kl": losses.approximate_kl(log_ratio),
            "clipped": (jnp.abs(ratio - 1.0) > config.clip_epsilon).astype(jnp.float32),
        }
        metrics = {name: losses.masked_mean(x, rows.mask) for name, x in means.items()}
        total = metrics["policy_loss"] + config.value_cost * metrics["value_loss"]
        return total - config.entropy_cost * metrics["entropy"], metrics

    return loss


def make_update(networks: Networks, config: Config) -> Update:
    """All epochs over the segments of one batch, as one update (paper, algorithm 1)."""
    import optax  # Not at import time: actors load this file, and optimise nothing.

    optimizer = adam(1.0, config.max_grad_norm)
    loss = make_loss(networks, config)

    def init(key: jax.Array) -> TrainingState:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        opt_state, num_updates = optimizer.init(params), jnp.zeros((), jnp.int32)
        return TrainingState(Acting(params, statistics), init_statistics(()), opt_state, key, num_updates)

    def update(state: TrainingState, batch: ReplaySample) -> tuple[TrainingState, UpdateOutput]:
        key, epochs_key = jax.random.split(state.key)
        rows, returns, explained_variance = prepare(networks, config, state, batch.data)
        learning_rate = _learning_rate(config, state.num_updates * float(rows.mask.size))

        def step(learned: tuple[Any, Any], minibatch: Rows) -> tuple[tuple[Any, Any], dict[str, jax.Array]]:
            params, opt_state = learned
            grads, metrics = jax.grad(loss, has_aux=True)(params, minibatch)
            steps, opt_state = optimizer.update(grads, opt_state, params)
            steps = jax.tree.map(lambda x: learning_rate * x, steps)
            return (optax.apply_updates(params, steps), opt_state), metrics

        (params, opt_state), metrics = run_epochs(
            step,
            (state.acting.params, state.opt_state),
            rows,
            epochs_key,
            num_epochs=config.num_epochs,
            num_minibatches=config.num_minibatches,
            stop=None if config.target_kl is None else lambda metrics: metrics["kl"] > config.target_kl,
        )
        seen = jax.tree.map(lambda x: _flat(x[:, :-1]), batch.data.observation)  # The rest is seen again.
        acting = Acting(params, update_nest_statistics(state.acting.statistics, seen))
        metrics |= {"explained_variance": explained_variance, "learning_rate": learning_rate}
        return TrainingState(acting, returns, opt_state, key, state.num_updates + 1), UpdateOutput(metrics)

    return Update(init, update, lambda state: {"policy": state.acting})


def prepare(
    networks: Networks, config: Config, state: TrainingState, segments: Step
) -> tuple[Rows, RunningStatistics, jax.Array]:
    """What is to be learned from segments, leaves ``[B, T + 1, ...]``, by the state they were made with.

    Returns: rows ``[B T, ...]``, the statistics of returns with these taken in, and the explained variance ``[]``.
    """
    from agentkit import losses

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


def _scale(config: Config, returns: RunningStatistics) -> tuple[Any, Any]:
    """Mean and deviation of returns: the value network's output is in units of these."""
    return (returns.mean, deviation(returns)) if config.normalize_values else (0.0, 1.0)


def _learning_rate(config: Config, num_steps: jax.Array) -> jax.Array:
    left = 1.0 if config.anneal_steps is None else jnp.maximum(1.0 - num_steps / config.anneal_steps, 0.0)
    return jnp.asarray(config.learning_rate * left)


class Agent:
    """PPO, as `agentkit.core.Agent`."""

    def __init__(
        self,
        config: Config | None = None,
        *,
        num_envs: int = 1,
        make_networks: Callable[[specs.EnvironmentSpec, Config], Networks] = make_networks,
        make_update: Callable[[Networks, Config], Update] = make_update,
    ):
        """Takes the settings, how many environments an actor has, and other networks or another update."""
        self.config = config = Config() if config is None else config
        self._num_envs = num_envs
        self._make_networks = make_networks
        self._make_update = make_update
        for name in ("discount", "gae_lambda"):
            if not 0 <= getattr(config, name) <= 1:
                raise ConfigError(f"{name} must be in [0, 1], found {getattr(config, name)}.")
        for name in ("clip_epsilon", "value_clip", "target_kl", "anneal_steps", "initial_std"):
            value = getattr(config, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} must be > 0, found {value}.")
        for name in ("segment_length", "batch_size", "num_epochs", "num_minibatches"):
            value = getattr(config, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, found {value}.")

    def with_num_envs(self, num_envs: int) -> Agent:
        """See `core.Agent`."""
        networks, update = self._make_networks, self._make_update
        return Agent(self.config, num_envs=num_envs, make_networks=networks, make_update=update)

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        size = self.config.batch_size
        return BatchPlan(TABLE, self._num_envs if size is None else size)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> Networks:
        """See `core.Agent`."""
        return self._make_networks(environment_spec, self.config)

    def make_policy(self, networks: Networks, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return make_policy(networks, self.config, evaluation)

    def make_update(self, networks: Networks) -> Update:
        """See `core.Agent`; a ConfigError where the rows of an update cannot be divided into the minibatches."""
        config, num_segments = self.config, self.batch_plan.batch_size
        if num_segments * config.segment_length % config.num_minibatches:
            raise ConfigError(
                f"num_minibatches={config.num_minibatches} does not divide the rows of an update: {num_segments} "
                f"segments of {config.segment_length}. Choose a divisor."
            )
        return self._make_update(networks, config)

    def make_tables(self, environment_spec: specs.EnvironmentSpec) -> list[Table]:
        """See `core.Agent`: a queue, as short as can be, so that what is learned from is new."""
        num_segments = self.batch_plan.batch_size
        size = num_segments if num_segments % self._num_envs == 0 else num_segments + self._num_envs - 1
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
        extras_spec = nets.sampled_spec(environment_spec.actions)
        return {"length": self.config.segment_length, "extras_spec": extras_spec}
