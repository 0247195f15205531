"""An actor and a learner of a user's own run, are saved, resumed, evaluated, loaded and sampled like any other."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import json
import subprocess
import sys
import types
from collections.abc import Callable
from typing import Any

import dm_env
import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit import adders, checkpoint, core, experiment
from agentkit.actors import ActorIndex, BatchedPolicyActor, PolicyActor, stateless_policy
from agentkit.agents import Agent, ReplayConfig, Transitions, dqn
from agentkit.agents.addons import View, with_gail, with_normalization, with_rnd, with_views
from agentkit.agents.common.agent import no_policy
from agentkit.core import BatchPlan
from agentkit.distributed import ProgramError
from agentkit.envs.catch import Catch
from agentkit.errors import CheckpointError, ConfigError, NonFiniteError, SpecError
from agentkit.experiment.checks.own_boxes import check_own_boxes
from agentkit.experiment.policies.make_actor import make_actor
from agentkit.experiment.policies.own_actor import OwnActing
from agentkit.experiment.training import own_learner
from agentkit.learning import LearnerCallbacks, rate_limit
from agentkit.replay import InProcessReplay, Table
from tests.agents import offline_data
from tests.experiment import own_parts, typed_boxes
from tests.experiment.own_box_examples import FOLDER, human_at_the_keyboard, planner, tabular_q_learning

CONFIG, QActor, QLearner = tabular_q_learning.CONFIG, tabular_q_learning.QActor, tabular_q_learning.QLearner
make_agent = tabular_q_learning.make_agent
CLOSED: list[str] = []


class SavedActor(QActor):
    """Remembers where its random numbers stand."""

    def save(self) -> dict[str, Any]:
        return {"random": json.dumps(self.random.bit_generator.state)}

    def restore(self, state: dict[str, Any]) -> None:
        self.random.bit_generator.state = json.loads(state["random"])

    def close(self) -> None:
        CLOSED.append("actor")


class BatchedActor(SavedActor):
    """Acts in N environments."""

    def select_action(self, observation: Any) -> Any:
        number = self.parts.num_envs
        assert number == len(observation)
        greedy = self.parts.variables.params[tabular_q_learning.index(observation)].argmax(-1)
        random = self.random.integers(3, size=number)
        return np.where(self.random.random(number) < self.epsilon, random, greedy).astype(np.int32)


class ClosingLearner(QLearner):
    """Has what is optional."""

    def metrics(self) -> dict[str, float]:
        return {"largest": float(self.q.max())}

    def close(self) -> None:
        CLOSED.append("learner")


class NanLearner(QLearner):
    """Learns too much."""

    def step(self) -> None:
        super().step()
        self.q[0, 0] = np.nan


def make_tables(spec: Any) -> list[Table]:
    limit = rate_limit(BatchPlan("steps", 16), updates_per_insert=1.0, min_replay_size=100)
    return [Table("steps", adders.NStepAdder.layout(spec), max_size=10_000, rate_limiter=limit)]


def make_adder(replay: Any, spec: Any) -> core.Adder:
    writer = replay.writer(adders.NStepAdder.history(1))
    return adders.NStepAdder(writer, spec, tables="steps", n=1, discount=0.99)


def make_replay(tables: Any) -> InProcessReplay:
    CLOSED.append("replay was made")
    print("replay was made", flush=True)
    return InProcessReplay(tables, seed=7)


def make_none(tables: Any) -> Any:
    return 3


def shield(parts: core.ActorParts) -> core.Actor:
    """The agent's own policy, whose actions nobody changes."""
    assert parts.make_policy_actor is not None
    return parts.make_policy_actor()


SAVED = dataclasses.replace(make_agent(), make_actor=SavedActor, make_learner=ClosingLearner)
COMPOSED = agentkit.compose(
    make_actor=SavedActor, make_learner=QLearner, make_tables=make_tables, make_adder=make_adder,
    batch_plan=BatchPlan("steps", 16),
)  # fmt: skip
AGENTS = {
    "an experience": SAVED,
    "functions": COMPOSED,
    "another agent's policy": dqn.make_agent(dqn.Config(hidden_sizes=(4,), batch_size=4, min_replay_size=20)),
}


def plan(agent: Any, num_steps: int, directory: Any = None, **settings: Any) -> agentkit.ExperimentConfig:
    settings = {"evaluation_period": 0, **settings}
    return agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps, run_directory=directory, **settings)


def learned(directory: Any) -> Any:
    found = checkpoint.read_latest(directory / "checkpoints")
    assert found is not None
    return found.state["learner"]["own"]["q"]


def test_a_table_learns_and_is_evaluated_loaded_and_sampled(tmp_path: Any) -> None:
    result = agentkit.run(plan(SAVED, 2_000, tmp_path / "run", evaluation_period=2_000, evaluation_episodes=5))
    assert result.evaluations[-1]["episode_return"] > 0.5
    assert result.updates > 1_500
    assert np.mean(agentkit.evaluate(result, num_episodes=5)["episode_return"]) > 0.5
    assert np.mean(agentkit.evaluate(tmp_path / "run", num_episodes=5)["episode_return"]) > 0.5

    policy = agentkit.load(tmp_path / "run")
    environment = Catch(seed=3)
    timestep = environment.reset()
    while not timestep.last():
        timestep = environment.step(policy.select_action(timestep.observation))
    assert timestep.reward == 1.0
    assert agentkit.sample(tmp_path / "run", num_steps=9).by_episode()[0].reward[-1] == 1.0
    assert "largest" in (tmp_path / "run" / "logs" / "learner.csv").read_text()
    for refused in (policy.save, policy.export):
        with pytest.raises(ConfigError, match=r"make_actor\), which is Python code and no file can hold") as caught:
            refused(tmp_path / "policy.npz")
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="one observation at a time; found a batch of 2"):
        policy.select_action(np.zeros((2, 10, 5), np.float32))


@pytest.mark.parametrize("kind", ["an experience", "functions"])
@pytest.mark.parametrize("num_envs", [None, 3])
def test_a_resumed_run_is_the_same_to_the_bit(kind: str, num_envs: int | None, tmp_path: Any) -> None:
    agent = AGENTS[kind]
    if num_envs is not None:
        agent = dataclasses.replace(agent, make_actor=BatchedActor)
    agentkit.run(plan(agent, 420, tmp_path / "whole", num_envs=num_envs))
    agentkit.run(plan(agent, 210, tmp_path / "halves", num_envs=num_envs))
    assert agentkit.experiment.read_config(tmp_path / "halves").agent == agent.with_num_envs(num_envs or 1)
    result = agentkit.resume(tmp_path / "halves", num_steps=420)
    assert result.steps == 420
    assert learned(tmp_path / "whole").any()
    np.testing.assert_array_equal(learned(tmp_path / "halves"), learned(tmp_path / "whole"))


class Impatient(QActor):
    """Reads the parameters where it is made."""

    def __init__(self, parts: core.ActorParts):
        super().__init__(parts)
        assert parts.variables.params.shape == (225, 3)


def test_an_actor_may_read_parameters_where_it_is_made() -> None:
    agent = dataclasses.replace(make_agent(), make_actor=Impatient)
    for profile in (None, experiment.Profile()):
        assert agentkit.run(plan(agent, 60), profile=profile).steps == 60


class UpdatedActor(QActor):
    """Acts by a table that it takes in `update` alone, as one whose parameters are not on the host has to."""

    def __init__(self, parts: core.ActorParts):
        super().__init__(parts)
        self.waited: list[bool] = []
        self.tables: list[Any] = []
        UPDATED.append(self)

    def update(self, wait: bool = False) -> None:
        super().update(wait)
        self.waited.append(wait)
        self.tables.append(self.parts.variables.params)


UPDATED: list[UpdatedActor] = []


def test_a_launched_actor_is_told_to_update_at_first_and_after_each_step(tmp_path: Any) -> None:
    pytest.importorskip("zmq")
    UPDATED.clear()
    agent = dataclasses.replace(make_agent(), make_actor=UpdatedActor)
    launched = plan(agent, 300, tmp_path / "run", replay="served")
    assert agentkit.launch(launched, engine="threads", num_actors=1, num_evaluators=0).updates > 0
    (actor,) = UPDATED
    assert actor.waited[0] and not any(actor.waited[1:])
    assert len(actor.waited) > 300 and actor.tables[0] is not None


def test_an_actor_knows_which_one_it_is_of_those_that_explore_together() -> None:
    environment, made = Catch(seed=0), []
    agent = dataclasses.replace(make_agent(), make_actor=lambda parts: made.append(parts) or QActor(parts))
    for index in (ActorIndex(), ActorIndex(2, 4, 70)):
        make_actor(environment, OwnActing(agent, None, False), np.zeros(2, np.uint32), None, actor_index=index)  # type: ignore[arg-type]
    assert [(parts.actor_id, parts.num_actors, parts.num_steps) for parts in made] == [(0, 1, 0), (2, 4, 70)]


def test_actor_and_learner_are_closed_and_an_actor_without_a_state_is_made_anew(tmp_path: Any) -> None:
    CLOSED.clear()
    agentkit.run(plan(SAVED, 150, tmp_path / "run"))
    assert sorted(CLOSED) == ["actor", "learner"]
    bare, made = make_agent(), []
    agentkit.run(plan(bare, 150, tmp_path / "bare"))
    assert agentkit.resume(tmp_path / "bare", num_steps=200).steps == 200
    closure = dataclasses.replace(bare, make_actor=lambda parts: made.append(parts.num_steps) or QActor(parts))
    agentkit.run(plan(closure, 150, tmp_path / "counted"))
    agentkit.run(plan(closure, 200, tmp_path / "counted"), resume=True)
    assert made[0] == 0 and made[-1] == 150, "there its exploration goes on"


def test_a_run_is_not_gone_on_with_by_other_boxes(tmp_path: Any) -> None:
    agentkit.run(plan(SAVED, 120, tmp_path / "run"))
    with pytest.raises(CheckpointError, match="make_learner"):
        agentkit.run(plan(dataclasses.replace(SAVED, make_learner=QLearner), 150, tmp_path / "run"), resume=True)
    closure = dataclasses.replace(SAVED, make_actor=lambda parts: QActor(parts))
    agentkit.run(plan(closure, 120, tmp_path / "closure"))
    with pytest.raises(ConfigError, match="make_actor is a lambda"):
        agentkit.resume(tmp_path / "closure")


@pytest.mark.full
def test_a_policys_actor_may_be_wrapped_and_the_best_of_an_own_learner_is_kept(tmp_path: Any) -> None:
    stock = AGENTS["another agent's policy"]
    whole, shielded = (
        agentkit.run(plan(agent, 60, tmp_path / name)).policies
        for name, agent in {"stock": stock, "shield": dataclasses.replace(stock, make_actor=shield)}.items()
    )
    assert whole is not None and shielded is not None
    states = [checkpoint.read_latest(tmp_path / name / "checkpoints").state for name in ("stock", "shield")]  # type: ignore[union-attr]
    for path, leaf in states[0]["learner"]["state"].items():
        np.testing.assert_array_equal(leaf, states[1]["learner"]["state"][path])
    best = agentkit.callbacks.keep_best(min_episodes=1)
    agentkit.run(plan(SAVED, 300, tmp_path / "best", evaluation_period=150, evaluation_episodes=1), callbacks=[best])
    assert agentkit.load(tmp_path / "best", checkpoint="best").arrays.shape == (225, 3)


class Asking(core.Actor):
    """Asks the actor of the agent's own policy, and is saved as that one is."""

    def __init__(self, parts: core.ActorParts):
        assert parts.make_policy_actor is not None
        self.inner: Any = parts.make_policy_actor()
        self.select_action, self.observe_first = self.inner.select_action, self.inner.observe_first
        self.observe, self.update = self.inner.observe, self.inner.update
        self.save, self.restore = self.inner.save, self.inner.restore

    select_action = observe_first = observe = update = None  # type: ignore[assignment]


class AskingByHand(Asking):
    """Makes that actor itself."""

    def __init__(self, parts: core.ActorParts):
        policy = stateless_policy(lambda params, key, observation: np.int32(1))
        made = PolicyActor(policy, jax.random.PRNGKey(0), parts.variables, parts.adder)
        super().__init__(parts._replace(make_policy_actor=lambda: made))


class Unseeded:
    """Catch without `reseed`: its unfinished episodes are dropped where a run is resumed."""

    def __init__(self, seed: int):
        self.inner = Catch(seed=seed)

    def __getattr__(self, name: str) -> Any:
        if name in ("reseed", "save", "restore") or name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.inner, name)


@pytest.mark.parametrize(
    ("replay", "actor"),
    [
        ("in_process", Asking),
        ("in_process", AskingByHand),
        pytest.param("reverb", Asking, marks=pytest.mark.reverb),
    ],
)
def test_one_that_asks_the_policys_actor_is_resumed_where_an_episode_is_dropped(
    replay: str, actor: Any, tmp_path: Any
) -> None:
    config = dqn.Config(hidden_sizes=(4,), batch_size=4, min_replay_size=1_000)
    agent = dataclasses.replace(dqn.make_agent(config), make_actor=actor)
    planned = dataclasses.replace(plan(agent, 104, tmp_path / "run", replay=replay), environment=Unseeded)
    agentkit.run(planned)
    again = dataclasses.replace(planned, num_steps=120)
    assert agentkit.run(again, resume=True).steps == 120


@pytest.mark.full
def test_an_actor_of_the_policy_is_resumed_to_the_bit_inside_of_ones_own(tmp_path: Any) -> None:
    """In mid-episode its adder is saved once, by whom it is returned to or by itself."""
    agent, halves = AGENTS["another agent's policy"], []
    for name, make in (("stock", None), ("bare", shield), ("asking", Asking)):
        planned = plan(dataclasses.replace(agent, make_actor=make), 32, tmp_path / name)
        agentkit.run(planned)
        agentkit.run(dataclasses.replace(planned, num_steps=60), resume=True)
        found = checkpoint.read_latest(tmp_path / name / "checkpoints")
        assert found is not None
        halves.append(found.state["learner"]["state"])
    for other in halves[1:]:
        tree.map_structure(np.testing.assert_array_equal, dict(other), dict(halves[0]))


@pytest.mark.full
def test_an_own_learner_learns_from_data_alone_is_resumed_and_refuses_an_add_on(tmp_path: Any) -> None:
    episodes = offline_data.make_episodes(offline_data.CATCH, 60, [0.5])

    def config(name: str, num_updates: int, agent: Any = SAVED) -> agentkit.OfflineConfig:
        settings = {"evaluation_period": 400, "evaluation_episodes": 10, "run_directory": tmp_path / name}
        return agentkit.OfflineConfig(agent, episodes, num_updates, "agentkit:catch", **settings)

    result = agentkit.run_offline(config("whole", 800))
    assert result.updates == 800 and result.evaluations[-1]["episode_return"] > 0.5
    agentkit.run_offline(config("halves", 400))
    agentkit.run_offline(config("halves", 800), resume=True)
    np.testing.assert_array_equal(learned(tmp_path / "halves"), learned(tmp_path / "whole"))
    assert np.mean(agentkit.evaluate(tmp_path / "halves", num_episodes=5)["episode_return"]) > 0.5
    unused = dataclasses.replace(make_agent(), make_update=own_parts.Noisy(dqn.make_agent().make_update, 1.0))
    with pytest.raises(ConfigError, match=r"make_update: found tests\.experiment\.own_parts\.Noisy"):
        agentkit.run_offline(config("no", 10, unused))


@pytest.mark.parametrize("replay", ["in_process", lambda tables: InProcessReplay(tables, default_timeout=1.0)])
def test_many_environments_may_end_their_episodes_at_once(replay: Any) -> None:
    config = dataclasses.replace(CONFIG, n_step=9)  # The last step of 100 environments writes 900 items.
    agent = Agent(config, Transitions(config), make_actor=BatchedActor, make_learner=QLearner)
    assert agentkit.run(plan(agent, 2_000, None, num_envs=100, replay=replay)).updates > 1_000


def test_a_run_of_own_boxes_is_profiled() -> None:
    profile = experiment.Profile()
    agentkit.run(plan(SAVED, 150), profile=profile)
    assert profile.num_updates > 0


def test_replay_by_a_function_of_tables(tmp_path: Any) -> None:
    CLOSED.clear()
    agentkit.run(plan(make_agent(), 150, tmp_path / "run", replay=make_replay))
    assert "replay was made" in CLOSED
    assert experiment.read_config(tmp_path / "run").replay is make_replay
    assert agentkit.resume(tmp_path / "run", num_steps=160).steps == 160
    with pytest.raises(CheckpointError, match="replay="):
        agentkit.run(plan(make_agent(), 200, tmp_path / "run"), resume=True)
    with pytest.raises(SpecError, match=r"replay: expected a replay.Replay of the function, found 3"):
        agentkit.run(plan(make_agent(), 150, replay=lambda tables: 3))
    agentkit.run(plan(make_agent(), 120, tmp_path / "own", replay=lambda tables: InProcessReplay(tables, seed=1)))
    with pytest.raises(ConfigError, match="replay is a lambda"):
        agentkit.resume(tmp_path / "own")


@pytest.mark.full
def test_replay_by_a_function_of_tables_is_served_in_a_launched_program(tmp_path: Any) -> None:
    pytest.importorskip("zmq")
    CLOSED.clear()
    launched = plan(make_agent(), 600, tmp_path / "run", replay=make_replay)
    assert agentkit.launch(launched, num_actors=2, num_evaluators=0).updates > 0
    assert "replay was made" in (tmp_path / "run" / "nodes" / "replay-0.log").read_text() and not CLOSED
    assert experiment.read_config(tmp_path / "run").replay is make_replay
    assert agentkit.resume_launch(tmp_path / "run", num_steps=800).steps >= 800
    with pytest.raises(ProgramError, match="expected one of the function, found 3"):
        agentkit.launch(plan(make_agent(), 150, replay=make_none), num_evaluators=0)


class Actionless(core.Actor):
    """An actor that lacks what it declares."""

    select_action = None  # type: ignore[assignment]

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        pass

    def observe(self, action: Any, next_timestep: dm_env.TimeStep) -> None:
        pass

    def update(self, wait: bool = False) -> None:
        pass


class Unnamed(QLearner):
    """Publishes without a name."""

    def variables(self) -> Any:
        return {"q": self.q}


def act_in_one(parts: core.ActorParts) -> core.Actor:
    """Makes an actor of one environment, however many there are."""
    policy = stateless_policy(lambda params, key, observation: np.int32(1))
    return PolicyActor(policy, jax.random.PRNGKey(0), parts.variables, parts.adder)


def act_in_two(parts: core.ActorParts) -> core.Actor:
    """Makes an actor of two environments, though there is one."""
    policy = stateless_policy(lambda params, key, observation: np.int32(1))
    return BatchedPolicyActor(policy, jax.random.PRNGKey(0), parts.variables, parts.adder, num_envs=2)


def acting(choose: Callable[[], Any]) -> Any:
    """Returns the class of an actor that acts so."""

    class Acting(QActor):
        def select_action(self, observation: Any) -> Any:
            return choose()

    return Acting


WRONG = {
    "no actor": ({"make_actor": lambda parts: None}, {}, "make_actor: expected a core.Actor of it, found None"),
    "half an actor": ({"make_actor": lambda parts: Actionless()}, {}, "without select_action"),
    "an actor of one": (
        {"make_actor": act_in_one},
        {"num_envs": 2},
        r"make_actor: parts.num_envs is 2, found a PolicyActor. Return an actors.BatchedPolicyActor\(",
    ),
    "an actor of two": ({"make_actor": act_in_two}, {}, "num_envs is None, found a BatchedPolicyActor"),
    "a list": (
        {"make_actor": acting(lambda: [1])},
        {},
        r"make_actor: expected an action int32\[\] of Acting.select_action, found \[1\]. Return e.g. np.int32\(1\)",
    ),
    "no action": ({"make_actor": acting(lambda: None)}, {}, "of Acting.select_action, found None"),
    "an action of one": ({"make_actor": acting(lambda: 1)}, {"num_envs": 2}, r"an action int32\[2\] of .* found 1"),
    "another dtype": (
        {"make_actor": acting(lambda: 1), "experience": COMPOSED.experience},
        {},
        "make_actor: what Acting gave to its adder does not fit. step leaf 'action'",
    ),
    "a table": (
        {"experience": dataclasses.replace(COMPOSED.experience, tables=lambda spec: make_tables(spec)[0])},
        {},
        r"make_tables: expected a list of tables of it, found Table\(.* Return \[replay.Table\(...\)\]",
    ),
    "no table": (
        {"experience": dataclasses.replace(COMPOSED.experience, tables=lambda spec: None)},
        {},
        "make_tables: expected a list of tables of it, found None",
    ),
    "no learner": ({"make_learner": lambda parts: None}, {}, "make_learner: expected a core.Learner of it, found None"),
    "no policy": ({"make_learner": Unnamed}, {}, r"under 'policy', found \['q'\]"),
    "devices": ({}, {"devices": 1}, r"devices=1 \(--devices\): the agent's make_learner makes"),
    "init_from": ({}, {"init_from": "."}, r"init_from \(--init-from\): the agent's make_learner"),
    "ready": ({}, {"num_envs": 4, "workers": 2, "ready": 2}, r"ready=2 \(--ready\): the agent's make_actor"),
    "an add-on": (
        {"make_update": own_parts.Noisy(dqn.make_agent().make_update, 1.0)},
        {},
        r"make_update: found tests\.experiment\.own_parts\.Noisy, .* and a make_learner, which learns without it",
    ),
    "columns": ({"experience": COMPOSED.experience}, {"columns": ["t"]}, "columns: make_tables of your own knows"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_work_is_told_in_one_line(case: str) -> None:
    parts, settings, message = WRONG[case]
    with pytest.raises((ConfigError, SpecError), match=message) as caught:
        agentkit.run(plan(dataclasses.replace(make_agent(), **parts), 150, **settings))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_an_agents_own_update_may_stand_beside_a_learner_and_no_other(name: str) -> None:
    module = importlib.import_module(f"agentkit.agents.{name}")
    environment = {"dqn": "agentkit:catch", "sac": "agentkit:point_mass"}[name]

    def check(agent: Any) -> None:
        check_own_boxes(agentkit.ExperimentConfig(dataclasses.replace(agent, make_learner=QLearner), environment, 1))

    check(module.make_agent())
    own = {"make_loss" if name == "dqn" else "make_losses": lambda networks, config: None}
    for changed in (with_rnd(module.make_agent()), module.make_agent(**own)):
        with pytest.raises(ConfigError, match=r"make_update: found .* and a make_learner, which learns without it"):
            check(changed)


@pytest.mark.parametrize("box", ["make_actor", "make_learner"])
def test_an_add_on_keeps_the_boxes_of_the_agent_that_it_is_put_around(box: str) -> None:
    own: Any = {"make_actor": QActor, "make_learner": QLearner}[box]
    agent = dataclasses.replace(dqn.make_agent(dqn.Config(n_step=1)), **{box: own}, make_extras_spec=lambda spec: ())
    rewarded_of = functools.partial(with_normalization, observations=False, rewards=True)
    for changed in (with_rnd(agent), with_gail(agent, "demonstrations.hdf5"), rewarded_of(agent)):
        assert (getattr(changed, box), changed.make_extras_spec) == (getattr(agent, box), agent.make_extras_spec)
    if box == "make_actor":  # It acts, and no policy is put around what is none.
        without = dataclasses.replace(agent, make_policy=no_policy)
        assert with_rnd(without).make_policy is rewarded_of(without).make_policy is no_policy
    for show in (with_normalization, lambda agent: with_views(agent, {"last": View("observation", -1)})):
        if box == "make_actor":
            with pytest.raises(ConfigError, match="make_actor: an actor of the agent's own sees the environment's"):
                show(agent)
        else:
            assert show(agent).make_learner is agent.make_learner


def test_an_agent_says_at_once_which_box_it_lacks() -> None:
    config = ReplayConfig()
    with pytest.raises(ConfigError, match="make_actor: expected a function, or a make_policy with make_networks"):
        Agent(config, Transitions(config), make_learner=QLearner)
    with pytest.raises(ConfigError, match="make_learner: expected a function, or a make_update"):
        Agent(config, Transitions(config), make_actor=QActor)
    with pytest.raises(ConfigError, match=r"make_actor: expected a function core.ActorParts -> core.Actor, found 3"):
        Agent(config, Transitions(config), make_actor=3, make_learner=QLearner)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="acts by an actor of its own"):
        make_agent().make_policy(None)
    with pytest.raises(ConfigError, match="learns by a learner of its own"):
        make_agent().make_update(None)


def test_numbers_that_are_not_finite_end_the_run() -> None:
    with pytest.raises(NonFiniteError, match=r"variables of the learner are nan or inf: \['policy'\]"):
        agentkit.run(plan(dataclasses.replace(make_agent(), make_learner=NanLearner), 300))


def test_updates_and_their_rate_are_those_of_the_run_not_of_a_learner_inside(monkeypatch: Any) -> None:
    """One of agentkit's counts its own since its own last log, which nobody asks it for."""
    learner: Any = types.SimpleNamespace(step=int, save=dict, restore=dict)
    learner.variables = lambda: {"policy": np.zeros(1)}
    learner.metrics = lambda: {"loss": 0.5, "updates": 7, "updates_per_second": 9.0}
    monkeypatch.setattr(own_learner, "time", types.SimpleNamespace(monotonic=iter([0.0, 1.0, 2.0]).__next__))
    rows: list[dict[str, float]] = []
    ours = own_learner.OwnLearner(learner, num_updates=3, callbacks=LearnerCallbacks(log=rows.append, log_seconds=99))
    ours.step()
    ours.log()
    assert rows == [{"updates": 3.0, "updates_per_second": 1.5, "loss": 0.5}]


def test_stock_boxes_are_recorded_as_before() -> None:
    record = experiment.ExperimentConfig(
        dataclasses.replace(AGENTS["another agent's policy"], config={"own": 1}), "agentkit:catch", 1
    ).describe()
    assert record["agent_parts"].keys() == {"config", "experience", "make_networks", "make_policy", "make_update"}
    assert experiment.ExperimentConfig(dqn.make_agent(), "agentkit:catch", 1).describe()["agent_parts"] == {}


def test_a_planner_looks_ahead_in_copies_of_the_environment(tmp_path: Any) -> None:
    """Three steps before the end it sees the reward, with a table that knows nothing: four balls of five are caught."""
    agentkit.run(plan(planner.make_agent(), 18, tmp_path / "run"))
    assert not agentkit.load(tmp_path / "run").arrays.any()
    assert np.mean(agentkit.evaluate(tmp_path / "run", num_episodes=8)["episode_return"]) > 0.0
    with pytest.raises(AttributeError, match="'step'"):  # It says itself that there is nothing to look ahead in.
        agentkit.load(tmp_path / "run").select_action(np.eye(10, 5, dtype=np.float32))


@pytest.mark.full
def test_a_person_plays_and_the_agent_learns_and_is_judged() -> None:
    asked: list[str] = []

    def ask(board: str) -> str:
        asked.append(board)
        return "?" if len(asked) == 1 else "asd"[len(asked) % 3]

    agent = human_at_the_keyboard.make_agent(ask)
    result = agentkit.run(plan(agent, 90, evaluation_period=90, evaluation_episodes=1))
    assert len(asked) == 91 and asked[0].count("#") == 2
    assert result.updates > 0 and len(result.evaluations) == 1


@pytest.mark.full
def test_torch_learns_and_is_resumed(tmp_path: Any) -> None:
    pytest.importorskip("torch")
    assert FOLDER.is_dir()
    import torch_actor_critic

    agent = torch_actor_critic.make_agent()
    agentkit.run(plan(agent, 400, tmp_path / "halves"))
    result = agentkit.resume(tmp_path / "halves", num_steps=10_000)
    assert np.mean(agentkit.evaluate(result, num_episodes=50)["episode_return"]) > 0.3


def test_a_typed_script_that_gives_each_box_trains() -> None:
    assert agentkit.run(typed_boxes.experiment).updates > 0


@pytest.mark.full
def test_mypy_is_content_with_it() -> None:
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", typed_boxes.__file__]
    ended = subprocess.run(command, cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=250)
    assert ended.returncode == 0, ended.stdout
