"""Trainings of on-policy agents that a test can stop before each update."""

import functools
import importlib
from typing import Any

import jax
import numpy as np

from agentkit import envs, losses, specs
from agentkit.agents.common.advantages import Minibatch, compute_advantages, estimate_advantages
from agentkit.datasets import ReplayDataset
from agentkit.experiment.policies.make_actor import make_actor, make_adder, make_loop
from agentkit.replay import InProcessReplay
from agentkit.variables import VariableClient, VariableStore

KEY = jax.random.PRNGKey(0)


def rows_of(networks: Any, config: Any, state: Any, segments: Any) -> Minibatch:
    """All rows of a batch of segments, as an agent's update makes them."""

    def rows(variables: Any, returns: Any, segments: Any) -> Minibatch:
        own = getattr(importlib.import_module(type(config).__module__), "estimate_advantages", estimate_advantages)
        estimate = functools.partial(own, config=config)
        settings = {name: getattr(config, name) for name in ("discount", "normalize_values")}
        rows = compute_advantages(networks, variables, returns, segments, estimate, **settings).rows
        if getattr(config, "normalize_advantages", None) != "batch":
            return rows
        return rows._replace(advantage=losses.standardize(rows.advantage, rows.mask))

    return jax.jit(rows)(state.variables, state.returns, segments)


class Training:
    """Steps environments with an agent and stops before each update, as `agentkit.run` takes turns."""

    def __init__(self, agent: Any, name: str, num_envs: int | None):
        self.agent = agent.with_num_envs(num_envs or 1)
        self.environment = envs.make(name, seed=0, num_envs=num_envs)
        self.spec = specs.make_environment_spec(self.environment)
        self.networks = self.agent.make_networks(self.spec)
        self.replay = InProcessReplay(self.agent.make_tables(self.spec))
        self.dataset = ReplayDataset(self.replay, self.agent.batch_plan)
        self.update = self.agent.make_update(self.networks)
        self.state = jax.jit(self.update.init)(KEY)
        self.store = VariableStore()
        self.client = VariableClient(self.store)
        self.num_updates = 0
        self.publish()
        adder = make_adder(self.environment, self.spec, [(self.agent, self.replay)])
        actor = make_actor(self.environment, self.agent.make_policy(self.networks), KEY, self.client, adder)
        self.loop = make_loop(self.environment, actor)
        self.compiled = jax.jit(self.update.update)

    def publish(self) -> None:
        self.store.publish(self.num_updates, self.update.variables(self.state))
        self.num_updates += 1
        self.client.update()

    def next_batch(self) -> Any:
        """Acts until learning is due."""
        while not self.dataset.ready():
            self.loop.step()
        return next(self.dataset).sample

    def learn(self, batch: Any) -> dict[str, float]:
        self.state, output = self.compiled(self.state, batch._replace(num_steps=np.int32(self.loop.num_steps)))
        self.publish()
        return {name: float(value) for name, value in output.metrics.items()}
