"""A contract that every agent must satisfy: determinism, resuming, batches, discounts, settings.

Inherit from `AgentContract` and say which agent and which environment:

    class TestMyAgent(AgentContract):
        unsuitable_environment = "agentkit:point_mass"
        refused: ClassVar = {"discount": 1.5}
        changes: ClassVar = {"discount": 0.5, "importance_exponent": Change(1.0, given={"prioritized": True}), ...}

        def make_agent(self, **settings):
            return my_agent.make_agent(my_agent.Config(**{"min_replay_size": 20, **settings}))

        def make_environment(self, seed):
            return envs.make("agentkit:catch", seed=seed)

Whether it learns is another question: see `agentkit.testing.learning`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import dm_env
import jax
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.actors.policy import ActorIndex, Policy, first_state
from agentkit.actors.random_actor import sample_action
from agentkit.agents.common.agent import Agent
from agentkit.datasets import ReplayDataset
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import Update
from agentkit.replay import InProcessReplay, MinSize, Uniform
from agentkit.testing.agent_runs import (
    Killed,
    KilledError,
    Trained,
    Watched,
    assert_same,
    by_name,
    differ,
    read_trained,
)
from agentkit.testing.programs import quickly_compiled, trace
from agentkit.types import ReplaySample, Transition

_KEY = jax.random.PRNGKey(0)


class Change(NamedTuple):
    """Holds another value for a config field, and the settings under which the field matters."""

    value: Any
    given: Mapping[str, Any] = {}


class AgentContract(abc.ABC):
    """Checks an agent: inherit, name the class ``Test...``, and pytest runs every case.

    Attributes:
        unsuitable_environment: name of an environment whose actions the agent cannot take.
        changes: for every field of the agent's Config another value than `make_agent`'s, or a
            `Change`; each must change what the agent does.
        refused: values (or `Change`), by field, that must be refused with a ConfigError that shows them.
        num_steps: of a training; half and three quarters of it, where it is saved and killed, must be in mid-episode
            (unless every episode is of one step).
        steps_before_learning: as many as `make_agent`'s agent explores before its first update.
    """

    unsuitable_environment: str
    changes: ClassVar[Mapping[str, Any]]
    refused: ClassVar[Mapping[str, Any]]
    num_steps = 130
    steps_before_learning = 15

    @abc.abstractmethod
    def make_agent(self, **settings: Any) -> Agent:
        """Makes a small agent that learns from its 20th step or so on, but for `settings` of its Config."""

    @abc.abstractmethod
    def make_environment(self, seed: int) -> Any:
        """Makes a resumable environment of short episodes that suits the agent."""

    def _train(
        self,
        directory: pathlib.Path,
        seed: int = 0,
        num_envs: int | None = None,
        *,
        num_steps: int | None = None,
        resume: bool = False,
        die_at: float = float("inf"),
        actions: list[Any] | None = None,
    ) -> Trained:
        actions = [] if actions is None else actions
        is_resumed_later = seed == 0 and num_steps is None  # From where it is saved and killed.
        alone_and_whole = num_envs is None and not resume  # Elsewhere these are not the numbers of an episode's steps.
        mid_at = (self.num_steps // 2, self.num_steps * 3 // 4) if is_resumed_later and alone_and_whole else ()
        experiment = ExperimentConfig(
            agent=self.make_agent(),
            environment=lambda seed: Watched(self.make_environment(seed), actions, die_at, mid_at),
            num_steps=self.num_steps if num_steps is None else num_steps,
            seed=seed,
            run_directory=directory,
            num_envs=num_envs,
            evaluation_period=0,
            checkpoint_period=self.num_steps // 2,
        )
        return read_trained(run(experiment, resume=resume), directory, actions)

    def _kill(self, directory: pathlib.Path, num_envs: int | None = None) -> Killed:
        actions: list[Any] = []
        with pytest.raises(KilledError):
            self._train(directory, num_envs=num_envs, die_at=self.num_steps * 3 // 4, actions=actions)
        return Killed(directory, actions)

    @pytest.fixture(scope="class")
    @classmethod
    def trained(cls, tmp_path_factory: pytest.TempPathFactory) -> Trained:
        """Trains once with seed 0, never interrupted."""
        return cls()._train(tmp_path_factory.mktemp("trained") / "run")

    @pytest.fixture(scope="class")
    @classmethod
    def killed(cls, tmp_path_factory: pytest.TempPathFactory) -> Killed:
        """Trains once with seed 0, and dies in mid-episode."""
        return cls()._kill(tmp_path_factory.mktemp("killed") / "run")

    def test_it_takes_the_steps_it_was_asked_for_and_learns_on_the_way(self, trained: Trained) -> None:
        """Checks that a run takes exactly `num_steps` steps, and some updates."""
        assert trained.result.steps == len(trained.actions) == self.num_steps
        assert trained.result.updates > 0 and not trained.result.interrupted

    def test_equal_seeds_train_bit_for_bit(self, trained: Trained, killed: Killed) -> None:
        """Compares the actions of two runs of one seed; that all they save is the same is seen once both have ended."""
        assert len(killed.actions) == self.num_steps * 3 // 4
        np.testing.assert_array_equal(killed.actions, trained.actions[: len(killed.actions)])

    def test_different_seeds_differ_in_parameters_and_actions(self, trained: Trained, tmp_path: pathlib.Path) -> None:
        """Compares seeds before any learning, which would spread any difference to everything."""
        first, other = (
            self._train(tmp_path / f"{seed}", seed=seed, num_steps=self.steps_before_learning) for seed in (0, 1)
        )
        assert first.result.updates == other.result.updates == 0, "`steps_before_learning` is too large"
        np.testing.assert_array_equal(first.actions, trained.actions[: len(first.actions)])
        assert np.any(np.array(other.actions) != np.array(first.actions)), "exploration does not depend on the seed"
        mine, theirs = first.state["learner"]["state"], other.state["learner"]["state"]
        matrices = [name for name, leaf in mine.items() if leaf.ndim >= 2 and _varies(leaf)]
        assert matrices
        for name in matrices:
            assert np.any(mine[name] != theirs[name]), f"{name} does not depend on the seed before it is learned"

    def test_killed_and_resumed_it_ends_as_if_never_stopped(self, trained: Trained, killed: Killed) -> None:
        """Resumes what an error in mid-episode ended: equal bit for bit to a run that nothing stopped."""
        self._check_resumed(self._train(killed.directory, resume=True), trained)

    def test_killed_and_resumed_in_several_environments_it_ends_as_if_never_stopped(
        self, tmp_path: pathlib.Path
    ) -> None:
        """Does the same with a batch of three environments."""
        whole, killed = self._train(tmp_path / "whole", num_envs=3), self._kill(tmp_path / "run", num_envs=3)
        self._check_resumed(self._train(killed.directory, num_envs=3, resume=True), whole)

    def _check_resumed(self, resumed: Trained, whole: Trained) -> None:
        assert 0 < len(resumed.actions) < len(whole.actions)
        np.testing.assert_array_equal(resumed.actions, whole.actions[-len(resumed.actions) :])
        assert_same(resumed.state, whole.state)
        assert resumed.replay == whole.replay
        assert resumed.result.updates == whole.result.updates > 0

    def test_an_unsuitable_action_space_is_refused(self) -> None:
        """Expects a SpecError that names the action found, before anything is trained."""
        environment = envs.make(self.unsuitable_environment, seed=0)
        with pytest.raises(SpecError, match="found") as caught:
            self.make_agent().make_networks(specs.make_environment_spec(environment))
        assert "action" in str(caught.value)
        with pytest.raises(SpecError, match="found"):
            run(ExperimentConfig(self.make_agent(), self.unsuitable_environment, num_steps=1))

    @pytest.fixture(scope="class")
    @classmethod
    def update(cls) -> Update:
        """Compiles the agent's update once, for all cases that learn from batches of their own."""
        return cls()._make_update(cls().make_agent())

    def test_termination_and_truncation_are_learned_from_differently(self, update: Update) -> None:
        """Learns from the same episodes, ended by LAST with discount 0, and by LAST with discount 1."""
        agent = self.make_agent()
        learned = [self._learned(update, self._batch(agent, last)) for last in (0.0, 1.0)]
        assert any(np.any(learned[0][name] != learned[1][name]) for name in learned[0])

    def test_where_the_discount_is_zero_nothing_is_bootstrapped(self, update: Update) -> None:
        """Checks that the next observation matters where the discount is 1, and not where the discount is 0."""
        batch = self._batch(self.make_agent(), 0.0)
        if not isinstance(batch.data, Transition):
            return  # Only a transition names what it bootstraps from.

        def learned(discount: float, shift: float) -> dict[str, np.ndarray]:
            data = batch.data._replace(
                discount=np.full_like(batch.data.discount, discount),
                next_observation=tree.map_structure(lambda x: (x + shift).astype(x.dtype), batch.data.next_observation),
            )
            return self._learned(update, batch._replace(data=data))

        assert_same(learned(0.0, shift=0.0), learned(0.0, shift=1.0))
        bootstrapped, shifted = learned(1.0, shift=0.0), learned(1.0, shift=1.0)
        assert any(np.any(bootstrapped[name] != shifted[name]) for name in shifted)

    def test_every_setting_has_a_case(self) -> None:
        """Checks that `changes` has an entry for each field of the Config."""
        fields = {field.name for field in dataclasses.fields(self.make_agent().config)}
        assert fields == set(self.changes), "`changes` needs exactly the fields of the agent's Config"

    def test_every_setting_changes_what_the_agent_does(self) -> None:
        """Checks that something reads each setting: it changes tables, a batch, or a program that JAX traces.

        Nothing is lowered or compiled for it, which would take longer.
        """
        without_effect: list[str] = []
        usual_behaviour: dict[str, Iterator[Any]] = {}  # By the settings that a change is given with.
        assert not any(itertools.starmap(differ, zip(self._behaviour(), self._behaviour(), strict=True)))
        for name, change in self.changes.items():
            value, given = _change(change)
            usual = getattr(self.make_agent(**given).config, name)
            assert usual != value, f"`changes` gives {name} the value {value}, which make_agent's Config has anyway"
            before = usual_behaviour.get(repr(given), self._behaviour(**given))
            usual_behaviour[repr(given)], before = itertools.tee(before)
            if not any(differ(*seen) for seen in zip(before, self._behaviour(**{**given, name: value}), strict=True)):
                without_effect.append(name)
        assert not without_effect, f"nothing that the agent does depends on {without_effect}"

    def test_impossible_settings_are_refused_when_built(self) -> None:
        """Expects a ConfigError, or an UnknownNameError, that shows the value."""
        spec = specs.make_environment_spec(self.make_environment(0))
        unclear = []
        for name, change in self.refused.items():
            value, given = _change(change)
            try:
                self._build(self.make_agent(**{**given, name: value}), spec)
            except (ConfigError, UnknownNameError) as error:
                if str(value) not in str(error):
                    unclear.append(f"{name}={value} is refused by: {error}")
            else:
                unclear.append(f"{name}={value} is taken")
        assert not unclear, "\n".join(unclear)

    def _build(self, agent: Agent, spec: specs.EnvironmentSpec) -> None:
        networks = agent.make_networks(spec)
        agent.make_policy(networks)
        agent.make_update(networks)
        with InProcessReplay(agent.make_tables(spec)) as replay:
            agent.make_adder(replay, spec)
            ReplayDataset(replay, agent.batch_plan)

    def _batch(self, agent: Agent, last_discount: float, num_steps: int = 60) -> ReplaySample:
        """Returns a batch as the agent itself stores and samples it: random actions, random priorities.

        Where the policy says more than an action, the actions are its own. An item is drawn as often as needed.
        """
        environment = self.make_environment(0)
        spec = specs.make_environment_spec(environment)
        rng = np.random.default_rng(0)
        act = self._make_act(agent, spec, rng)
        tables = [
            dataclasses.replace(
                table,
                sampler=Uniform() if table.max_times_sampled else table.sampler,  # A queue would give its first again.
                rate_limiter=MinSize(1),
                max_times_sampled=0,
                max_size=max(table.max_size, 64),
            )
            for table in agent.make_tables(spec)
        ]
        with InProcessReplay(tables, seed=0) as replay:
            adder = agent.make_adder(replay, spec)
            timestep = dm_env.truncation(0.0, None)
            for t in range(num_steps):
                if timestep.last():
                    timestep = environment.reset()
                    adder.add_first(timestep)
                action, extras = act(timestep.observation)
                timestep = environment.step(action)
                if timestep.last() or t % 5 == 4:
                    timestep = timestep._replace(step_type=dm_env.StepType.LAST, discount=np.float32(last_discount))
                adder.add(action, timestep, extras)
            dataset = ReplayDataset(replay, agent.batch_plan._replace(batch_size=64, num_updates=1), timeout=1.0)
            keys = np.unique(next(dataset).keys)
            replay.update_priorities(agent.batch_plan.table, keys, rng.uniform(0.1, 1.0, len(keys)))
            return next(dataset).sample

    def _make_act(self, agent: Agent, spec: specs.EnvironmentSpec, rng: np.random.Generator) -> Any:
        """``observation -> (action, extras)``: random actions, or the policy's where there are extras with them."""
        networks = agent.make_networks(spec)
        policy, update = agent.make_policy(networks), agent.make_update(networks)
        shapes = jax.eval_shape(lambda key: update.variables(update.init(key))["policy"], _KEY)
        state = policy.init(_KEY)
        if not jax.tree.leaves(jax.eval_shape(policy.act, shapes, _KEY, specs.zeros(spec.observations), state)[2]):
            return lambda observation: (sample_action(spec.actions, rng), ())
        params, step = update.variables(quickly_compiled(update.init)(_KEY))["policy"], quickly_compiled(policy.act)

        def act(observation: Any) -> tuple[Any, Any]:
            nonlocal state
            key = jax.random.PRNGKey(rng.integers(2**31))
            action, state, extras = step(params, key, observation, state)
            return tree.map_structure(np.asarray, (action, extras))

        return act

    def _make_update(self, agent: Agent) -> Update:
        """Returns the agent's update in its environment, compiled."""
        update = agent.make_update(agent.make_networks(specs.make_environment_spec(self.make_environment(0))))
        return update._replace(init=quickly_compiled(update.init), update=quickly_compiled(update.update))

    def _learned(self, update: Update, batch: ReplaySample) -> dict[str, np.ndarray]:
        """The training state after three updates on `batch`, and the last priorities, by name."""
        state = update.init(_KEY)
        for _ in range(3):
            state, output = update.update(state, batch)
        return by_name({"state": state, "priorities": output.priorities})

    def _behaviour(self, **settings: Any) -> Iterator[Any]:
        """Yields all that decides what the agent does with these settings, what is sooner found out first.

        So that a comparison can end at the first difference: plan and tables, the programs of its policies and of its
        first state, a batch, and the program of its update.
        """
        agent = self.make_agent(**settings)
        spec = specs.make_environment_spec(self.make_environment(0))
        yield agent.batch_plan, [table.fingerprint() for table in agent.make_tables(spec)]
        networks = agent.make_networks(spec)
        update = agent.make_update(networks)
        state, observation = jax.eval_shape(update.init, _KEY), specs.zeros(spec.observations)
        params = jax.eval_shape(update.variables, state)["policy"]
        for evaluation in (False, True):
            policy = agent.make_policy(networks, evaluation)
            yield trace(functools.partial(_third_of_four, policy), _KEY)
            yield trace(policy.act, params, _KEY, observation, jax.eval_shape(policy.init, _KEY))
        yield trace(update.init, _KEY)
        batch = self._batch(agent, 0.0)
        yield by_name(batch)
        yield trace(update.update, state, batch)


def _third_of_four(policy: Policy, key: jax.Array) -> Any:
    """Returns the state in which the third of four actors that explore together starts, after 5 steps."""
    return first_state(policy, key, ActorIndex(2, 4, 5))


def _varies(leaf: np.ndarray) -> bool:
    """Returns whether an array, perhaps of booleans, is no constant."""
    return bool((leaf != leaf.flat[0]).any())


def _change(change: Any) -> Change:
    return change if isinstance(change, Change) else Change(change)
