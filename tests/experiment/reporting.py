"""An agent and an environment whose actor processes print what they are and what they have loaded."""

import json
import sys

from agentkit import envs
from agentkit.agents import dqn

# Not among them is scipy, which jax loads.
NEEDLESS = (
    "rlax", "optax", "distrax", "tensorflow_probability", "chex", "keras", "pandas", "matplotlib", "rich", "ray",
    "gymnasium", "tensorboardX", "tensorflow", "agentkit.losses.value", "agentkit.cli",
)  # fmt: skip


def make_agent(config):
    """DQN whose policies print their place among those that explore together."""
    return dqn.make_agent(config, make_policy=make_policy)


def make_policy(networks, config, evaluation=False):
    policy = dqn.make_policy(networks, config, evaluation)

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
        if "flax" in sys.modules:  # Haiku loads it wherever it is installed, and it loads rich.
            loaded = [name for name in loaded if name != "rich"]
        print(json.dumps({"num_modules": len(sys.modules), "needless": loaded}), flush=True)
        close()

    environment.close = report
    return environment
