"""Policies to export: small ones with random parameters, made without any training."""

import jax
import numpy as np

from agentkit import envs, specs
from agentkit.agents import registry
from agentkit.experiment import LoadedPolicy
from agentkit.experiment.config import identity
from agentkit.experiment.policies.policy_file import PolicyFile
from agentkit.experiment.policies.restore_policy import own_actions
from agentkit.specs import EnvironmentSpec, make_environment_spec


def policy_of(name, environment, explore=False, **settings):
    """A policy of agent `name` for an environment by name, or for a pair of specs: observations and own actions."""
    if isinstance(environment, str):
        made = envs.make(environment)
        spec, own = make_environment_spec(made), own_actions(made)
        made.close()
    else:
        observations, own = environment
        spec = EnvironmentSpec(observations, canonical(own), specs.Array((), np.float32), specs.Array((), np.float32))
    agent = registry.make(name, settings)
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    shapes = jax.eval_shape(lambda: update.variables(update.init(jax.random.PRNGKey(0)))["policy"])
    generator = np.random.default_rng(1)

    def draw(leaf):
        if len(leaf.shape) < 2:  # As in a trained policy, biases and statistics are not zero.
            return generator.uniform(0.1, 0.3, leaf.shape).astype(leaf.dtype)
        return (2 * generator.normal(size=leaf.shape) / np.prod(leaf.shape[:-1]) ** 0.5).astype(leaf.dtype)

    params = jax.tree.map(draw, shapes)
    file = PolicyFile(identity.describe_agent(agent, 1), spec, own)
    return LoadedPolicy(agent, agent.make_policy(networks, evaluation=not explore), params, file, seed=0)


def canonical(spec):
    if spec.dtype.kind != "f":
        return spec
    return specs.BoundedArray(spec.shape, np.float32, -1.0, 1.0, spec.name)


SMALL = {"hidden_sizes": (8,)}
IMAGES = (
    specs.BoundedArray((36, 36, 2), np.uint8, 0, 255, "observation"),
    specs.DiscreteArray(3, np.int32, "action"),
)
# Bounds that differ from axis to axis, and the simulator's 64 bits, as dm_control has them.
WIDE = (
    specs.Array((4,), np.float32, "observation"),
    specs.BoundedArray((2,), np.float64, [-3.0, 0.0], [1.0, 10.0], "action"),
)
# Choices that the environment counts from elsewhere than 0.
COUNTED = (
    {"one": specs.DiscreteFrom(4, np.int32, "one", 3),
     "several": specs.BoundedFrom((2,), np.int32, 0, [2, 4], "several", [1, -2])},
    specs.BoundedFrom((2,), np.int32, 0, [2, 6], "action", [5, -3]),
)  # fmt: skip
MASKED = (
    {"action_mask": specs.BoundedArray((3,), np.bool_, False, True, "action_mask"),
     "observation": specs.Array((5,), np.float32, "observation")},
    specs.DiscreteArray(3, np.int32, "action"),
)  # fmt: skip
