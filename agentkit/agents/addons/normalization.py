"""Observations, and rewards, brought to a common scale by the statistics of all that the learner has drawn.

The statistics are part of the training state and are published with the parameters: whoever acts with some parameters,
in training, in an evaluation, from a run folder or an exported file, sees observations by the statistics that these
parameters were learned with. Acme has the same around its builders; Stable-Baselines3's VecNormalize is around the
environments instead, and its users have to save it, load it and freeze it beside the policy.

  * Statistics are of the observations that an action was taken on, as they are drawn: those that are drawn more often
    count for more. A batch is taken in before it is normalised.
  * Of a team, agents that have terminated count for nothing, and are seen as zeros, as the environment gives them.
  * Replay holds observations and rewards as the environment gave them, and a batch is normalised when it is drawn.
  * Rewards are divided by their root mean square, and not centred, which would change the task. Those of n-step
    transitions are sums of n rewards. VecNormalize divides by the deviation of discounted returns, which no replayed
    step knows: see decision 77.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, Generic, NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy, PolicyVariables
from agentkit.agents.addons.gail import refuse_gail
from agentkit.agents.addons.rewards import AgentNetworks, MakeNetworks, Networks, steps_of, updates_of
from agentkit.agents.common.agent import Agent, PolicyOf
from agentkit.agents.common.ranges import Positive, check_ranges
from agentkit.errors import ConfigError
from agentkit.learning import Update, UpdateOutput
from agentkit.types import Array, Nest, Params, ReplaySample, Step, Transition


@dataclasses.dataclass(frozen=True)
class Config:
    """Holds the hyperparameters of normalisation.

    Attributes:
        max_observation: normalised observations are clipped to this absolute value.
        max_reward: normalised rewards are clipped to this absolute value.
        epsilon: added to variances and to the mean square of rewards, so that constants are not divided by 0.
    """

    max_observation: Positive = 10.0
    max_reward: Positive = 10.0
    epsilon: Positive = 1e-8

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range."""
        check_ranges(self)


def with_normalization(
    agent: Agent[AgentNetworks], observations: bool = True, rewards: bool = False, config: Config | None = None
) -> Agent[Networks[AgentNetworks]]:
    """Returns the agent learning from, and acting on, normalised observations, and learning from normalised rewards.

    Images, choices and all other integers stay as they are: networks scale these by their specs.

    Args:
        agent: one that learns from transitions, segments or sequences, on- or offline.
        observations: whether float observations are normalised by their running mean and deviation.
        rewards: whether rewards are divided by their running root mean square.
        config: where to clip; None for the defaults.

    Raises:
        ConfigError: there is nothing to normalise, or the agent does so already, or it has GAIL, which belongs around
            it. When its update is made: no part of the environment's observations is a vector of floats.
    """
    if not (observations or rewards):
        raise ConfigError("Expected observations=True or rewards=True, found neither. Leave the normalisation out.")
    _check_not_normalized(agent, observations)
    refuse_gail(
        agent,
        "Normalisation around GAIL (normalize=, --normalize) would show it other observations than its demonstrations "
        "have."
        if observations
        else "Normalisation around GAIL (normalize=, --normalize) would normalise rewards that it overwrites.",
        "with_normalization(agent)",
    )
    config = Config() if config is None else config
    if observations:
        agent.refuse_own_actor("normalised observations")
    return agent.with_parts(
        make_networks=MakeNetworks(agent.make_networks),
        make_policy=MakePolicy(agent.make_policy, observations, config),
        make_update=MakeUpdate(agent.make_update, observations, rewards, config),
    )


def _check_not_normalized(agent: Agent[Any], observations: bool) -> None:
    if any(isinstance(part, MakeUpdate) for part in updates_of(agent)):  # Other add-ons may be around it.
        raise ConfigError("The agent has a normalisation already. Ask once, for observations and rewards together.")
    own = getattr(agent.config, "normalize_observations", None)
    if observations and own is not None:
        name = type(agent.config).__module__.rpartition(".")[2]
        advice = "Do not ask for observations here." if own else "Set that to True instead."
        raise ConfigError(
            f"{name} normalises observations by a setting of its own, normalize_observations, found {own}. {advice}"
        )


@final
@dataclasses.dataclass(frozen=True)
class MakePolicy(Generic[AgentNetworks]):
    """Makes the agent's policy, which sees observations by the statistics that are published with its parameters."""

    make_policy: PolicyOf[AgentNetworks]
    observations: bool
    config: Config

    def __call__(self, networks: Networks[AgentNetworks], evaluation: bool = False) -> Policy:
        """Returns a policy of `PolicyVariables`; of the agent's own variables where observations stay as they are."""
        policy, spec, config = self.make_policy(networks.agent, evaluation), networks.environment_spec, self.config
        if not self.observations:
            return policy

        def act(variables: PolicyVariables, key: jax.Array, observation: Nest, state: Nest) -> tuple[Nest, Nest, Nest]:
            seen = nets.normalize_observations(
                spec, variables.statistics, observation, config.max_observation, config.epsilon
            )
            return policy.act(variables.params, key, seen, state)

        return policy._replace(act=act)


@final
@dataclasses.dataclass(frozen=True)
class MakeUpdate(Generic[AgentNetworks]):
    """Makes the agent's update, on normalised batches."""

    make_update: Callable[[AgentNetworks], Update]
    observations: bool
    rewards: bool
    config: Config

    def __call__(self, networks: Networks[AgentNetworks]) -> Update:
        """Returns the update of the agent's networks.

        Raises:
            ConfigError: observations are to be normalised, and have no vector of floats.
        """
        spec = networks.environment_spec
        if self.observations and not any(nets.init_nest_statistics(spec.observations)):
            found = ", ".join(f"{leaf.dtype.name}{list(leaf.shape)}" for leaf in jax.tree.leaves(spec.observations))
            raise ConfigError(
                f"Expected a vector of floats among the observations to normalise, found {found}: networks scale "
                "images and choices. Do not ask for observations."
            )
        return normalized_update(self.make_update(networks.agent), spec, self.observations, self.rewards, self.config)


class State(NamedTuple):
    """Holds the training states of the agent and of its normalisation.

    Attributes:
        agent: the state of the agent's own update.
        observations: statistics of the leaves of observations; ``()`` where they stay as they are.
        rewards: statistics of the leaves of rewards; ``()`` where they stay as they are.
    """

    agent: Nest
    observations: nets.NestStatistics
    rewards: tuple[nets.RunningStatistics, ...]


def normalized_update(
    update: Update, spec: specs.EnvironmentSpec, observations: bool, rewards: bool, config: Config
) -> Update:
    """Returns an update on normalised batches.

    Args:
        update: the agent's.
        spec: of the environment.
        observations: whether to normalise observations.
        rewards: whether to normalise rewards.
        config: the hyperparameters.

    Returns:
        An `Update` whose variable "policy" is `PolicyVariables` where observations are normalised. Its metrics are the
        agent's, with "reward_scale", the mean of what rewards are divided by, where these are. It has no `gradient`:
        see decision 93.
    """

    def init(key: jax.Array) -> State:
        seen = nets.init_nest_statistics(spec.observations) if observations else ()
        given = jax.tree.leaves(spec.rewards) if rewards else []
        return State(update.init(key), seen, tuple(nets.init_statistics(tuple(leaf.shape)) for leaf in given))

    def seen_by(statistics: nets.NestStatistics, observation: Nest) -> Nest:
        return nets.normalize_observations(spec, statistics, observation, config.max_observation, config.epsilon)

    def step(state: State, batch: ReplaySample[Transition | Step]) -> tuple[State, UpdateOutput]:
        data, steps, metrics = batch.data, steps_of(batch.data), {}
        seen = nets.update_observation_statistics(spec, state.observations, steps.observation, steps.mask)
        given = take_in(state.rewards, jax.tree.leaves(steps.reward) if rewards else [], steps.mask)
        data = data._replace(observation=seen_by(seen, data.observation))
        if isinstance(data, Transition):
            data = data._replace(next_observation=seen_by(seen, data.next_observation))
        if rewards:
            data = data._replace(reward=scaled(given, data.reward, config))
            sizes = [jnp.mean(nets.root_mean_square(each, config.epsilon)) for each in given]
            metrics["reward_scale"] = jnp.mean(jnp.stack(sizes))
        agent, output = update.update(state.agent, batch._replace(data=data))
        return State(agent, seen, given), output._replace(metrics={**output.metrics, **metrics})

    def variables(state: State) -> dict[str, Params]:
        published = dict(update.variables(state.agent))
        if observations:
            published["policy"] = PolicyVariables(published["policy"], state.observations)
        return published

    return Update(init, step, variables)


def take_in(
    statistics: tuple[nets.RunningStatistics, ...], leaves: Iterable[Array], mask: Array | None
) -> tuple[nets.RunningStatistics, ...]:
    """Returns the statistics with a batch taken in.

    Args:
        statistics: one for each of the leaves.
        leaves: ``[N, ...]``.
        mask: as for `networks.update_statistics`.
    """
    return tuple(nets.update_statistics(s, leaf, mask) for s, leaf in zip(statistics, leaves, strict=True))


def scaled(statistics: tuple[nets.RunningStatistics, ...], reward: Nest, config: Config) -> Nest:
    """Returns rewards, of any batch, divided by their root mean square and clipped."""
    leaves, structure = jax.tree.flatten(reward)
    limit = config.max_reward
    return jax.tree.unflatten(
        structure,
        [
            jnp.clip(leaf / jnp.broadcast_to(nets.root_mean_square(each, config.epsilon), leaf.shape), -limit, limit)
            for each, leaf in zip(statistics, leaves, strict=True)
        ],
    )
