"""DrQ-v2: data-regularised learning from images (Yarats et al. 2021, 2107.09645), around any actor-critic agent.

Policy and critics see the features of one encoder, each through a trunk of its own. The images of a batch are shifted
at random, and the critics' loss alone trains the encoder: it is the metric "critic_loss" of the agent's own update,
as a function of the features that this update gets for observations. So the agent's file says nothing of images, and
a loss of a user's own works with them as it is. Critics that hold the encoder, with a copy in the policy, would have
one each, and two gradients through the convolutions.

Differences from the paper:
  * The agent is any (the paper's is DDPG with two critics, n-step returns and noise that falls), and with it hidden
    layers (256 here, 1,024 there), batch size and exploration.
  * The largest shift, 4 pixels of 84, goes with the size of the image.
  * Each of two critics has a trunk of its own; the paper's share one.
  * Numbers beside the images join their features in front of the trunks.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar, final

import jax
import numpy as np

from agentkit import networks as nets
from agentkit import specs
from agentkit.actors import Policy
from agentkit.agents.common.agent import Agent, PolicyOf
from agentkit.agents.common.ranges import Count, CountFromZero, Positive, check_ranges
from agentkit.agents.common.torso import parts_of
from agentkit.errors import ConfigError
from agentkit.learning import Schedule, Update, UpdateOutput, adam, optimizer_step
from agentkit.types import Array, Nest, Params, ReplaySample, Transition

if TYPE_CHECKING:
    import optax

AgentNetworks = TypeVar("AgentNetworks")


@dataclasses.dataclass(frozen=True)
class Config:
    """Holds the hyperparameters of learning from images.

    Attributes:
        max_shift: by how many pixels a batch's images are shifted at most; 0 for no augmentation, None for 4 of 84.
        trunk_size: features that policy and critics each make of the encoder's.
        learning_rate: Adam's step size for the encoder; None for the critics'.
    """

    max_shift: CountFromZero | None = None
    trunk_size: Count = 50
    learning_rate: Positive | Schedule | None = None

    def __post_init__(self) -> None:
        """Refuses a value outside of its field's range."""
        check_ranges(self)


def with_drq(agent: Agent[Any], config: Config | None = None) -> Agent[Any]:
    """Returns the agent with one encoder for policy and critics, where observations have an image; else as it was.

    SAC, TD3, D4PG, MPO and DDPG have it already, and take other settings by it. The encoder is `networks.drq_torso`,
    or the agent's ``torso=``, which has to have parameters. Networks of your own without ``torso`` see the images.

    Args:
        agent: one that learns from `Transition`s, whose networks have a ``policy`` and whose update says its
            ``critic_loss``, such as SAC, DroQ or CQL.
        config: of the encoder; None for the defaults.
    """
    config = Config() if config is None else config
    make_networks, make_policy, make_update = agent.make_networks, agent.make_policy, agent.make_update
    return dataclasses.replace(
        agent,
        make_networks=MakeNetworks(getattr(make_networks, "of_features", make_networks), config),
        make_policy=MakePolicy(getattr(make_policy, "of_features", make_policy)),
        make_update=MakeUpdate(getattr(make_update, "of_features", make_update), agent.config, config),
    )


class Networks(NamedTuple, Generic[AgentNetworks]):
    """Holds the encoder, and the agent's networks, whose observations are its features.

    Attributes:
        encoder: ``observation [B, ...] -> features [B, F]``.
        agent: of features.
    """

    encoder: nets.Network
    agent: AgentNetworks


class PolicyParams(NamedTuple):
    """Holds the parameters that actors need, published as the variable "policy".

    Attributes:
        encoder: parameters.
        policy: what the agent's own update publishes, with statistics of features where it has them.
    """

    encoder: Params
    policy: Nest


@final
@dataclasses.dataclass(frozen=True)
class MakeNetworks(Generic[AgentNetworks]):
    """Makes `Networks` where observations have an image and the torso can learn, else the agent's own."""

    of_features: Callable[[specs.EnvironmentSpec], AgentNetworks]
    config: Config

    def __call__(self, environment_spec: specs.EnvironmentSpec) -> Networks[AgentNetworks] | AgentNetworks:
        """Returns the networks."""
        parts, observations = parts_of(self.of_features), environment_spec.observations
        shapes = [leaf.shape for leaf in jax.tree.leaves(observations, is_leaf=specs.is_spec)]
        if parts is None or not any(map(nets.is_image, shapes)):
            return self.of_features(environment_spec)
        torso = nets.OwnTorso(nets.drq_torso if parts.torso is None else parts.torso)

        def encode(observation: Nest) -> Array:
            nets.refuse_action_mask(observation)
            return torso(observation)

        encoder = nets.make_network(encode, observations)
        params = jax.eval_shape(encoder.init, jax.ShapeDtypeStruct((2,), np.uint32))
        if not jax.tree.leaves(params):
            return self.of_features(environment_spec)
        one = jax.tree.map(lambda x: x[None], specs.zeros(observations))
        features = specs.Array(jax.eval_shape(encoder.apply, params, one).shape[1:], np.float32, "features")
        trunk = functools.partial(nets.trunk, size=self.config.trunk_size)
        made = parts.make_networks(environment_spec._replace(observations=features), parts.config, torso=trunk)
        if not hasattr(made, "policy"):
            raise ConfigError(f"DrQ expects networks with a policy, found {type(made).__name__}. Leave with_drq out.")
        return Networks(encoder, made)


@final
@dataclasses.dataclass(frozen=True)
class MakePolicy(Generic[AgentNetworks]):
    """Makes the agent's policy, behind the encoder where there is one; images are shifted in learning only."""

    of_features: PolicyOf[AgentNetworks]

    def __call__(self, networks: Any, evaluation: bool = False) -> Policy:
        """Returns the policy, whose parameters are `PolicyParams`."""
        if not isinstance(networks, Networks):
            return self.of_features(networks, evaluation)
        encoder, policy = networks.encoder, self.of_features(networks.agent, evaluation)

        def act(params: PolicyParams, key: Any, observation: Nest, state: Any) -> tuple[Nest, Any, Nest]:
            features = encoder.apply(params.encoder, jax.tree.map(lambda x: x[None], observation))[0]
            return policy.act(params.policy, key, features, state)

        return policy._replace(act=act)


@final
@dataclasses.dataclass(frozen=True)
class MakeUpdate(Generic[AgentNetworks]):
    """Makes the agent's update, around it the encoder's where there is one.

    Attributes:
        of_features: the agent's own.
        settings: the agent's `Config`, for the encoder's optimiser.
        config: of the encoder.
    """

    of_features: Callable[[AgentNetworks], Update]
    settings: Any
    config: Config

    def __call__(self, networks: Any) -> Update:
        """Returns the update."""
        if not isinstance(networks, Networks):
            return self.of_features(networks)
        settings, rate = self.settings, self.config.learning_rate
        if rate is None:
            rate = getattr(settings, "critic_learning_rate", None) or settings.learning_rate
        optimizer = adam(rate, settings.max_grad_norm, epsilon=settings.adam_epsilon)
        return learn_from_images(self.of_features(networks.agent), networks.encoder, optimizer, self.config.max_shift)


class State(NamedTuple):
    """Holds the training states of the agent and of the encoder.

    Attributes:
        agent: the state of the agent's own update, on features.
        encoder: parameters.
        opt_state: the encoder's optimiser's.
        key: PRNG key ``uint32[2]``.
    """

    agent: Nest
    encoder: Params
    opt_state: optax.OptState
    key: jax.Array


def learn_from_images(
    update: Update, encoder: nets.Network, optimizer: optax.GradientTransformation, max_shift: int | None
) -> Update:
    """Returns an update from images around one from features: shift, encode, update, and a step of the encoder.

    Args:
        update: the agent's, on `Transition`s whose observations are features; its metric "critic_loss" is the
            encoder's loss.
        encoder: from observations to features.
        optimizer: the encoder's.
        max_shift: see `networks.random_shift`.
    """

    def init(key: jax.Array) -> State:
        agent_key, encoder_key, key = jax.random.split(key, 3)
        params = encoder.init(encoder_key)
        return State(update.init(agent_key), params, optimizer.init(params), key)

    def step(state: State, batch: ReplaySample[Transition]) -> tuple[State, UpdateOutput]:
        key, key_tm1, key_t = jax.random.split(state.key, 3)
        o_tm1 = nets.random_shift(batch.data.observation, key_tm1, max_shift)
        o_t = nets.random_shift(batch.data.next_observation, key_t, max_shift)
        features_t = jax.lax.stop_gradient(encoder.apply(state.encoder, o_t))  # Targets train nobody.

        def critic_loss(params: Params) -> tuple[Array, tuple[Nest, UpdateOutput]]:
            features_tm1 = encoder.apply(params, o_tm1)
            data = batch.data._replace(observation=features_tm1, next_observation=features_t)
            agent, output = update.update(state.agent, batch._replace(data=data))
            if "critic_loss" not in output.metrics:
                raise ConfigError(
                    "The encoder of images learns from the metric critic_loss of the agent's update, found "
                    f"{sorted(output.metrics)}. Give the update that metric, or leave with_drq out."
                )
            return output.metrics["critic_loss"], (agent, output)

        grads, (agent, output) = jax.grad(critic_loss, has_aux=True)(state.encoder)
        params, opt_state = optimizer_step(optimizer, grads, state.encoder, state.opt_state)
        return State(agent, params, opt_state, key), output

    def variables(state: State) -> dict[str, Nest]:
        published = dict(update.variables(state.agent))
        return published | {"policy": PolicyParams(state.encoder, published["policy"])}

    return Update(init, step, variables)
