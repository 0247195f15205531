"""Curiosity: an update whose rewards gain what a predictor does not know yet, for exploration that goes somewhere."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from agentkit import networks as nets
from agentkit.errors import ConfigError
from agentkit.learning.learner import Params, Update, UpdateOutput, adam, optimizer_step
from agentkit.networks import (
    RunningStatistics,
    deviation,
    init_nest_statistics,
    init_statistics,
    normalize_nest,
    update_nest_statistics,
    update_statistics,
)
from agentkit.types import Array, Nest, ReplaySample, Transition

if TYPE_CHECKING:
    import optax

_UNSUITABLE = (
    "Curiosity, hindsight and imitation need an agent that learns from `Transition`s, as DQN and SAC do, since they "
    "change what a single step is worth; found batches of {found}."
)


@dataclasses.dataclass(frozen=True)
class RndConfig:
    """Settings of `random_network_distillation`.

    Attributes:
        scale: of the intrinsic reward, which is 1 where the predictor's error is the errors' standard deviation.
        embedding_size: outputs of target and predictor.
        hidden_sizes: units of each hidden layer of both (after the convolutions, for images).
        learning_rate: Adam's step size for the predictor; the smaller, the longer things stay interesting.
        max_normalized: normalised observations are clipped to this absolute value.
    """

    scale: float = 0.3
    embedding_size: int = 32
    hidden_sizes: tuple[int, ...] = (64, 64)
    learning_rate: float = 1e-4
    max_normalized: float = 5.0

    def __post_init__(self) -> None:
        for name in ("scale", "embedding_size", "learning_rate", "max_normalized"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be > 0, found {getattr(self, name)}.")


class RndState(NamedTuple):
    """The training state of `random_network_distillation`.

    Attributes:
        agent: the state of the agent's own update.
        target: parameters of the random network, which stay.
        predictor: parameters of the network that learns to say what it says.
        opt_state: the predictor's optimiser's.
        observations: statistics of the float leaves of what steps led to.
        errors: statistics of the predictor's errors ``[]``.
    """

    agent: Nest
    target: Params
    predictor: Params
    opt_state: Any
    observations: tuple[RunningStatistics, ...]
    errors: RunningStatistics


def check_transitions(data: Nest) -> None:
    """Refuses what is no `Transition`, be it a batch's data or its specs.

    Raises:
        ConfigError: says what was found.
    """
    if not isinstance(data, Transition):
        raise ConfigError(_UNSUITABLE.format(found=f"`{type(data).__name__}`s"))


def novelty_network(observation_spec: Nest, config: RndConfig) -> nets.Network:
    """The network of target and predictor: from observations ``[B, ...]`` to embeddings ``[B, embedding_size]``."""

    def embed(observation: Nest) -> Array:
        return nets.mlp(nets.torso(observation), config.hidden_sizes, config.embedding_size)

    return nets.make_network(embed, observation_spec)


def random_network_distillation(update: Update, network: nets.Network, spec: Nest, config: RndConfig) -> Update:
    """An update like `update`, but with curious rewards (Burda et al. 2018, RND, 1810.12894).

    The intrinsic reward of a step is the squared error of the predictor at the observation that it led to, mean over
    the embedding, divided by the running standard deviation of such errors. It is computed anew whenever the step is
    drawn, so replayed steps lose it as they become known. The predictor then takes a step on the same batch.

    Deviations from the paper:
      * One value of the sum of both rewards, so both have the agent's discount and end with the episode.
      * Errors are divided by their own deviation, not by that of their discounted sums.
      * The observations' statistics begin with the first batch, not with steps of a random agent.
      * With n-step returns, the novelty is that of the last of the n observations.

    Args:
        update: of batches of `Transition`s with one reward, ``[B, ...]``.
        network: of `novelty_network`.
        spec: of the observations.
        config: the settings.

    Returns:
        An `Update` that publishes what `update` does, with metrics "intrinsic_reward" (mean, scaled) and
        "novelty_loss" (the predictor's error, not normalised) beside its own.
    """
    optimizer = adam(config.learning_rate)

    def init(key: jax.Array) -> RndState:
        agent_key, target_key, predictor_key = jax.random.split(key, 3)
        predictor = network.init(predictor_key)
        return RndState(
            update.init(agent_key),
            network.init(target_key),
            predictor,
            optimizer.init(predictor),
            init_nest_statistics(spec),
            init_statistics(()),
        )

    def step(state: RndState, batch: ReplaySample) -> tuple[RndState, UpdateOutput]:
        check_transitions(batch.data)
        observation = batch.data.next_observation
        observations = update_nest_statistics(state.observations, observation)
        inputs = normalize_nest(observations, observation, config.max_normalized)
        embedding = network.apply(state.target, inputs)
        predictor, opt_state, errors = _distil(network, optimizer, state, inputs, embedding)
        statistics = update_statistics(state.errors, errors)
        intrinsic = config.scale * errors / deviation(statistics, epsilon=1e-12)
        curious = batch.data._replace(reward=batch.data.reward + intrinsic)
        agent, output = update.update(state.agent, batch._replace(data=curious))
        metrics = {
            **output.metrics,
            "intrinsic_reward": jnp.mean(intrinsic),
            "novelty_loss": jnp.mean(errors),
        }
        state = RndState(agent, state.target, predictor, opt_state, observations, statistics)
        return state, output._replace(metrics=metrics)

    return Update(init, step, lambda state: update.variables(state.agent))


def _distil(
    network: nets.Network, optimizer: optax.GradientTransformation, state: RndState, inputs: Nest, embedding: Array
) -> tuple[Params, Any, Array]:
    """The predictor and its optimiser's state after a step, and its errors before it ``[B]``."""

    def objective(params: Params) -> tuple[Array, Array]:
        errors = jnp.mean(jnp.square(network.apply(params, inputs) - embedding), axis=-1)
        return jnp.mean(errors), errors

    grads, errors = jax.grad(objective, has_aux=True)(state.predictor)
    return *optimizer_step(optimizer, grads, state.predictor, state.opt_state), errors
