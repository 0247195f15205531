"""What agents that learn from segments share: settings, the queue that keeps their experience, advantages.

Data go round like this: N environments fill segments of T rows (see `agentkit.adders.BatchedSegmentAdder`), a short
queue hands each to the learner once, an update turns all of them into `Rows` with advantages by GAE(lambda) (Schulman
et al. 2016), improves the parameters by these, and publishes what chooses the next action (`actors.Acting`). An
algorithm is its `Improve`: one function of the rows. Those of networks with a memory stay segments, from the state of
whose first row these are unrolled. IMPALA has the queue from here, and an update of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit import losses, specs
from agentkit import networks as nets
from agentkit.actors import Acting, Policy, on_normalized, stochastic
from agentkit.adders import BatchedSegmentAdder, SegmentAdder, segment_layout
from agentkit.agents.common.ranges import Count, Fraction, Positive, check_ranges
from agentkit.core import BatchPlan
from agentkit.errors import ConfigError
from agentkit.learning import Update, UpdateOutput
from agentkit.replay import Replay, Table, queue_table
from agentkit.types import Nest, ReplaySample, Step, has_action

TABLE = "segments"


@dataclasses.dataclass(frozen=True)
class OnPolicyConfig:
    """Settings that each of these agents has, but for IMPALA.

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
    segment_length: Count = 128
    batch_size: Count | None = None
    discount: Fraction = 0.99
    gae_lambda: Fraction = 0.95
    learning_rate: float = 1e-3
    max_grad_norm: float | None = 0.5
    normalize_observations: bool = True
    normalize_values: bool = True
    normalize_advantages: bool = True
    initial_std: Positive = 1.0

    def __post_init__(self) -> None:
        """Refuses what is out of its range."""
        check_ranges(self)


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
    returns: nets.RunningStatistics
    opt_state: Any
    key: jax.Array
    num_updates: jax.Array


class Rows(NamedTuple):
    """What is learned from, leaves ``[M, ...]``; of networks with a memory ``[B, T, ...]``.

    Attributes:
        observation: normalised.
        sampled: what was drawn, and with which probability.
        advantage: by GAE.
        target: for the value network.
        old_value: the value network's output before the update.
        mask: 0 in rows without an action, else 1.
        memory: of networks with a memory, to be applied with; else None.
    """

    observation: Nest
    sampled: nets.Sampled
    advantage: jax.Array
    target: jax.Array
    old_value: jax.Array
    mask: jax.Array
    memory: nets.Memory | None = None


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

RowsLoss = Callable[[Any, Rows], tuple[jax.Array, dict[str, jax.Array]]]
"""``(params, rows) -> (loss [], metrics)``."""


def learn_from_segments(
    networks: nets.PolicyValue, config: OnPolicyConfig, init_opt_state: Callable[[Any], Any], improve: Improve
) -> Update:
    """Turns each batch of segments into rows, improves the parameters by them, and takes in the statistics afterwards.

    Args:
        networks: of policy and value.
        config: says how to normalise and to discount.
        init_opt_state: ``params -> opt_state``.
        improve: the algorithm.

    Returns:
        An `Update` of batches of segments, which publishes `actors.Acting` under the name "policy".
    """

    def init(key: jax.Array) -> OnPolicyState:
        key, params_key = jax.random.split(key)
        params = networks.init(params_key)
        statistics = nets.init_nest_statistics(networks.observation_spec) if config.normalize_observations else ()
        opt_state, num_updates = init_opt_state(params), jnp.zeros((), jnp.int32)
        return OnPolicyState(Acting(params, statistics), nets.init_statistics(()), opt_state, key, num_updates)

    def update(state: OnPolicyState, batch: ReplaySample) -> tuple[OnPolicyState, UpdateOutput]:
        key, improve_key = jax.random.split(state.key)
        rows, returns, explained_variance = prepare(networks, config, state, batch.data)
        progress = Progress(improve_key, state.num_updates, state.num_updates * float(rows.mask.size))
        params, opt_state, metrics = improve(state.acting.params, state.opt_state, rows, progress)
        seen = jax.tree.map(lambda x: _flat(x[:, :-1]), batch.data.observation)  # The rest is seen again.
        acting = Acting(params, nets.update_nest_statistics(state.acting.statistics, seen))
        metrics |= {"explained_variance": explained_variance}
        return OnPolicyState(acting, returns, opt_state, key, state.num_updates + 1), UpdateOutput(metrics)

    return Update(init, update, lambda state: {"policy": state.acting})


def prepare(
    networks: nets.PolicyValue, config: OnPolicyConfig, state: OnPolicyState, segments: Step
) -> tuple[Rows, nets.RunningStatistics, jax.Array]:
    """What is to be learned from segments, leaves ``[B, T + 1, ...]``, by the state they were made with.

    Returns: rows, the statistics of returns with these taken in, and the explained variance ``[]``. The rows are
    ``[B T, ...]``; of networks with a memory ``[B, T, ...]``, to be unrolled from the state that the actor had.
    """
    observation, memory = state.acting.normalized(segments.observation), nets.stored_memory(segments)
    _, outputs = networks.apply(state.acting.params, observation, memory)  # [B, T + 1]
    mean, scale = _scale(config, state.returns)
    values = mean + scale * outputs
    mask = has_action(segments.start_of_episode)  # [B, T]
    reward, discount = (x[:, :-1].astype(jnp.float32) for x in (segments.reward, segments.discount))
    advantages = losses.generalized_advantages(reward, config.discount * discount, values, mask, config.gae_lambda)
    targets = advantages + values[:, :-1]
    returns = nets.update_statistics(state.returns, _flat(targets), _flat(mask))
    mean, scale = _scale(config, returns)
    rows = Rows(
        observation=jax.tree.map(lambda x: x[:, :-1], observation),
        sampled=jax.tree.map(lambda x: x[:, :-1], segments.extras._replace(core=())),
        advantage=advantages,
        target=(targets - mean) / scale,
        old_value=outputs[:, :-1],
        mask=mask,
    )
    if networks.has_memory:
        rows = rows._replace(memory=memory._replace(start_of_episode=memory.start_of_episode[:, :-1]))
    else:
        rows = jax.tree.map(_flat, rows)
    return rows, returns, losses.explained_variance(values[:, :-1], targets, mask)


def advantages(config: OnPolicyConfig, rows: Rows) -> jax.Array:
    """What a gradient step on these rows weighs their actions by, shaped as they are."""
    return losses.standardize(rows.advantage, rows.mask) if config.normalize_advantages else rows.advantage


def _flat(x: jax.Array) -> jax.Array:
    return x.reshape(-1, *x.shape[2:])


def _scale(config: OnPolicyConfig, returns: nets.RunningStatistics) -> tuple[Any, Any]:
    """Mean and deviation of returns: the value network's output is in units of these."""
    return (returns.mean, nets.deviation(returns)) if config.normalize_values else (0.0, 1.0)


@final
@dataclasses.dataclass(frozen=True)
class OnPolicyAgent:
    """An algorithm's functions with a queue of segments: a `core.Agent`, whose policy emits a `networks.Sampled`.

    Attributes:
        config: the settings that the functions are given.
        networks: ``(environment_spec, config) -> PolicyValue``.
        policy: ``(networks, evaluation) -> Policy``.
        update: ``(networks, config) -> Update``, of batches of `Step`s ``[B, T + 1, ...]``.
        num_envs: environments of an actor.
    """

    config: Any
    networks: Callable[[specs.EnvironmentSpec, Any], nets.PolicyValue]
    policy: Callable[[nets.PolicyValue, bool], Policy]
    update: Callable[[nets.PolicyValue, Any], Update]
    num_envs: int = 1

    def with_num_envs(self, num_envs: int) -> OnPolicyAgent:
        """See `core.Agent`."""
        return dataclasses.replace(self, num_envs=num_envs)

    @property
    def batch_plan(self) -> BatchPlan:
        """See `core.Agent`."""
        size = self.config.batch_size
        return BatchPlan(TABLE, self.num_envs if size is None else size)

    def make_networks(self, environment_spec: specs.EnvironmentSpec) -> nets.PolicyValue:
        """See `core.Agent`."""
        return self.networks(environment_spec, self.config)

    def make_policy(self, networks: nets.PolicyValue, evaluation: bool = False) -> Policy:
        """See `core.Agent`."""
        return self.policy(networks, evaluation)

    def make_update(self, networks: nets.PolicyValue) -> Update:
        """See `core.Agent`; a ConfigError where the data of an update cannot be divided into the minibatches."""
        num_segments, length = self.batch_plan.batch_size, self.config.segment_length
        num_minibatches = getattr(self.config, "num_minibatches", 1)  # Not all have some.
        if num_segments * length % num_minibatches:
            raise ConfigError(
                f"num_minibatches={num_minibatches} does not divide the rows of an update: {num_segments} "
                f"segments of {length}. Choose a divisor."
            )
        if networks.has_memory and num_segments % num_minibatches:
            raise ConfigError(
                f"num_minibatches={num_minibatches} does not divide the {num_segments} segments of an update, which a "
                f"policy with a memory learns from whole. Choose a divisor, more environments or another batch_size."
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
        return [queue_table(TABLE, segment_layout(environment_spec, **self._segments(environment_spec)), size)]

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
        stored = self.make_networks(environment_spec).sampled_spec
        return {"length": self.config.segment_length, "extras_spec": stored}


def sample_normalized(networks: nets.PolicyValue, evaluation: bool = False) -> Policy:
    """The policy that `learn_from_segments` publishes `Acting` for: samples; in evaluation takes the mode."""
    return on_normalized(stochastic(networks, evaluation))


def agent_of_update(
    config_class: type,
    make_networks: Callable[[specs.EnvironmentSpec, Any], nets.PolicyValue],
    make_update: Callable[[nets.PolicyValue, Any], Update],
    make_policy: Callable[[nets.PolicyValue, bool], Policy] = sample_normalized,
) -> Callable[..., OnPolicyAgent]:
    """What an algorithm's file calls `Agent`.

    Args:
        config_class: of the settings.
        make_networks: ``(environment_spec, config) -> PolicyValue``.
        make_update: ``(networks, config) -> Update``.
        make_policy: ``(networks, evaluation) -> Policy``, of what the update publishes.

    Returns:
        ``(config=None, *, make_networks=..., make_update=...) -> OnPolicyAgent``: with default settings where none
        are given, and with other networks or another update than the file's where they are.
    """

    def make(
        config: Any = None, *, make_networks: Any = make_networks, make_update: Any = make_update
    ) -> OnPolicyAgent:
        config = config_class() if config is None else config
        return OnPolicyAgent(config, make_networks, make_policy, make_update)

    return make
