"""GAIL: generative adversarial imitation learning (Ho & Ermon 2016, 1606.03476).

A discriminator learns to tell demonstrations from the agent's steps, and the agent's rewards are the discriminator's
alone. On each batch the discriminator takes a step, against as many demonstrations, drawn uniformly; then the batch's
rewards are replaced, and the agent's update learns from these (algorithm 1). They are worked out anew whenever a step
is learned from, so those of replayed steps follow the discriminator.

Differences from the paper, the first two as in DAC (Kostrikov et al. 2019, 1809.02925), which has absorbing states:
  * Any agent's update in the place of TRPO. Of an agent with replay the discriminator sees replayed steps, without
    importance weights.
  * The discriminator has a gradient penalty. Ours is one-sided: DAC's (Gulrajani et al. 2017, 1704.00028, eq. 3)
    also draws small slopes up to 1, first of all the random ones that a network begins with, and they misled the
    agent for 2,000 updates.
  * It sees observations normalised by running statistics, the demonstrations' and the agent's. Of a team, agents that
    have terminated count for nothing there; they and their actions are seen as zeros.
  * The reward is D's logit, log D - log(1 - D) (Fu et al. 2018, 1710.11248, AIRL), of both signs. The paper's is
    never negative here (-log(1 - D)), so that to go on always pays: a point mass whose demonstrator ends episodes
    at a goal never learned to end one.
  * No absorbing states follow terminations: what comes after them is worth 0.
"""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, final

import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents.addons.her import check_single_steps
from agentkit.agents.addons.rewards import (
    AgentNetworks,
    MakeNetworks,
    MakePolicy,
    Networks,
    mean,
    steps_of,
    updates_of,
    with_rewards,
)
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.ranges import NotNegative, Positive, Sizes, check_ranges
from agentkit.datasets import Episode, EpisodeData, read_episodes
from agentkit.datasets.episodes import as_episodes, fit_episodes
from agentkit.errors import ConfigError
from agentkit.learning import Update, UpdateOutput, adam, optimizer_step
from agentkit.types import Array, Nest, Params, ReplaySample, Step, Transition

if TYPE_CHECKING:
    import optax

Demonstrations = str | pathlib.Path | Sequence[Episode]


@dataclasses.dataclass(frozen=True)
class Config:
    """Holds the hyperparameters of GAIL.

    Attributes:
        hidden_sizes: units of each tanh layer of the discriminator (after the convolutions, for images).
        learning_rate: Adam's step size for it.
        gradient_penalty: weight of its gradient penalty; 0 for none.
        max_normalized: normalised observations are clipped to this absolute value.
    """

    hidden_sizes: Sizes = (256, 256)
    learning_rate: Positive = 1e-3
    gradient_penalty: NotNegative = 10.0
    max_normalized: Positive = 5.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range."""
        check_ranges(self)


def with_gail(
    agent: Agent[AgentNetworks], demonstrations: Demonstrations, config: Config | None = None
) -> Agent[Networks[AgentNetworks]]:
    """Returns the agent imitating demonstrations: it never learns from the environment's rewards.

    Acting, replay and what is published stay the agent's.

    Args:
        agent: one that learns from transitions with ``n_step=1``, or from segments, on- or offline.
        demonstrations: a file or folder for `datasets.read_episodes`, read where the learner is made, or episodes with
            the agent's own actions, continuous ones from -1 to 1 (see `Episode`). Their rewards teach nothing.
        config: of the discriminator; None for the defaults.

    Raises:
        ConfigError: the agent sums several rewards, or there are no demonstrations. When its update is made: the file
            cannot be read.
        SpecError: when its update is made: an episode does not fit the environment.
    """
    check_single_steps(agent, "GAIL rewards")
    if not isinstance(demonstrations, str | pathlib.Path):
        demonstrations = tuple(as_episodes(demonstrations, "demonstrations"))
    return agent.with_parts(
        make_networks=MakeNetworks(agent.make_networks),
        make_policy=MakePolicy(agent.make_policy),
        make_update=MakeUpdate(agent.make_update, demonstrations, Config() if config is None else config),
    )


@final
@dataclasses.dataclass(frozen=True)
class MakeUpdate(Generic[AgentNetworks]):
    """Makes the agent's update, with the discriminator's rewards."""

    make_update: Callable[[AgentNetworks], Update]
    demonstrations: Demonstrations
    config: Config

    def __call__(self, networks: Networks[AgentNetworks]) -> Update:
        """Returns the update of the agent's networks and of a discriminator."""
        spec = networks.environment_spec
        shown = read_pairs(self.demonstrations, spec)
        discriminator = make_discriminator(spec, self.config)
        update = self.make_update(networks.agent)
        return generative_adversarial_imitation(update, discriminator, shown, spec, self.config)


def refuse_gail(agent: Agent[Any], problem: str, instead: str) -> None:
    """Refuses an agent with GAIL for an add-on that belongs inside of it.

    Args:
        agent: any.
        problem: what would come of it.
        instead: how the add-on is written around the agent alone.

    Raises:
        ConfigError: the agent has GAIL.
    """
    if any(isinstance(part, MakeUpdate) for part in updates_of(agent)):
        raise ConfigError(f"{problem} Write with_gail({instead}, demonstrations).")


class Pairs(NamedTuple):
    """Holds observations and the actions taken there, such as demonstrations; leaves ``[N, ...]``."""

    observation: Nest
    action: Nest


def read_demonstrations(demonstrations: Demonstrations) -> EpisodeData:
    """Returns the episodes, with the action space that a file tells of."""
    if isinstance(demonstrations, str | pathlib.Path):
        return read_episodes(demonstrations)
    return EpisodeData(list(demonstrations), None)


def read_pairs(demonstrations: Demonstrations, spec: specs.EnvironmentSpec) -> Pairs:
    """Returns the observations and actions of all steps, in an agent's form for `spec`."""
    data = read_demonstrations(demonstrations)
    episodes = fit_episodes(data.episodes, spec, data.actions)
    observations = [tree.map_structure(lambda x: x[:-1], episode.observations) for episode in episodes]
    actions = [episode.actions for episode in episodes]
    return Pairs(*(tree.map_structure(lambda *x: np.concatenate(x), *nests) for nests in (observations, actions)))


class Discriminator(NamedTuple):
    """Tells demonstrations from the agent's own steps.

    Attributes:
        init: ``key -> params``.
        encode: ``Pairs -> Pairs`` of floats that can be mixed: pixels in [0, 1], actions ``[N, A]``, discrete ones
            one-hot.
        logits: ``(params, encoded pairs) -> [N]``, of the probability D that a pair was demonstrated.
    """

    init: Callable[[jax.Array], Params]
    encode: Callable[[Pairs], Pairs]
    logits: Callable[[Params, Pairs], Array]


class State(NamedTuple):
    """Holds the training states of the agent and of GAIL.

    Attributes:
        agent: the state of the agent's own update.
        discriminator: parameters.
        opt_state: of the discriminator.
        observations: statistics of the observations' leaves, the demonstrations' and the agent's.
        demonstrations: `Pairs`, here so that a resumed run goes on with those that it began with.
        key: PRNG key ``uint32[2]``.
    """

    agent: Nest
    discriminator: Params
    opt_state: optax.OptState
    observations: nets.NestStatistics
    demonstrations: Pairs
    key: jax.Array


def make_discriminator(spec: specs.EnvironmentSpec, config: Config) -> Discriminator:
    """Builds the discriminator for an environment, whatever its observations and actions are."""
    is_team = nets.is_team(spec)

    def encode_action(leaf: object, action: Array) -> Array:
        if isinstance(leaf, specs.DiscreteArray):
            return jax.nn.one_hot(action, leaf.num_values)
        return action.reshape(action.shape[0], -1).astype(jnp.float32)

    def to_unit(x: Array) -> Array:
        return x.astype(jnp.float32) / (255.0 if x.dtype == np.uint8 else 1.0)

    def encode(pairs: Pairs) -> Pairs:
        observation = jax.tree.map(to_unit, nets.encode_inputs(spec.observations, pairs.observation))
        encoded = jax.tree.map(encode_action, spec.actions, pairs.action)
        if is_team:
            active = nets.active_agents(pairs.observation)
            for i, agent in enumerate(sorted(encoded)):
                encoded[agent] = jax.tree.map(lambda x, i=i: x * active[:, i, None], encoded[agent])
        actions = jax.tree.leaves(encoded)
        return Pairs(observation, jnp.concatenate(actions, axis=-1))

    def logits(pairs: Pairs) -> Array:
        features = jnp.concatenate([nets.torso(pairs.observation), pairs.action], axis=-1)
        return nets.orthogonal_mlp(features, config.hidden_sizes, 1, activation=jnp.tanh)[:, 0]

    one = specs.zeros(specs.add_leading(Pairs(spec.observations, spec.actions), 1))
    encoded = jax.tree.map(lambda x: specs.Array(x.shape[1:], x.dtype), jax.eval_shape(encode, one))
    network = nets.make_network(logits, encoded)
    return Discriminator(network.init, encode, network.apply)


def discriminator_loss(
    logits: Callable[[Pairs], Array],
    shown: Pairs,
    taken: Pairs,
    mix: Array,
    gradient_penalty: float,
    mask: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
    """Returns the loss ``[]`` of a discriminator, and metrics.

    The cross-entropy -log D(shown) - log(1 - D(taken)), means over the batch (Ho & Ermon 2016, 1606.03476, eq. 17,
    where D is the probability of the opposite), and `gradient_penalty` times the mean of max(|grad logit| - 1, 0)^2 at
    points between the two (Petzka et al. 2018, 1709.08894).

    Args:
        logits: of D for encoded pairs, ``[B]``.
        shown: encoded demonstrations ``[B, ...]``.
        taken: encoded steps of the agent ``[B, ...]``.
        mix: where the points are, from 0 (shown) to 1 (taken), ``[B]``.
        gradient_penalty: its weight.
        mask: 0 where the agent took no action, else 1, ``[B]``; None where it took one everywhere.
    """

    def between(a: Array, b: Array) -> Array:
        share = mix.reshape(-1, *[1] * (a.ndim - 1))
        return (1.0 - share) * a + share * b

    logit_shown, logit_taken = logits(shown), logits(taken)
    entropy = jnp.mean(jax.nn.softplus(-logit_shown)) + mean(jax.nn.softplus(logit_taken), mask)
    slopes = jax.grad(lambda pairs: jnp.sum(logits(pairs)))(jax.tree.map(between, shown, taken))
    squares = sum(jnp.sum(jnp.square(x.reshape(x.shape[0], -1)), axis=-1) for x in jax.tree.leaves(slopes))  # [B]
    norms = jnp.sqrt(squares + 1e-12)  # The root alone would have no gradient at 0.
    penalty = mean(jnp.square(jnp.maximum(norms - 1.0, 0.0)), mask)
    accuracy = 0.5 * (jnp.mean(logit_shown > 0) + mean(logit_taken < 0, mask))
    metrics = {"discriminator_loss": entropy, "gradient_penalty": penalty, "discriminator_accuracy": accuracy}
    return entropy + gradient_penalty * penalty, metrics


def generative_adversarial_imitation(
    update: Update, discriminator: Discriminator, demonstrations: Pairs, spec: specs.EnvironmentSpec, config: Config
) -> Update:
    """Returns an update whose rewards are the discriminator's alone (algorithm 1).

    Args:
        update: the agent's.
        discriminator: of `make_discriminator`.
        demonstrations: leaves ``[N, ...]``.
        spec: of the environment.
        config: the hyperparameters.

    Returns:
        An `Update` that publishes the same variables, with metrics "imitation_reward" (mean), "discriminator_loss"
        (without the penalty), "gradient_penalty" (not weighted) and "discriminator_accuracy" beside the agent's.
    """
    optimizer = adam(config.learning_rate)
    (num_demonstrations,) = {len(leaf) for leaf in jax.tree.leaves(demonstrations)}

    def init(key: jax.Array) -> State:
        agent_key, params_key, key = jax.random.split(key, 3)
        params = discriminator.init(params_key)
        shown = jax.tree.map(jnp.asarray, demonstrations)
        statistics = nets.init_nest_statistics(spec.observations)
        return State(update.init(agent_key), params, optimizer.init(params), statistics, shown, key)

    def encode(statistics: nets.NestStatistics, pairs: Pairs) -> Pairs:
        observation = nets.normalize_observations(spec, statistics, pairs.observation, config.max_normalized)
        return discriminator.encode(pairs._replace(observation=observation))

    def step(state: State, batch: ReplaySample[Transition | Step]) -> tuple[State, UpdateOutput]:
        steps = steps_of(batch.data)
        key, draw_key, mix_key = jax.random.split(state.key, 3)
        rows = jax.random.randint(draw_key, steps.reward.shape, 0, num_demonstrations)
        shown = jax.tree.map(lambda x: x[rows], state.demonstrations)
        taken = Pairs(steps.observation, steps.action)
        observations = nets.update_observation_statistics(spec, state.observations, shown.observation)
        observations = nets.update_observation_statistics(spec, observations, taken.observation, steps.mask)
        shown, taken = encode(observations, shown), encode(observations, taken)
        mix = jax.random.uniform(mix_key, rows.shape)

        def loss(params: Params) -> tuple[Array, dict[str, Array]]:
            def logits(pairs: Pairs) -> Array:
                return discriminator.logits(params, pairs)

            return discriminator_loss(logits, shown, taken, mix, config.gradient_penalty, steps.mask)

        grads, metrics = jax.grad(loss, has_aux=True)(state.discriminator)
        params, opt_state = optimizer_step(optimizer, grads, state.discriminator, state.opt_state)
        reward = discriminator.logits(params, taken)
        agent, output = update.update(state.agent, batch._replace(data=with_rewards(batch.data, reward)))
        metrics = {**output.metrics, **metrics, "imitation_reward": mean(reward, steps.mask)}
        state = State(agent, params, opt_state, observations, state.demonstrations, key)
        return state, output._replace(metrics=metrics)

    return Update(init, step, lambda state: update.variables(state.agent))
