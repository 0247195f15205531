"""DQN that explores by the softmax of its values (Boltzmann exploration)."""

import jax

from agentkit.actors import stateless_policy
from agentkit.agents import dqn


def make_policy(network, config, evaluation=False):
    """Samples an action with a probability that rises with its value; in evaluation acts as DQN does."""
    if evaluation:
        return dqn.make_policy(network, config, evaluation)

    def act(params, key, observation):
        q = network.apply(params, jax.tree.map(lambda x: x[None], observation))[0]
        return jax.random.categorical(key, q / 0.1).astype("int32")

    return stateless_policy(act)


def make_agent(config=dqn.Config()):
    """Returns DQN with that exploration."""
    return dqn.make_agent(config, make_policy=make_policy)
