"""The contract of environments, as tests that others inherit.

In a test file:

    class TestMyEnvironment(EnvironmentContract):
        def make_environment(self):
            return ResumableEnvironment(MyEnvironment(size=3), seed=0)

pytest then runs every check below against it. An environment without `reseed` (or `save`) says so
with ``can_reseed = False`` (``can_resume = False``), in sight of the reader; and one whose episodes are too long to
see the end of with ``sees_ends = False``.
"""

from __future__ import annotations

import abc
from typing import Any

import dm_env
import numpy as np
import tree

from agentkit import nests, specs
from agentkit.actors.random_actor import sample_action
from agentkit.envs.step_check import StepCheck
from agentkit.types import Nest

_PLAIN = (np.ndarray, np.generic, int, float, str, bool, type(None))


def assert_same_timestep(first: dm_env.TimeStep, second: dm_env.TimeStep) -> None:
    """Asserts that two time steps are equal bit for bit, dtypes included."""
    tree.assert_same_structure(tuple(first), tuple(second))
    for one, other in zip(tree.flatten(tuple(first)), tree.flatten(tuple(second)), strict=True):
        np.testing.assert_array_equal(one, other, strict=True)


class _Contract(abc.ABC):
    """What the contracts of single and of batched environments share."""

    num_steps: int = 150
    """Steps a check takes at most; make it longer than an episode where that is cheap."""

    sees_ends: bool = True
    """Whether an episode ends within `num_steps`; where it cannot, as that takes too long, LAST is not checked."""

    can_reseed: bool = True
    """Whether the environment has `reseed`."""

    can_resume: bool = True
    """Whether the environment has `save` and `restore` for mid-episode."""

    save_points: tuple[int, ...] = (0, 1, 7, 40)
    """The numbers of steps after which the check of resuming saves."""

    @abc.abstractmethod
    def make_environment(self) -> Any:
        """A new environment; always the same one."""

    def sample(self, environment: Any, rng: np.random.Generator) -> Nest:
        """A random action; override it where not every action of the spec is allowed."""
        return sample_action(environment.action_spec(), rng)

    def rollout(self, environment: Any, num_steps: int, seed: int = 0) -> list[dm_env.TimeStep]:
        """Time steps of `num_steps` random actions, without a reset at the start."""
        rng = np.random.default_rng(seed)
        return [environment.step(self.sample(environment, rng)) for _ in range(num_steps)]

    def check_ends(self, has_ended: bool) -> None:
        """Asserts that a check of what follows a LAST has seen one."""
        assert has_ended or not self.sees_ends, (
            f"no episode has ended in {self.num_steps} steps: set num_steps to more than an episode, or sees_ends to "
            "False where that takes too long"
        )

    def test_specs_are_nests_of_specs(self) -> None:
        """Each of the four specs is a nest of at least one array spec."""
        environment = self.make_environment()
        try:
            for name, spec in specs.make_environment_spec(environment)._asdict().items():
                leaves = tree.flatten(spec)
                assert leaves or name == "columns", f"{name}: no leaf"
                assert all(specs.is_spec(leaf) for leaf in leaves), f"{name}: {spec}"
        finally:
            environment.close()

    def test_two_environments_of_one_seed_are_equal(self) -> None:
        """Two environments made alike give the same steps for the same actions."""
        first, second = self.make_environment(), self.make_environment()
        try:
            assert_same_timestep(first.reset(), second.reset())
            both = zip(self.rollout(first, self.num_steps), self.rollout(second, self.num_steps), strict=True)
            for one, other in both:
                assert_same_timestep(one, other)
        finally:
            first.close()
            second.close()

    def test_reseed_repeats_the_episodes(self) -> None:
        """`reseed` repeats the episodes whatever happened before."""
        environment = self.make_environment()
        try:
            assert hasattr(environment, "reseed") == self.can_reseed
            if not self.can_reseed:
                return
            environment.reseed(11)
            before = [environment.reset(), *self.rollout(environment, 30)]
            environment.reseed(12)
            environment.reset()
            self.rollout(environment, 17, seed=1)
            environment.reseed(11)  # In mid-episode, with another history.
            after = [environment.reset(), *self.rollout(environment, 30)]
            for one, other in zip(before, after, strict=True):
                assert_same_timestep(one, other)
        finally:
            environment.close()

    def test_resumes_in_mid_episode_bit_for_bit(self) -> None:
        """A restored environment stands where it was saved and goes on alike."""
        for save_point in self.save_points:
            environment, other = self.make_environment(), self.make_environment()
            try:
                assert bool(getattr(environment, "resumable", False)) == self.can_resume
                if not self.can_resume:
                    return
                timestep = [environment.reset(), *self.rollout(environment, save_point)][-1]
                state = environment.save()
                assert all(isinstance(leaf, _PLAIN) for leaf in tree.flatten(state)), state
                expected = self.rollout(environment, self.num_steps, seed=5)
                if hasattr(other, "reseed"):
                    other.reseed(987)
                other.reset()
                self.rollout(other, 5, seed=6)
                assert_same_timestep(timestep, other.restore(state))
                found = self.rollout(other, self.num_steps, seed=5)
                for one, two in zip(expected, found, strict=True):
                    assert_same_timestep(one, two)
            finally:
                environment.close()
                other.close()

    def test_what_was_given_does_not_change(self) -> None:
        """Observations handed out are not overwritten by later steps."""
        environment = self.make_environment()
        try:
            given = [environment.reset(), *self.rollout(environment, 20)]
            copies = [nests.copy_nest(timestep.observation) for timestep in given]
            self.rollout(environment, 20, seed=1)
            for timestep, copy in zip(given, copies, strict=True):
                tree.map_structure(np.testing.assert_array_equal, timestep.observation, copy)
        finally:
            environment.close()


class EnvironmentContract(_Contract):
    """Checks the duties of every single environment; inherit it and write `make_environment`."""

    def test_reset_gives_a_first_step(self) -> None:
        """Checks that `reset` gives FIRST without reward and discount, in mid-episode too."""
        environment = self.make_environment()
        try:
            for _ in range(2):
                self.check_timestep(environment, environment.reset())
                self.rollout(environment, 3)
                timestep = environment.reset()  # In mid-episode too.
                assert timestep.first()
                assert timestep.reward is None and timestep.discount is None
        finally:
            environment.close()

    def test_step_before_reset_gives_a_first_step(self) -> None:
        """Checks that a step before the first reset is a reset."""
        environment = self.make_environment()
        try:
            (timestep,) = self.rollout(environment, 1)
            assert timestep.first()
        finally:
            environment.close()

    def test_every_step_fits_its_spec_and_follows_from_the_last(self) -> None:
        """Checks that steps fit their specs, and that FIRST follows LAST and nothing else."""
        environment = self.make_environment()
        try:
            previous, has_ended = environment.reset(), False
            for timestep in self.rollout(environment, self.num_steps):
                assert timestep.first() == previous.last()
                self.check_timestep(environment, timestep)
                previous, has_ended = timestep, has_ended or previous.last()
            self.check_ends(has_ended)
        finally:
            environment.close()

    def check_timestep(self, environment: Any, timestep: dm_env.TimeStep) -> None:
        """Asserts that a time step is one that dm_env allows and the specs promise, with numbers that a run takes."""
        assert isinstance(timestep.step_type, dm_env.StepType)
        specs.validate(timestep.observation, environment.observation_spec(), "observation")
        if timestep.first():
            assert timestep.reward is None and timestep.discount is None
        else:
            specs.validate(timestep.reward, environment.reward_spec(), "reward")
            specs.validate(timestep.discount, environment.discount_spec(), "discount")
        StepCheck(specs.make_environment_spec(environment))(timestep)


class BatchedEnvironmentContract(_Contract):
    """Checks the duties of every batch of environments; inherit it and write `make_environment`."""

    def sample(self, environment: Any, rng: np.random.Generator) -> Nest:
        """Draws one random action per environment, leaves ``[N, ...]``."""
        actions = [sample_action(environment.action_spec(), rng) for _ in range(environment.num_envs)]
        return tree.map_structure(lambda *leaves: np.stack(leaves), *actions)

    def test_reset_gives_first_steps(self) -> None:
        """Checks that `reset` starts an episode in every element."""
        environment = self.make_environment()
        try:
            timestep = environment.reset()
            assert (timestep.step_type == dm_env.StepType.FIRST).all()
            self.check_timestep(environment, timestep)
        finally:
            environment.close()

    def test_elements_are_reset_after_their_last_step_only(self) -> None:
        """Checks that in each element FIRST follows LAST and nothing else."""
        environment = self.make_environment()
        try:
            previous, has_ended = environment.reset(), False
            for timestep in self.rollout(environment, self.num_steps):
                self.check_timestep(environment, timestep)
                first = timestep.step_type == dm_env.StepType.FIRST
                np.testing.assert_array_equal(first, previous.step_type == dm_env.StepType.LAST)
                previous, has_ended = timestep, has_ended or bool(first.any())
            self.check_ends(has_ended)
        finally:
            environment.close()

    def check_timestep(self, environment: Any, timestep: dm_env.TimeStep) -> None:
        """Asserts shapes ``[N, ...]``, dtypes, numbers that a run takes, and reward 0 and discount 1 on first steps."""
        num_envs = environment.num_envs
        assert isinstance(timestep.step_type, np.ndarray)
        assert timestep.step_type.shape == (num_envs,) and timestep.step_type.dtype == np.int32
        first = timestep.step_type == dm_env.StepType.FIRST
        for i in range(num_envs):
            for spec, value, name in (
                (environment.observation_spec(), timestep.observation, "observation"),
                (environment.reward_spec(), timestep.reward, "reward"),
                (environment.discount_spec(), timestep.discount, "discount"),
            ):
                assert all(leaf.shape[0] == num_envs for leaf in tree.flatten(value)), name
                specs.validate(tree.map_structure(lambda leaf, i=i: leaf[i], value), spec, name)
            if first[i]:
                assert all((leaf[i] == 0).all() for leaf in tree.flatten(timestep.reward))
                assert all((leaf[i] == 1).all() for leaf in tree.flatten(timestep.discount))
        StepCheck(specs.make_environment_spec(environment), num_envs)(timestep)
