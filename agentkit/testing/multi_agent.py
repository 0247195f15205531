"""The contract of environments of several agents, as tests that others inherit.

In a test file:

    class TestMyEnvironment(MultiAgentEnvironmentContract):
        def make_environment(self):
            return ResumableMultiAgentEnvironment(MyEnvironment(), seed=0)

pytest then runs every check below against it.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Mapping
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.actors.random_actor import sample_legal_action
from agentkit.core import MultiAgentEnvironment
from agentkit.envs.step_check import StepCheck
from agentkit.testing.environment import assert_same_timestep
from agentkit.types import AgentId

TimeSteps = Mapping[AgentId, dm_env.TimeStep]


def rollout(
    environment: MultiAgentEnvironment, num_steps: int, timesteps: TimeSteps | None = None, seed: int = 0
) -> Iterator[TimeSteps]:
    """Yields the time steps of random legal actions, episode after episode, those of resets included.

    Args:
        environment: to step.
        num_steps: calls of `reset` and `step`.
        timesteps: that the environment stands at; None begins with a reset.
        seed: of the actions.
    """
    rng, agent_specs, newest = np.random.default_rng(seed), environment.agent_specs(), timesteps or {}
    for _ in range(num_steps):
        acting = {agent_id: timestep for agent_id, timestep in newest.items() if not timestep.last()}
        newest = environment.step(
            {i: sample_legal_action(agent_specs[i].actions, t.observation, rng) for i, t in acting.items()}
        ) if acting else environment.reset()  # fmt: skip
        yield newest


def assert_same_timesteps(first: TimeSteps, second: TimeSteps) -> None:
    """Asserts that two environments gave the same agents the same, bit for bit and in the same order."""
    assert list(first) == list(second)
    for agent_id in first:
        assert_same_timestep(first[agent_id], second[agent_id])


class MultiAgentEnvironmentContract(abc.ABC):
    """Checks the duties of every `core.MultiAgentEnvironment`; inherit it and write `make_environment`."""

    num_steps: int = 150
    """Steps a check takes at most, resets included."""

    can_resume: bool = True
    """Whether the environment has `save` and `restore` for mid-episode."""

    save_points: tuple[int, ...] = (1, 2, 8, 40)
    """The numbers of resets and steps after which the check of resuming saves."""

    @abc.abstractmethod
    def make_environment(self) -> Any:
        """A new environment; always the same one."""

    def test_specs_are_nests_of_specs(self) -> None:
        """Checks that each agent has the four specs, and that ids are words."""
        environment = self.make_environment()
        try:
            assert environment.agent_specs()
            for agent_id, spec in environment.agent_specs().items():
                assert isinstance(agent_id, str) and agent_id
                for name in ("observations", "actions", "rewards", "discounts"):
                    leaves = tree.flatten(getattr(spec, name))
                    assert leaves and all(map(specs.is_spec, leaves)), f"{agent_id}: {name}"
        finally:
            environment.close()

    def test_every_step_follows_from_the_last(self) -> None:
        """Checks rules 1 to 4, 6 and 7 of `core.MultiAgentEnvironment` in random play."""
        environment = self.make_environment()
        agent_specs, num_ends = environment.agent_specs(), 0
        in_play: set[AgentId] = set()
        newest: TimeSteps = {}
        try:
            for timesteps in rollout(environment, self.num_steps):
                begins = all(timestep.last() for timestep in newest.values())
                if begins:
                    assert not in_play, f"{in_play} had no LAST before the episode was over"
                    assert not all(timestep.last() for timestep in timesteps.values()), "nobody acts after a reset"
                for agent_id, timestep in timesteps.items():
                    was_in_play = agent_id in in_play
                    assert timestep.first() != was_in_play or (timestep.last() and not was_in_play), agent_id
                    self.check_timestep(agent_specs[agent_id], timestep)
                    num_ends += timestep.last()
                    (in_play.discard if timestep.last() else in_play.add)(agent_id)
                newest = timesteps
            assert num_ends, f"no agent has ended in {self.num_steps} steps: set num_steps to more than an episode"
        finally:
            environment.close()

    def check_timestep(self, spec: specs.EnvironmentSpec, timestep: dm_env.TimeStep) -> None:
        """Asserts that a time step is one that dm_env allows, the specs promise and the contract asks for."""
        assert isinstance(timestep.step_type, dm_env.StepType)
        if timestep.first():
            assert timestep.reward is None and timestep.discount is None
        else:
            for name in ("reward", "discount"):
                specs.validate(getattr(timestep, name), getattr(spec, f"{name}s"), name)
        seen = timestep.observation
        if seen is None:
            assert timestep.last() and not any(np.any(leaf) for leaf in tree.flatten(timestep.discount))
            seen = specs.zeros(spec.observations)
        specs.validate(seen, spec.observations, "observation")
        StepCheck(spec)(timestep._replace(observation=seen))
        mask = specs.find_action_mask(seen, spec.actions)
        assert mask is None or timestep.last() or np.any(mask), "a mask that allows nothing"

    def test_an_early_reset_begins_an_episode(self) -> None:
        """Checks that `reset` in mid-episode gives FIRST to those that act."""
        environment = self.make_environment()
        try:
            for _ in range(2):
                timesteps = environment.reset()
                assert any(timestep.first() for timestep in timesteps.values())
                assert not any(timestep.mid() for timestep in timesteps.values())
                acting = {i: timestep for i, timestep in timesteps.items() if timestep.first()}
                rng, agent_specs = np.random.default_rng(0), environment.agent_specs()
                environment.step(
                    {i: sample_legal_action(agent_specs[i].actions, t.observation, rng) for i, t in acting.items()}
                )
        finally:
            environment.close()

    def test_two_environments_of_one_seed_are_equal(self) -> None:
        """Checks that two environments made alike give the same steps for the same actions."""
        first, second = self.make_environment(), self.make_environment()
        try:
            both = zip(rollout(first, self.num_steps), rollout(second, self.num_steps), strict=True)
            for one, other in both:
                assert_same_timesteps(one, other)
        finally:
            first.close()
            second.close()

    def test_resumes_in_mid_episode_bit_for_bit(self) -> None:
        """Checks that a restored environment stands where it was saved and goes on alike."""
        for save_point in self.save_points:
            environment, other = self.make_environment(), self.make_environment()
            try:
                assert bool(getattr(environment, "resumable", False)) == self.can_resume
                if not self.can_resume:
                    return
                *_, newest = rollout(environment, save_point)
                state = environment.save()
                nests.flatten_to_paths(state)  # What a checkpoint does: refuses what it cannot hold.
                for _ in rollout(other, 5, seed=6):
                    pass
                restored = other.restore(state)
                assert_same_timesteps(newest, restored)
                expected = rollout(environment, self.num_steps, newest, seed=5)
                found = rollout(other, self.num_steps, restored, seed=5)
                for one, two in zip(expected, found, strict=True):
                    assert_same_timesteps(one, two)
            finally:
                environment.close()
                other.close()

    def test_what_was_given_does_not_change(self) -> None:
        """Checks that observations, and the state, are not overwritten by later steps."""
        environment = self.make_environment()
        try:
            given, states = [], []
            for timesteps in rollout(environment, 20):
                given += [
                    (t.observation, nests.copy_nest(t.observation))
                    for t in timesteps.values()
                    if t.observation is not None
                ]
                if environment.state_spec() is not None:
                    specs.validate(environment.state(), environment.state_spec(), "state")
                    states.append((environment.state(), nests.copy_nest(environment.state())))
            for value, copy in given + states:
                tree.map_structure(np.testing.assert_array_equal, value, copy)
        finally:
            environment.close()
