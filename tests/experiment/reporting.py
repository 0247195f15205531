"""An agent and an environment whose actor processes print what they are and what they have loaded."""

import json
import sys

from agentkit import envs
from agentkit.agents import dqn
from agentkit.experiment import with_methods

# Not among them are pandas and scipy, which TensorFlow's Keras loads by itself where they are installed.
NEEDLESS = (
    "rlax", "optax", "distrax", "tensorflow_probability", "chex", "matplotlib", "rich", "ray", "gymnasium",
    "tensorboardX", "agentkit.losses.value", "agentkit.cli",
)  # fmt: skip


def make_agent(config):
    """DQN whose policies print their place among those that explore together."""
    return with_methods(dqn.make_agent(config), make_policy=make_policy)


def make_policy(agent, networks, evaluation=False):
    policy = agent.make_policy(networks, evaluation)

    def diversify(state, index, count):
        print(json.dumps({"index": int(index), "count": int(count)}), flush=True)
        return policy.diversify(state, index, count)

    return policy._replace(diversify=diversify)


def make_environment(seed):
    """catch, which prints the process's modules when it is closed."""
    environment = envs.make("agentkit:catch", seed=seed)
    close = environment.close

    def report():
        loaded = [name for name in NEEDLESS if name in sys.modules]
        print(json.dumps({"num_modules": len(sys.modules), "needless": loaded}), flush=True)
        close()

    environment.close = report
    return environment
