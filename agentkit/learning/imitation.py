"""Imitation: an update whose rewards say how much a step looks demonstrated, and nothing else."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from agentkit import networks as nets
from agentkit import specs
from agentkit.errors import ConfigError
from agentkit.learning.curiosity import check_transitions
from agentkit.learning.learner import Params, Update, UpdateOutput, adam, optimizer_step
from agentkit.networks import (
    RunningStatistics,
    init_nest_statistics,
    normalize_nest,
    update_nest_statistics,
)
from agentkit.types import Array, Nest, ReplaySample


@dataclasses.dataclass(frozen=True)
class GailConfig:
    """Settings of `generative_adversarial_imitation`.

    Attributes:
        hidden_sizes: units of each tanh layer of the discriminator (after the convolutions, for images).
        learning_rate: Adam's step size for it.
        gradient_penalty: weight of its gradient penalty; 0 for none.
        max_normalized: normalised observations are clipped to this absolute value.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    learning_rate: float = 1e-3
    gradient_penalty: float = 10.0
    max_normalized: float = 5.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "max_normalized"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be > 0, found {getattr(self, name)}.")
        if not self.gradient_penalty >= 0:
            raise ConfigError(f"gradient_penalty must be at least 0, found {self.gradient_penalty}.")


class Pairs(NamedTuple):
    """Observations and the actions taken there, such as demonstrations; leaves ``[N, ...]``."""

    observation: Nest
    action: Nest


class Discriminator(NamedTuple):
    """Tells demonstrations from what the agent does.

    Attributes:
        init: ``key -> params``.
        encode: ``Pairs -> Pairs`` of floats that can be mixed: pixels in [0, 1], actions ``[N, A]``, discrete ones
            one-hot.
        logits: ``(params, encoded pairs) -> [N]``, of the probability D that a pair was demonstrated.
    """

    init: Callable[[jax.Array], Params]
    encode: Callable[[Pairs], Pairs]
    logits: Callable[[Params, Pairs], Array]


class GailState(NamedTuple):
    """The training state of `generative_adversarial_imitation`.

    Attributes:
        agent: the state of the agent's own update.
        discriminator: parameters.
        opt_state: the discriminator's optimiser's.
        observations: statistics of the observations' float leaves, the demonstrations' and the agent's.
        demonstrations: `Pairs`, here so that a resumed run goes on with those that it began with.
        key: PRNG key ``uint32[2]``.
    """

    agent: Nest
    discriminator: Params
    opt_state: Any
    observations: tuple[RunningStatistics, ...]
    demonstrations: Pairs
    key: jax.Array


def make_discriminator(spec: specs.EnvironmentSpec, config: GailConfig) -> Discriminator:
    """The discriminator for an environment, whatever its observations and actions are."""
    scales = jax.tree.map(lambda leaf: 255.0 if leaf.dtype == np.uint8 else 1.0, spec.observations)

    def encode_action(leaf: Any, action: Array) -> Array:
        if isinstance(leaf, specs.DiscreteArray):
            return jax.nn.one_hot(action, leaf.num_values)
        return action.reshape(action.shape[0], -1).astype(jnp.float32)

    def encode(pairs: Pairs) -> Pairs:
        observation = jax.tree.map(lambda scale, x: x.astype(jnp.float32) / scale, scales, pairs.observation)
        actions = jax.tree.leaves(jax.tree.map(encode_action, spec.actions, pairs.action))
        return Pairs(observation, jnp.concatenate(actions, axis=-1))

    def logits(pairs: Pairs) -> Array:
        observation = jax.tree.map(lambda scale, x: x * scale, scales, pairs.observation)  # As `nets.torso` takes it.
        features = jnp.concatenate([nets.torso(observation), pairs.action], axis=-1)
        return nets.orthogonal_mlp(features, config.hidden_sizes, 1, activation=jnp.tanh)[:, 0]

    one = specs.zeros(specs.add_leading(Pairs(spec.observations, spec.actions), 1))
    encoded = jax.tree.map(lambda x: specs.Array(x.shape[1:], x.dtype), jax.eval_shape(encode, one))
    network = nets.make_network(logits, encoded)
    return Discriminator(network.init, encode, network.apply)


def discriminator_loss(
    logits: Callable[[Pairs], Array], shown: Pairs, taken: Pairs, mix: Array, gradient_penalty: float
) -> tuple[Array, dict[str, Array]]:
    """What a discriminator minimises, ``[]``, and its metrics.

    The cross-entropy -log D(shown) - log(1 - D(taken)), means over the batch (Ho & Ermon 2016, 1606.03476, eq. 17,
    where D is the probability of the opposite), and `gradient_penalty` times the mean of max(|grad logit| - 1, 0)^2 at
    points between the two (Petzka et al. 2018, 1709.08894).

    Args:
        logits: of D for encoded pairs, ``[B]``.
        shown: encoded demonstrations ``[B, ...]``.
        taken: what the agent did, encoded ``[B, ...]``.
        mix: where the points are, from 0 (shown) to 1 (taken), ``[B]``.
        gradient_penalty: its weight.
    """

    def between(a: Array, b: Array) -> Array:
        share = mix.reshape(-1, *[1] * (a.ndim - 1))
        return (1.0 - share) * a + share * b

    logit_shown, logit_taken = logits(shown), logits(taken)
    entropy = jnp.mean(jax.nn.softplus(-logit_shown)) + jnp.mean(jax.nn.softplus(logit_taken))
    slopes = jax.grad(lambda pairs: jnp.sum(logits(pairs)))(jax.tree.map(between, shown, taken))
    squares = sum(jnp.sum(jnp.square(x.reshape(x.shape[0], -1)), axis=-1) for x in jax.tree.leaves(slopes))  # [B]
    norms = jnp.sqrt(squares + 1e-12)  # The root alone would have no gradient at 0.
    penalty = jnp.mean(jnp.square(jnp.maximum(norms - 1.0, 0.0)))
    accuracy = 0.5 * (jnp.mean(logit_shown > 0) + jnp.mean(logit_taken < 0))
    metrics = {"discriminator_loss": entropy, "gradient_penalty": penalty, "discriminator_accuracy": accuracy}
    return entropy + gradient_penalty * penalty, metrics


def generative_adversarial_imitation(
    update: Update, discriminator: Discriminator, demonstrations: Pairs, spec: Nest, config: GailConfig
) -> Update:
    """An update like `update`, whose rewards are the discriminator's alone (GAIL, Ho & Ermon 2016, 1606.03476).

    On each batch the discriminator takes a step, against as many demonstrations, drawn uniformly; then the batch's
    rewards are replaced, and `update` learns from these (algorithm 1). They are worked out anew whenever a step is
    drawn, so those of replayed steps follow the discriminator.

    Deviations from the paper, the first two as in DAC (Kostrikov et al. 2019, 1809.02925), which has absorbing states:
      * Any off-policy update in the place of TRPO; the discriminator sees replayed steps, without importance weights.
      * The discriminator has a gradient penalty. Ours is one-sided: DAC's (Gulrajani et al. 2017, 1704.00028, eq. 3)
        also draws small slopes up to 1, first of all the random ones that a network begins with, and they misled the
        agent for 2,000 updates.
      * It sees observations normalised by running statistics, the demonstrations' and the agent's.
      * The reward is D's logit, log D - log(1 - D) (Fu et al. 2018, 1710.11248, AIRL), of both signs. The paper's is
        never negative here (-log(1 - D)), so that to go on always pays: a point mass whose demonstrator ends episodes
        at a goal never learned to end one.
      * No absorbing states follow terminations: what comes after them is worth 0, as what looks like either alike.

    Args:
        update: of batches of `Transition`s with one reward, over one step each, ``[B, ...]``.
        discriminator: of `make_discriminator`.
        demonstrations: leaves ``[N, ...]``.
        spec: of the observations.
        config: the settings.

    Returns:
        An `Update` that publishes what `update` does, with metrics "imitation_reward" (mean), "discriminator_loss"
        (without the penalty), "gradient_penalty" (not weighted) and "discriminator_accuracy" beside its own.
    """
    optimizer = adam(config.learning_rate)
    (num_demonstrations,) = {len(leaf) for leaf in jax.tree.leaves(demonstrations)}

    def init(key: jax.Array) -> GailState:
        agent_key, params_key, key = jax.random.split(key, 3)
        params = discriminator.init(params_key)
        shown = jax.tree.map(jnp.asarray, demonstrations)
        statistics = init_nest_statistics(spec)
        return GailState(update.init(agent_key), params, optimizer.init(params), statistics, shown, key)

    def step(state: GailState, batch: ReplaySample) -> tuple[GailState, UpdateOutput]:
        check_transitions(batch.data)
        key, draw_key, mix_key = jax.random.split(state.key, 3)
        rows = jax.random.randint(draw_key, batch.data.reward.shape, 0, num_demonstrations)
        shown = jax.tree.map(lambda x: x[rows], state.demonstrations)
        taken = Pairs(batch.data.observation, batch.data.action)
        state = state._replace(key=key, observations=_seen(state.observations, shown, taken))
        shown, taken = (_encoded(discriminator, state, pairs, config.max_normalized) for pairs in (shown, taken))
        mix = jax.random.uniform(mix_key, rows.shape)

        def objective(params: Params) -> tuple[Array, dict[str, Array]]:
            return discriminator_loss(
                lambda pairs: discriminator.logits(params, pairs), shown, taken, mix, config.gradient_penalty
            )

        grads, metrics = jax.grad(objective, has_aux=True)(state.discriminator)
        params, opt_state = optimizer_step(optimizer, grads, state.discriminator, state.opt_state)
        reward = discriminator.logits(params, taken)
        agent, output = update.update(state.agent, batch._replace(data=batch.data._replace(reward=reward)))
        metrics = {**output.metrics, **metrics, "imitation_reward": jnp.mean(reward)}
        state = state._replace(agent=agent, discriminator=params, opt_state=opt_state)
        return state, output._replace(metrics=metrics)

    return Update(init, step, lambda state: update.variables(state.agent))


def _seen(statistics: tuple[RunningStatistics, ...], *batches: Pairs) -> tuple[RunningStatistics, ...]:
    for pairs in batches:
        statistics = update_nest_statistics(statistics, pairs.observation)
    return statistics


def _encoded(discriminator: Discriminator, state: GailState, pairs: Pairs, limit: float) -> Pairs:
    observation = normalize_nest(state.observations, pairs.observation, limit)
    return discriminator.encode(pairs._replace(observation=observation))
