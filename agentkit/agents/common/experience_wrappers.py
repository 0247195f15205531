"""Experiences that change a part of another one: its tables' rate limit, or the extras that its adders take."""

from __future__ import annotations

import dataclasses
from typing import final

from agentkit.adders import WithoutExtras
from agentkit.agents.common.agent import Experience
from agentkit.core import Adder, BatchPlan
from agentkit.replay import Replay, Table
from agentkit.replay.rate_limiter import RateLimiter
from agentkit.specs import EnvironmentSpec
from agentkit.types import Nest


def unwrapped(experience: Experience) -> Experience:
    """Returns the experience that those of this file are around; itself where none is."""
    while isinstance(experience, WithRateLimiter | DroppingExtras):
        experience = experience.experience
    return experience


@final
@dataclasses.dataclass(frozen=True)
class WithRateLimiter:
    """Gives all tables of an experience this rate limit, such as a `replay.Lockstep`.

    ``dataclasses.replace(agent, experience=WithRateLimiter(agent.experience, Lockstep(64, 100)))``
    """

    experience: Experience
    rate_limiter: RateLimiter

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        return self.experience.batch_plan

    def with_num_envs(self, num_envs: int) -> WithRateLimiter:
        """See `Experience`."""
        return dataclasses.replace(self, experience=self.experience.with_num_envs(num_envs))

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        tables = self.experience.make_tables(environment_spec, extras_spec)
        return [dataclasses.replace(table, rate_limiter=self.rate_limiter) for table in tables]

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`."""
        return self.experience.make_adder(replay, environment_spec, extras_spec, num_envs)


@final
@dataclasses.dataclass(frozen=True)
class DroppingExtras:
    """Drops the extras that another agent's policy emits, for an agent that learns from that one's steps."""

    experience: Experience

    @property
    def batch_plan(self) -> BatchPlan:
        """See `Experience`."""
        return self.experience.batch_plan

    def with_num_envs(self, num_envs: int) -> DroppingExtras:
        """See `Experience`."""
        return dataclasses.replace(self, experience=self.experience.with_num_envs(num_envs))

    def make_tables(self, environment_spec: EnvironmentSpec, extras_spec: Nest) -> list[Table]:
        """See `Experience`."""
        return list(self.experience.make_tables(environment_spec, extras_spec))

    def make_adder(
        self, replay: Replay, environment_spec: EnvironmentSpec, extras_spec: Nest, num_envs: int | None = None
    ) -> Adder:
        """See `Experience`."""
        return WithoutExtras(self.experience.make_adder(replay, environment_spec, extras_spec, num_envs))
