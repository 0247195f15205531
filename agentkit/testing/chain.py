"""Trains an agent's critic on chains whose values are known, so that a wrong discount shows as a wrong number.

Use it for an agent that learns values of `Transition`s, of continuous actions or (``num_actions=``) of discrete ones:

    @pytest.mark.parametrize("terminates", [True, False])
    def test_the_discount_is_applied_once(terminates):
        networks, state = learned(make_agent(discount=0.8), Chain(terminates), num_updates=1_000)
        q = networks.critic.apply(state.params.critic, np.eye(4, dtype=np.float32), np.zeros((4, 1), np.float32))
        np.testing.assert_allclose(q, values(0.8, terminates), atol=0.05)
"""

from __future__ import annotations

import dataclasses
from typing import Any, final

import jax
import numpy as np

from agentkit import specs
from agentkit.agents.common.agent import Agent
from agentkit.datasets import ReplayDataset
from agentkit.envs.base import Environment
from agentkit.replay import InProcessReplay, MinSize
from agentkit.types import Nest

LENGTH = 4
_NUM_BATCHES = 20


@final
class Chain(Environment):
    """Has four states, left one after the other whatever the action; values do not depend on the policy.

    One kind **terminates** after the last state, and rewards 1 for leaving it and 0 before: its values are
    powers of gamma. The other is a **ring** that rewards 1 at every step and never terminates; its episodes
    are truncated after seven steps.

    Observation: float32 ``[4]``, one where the state is. Actions: float32 ``[1]`` in [-1, 1], or one of `num_actions`.
    """

    def __init__(self, terminates: bool, num_actions: int | None = None):
        super().__init__(seed=0, max_steps=None if terminates else 2 * LENGTH - 1)
        self._terminates = terminates
        self._num_actions = num_actions
        self._place = 0

    def _start(self) -> np.ndarray:
        # An episode of the chain begins anywhere, so that n-step returns of every length are seen.
        self._place = int(self._rng.integers(LENGTH))
        return self._observation()

    def _advance(self, action: Nest) -> tuple[np.ndarray, float, bool]:
        del action
        last = self._place == LENGTH - 1
        self._place = (self._place + 1) % LENGTH
        if not self._terminates:
            return self._observation(), 1.0, False
        return self._observation(), float(last), last

    def _observation(self) -> np.ndarray:
        return np.eye(LENGTH, dtype=np.float32)[self._place]

    def observation_spec(self) -> specs.BoundedArray:
        """Returns the spec of float32 ``[4]`` in [0, 1]."""
        return specs.BoundedArray((LENGTH,), np.float32, 0.0, 1.0, "place")

    def action_spec(self) -> specs.BoundedArray:
        """Returns the spec of float32 ``[1]`` in [-1, 1], or of int32 ``[]``."""
        if self._num_actions is not None:
            return specs.DiscreteArray(self._num_actions, dtype=np.int32, name="action")
        return specs.BoundedArray((1,), np.float32, -1.0, 1.0, "action")


def values(discount: float, terminates: bool) -> np.ndarray:
    """Returns the values ``[4]`` of `Chain`'s states: gamma^3, gamma^2, gamma, 1; or 1 / (1 - gamma) everywhere."""
    if terminates:
        return discount ** np.arange(LENGTH - 1.0, -1.0, -1.0)
    return np.full(LENGTH, 1.0 / (1.0 - discount))


def learned(
    agent: Agent, environment: Environment, num_updates: int, num_steps: int = 300, extras: Nest = ()
) -> tuple[Any, Any]:
    """Returns the agent's networks, and its training state after learning from batches of random play.

    Args:
        agent: its own tables, adder and batches are used.
        environment: such as `Chain`; of one action, continuous or discrete.
        num_updates: on 20 batches, again and again; a multiple of 20.
        num_steps: of random play, before learning.
        extras: stored with each action, such as a network's first state.
    """
    spec = specs.make_environment_spec(environment)
    networks = agent.make_networks(spec)
    update = agent.make_update(networks)
    rng = np.random.default_rng(0)
    tables = [dataclasses.replace(table, rate_limiter=MinSize(1)) for table in agent.make_tables(spec)]
    with InProcessReplay(tables, seed=0) as replay:
        adder = agent.make_adder(replay, spec)
        timestep = environment.reset()
        adder.add_first(timestep)
        for _ in range(num_steps):
            action = _random(spec.actions, rng)
            timestep = environment.step(action)
            adder.add(action, timestep, extras)
            if timestep.last():
                timestep = environment.reset()
                adder.add_first(timestep)
        dataset = ReplayDataset(replay, agent.batch_plan._replace(num_updates=_NUM_BATCHES), timeout=10.0)
        batches = next(dataset).sample
    run = jax.jit(lambda state: jax.lax.scan(update.update, state, batches)[0])
    state = jax.jit(update.init)(jax.random.PRNGKey(0))
    for _ in range(num_updates // _NUM_BATCHES):
        state = run(state)
    return networks, state


def _random(actions: specs.BoundedArray, rng: np.random.Generator) -> np.ndarray:
    if isinstance(actions, specs.DiscreteArray):
        return np.asarray(rng.integers(actions.num_values), actions.dtype)
    return rng.uniform(-1.0, 1.0, actions.shape).astype(np.float32)
