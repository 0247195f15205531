"""RND: random network distillation (Burda et al. 2018, "Exploration by Random Network Distillation", 1810.12894).

The intrinsic reward of a step is the squared error of a predictor of a random network, at the observation that the
step led to: mean over the embedding, divided by the running root mean square of such errors. It is computed anew
whenever the step is learned from, so replayed steps lose it as they become known. The predictor then takes a step on
the same batch.

Differences from the paper:
  * Any agent's update in the place of PPO's.
  * One value of the sum of both rewards, so both have the agent's discount and end with the episode.
  * Errors are divided by their own root mean square, not by the deviation of their discounted sums. (Where all are
    alike, their deviation is nearly 0.)
  * The observations' statistics begin with the first batch, not with steps of a random agent.
  * Images are not whitened, but scaled by their specs; the paper whitens each pixel and clips it to 5 (section 2.4).
  * The predictor has the target's own layers; the authors' has two more hidden ones.
  * The predictor learns from all of a batch, not from a share of it.
  * Of a team, agents that have terminated count for nothing in the statistics, and are seen as zeros.
  * With n-step returns, the novelty is that of the last of the n observations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, final

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit import specs
from agentkit.agents.addons.gail import refuse_gail
from agentkit.agents.addons.rewards import (
    AgentNetworks,
    MakeNetworks,
    MakePolicy,
    Networks,
    mean,
    steps_of,
    with_rewards,
)
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.ranges import Count, Positive, Sizes, check_ranges
from agentkit.learning import Update, UpdateOutput, adam, optimizer_step
from agentkit.types import Array, Nest, Params, ReplaySample, Step, Transition

if TYPE_CHECKING:
    import optax


@dataclasses.dataclass(frozen=True)
class Config:
    """Holds the hyperparameters of RND.

    Attributes:
        scale: of the intrinsic reward, which is 1 where the predictor's error is the errors' root mean square.
        embedding_size: outputs of target and predictor.
        hidden_sizes: units of each hidden layer of both (after the convolutions, for images).
        learning_rate: Adam's step size for the predictor; the smaller, the longer things stay interesting.
        max_normalized: normalised observations are clipped to this absolute value.
    """

    scale: Positive = 0.3
    embedding_size: Count = 32
    hidden_sizes: Sizes = (64, 64)
    learning_rate: Positive = 1e-4
    max_normalized: Positive = 5.0

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range."""
        check_ranges(self)


def with_rnd(agent: Agent[AgentNetworks], config: Config | None = None) -> Agent[Networks[AgentNetworks]]:
    """Adds an intrinsic reward for novelty to an agent; its acting, replay and published parameters stay its own.

    Args:
        agent: one that learns from transitions, segments or sequences, on- or offline.
        config: of the intrinsic reward; None for the defaults.

    Raises:
        ConfigError: the agent has GAIL, which belongs around it.
    """
    refuse_gail(agent, "GAIL would overwrite the intrinsic rewards of RND around it.", "with_rnd(agent)")
    return agent.with_parts(
        make_networks=MakeNetworks(agent.make_networks),
        make_policy=MakePolicy(agent.make_policy),
        make_update=MakeUpdate(agent.make_update, Config() if config is None else config),
    )


@final
@dataclasses.dataclass(frozen=True)
class MakeUpdate(Generic[AgentNetworks]):
    """Makes the agent's update, with intrinsic rewards."""

    make_update: Callable[[AgentNetworks], Update]
    config: Config

    def __call__(self, networks: Networks[AgentNetworks]) -> Update:
        """Returns the update of the agent's networks and of a target and a predictor."""
        spec = networks.environment_spec
        network = novelty_network(spec.observations, self.config)
        return random_network_distillation(self.make_update(networks.agent), network, spec, self.config)


class State(NamedTuple):
    """Holds the training states of the agent and of RND.

    Attributes:
        agent: the state of the agent's own update.
        target: parameters of the random network, which stay.
        predictor: parameters of the network that learns the target's outputs.
        opt_state: the predictor's optimiser's.
        observations: statistics of the leaves of the observations that steps led to.
        errors: statistics of the predictor's errors ``[]``.
    """

    agent: Nest
    target: Params
    predictor: Params
    opt_state: optax.OptState
    observations: nets.NestStatistics
    errors: nets.RunningStatistics


def novelty_network(observation_spec: Nest, config: Config) -> nets.Network:
    """Builds the network of target and predictor: observations ``[B, ...]`` to embeddings ``[B, embedding_size]``."""

    def embed(observation: Nest) -> Array:
        return nets.mlp(nets.torso(observation), config.hidden_sizes, config.embedding_size)

    return nets.make_network(embed, observation_spec)


def random_network_distillation(
    update: Update, network: nets.Network, spec: specs.EnvironmentSpec, config: Config
) -> Update:
    """Returns an update whose rewards gain an intrinsic one (section 2.2).

    Args:
        update: the agent's.
        network: of `novelty_network`.
        spec: of the environment.
        config: the hyperparameters.

    Returns:
        An `Update` that publishes the same variables, with metrics "intrinsic_reward" (mean, scaled) and
        "novelty_loss" (the predictor's error, not normalised) beside the agent's.
    """
    optimizer = adam(config.learning_rate)

    def init(key: jax.Array) -> State:
        agent_key, target_key, predictor_key = jax.random.split(key, 3)
        predictor = network.init(predictor_key)
        return State(
            update.init(agent_key),
            network.init(target_key),
            predictor,
            optimizer.init(predictor),
            nets.init_nest_statistics(spec.observations),
            nets.init_statistics(()),
        )

    def step(state: State, batch: ReplaySample[Transition | Step]) -> tuple[State, UpdateOutput]:
        steps = steps_of(batch.data)
        observations = nets.update_observation_statistics(spec, state.observations, steps.next_observation, steps.mask)
        inputs = nets.normalize_observations(spec, observations, steps.next_observation, config.max_normalized)
        embedding = network.apply(state.target, inputs)

        def loss(predictor: Params) -> tuple[Array, Array]:
            errors = jnp.mean(jnp.square(network.apply(predictor, inputs) - embedding), axis=-1)  # [N]
            return mean(errors, steps.mask), errors

        grads, errors = jax.grad(loss, has_aux=True)(state.predictor)
        predictor, opt_state = optimizer_step(optimizer, grads, state.predictor, state.opt_state)
        statistics = nets.update_statistics(state.errors, errors, steps.mask)
        intrinsic = config.scale * errors / nets.root_mean_square(statistics, 1e-12)
        data = with_rewards(batch.data, steps.reward + intrinsic)
        agent, output = update.update(state.agent, batch._replace(data=data))
        metrics = {
            **output.metrics,
            "intrinsic_reward": mean(intrinsic, steps.mask),
            "novelty_loss": mean(errors, steps.mask),
        }
        state = State(agent, state.target, predictor, opt_state, observations, statistics)
        return state, output._replace(metrics=metrics)

    return Update(init, step, lambda state: update.variables(state.agent))
