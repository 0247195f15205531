"""Environments that cost nothing, and replays filled with steps of their shapes, for parts.py and growth.py."""

from __future__ import annotations

from typing import Any

import dm_env
import numpy as np

from agentkit import specs
from agentkit.adders import NStepAdder
from agentkit.replay import InProcessReplay, Table
from agentkit.replay.rate_limiter import RateLimiter
from agentkit.replay.table import MinSize, Selector, Uniform

VECTOR = ((17,), np.float32)
"""HalfCheetah's observation."""
SMALL = ((4,), np.float32)
"""CartPole's."""
IMAGE = ((84, 84, 4), np.uint8)
"""Atari's, four frames stacked."""


def environment_spec(
    observation: tuple[tuple[int, ...], Any] = VECTOR, discrete: bool = False
) -> specs.EnvironmentSpec:
    """An environment's spec; its actions are one of 4, or 6 numbers in [-1, 1]."""
    shape, dtype = observation
    actions = (
        specs.DiscreteArray(4, np.int32) if discrete else specs.BoundedArray((6,), np.float32, -1.0, 1.0, name="action")
    )
    return specs.EnvironmentSpec(
        observations=specs.Array(shape, dtype, "observation"),
        actions=actions,
        rewards=specs.Array((), np.float32, "reward"),
        discounts=specs.BoundedArray((), np.float32, 0.0, 1.0, "discount"),
    )


class IdleEnvironment(dm_env.Environment):
    """Hands out time steps made before: it costs a comparison a step."""

    def __init__(self, spec: specs.EnvironmentSpec, episode_length: int = 1000):
        self._spec = spec
        rng = np.random.default_rng(0)
        shape, dtype = spec.observations.shape, spec.observations.dtype
        observation = (8 * rng.random(shape)).astype(dtype)
        self._first = dm_env.restart(observation)
        self._mid = dm_env.transition(1.0, observation, 1.0)
        self._last = dm_env.termination(1.0, observation)
        self._left, self._episode_length = 0, episode_length

    def reset(self) -> dm_env.TimeStep:
        self._left = self._episode_length
        return self._first

    def step(self, action: Any) -> dm_env.TimeStep:
        self._left -= 1
        return self._mid if self._left else self._last

    def observation_spec(self) -> Any:
        return self._spec.observations

    def action_spec(self) -> Any:
        return self._spec.actions

    def reward_spec(self) -> Any:
        return self._spec.rewards

    def discount_spec(self) -> Any:
        return self._spec.discounts


def action(spec: specs.EnvironmentSpec) -> np.ndarray:
    """An action that fits: zeros."""
    return np.zeros(spec.actions.shape, spec.actions.dtype)


def transition_replay(
    spec: specs.EnvironmentSpec,
    max_size: int,
    sampler: Selector | None = None,
    rate_limiter: RateLimiter | None = None,
) -> InProcessReplay:
    """An empty replay with a table "t" of 1-step transitions."""
    layout = NStepAdder.layout(spec)
    limiter = MinSize(1) if rate_limiter is None else rate_limiter
    return InProcessReplay([Table("t", layout, max_size, sampler=sampler or Uniform(), rate_limiter=limiter)])


def fill(replay: InProcessReplay, spec: specs.EnvironmentSpec, num_items: int, episode: int = 1000) -> None:
    """Adds so many 1-step transitions through an adder, in episodes; observations differ, but images are stacks
    that show all but the oldest frame of the one before."""
    adder = NStepAdder(replay.writer(NStepAdder.history(1)), spec, tables="t", n=1, discount=0.99)
    rng = np.random.default_rng(0)
    shape, dtype = spec.observations.shape, spec.observations.dtype
    observations = (8 * rng.standard_normal((64, *shape))).astype(dtype)
    if len(shape) == 3:
        frames, depth = observations[..., 0], shape[-1]  # [64, H, W], k
        observations = np.stack([np.roll(frames, depth - 1 - i, axis=0) for i in range(depth)], axis=-1)
    zero = action(spec)
    added = 0
    while added < num_items:
        adder.add_first(dm_env.restart(observations[0]))
        length = min(episode, num_items - added)
        for i in range(1, length):
            adder.add(zero, dm_env.transition(1.0, observations[i % 64], 1.0))
        adder.add(zero, dm_env.termination(1.0, observations[0]))
        added += length
    adder.close()


def raw_step_bytes(spec: specs.EnvironmentSpec) -> int:
    """Bytes of one step: observation, action, reward and discount."""
    leaves = (spec.observations, spec.actions, spec.rewards, spec.discounts)
    return sum(int(np.prod(leaf.shape, dtype=np.int64)) * leaf.dtype.itemsize for leaf in leaves)
