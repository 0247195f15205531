"""Several seeds in one compiled program: each as it would be alone, with its own folder, saved and resumed."""

import dataclasses
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import agentkit
from agentkit import checkpoint, specs
from agentkit.actors.policy import Policy
from agentkit.agents import registry
from agentkit.agents.common.experience import (
    ReplayConfig,
    Segments,
    SegmentsConfig,
    Sequences,
    SequencesConfig,
    Transitions,
)
from agentkit.cli import main
from agentkit.envs.jax.cartpole import CartPole
from agentkit.errors import ConfigError
from agentkit.experiment.on_device import checks
from agentkit.experiment.on_device.acting import start, take_step
from agentkit.experiment.on_device.build import find_parts
from agentkit.experiment.on_device.checks import check_memory, memory_parts
from agentkit.experiment.on_device.loop import DeviceLoop, make_rounds
from agentkit.experiment.on_device.members import AXIS, Members
from agentkit.experiment.on_device.population import Population
from agentkit.experiment.on_device.replay.learning import ReplayLearning
from agentkit.experiment.on_device.replay.ring import insert
from agentkit.experiment.on_device.rounds import Progress
from agentkit.experiment.sweeps import run_sweep, together
from agentkit.experiment.sweeps.jobs import read_outcome
from agentkit.experiment.sweeps.plan import SweepPlan
from agentkit.experiment.sweeps.seeds import run_seeds
from agentkit.experiment.sweeps.space import Choice
from agentkit.experiment.sweeps.together import make_population
from agentkit.experiment.sweeps.varied_settings import check_traced, find_settings, with_settings
from agentkit.learning import Update, UpdateOutput
from agentkit.learning.finite import start_tally
from tests.experiment.on_device_runs import ROOT, Endless, assert_equal
from tests.experiment.test_on_device import plan as plan_of_segments
from tests.experiment.test_replay_on_device import plan as plan_of_replay

_REPLAY = {"replay_size": 40, "min_replay_size": 10, "batch_size": 4, "updates_per_step": 0.25}
EXPERIENCES = [
    Segments(SegmentsConfig(segment_length=5, batch_size=2), num_envs=2),
    Transitions(ReplayConfig(n_step=2, **_REPLAY)),
    Sequences(SequencesConfig(sequence_length=6, sequence_period=3, prioritized=True, **_REPLAY)),
]


class Learner:
    """All that a population asks of one."""

    def __init__(self, state):
        self.state, self.tally = state, start_tally(0)


def summing_update(with_priorities):
    """Adds up what it is shown: it compiles at once, and each item that it is drawn shows in the sum."""

    def update(total, batch):
        seen = jnp.sum(batch.data.reward, axis=tuple(range(1, batch.data.reward.ndim))) + batch.info.times_sampled
        priorities = 0.1 + jnp.abs(seen) if with_priorities else None
        return 0.9 * total + jnp.mean(seen), UpdateOutput({"seen": jnp.mean(seen)}, priorities)

    return Update(lambda key: jax.random.uniform(key), update, lambda total: {"policy": total})


def random_policy():
    def act(params, key, observation, state):
        return jax.random.randint(key, (), 0, 2, jnp.int32), state + 1, jnp.float32(state)

    return Policy(act, lambda key: jnp.int32(0), extras_spec=specs.Array((), np.float32))


@pytest.mark.one_case
@pytest.mark.parametrize("experience", EXPERIENCES, ids=lambda value: type(value).__name__)
def test_a_member_comes_out_as_it_would_alone(experience):
    """Episodes end at other steps in each member, updates are due at other steps, and one waits at a target of its own.

    In the landing tier, since it alone notices a member that changes while it waits for others.
    """
    update, policy = summing_update(getattr(experience.config, "prioritized", False)), random_policy()

    def make_loop(members):
        return DeviceLoop(make_rounds(CartPole(max_steps=30), policy, update, experience, 2, members), members)

    population = Population(lambda _: make_loop(Members(True)), {}, [jax.random.PRNGKey(i) for i in range(3)])
    population.start()
    states, targets = [population.state_of(i) for i in range(3)], (150, 70, 150)
    learners, rounds = [Learner(jnp.float32(i)) for i in range(3)], [0, 0, 0]
    for _ in range(8):
        population.run(learners, targets)
        for i, learner in enumerate(learners):
            ran = population.ran(i)
            rounds[i] += len(ran.report.num_steps)
            learner.state, learner.tally = ran.training, ran.tally
    loop, seen = make_loop(Members()), []
    for i, target in enumerate(targets):
        alone = loop.run(jnp.float32(i), states[i], start_tally(0), target, 200)
        member = population.state_of(i)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), member, alone.state)
        np.testing.assert_allclose(learners[i].state, alone.training, rtol=1e-5)
        assert_equal(learners[i].tally, alone.tally)
        assert rounds[i] == int(alone.num_rounds)
        assert target <= int(member.acting.num_steps) < target + 10 and int(alone.tally[0]) > 3
        seen.append((int(member.acting.num_episodes), round(float(alone.training), 3)))
    assert len(set(seen)) == 3 and seen[0][0] > 4


@pytest.mark.parametrize("metrics", [{}, {"loss": 1.0}], ids=["without-metrics", "with"])
def test_a_member_that_waits_keeps_all_that_an_update_changes(metrics):
    """Of two members the first has updates due, and gives its items priorities that are no business of the second's."""

    def update(training, batch):
        seen = {name: jnp.float32(value) for name, value in metrics.items()}
        return training + 1.0, UpdateOutput(seen, jnp.full(batch.data.reward.shape[0], 7.0))

    config = ReplayConfig(prioritized=True, replay_size=8, min_replay_size=4, batch_size=2, updates_per_step=1.0)
    own = Update(lambda key: jnp.float32(0), update, lambda total: {"policy": ()})
    learning = ReplayLearning(own, Transitions(config), 1, Members(True))
    policy = random_policy()
    acting = jax.eval_shape(lambda key: start(Endless(), policy, 1, key), jax.random.PRNGKey(0))
    reset = jax.vmap(Endless().reset)
    row = jax.eval_shape(lambda acting: take_step(Endless(), policy, (), acting, reset)[1], acting)

    def run(key, count):
        store = learning.start(row, acting.timestep.observation, key)
        items = jax.tree.map(jnp.zeros_like, jax.tree.map(lambda leaf: leaf[:6], store.ring.items))
        store = store._replace(ring=insert(store.ring, items, jnp.arange(6) < count, config.priority_exponent))
        found = {name: jnp.float32(value) for name, value in metrics.items()}
        before = Progress(jnp.float32(0), store, start_tally(0), jax.tree.map(jnp.zeros_like, found))
        return before, learning.learn(before, jnp.int32(6))

    keys = jax.random.split(jax.random.PRNGKey(0), 2)
    before, after = jax.jit(jax.vmap(run, axis_name=AXIS))(keys, jnp.array([5, 2]))
    assert after.tally[:, 0].tolist() == [3, 0] and after.training.tolist() == [3.0, 0.0]
    assert after.store.ring.marks.largest.tolist() == [7.0, 1.0]
    assert_equal(*(jax.tree.map(lambda leaf: leaf[1], each) for each in (before, after)))


def test_members_need_room_for_a_copy_of_one(monkeypatch):
    """In the landing tier, since it alone notices that a group that fills the memory is trained and cannot be saved."""
    update, policy = summing_update(False), random_policy()
    loop = DeviceLoop(make_rounds(Endless(), policy, update, EXPERIENCES[1], 2))
    one = loop.held(jax.random.PRNGKey(0))
    two = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), one)
    there = 2 * sum(part.num_bytes for part in memory_parts(one))
    monkeypatch.setattr(checks.os, "sysconf", lambda name: there if name == "SC_PAGE_SIZE" else 1)
    assert "has room for" in check_memory(one)
    with pytest.raises(ConfigError, match=r"a copy of one run while it is saved .* or train fewer seeds together"):
        check_memory(two, num_runs=2)


def states_of(folder):
    found = checkpoint.read_latest(folder / "checkpoints")
    return found.step, found.state["learner"]["state"] | {f"a{key}": x for key, x in found.state["acting"].items()}


_CARTPOLE = {"environment": "jax:cartpole", "num_steps": 300, "checkpoint_period": 90}
_DQN = {"n_step": 3, "updates_per_step": 0.25}


@pytest.mark.full
@pytest.mark.parametrize(
    ("plan", "settings"),
    [
        (plan_of_segments, {"name": "ppo", "agent_settings": {"num_minibatches": 1}}),
        (plan_of_replay, {"agent_settings": _DQN}),
        (plan_of_replay, {"name": "r2d2", "agent_settings": {"updates_per_step": 0.25}}),
    ],
    ids=["ppo", "dqn", "r2d2"],
)
def test_each_seed_is_trained_as_it_would_be_alone(tmp_path, plan, settings):
    settings = _CARTPOLE | settings | {"evaluation_period": 150, "evaluation_episodes": 2}
    results = run_seeds(plan(run_directory=tmp_path / "group", **settings), (0, 5))
    assert [(result.seed, result.state, len(result.evaluations)) for result in results] == [
        (0, "finished", 2),
        (5, "finished", 2),
    ]
    for seed in (0, 5):
        agentkit.run(plan(run_directory=tmp_path / "alone", seed=seed, **settings))
        folder = tmp_path / "group" / f"seed{seed}"
        (step, member), (alone_step, alone) = states_of(folder), states_of(tmp_path / "alone")
        assert step == alone_step and member.keys() == alone.keys()
        for path, array in alone.items():
            np.testing.assert_allclose(member[path], array, rtol=1e-5, atol=1e-5, err_msg=path)
        for log in ("train", "evaluation"):
            ours, theirs = ((each / "logs" / f"{log}.csv").read_text() for each in (folder, tmp_path / "alone"))
            assert [line.rsplit(",", 1)[0] for line in ours.splitlines()] == [
                line.rsplit(",", 1)[0] for line in theirs.splitlines()
            ]
        agentkit.run(plan(run_directory=folder, seed=seed, **(settings | {"num_steps": 400})), resume=True)
        assert states_of(folder)[0] >= 400
        (tmp_path / "alone").rename(tmp_path / f"alone{seed}")


_KILLED = """
import os, pathlib, sys
sys.path.insert(0, {root!r})
from agentkit.experiment.on_device.population import Population
from agentkit.experiment.sweeps import run_sweep, together
from agentkit.experiment.sweeps.plan import SweepPlan
from agentkit.experiment.sweeps.seeds import run_seeds
from agentkit.experiment.sweeps.space import Choice
from agentkit.experiment.sweeps.together import make_population
from agentkit.experiment.sweeps.varied_settings import check_traced, find_settings, with_settings
from tests.experiment.test_populations import _CARTPOLE, _DQN, plan_of_replay
run, done = Population.run, []
def deadly(self, learners, targets):
    run(self, learners, targets)
    done.append(min(targets))
    if done[-1] > 200:
        os.kill(os.getpid(), 9)
Population.run = deadly
folder = pathlib.Path({folder!r})
run_seeds(plan_of_replay(run_directory=folder, agent_settings=_DQN, **_CARTPOLE), range(2))
"""


@pytest.mark.full
def test_a_group_that_is_killed_between_chunks_resumes_with_the_same_bits(tmp_path):
    code = _KILLED.format(root=str(ROOT), folder=str(tmp_path / "killed"))
    assert subprocess.run([sys.executable, "-c", code], timeout=280).returncode == -9
    assert all(90 <= states_of(tmp_path / "killed" / f"seed{seed}")[0] < 300 for seed in range(2))
    for name in ("killed", "whole"):
        plan = plan_of_replay(run_directory=tmp_path / name, agent_settings=_DQN, **_CARTPOLE)
        results = run_seeds(plan, range(2), resume=name == "killed")
        assert [result.state for result in results] == ["finished", "finished"]
    for seed in range(2):
        killed, whole = (states_of(tmp_path / name / f"seed{seed}") for name in ("killed", "whole"))
        assert killed[0] == whole[0]
        assert_equal(killed[1], whole[1])


@dataclasses.dataclass(frozen=True)
class SometimesNan(Endless):
    """Gives NaN in about half of all runs."""

    def reset(self, key):
        state, timestep = super().reset(key)
        bad = jax.random.bernoulli(key, 0.02)
        return state, timestep._replace(observation=jnp.where(bad, jnp.nan, timestep.observation))


@pytest.mark.full
def test_a_seed_that_fails_leaves_the_others_and_says_why(tmp_path):
    plan = plan_of_segments(SometimesNan(), run_directory=tmp_path, name="reinforce", num_steps=100)
    results = run_seeds(plan, range(6), check=False)
    states = [result.state for result in results]
    assert set(states) == {"finished", "failed"}
    failed = results[states.index("failed")]
    assert "NaN or infinite" in failed.error and read_outcome(failed.run_directory).state == "failed"
    assert "NonFiniteError" in (failed.run_directory / "output.log").read_text()
    assert all(result.steps >= 100 for result in results if result.state == "finished")


@pytest.mark.full
def test_the_command_trains_seeds_together_and_what_reads_runs_reads_them(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)  # Where a comparison is drawn.
    words = ["train", "a2c", "--env", "jax:catch", "--steps", "200", "--on-device", "--num-envs", "4"]
    words += ["--set", "hidden_sizes=4", "--set", "segment_length=5", "--seeds", "0:2", "--eval-every", "100"]
    assert main([*words, "--eval-episodes", "2", "--run-directory", str(tmp_path / "group")]) == 0
    runs = [str(tmp_path / "group" / f"seed{seed}") for seed in (0, 1)]
    assert main(["evaluate", runs[1], "--episodes", "2"]) == 0
    assert main(["compare", *runs]) == 0
    assert main(["plot", *runs, "--out", str(tmp_path / "curve.png")]) == 0
    assert main(["watch", runs[1], "--episodes", "1", "--out", str(tmp_path / "watch.gif")]) == 0
    assert main(["export-policy", runs[1]]) == 0 and (tmp_path / "group" / "seed1" / "policy" / "policy.npz").is_file()
    group = str(tmp_path / "group")
    assert main(["compare", group]) == 0 and main(["plot", group, "--out", str(tmp_path / "group.png")]) == 0
    capsys.readouterr()
    for command in ("evaluate", "watch", "export-policy"):
        assert main([command, group]) == 2
        assert f"Runs are in it, such as {runs[0]}." in capsys.readouterr().err
    with pytest.raises(ConfigError, match=f"Runs are in it, such as {re.escape(runs[0])}"):
        agentkit.load(group)
    assert main(["train", "--resume", str(tmp_path / "group"), "--steps", "300"]) == 0
    folders = [tmp_path / "group" / f"seed{seed}" for seed in (0, 1)]
    assert all(checkpoint.read_latest(folder / "checkpoints").step >= 300 for folder in folders)
    assert all("KeepBest" in (folder / "config.json").read_text() for folder in folders)
    capsys.readouterr()


@pytest.mark.parametrize(
    ("settings", "options", "message"),
    [
        ({}, {"jobs": 2}, "jobs=2 .* all runs train together"),
        ({"loggers": ["wandb"]}, {}, "W&B has one run in a process"),
        (
            {"agent_settings": {"replay_size": 2**28, "n_step": 1}, "num_steps": 2**28},
            {"seeds": range(4)},
            r"the replay of 1,073,741,824 items .* Lower replay_size .* train fewer seeds together",
        ),
    ],
    ids=["jobs", "wandb", "memory"],
)
def test_what_seeds_cannot_do_together_is_refused_before_there_is_a_folder(tmp_path, settings, options, message):
    with pytest.raises(ConfigError, match=message) as error:
        run_seeds(plan_of_replay(run_directory=tmp_path / "group", **settings), **({"seeds": range(2)} | options))
    assert "\n" not in str(error.value) and not (tmp_path / "group").exists()


def plan_of_trial(parameters, **settings):
    settings = _CARTPOLE | {"evaluation_period": 300, "evaluation_episodes": 1} | settings
    return plan_of_replay(agent_settings=_DQN | dict(parameters), **settings)


@pytest.mark.full
def test_a_grid_trains_in_one_program_and_each_trial_is_as_it_would_be_alone(tmp_path, monkeypatch):
    made = []
    monkeypatch.setattr(together, "Population", lambda *parts: made.append(Population(*parts)) or made[-1])
    space = {"learning_rate": Choice((1e-3, 1e-2)), "target_update_period": Choice((5, 50))}
    plan = SweepPlan(space, plan_of_trial, "grid", seeds=(0, 1), on_device=True)
    result = run_sweep(plan, tmp_path / "sweep")
    assert [record.state for record in result.trials] == ["complete"] * 4
    assert len(made) == 2  # One is for the check before there is a folder, and computes nothing.
    record = result.trials[2]
    agentkit.run(plan_of_trial(record.parameters, seed=1, run_directory=tmp_path / "alone"))
    folder = next((tmp_path / "sweep").glob(f"*{record.number}*/seed1"))
    (step, member), (alone_step, alone) = states_of(folder), states_of(tmp_path / "alone")
    assert step == alone_step
    for path, array in alone.items():
        np.testing.assert_allclose(member[path], array, rtol=1e-5, atol=1e-5, err_msg=path)
    with pytest.raises(ConfigError, match=r"several values of n_step in one program: it shapes the program"):
        run_sweep(
            SweepPlan({"n_step": Choice((1, 2))}, plan_of_trial, "grid", on_device=True),
            tmp_path / "other",
        )
    assert not (tmp_path / "other").exists()


def test_settings_in_which_runs_differ_are_found_and_others_refused():
    first = plan_of_trial({"learning_rate": 1e-3, "target_update_period": 5})
    other = plan_of_trial({"learning_rate": 1e-2, "target_update_period": 6}, seed=3)
    found = find_settings([first, other])
    assert {name: (values.tolist(), values.dtype) for name, values in found.items()} == {
        "learning_rate": (np.float32([1e-3, 1e-2]).tolist(), np.float32),
        "target_update_period": ([5, 6], np.int32),
    }
    again = with_settings(first.agent, {"learning_rate": 1e-2, "target_update_period": 6})
    assert again == other.agent and again.experience.config is again.config and first.agent != again
    own = dataclasses.replace(first.agent, make_policy=random_policy)
    for changed, what in (
        (plan_of_trial({}, num_envs=2), "num_envs"),
        (plan_of_trial({"learning_rate": 1e-3, "target_update_period": 5, "duelling": True}), "duelling"),
        (plan_of_trial({}, name="munchausen_dqn"), "agent"),
        (dataclasses.replace(first, agent=own), "the agent's parts"),
    ):
        with pytest.raises(ConfigError, match=f"does not go with several values of {what}") as error:
            find_settings([first, changed])
        assert "\n" not in str(error.value)


def test_only_a_setting_that_shapes_the_program_is_blamed():
    """Not the one before it, and none for a mistake of the program's own."""
    two = {"reward": np.float32([1.0, 2.0]), "length": np.array([3, 4], np.int32)}

    def population(update):
        def make_loop(settings):
            experience = Segments(SegmentsConfig(segment_length=settings["length"], batch_size=2), num_envs=2)
            members = Members(are_many=True)
            return DeviceLoop(
                make_rounds(Endless(reward=settings["reward"]), random_policy(), update, experience, 2, members),
                members,
            )

        return Population(make_loop, two, [jax.random.PRNGKey(0)] * 2)

    with pytest.raises(ConfigError, match="several values of length in one program: it shapes"):
        check_traced(two, population(summing_update(False)).trace)
    with pytest.raises(TypeError, match="a mistake of the update's"):
        check_traced(two, population(summing_update(False)._replace(update=_mistaken)).trace)


def _mistaken(training, batch):
    raise TypeError("a mistake of the update's")


NUMBERS = {"epsilon": 0.1, "max_grad_norm": 1.0, "importance_exponent": 0.4}  # Schedules and None by default.
AGENTS = {"ppo": plan_of_segments, "dqn": plan_of_replay, "sac": plan_of_replay, "td3": plan_of_replay}


def settings_that_may_differ(name):
    """The numeric settings of an agent of which one program can have several values, and the others."""
    environment = "jax:catch" if name == "dqn" else "jax:point_mass"  # Settings of continuous actions count there only.
    known = {field.name for field in dataclasses.fields(registry.config_class(name))}
    numbers = {field: value for field, value in NUMBERS.items() if field in known}
    minibatches = {"num_minibatches": 1} if name == "ppo" else {}
    experiment = AGENTS[name](environment, name=name, agent_settings=numbers | minibatches)
    population, _, _ = make_population(find_parts(experiment), [experiment])
    found = {True: set(), False: set()}
    for field in dataclasses.fields(experiment.agent.config):
        value = getattr(experiment.agent.config, field.name)
        if type(value) not in (int, float):
            continue
        values = np.array([value, value + 1], np.float32 if type(value) is float else np.int32)
        try:
            check_traced({field.name: values}, population.trace)
            found[True].add(field.name)
        except ConfigError:
            found[False].add(field.name)
    return found


@pytest.mark.full
@pytest.mark.parametrize("name", AGENTS)
def test_the_page_lists_the_settings_that_may_differ(name):
    page = (ROOT / "docs" / "on_device.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
    differ, shape = (set(re.findall(r"`(\w+)`", cell)) for cell in row.split("|")[2:4])
    assert settings_that_may_differ(name) == {True: differ, False: shape}
