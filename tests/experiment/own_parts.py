"""Parts of a user's own, as a run folder can name them: each is at the top of a module that can be imported."""

import dataclasses

import haiku as hk
import jax
import jax.numpy as jnp

from agentkit.agents import dqn
from agentkit.agents.common.agent import Agent
from agentkit.envs.catch import Catch
from agentkit.types import LossOutput
from agentkit.wrappers.base import EnvironmentWrapper

SMALL = dqn.Config(hidden_sizes=(4,), batch_size=4, min_replay_size=10, replay_size=100, n_step=1)


def make_zero_loss(network, config):
    """A loss that teaches nothing: with it, parameters stay as they are."""

    def loss(params, state, batch, key):
        return LossOutput(0.0 * jnp.sum(network.apply(params, batch.data.observation)), {})

    return loss


def make_wide_networks(environment_spec, config):
    return dqn.make_networks(environment_spec, dataclasses.replace(config, hidden_sizes=(9,)))


def make_on_torso(environment_spec, config, torso):
    return dqn.make_networks(environment_spec, dataclasses.replace(config, hidden_sizes=(9,)), torso)


def own_torso(observation):
    """Three features of the whole observation."""
    flat = jnp.concatenate([x.reshape(x.shape[0], -1) for x in jax.tree.leaves(observation)], axis=-1)
    return jnp.tanh(hk.Linear(3, name="own")(flat))


class OwnModule(hk.Module):
    """The same as a module, with as many features as wanted."""

    def __init__(self, num_features=3):
        super().__init__()
        self._num_features = num_features

    def __call__(self, observation):
        return hk.Linear(self._num_features)(observation.reshape(observation.shape[0], -1))


def make_catch(seed, rows=10):
    return Catch(rows=rows, seed=seed)


class Doubled(EnvironmentWrapper):
    """Doubles rewards."""

    def step(self, action):
        timestep = self._environment.step(action)
        return timestep if timestep.reward is None else timestep._replace(reward=2 * timestep.reward)


@dataclasses.dataclass(frozen=True)
class Noisy:
    """Starts from parameters with noise in them: an update around an update, as add-ons are."""

    make_update: object
    scale: float

    def __call__(self, networks):
        update = self.make_update(networks)

        def init(key):
            state = update.init(key)
            return state._replace(params=jax.tree.map(lambda x: x + self.scale, state.params))

        return update._replace(init=init)


def with_noise(agent: Agent, scale: float) -> Agent:
    return dataclasses.replace(agent, make_update=Noisy(agent.make_update, scale))


@dataclasses.dataclass(frozen=True)
class OwnConfig(dqn.Config):
    """Settings of no registered agent."""

    temperature: float = 1.0
