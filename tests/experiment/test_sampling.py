"""`agentkit.sample`: rows and episodes of a policy, without a learner."""

import contextlib
import dataclasses
import os
import pathlib
import signal
import types
from concurrent.futures import ThreadPoolExecutor

import dm_env
import jax
import numpy as np
import pytest
import tree

import agentkit
from agentkit import specs
from agentkit.agents import dqn, ppo
from agentkit.cli import main
from agentkit.envs.base import Environment
from agentkit.errors import ConfigError, SpecError, UnknownNameError
from agentkit.experiment import record_episodes
from agentkit.experiment.config.evaluation_plan import evaluation_plan
from agentkit.experiment.evaluation import judging, sampler_process
from agentkit.experiment.evaluation.remote_sampler import SamplerProcessError
from agentkit.experiment.policies.agent_parts import make_parts
from agentkit.experiment.policies.loaded_policy import LoadedPolicy
from agentkit.specs import make_environment_spec

AGENT = ppo.make_agent(ppo.Config(hidden_sizes=(4,), segment_length=8, num_minibatches=1))


class Lengths(Environment):
    """Has episodes of a length that its seed draws, 1 to 9; even ones terminate, and odd ones are truncated."""

    def _start(self):
        self._length = int(self._rng.integers(1, 10))
        self._time = 0
        return self._observe()

    def _observe(self):
        return {"time": np.array([self._time], np.float32), "length": np.array(self._length, np.float32)}

    def _advance(self, action):
        self._time += 1
        return self._observe(), 10.0 * self._time + int(action), False

    def step(self, action):
        timestep = super().step(action)
        if timestep.first() or self._time < self._length:
            return timestep
        self._reset_next_step = True
        return timestep._replace(step_type=dm_env.StepType.LAST, discount=float(self._length % 2))

    def observation_spec(self):
        return {"time": specs.Array((1,), np.float32), "length": specs.Array((), np.float32)}

    def action_spec(self):
        return specs.DiscreteArray(3)


@pytest.fixture(scope="module")
def experiment():
    return agentkit.ExperimentConfig(AGENT, Lengths, num_steps=16, evaluation_period=0)


def check(samples):
    """Checks that rows say of each other what an episode is."""
    for number, episode in enumerate(samples.by_episode()):
        length = len(episode.t)
        assert set(episode.episode) == {number} and len(set(episode.environment)) == 1
        np.testing.assert_array_equal(episode.t, np.arange(length))
        np.testing.assert_array_equal(episode.observation["time"][:, 0], episode.t)
        np.testing.assert_array_equal(episode.next_observation["time"][:, 0], episode.t + 1)
        np.testing.assert_array_equal(episode.reward, 10.0 * (episode.t + 1) + episode.action)
        whole = episode.observation["length"]
        at_end = episode.t + 1 == whole
        np.testing.assert_array_equal(episode.termination, at_end & (whole % 2 == 0))
        np.testing.assert_array_equal(episode.truncation, at_end & (whole % 2 == 1))


@pytest.mark.full
def test_steps_are_counted_exactly_and_repeat(experiment):
    samples = agentkit.sample(experiment, num_steps=50, num_envs=3, explore=True)
    assert samples.observation["time"].shape == (50, 1)
    check(samples)
    assert set(samples.environment) == {0, 1, 2}
    again, other = (agentkit.sample(experiment, num_steps=50, num_envs=3, explore=True, seed=s) for s in (0, 1))
    for name in samples._fields:
        np.testing.assert_equal(getattr(again, name), getattr(samples, name))
    assert not np.array_equal(samples.action, other.action)
    log_prob = samples.extras.log_prob
    assert log_prob.shape == (50,) and np.all(log_prob < 0)
    alone = agentkit.sample(experiment, num_steps=25)
    check(alone)
    assert len(alone.t) == 25 and alone.extras == ()  # The mode has no probability.


def test_episodes_are_whole_and_the_short_ones_are_not_favoured(experiment):
    samples = agentkit.sample(experiment, num_episodes=8, num_envs=3, explore=True)
    check(samples)
    apart = samples.by_episode()
    assert len(apart) == 8 and all(each.termination[-1] or each.truncation[-1] for each in apart)
    assert [sum(each.environment[0] == i for each in apart) for i in range(3)] == [3, 3, 2]


class Endless(Lengths):
    """Never ends an episode."""

    def step(self, action):
        return super(Lengths, self).step(action)


@pytest.mark.full
def test_episodes_that_never_end_are_cut_off_and_that_is_said(tmp_path, capsys):
    run = tmp_path / "run"
    agentkit.run(agentkit.ExperimentConfig(AGENT, Endless, num_steps=16, evaluation_period=0, run_directory=run))
    for num_envs in (None, 2):
        with pytest.warns(RuntimeWarning, match=r"episodes? (was|were) cut off after 5 steps"):
            samples = agentkit.sample(run, num_episodes=2, num_envs=num_envs, evaluation_max_steps=5)
        assert samples.t.tolist() == [0, 1, 2, 3, 4] * 2
        assert samples.truncation.tolist() == [False, False, False, False, True] * 2
    with pytest.warns(RuntimeWarning, match="3 episodes were cut off after 1,000 steps, as truncated"):
        episodes = record_episodes(run, 3).episodes
    assert [(len(episode.rewards), bool(episode.truncations[-1])) for episode in episodes] == [(1_000, True)] * 3
    with pytest.warns(RuntimeWarning, match="2 episodes were cut off after 7 steps"):
        words = ["--episodes", "2", "--max-steps", "7", "--import", __name__]
        assert main(["export", str(run), "-o", str(tmp_path / "data.hdf5"), *words]) == 0
    assert "14 steps" in capsys.readouterr().out
    assert main(["export", str(run), "-o", str(tmp_path / "other.hdf5"), "--replay", "--max-steps", "7"]) == 2


def test_episodes_of_a_policy_may_take_as_long_as_its_run_and_those_of_a_file_the_longest_there_is():
    run = agentkit.ExperimentConfig(AGENT, Endless, num_steps=2_000)
    of_run = types.SimpleNamespace(origin=types.SimpleNamespace(experiment=run))
    of_file = types.SimpleNamespace(origin=None, agent=AGENT)
    other = {"environment": Lengths}
    for policy, options, limit in ((of_run, {}, 2_000), (of_run, other, 2_000), (of_file, other, 100_000)):
        assert evaluation_plan(judging.experiment_of_policy(policy, options)).max_steps == limit
        options = {**options, "evaluation_max_steps": 7}
        assert evaluation_plan(judging.experiment_of_policy(policy, options)).max_steps == 7


@pytest.mark.full
def test_evaluations_and_samples_of_a_policy_are_cut_off_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(judging, "LONGEST_LIMIT", 1_100)
    policy = agentkit.run(agentkit.ExperimentConfig(AGENT, Endless, num_steps=16, evaluation_period=0)).policy
    policy.save(tmp_path / "policy.npz")
    for played, options, limit in (
        (policy, {}, 1_000),
        (policy, {"environment": Endless}, 1_000),
        (agentkit.load(tmp_path / "policy.npz"), {"environment": Endless}, 1_100),
        (agentkit.load(tmp_path / "policy.npz"), {"environment": Endless, "evaluation_max_steps": 7}, 7),
    ):
        with pytest.warns(RuntimeWarning, match=f"cut off after {limit:,} steps"):
            assert len(agentkit.sample(played, num_episodes=1, **options).t) == limit
        assert agentkit.evaluate(played, 1, **options)["episode_length"] == [limit]


@pytest.mark.full
def test_a_run_its_policy_and_its_file_play_the_same(tmp_path):
    folder = tmp_path / "run"
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,), min_replay_size=10, batch_size=4))
    made = agentkit.ExperimentConfig(agent, "agentkit:catch", num_steps=30, run_directory=folder, evaluation_period=0)
    policy = agentkit.run(made).policy
    policy.save(tmp_path / "policy.npz")
    of_run = agentkit.sample(folder, num_episodes=2)
    assert of_run.observation.shape[0] == len(of_run.t) == 18
    others = [
        agentkit.sample(made, num_episodes=2),
        agentkit.sample(policy, num_episodes=2),
        agentkit.sample(policy, num_episodes=2, environment="agentkit:catch"),
        agentkit.sample(tmp_path / "policy.npz", num_episodes=2, environment="agentkit:catch"),
    ]
    for given in (policy, folder):
        with agentkit.Sampler(given, where="process") as sampler:
            others.append(sampler.sample(num_episodes=2))
    for other in others:
        np.testing.assert_array_equal(other.action, of_run.action)
        np.testing.assert_array_equal(other.observation, of_run.observation)
    with pytest.raises(ConfigError, match="no environment to play in"):
        agentkit.sample(agentkit.load(tmp_path / "policy.npz"), num_steps=2)
    with pytest.raises(ConfigError, match="acts as it was loaded"):
        agentkit.sample(policy, num_steps=2, environment="agentkit:catch", explore=True)
    with pytest.raises(SpecError, match="trained with observations"):
        agentkit.sample(policy, num_steps=2, environment="agentkit:catch", environment_settings={"rows": 7})


def test_a_checkpoint_of_what_has_none_and_a_field_of_no_use_are_refused(experiment, tmp_path):
    (tmp_path / "policy.npz").touch()
    for source in (experiment, object.__new__(LoadedPolicy), tmp_path / "policy.npz"):
        with pytest.raises(ConfigError, match="no checkpoints: leave out checkpoint='best'"):
            agentkit.sample(source, num_steps=3, checkpoint="best")
    for name, value in (("video_period", 5), ("log_seconds", 1.0), ("progress", False)):
        with pytest.raises(ConfigError, match=f"{name}: agentkit.sample has no use for it"):
            agentkit.sample(experiment, num_steps=3, **{name: value})


@pytest.mark.parametrize(
    "number", [{}, {"num_steps": 2, "num_episodes": 1}, {"num_steps": 0}, {"num_episodes": True}, {"num_steps": 2.0}]
)
def test_impossible_numbers_are_refused(experiment, number):
    with pytest.raises(ConfigError, match=r"either num_steps=N or num_episodes=N|whole number of (steps|episodes)"):
        agentkit.sample(experiment, **number)


@pytest.mark.full
def test_a_sampler_goes_on_where_it_has_stopped(experiment):
    with agentkit.Sampler(experiment, num_envs=3, explore=True) as sampler:
        parts = [sampler.sample(num_steps=steps) for steps in (7, 1, 12)]
        again = sampler.sample(num_episodes=3)
        check(again)
    whole = agentkit.sample(experiment, num_steps=20, num_envs=3, explore=True)

    def in_order(samples):
        """Returns which step each environment took, in its order."""
        rows = np.concatenate([np.stack([s.environment, s.t, s.action]) for s in samples], axis=1)
        return [rows[:, rows[0] == i].tolist() for i in range(3)]

    assert in_order(parts) == in_order([whole]) and len(parts[0].t) == 7


@pytest.mark.full
def test_a_sampler_takes_new_parameters_and_is_the_same_in_a_process_of_its_own(experiment):
    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,)))
    made, other = (agentkit.ExperimentConfig(agent, "agentkit:catch", 10, seed=seed) for seed in (0, 3))
    policy = agentkit.sample(made, num_episodes=6)
    parts = make_parts(agent, make_environment_spec(other.make_environment(3)))
    new = parts.compiled_update.variables(parts.compiled_update.init(jax.random.PRNGKey(3)))["policy"]
    found = {}
    for where in ("here", "process"):
        with agentkit.Sampler(made, where=where) as sampler:
            first = sampler.sample(num_episodes=6)
            np.testing.assert_array_equal(first.action, policy.action)
            with pytest.raises(SpecError, match="set_parameters: expected the structure"):
                sampler.set_parameters({"w": np.zeros(2)})
            sampler.set_parameters(new)
            found[where] = sampler.sample(num_episodes=6)
            process = None if where == "here" else sampler._worker.channel._process
        assert not np.array_equal(found[where].action, first.action)
    assert process.wait(5) == 0
    for name in ("observation", "action", "reward", "t"):
        np.testing.assert_array_equal(getattr(found["here"], name), getattr(found["process"], name))


@pytest.mark.full
def test_samplers_in_processes_play_at_the_same_time_and_their_batches_are_joined(experiment):
    with contextlib.ExitStack() as stack:
        samplers = [stack.enter_context(agentkit.Sampler(experiment, seed=i, where="process")) for i in range(2)]
        threads = stack.enter_context(ThreadPoolExecutor())
        batches = list(threads.map(lambda sampler: sampler.sample(num_steps=20), samplers))
    joined = tree.map_structure(lambda *leaves: np.concatenate(leaves), *batches)
    assert joined.action.shape == (40,) and not np.array_equal(
        batches[0].observation["length"], batches[1].observation["length"]
    )
    np.testing.assert_array_equal(batches[1].action, agentkit.sample(experiment, num_steps=20, seed=1).action)


class Failing(Lengths):
    """Raises in its first step."""

    def step(self, action):
        raise RuntimeError("no power")


@pytest.mark.full
def test_what_goes_wrong_in_a_process_is_said_here(experiment):
    failing = dataclasses.replace(experiment, environment=Failing)
    with agentkit.Sampler(failing, where="process") as sampler:
        with pytest.raises(SamplerProcessError, match="raised RuntimeError: no power"):
            sampler.sample(num_steps=1)
        os.kill(sampler._worker.channel.process_id, signal.SIGKILL)
        with pytest.raises(SamplerProcessError, match=r"was killed by SIGKILL\. Make the sampler anew"):
            sampler.sample(num_steps=1)
    with pytest.raises(ConfigError, match="a run folder"):
        agentkit.Sampler("nowhere", where="process")


ECHO = """
import sys
from multiprocessing.connection import Connection

with Connection(int(sys.argv[2])) as connection:
    try:
        while True:
            connection.send_bytes(connection.recv_bytes())
    except (EOFError, OSError):
        pass
"""


def test_after_an_interrupted_question_none_gets_its_answer(monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(sampler_process, "_CODE", ECHO)
    with contextlib.closing(sampler_process.ProcessChannel()) as channel:
        assert channel.ask(b"first") == b"first"
        with monkeypatch.context() as patch:
            patch.setattr(channel._connection, "recv_bytes", interrupt)
            with pytest.raises(KeyboardInterrupt):
                channel.ask(b"second")
        with pytest.raises(SamplerProcessError, match=r"left in the middle of an answer.* Make the sampler anew\."):
            channel.ask(b"third")


@pytest.mark.full
@pytest.mark.ray
def test_samplers_on_ray_give_what_one_here_gives_and_say_how_they_end(experiment):
    """Two of them at the same time, in one private Ray, which the last one ends."""
    import ray

    agent = dqn.make_agent(dqn.Config(hidden_sizes=(4,)))
    made = agentkit.ExperimentConfig(agent, "agentkit:catch", 10)
    new = jax.tree.map(lambda x: x + 1.0, agentkit.run(dataclasses.replace(made, evaluation_period=0)).policy.arrays)
    with agentkit.Sampler(made, num_envs=2, explore=True) as here:
        expected = [here.sample(num_steps=7), here.sample(num_steps=5)]
        here.set_parameters(new)
        expected.append(here.sample(num_episodes=3))
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(agentkit.Sampler(made, num_envs=2, explore=True, where="ray"))
        second = stack.enter_context(agentkit.Sampler(experiment, where="ray"))
        found = [first.sample(num_steps=7), first.sample(num_steps=5)]
        with pytest.raises(SpecError, match="set_parameters: expected the structure"):
            first.set_parameters({"w": np.zeros(2)})
        first.set_parameters(new)
        found.append(first.sample(num_episodes=3))
        for one, other in zip(expected, found, strict=True):
            tree.map_structure(np.testing.assert_array_equal, one, other)
        os.kill(first._worker.channel.process_id, signal.SIGKILL)
        with pytest.raises(SamplerProcessError, match=r"Ray actor has ended: .* Make the sampler anew\."):
            first.sample(num_steps=1)
        check(second.sample(num_steps=9))
        processes = [sampler._worker.channel.process_id for sampler in (first, second)]
        failing = dataclasses.replace(experiment, environment=Failing)
        third = stack.enter_context(agentkit.Sampler(failing, where="ray"))
        with pytest.raises(SamplerProcessError, match="raised RuntimeError: no power"):
            third.sample(num_steps=1)
    assert not ray.is_initialized()
    assert not any(pathlib.Path(f"/proc/{process}").exists() for process in processes)


@pytest.mark.ray
@pytest.mark.full
def test_a_sampler_takes_part_in_the_ray_that_its_process_is_part_of(experiment):
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with agentkit.Sampler(experiment, where="ray") as sampler:
            check(sampler.sample(num_steps=9))
            assert ray.available_resources().get("CPU", 0.0) == 0.0
        assert ray.is_initialized()
    finally:
        ray.shutdown()


def test_a_place_that_there_is_not_is_refused(experiment):
    with pytest.raises(UnknownNameError, match=r"'there'.*here, process, ray"):
        agentkit.Sampler(experiment, where="there")
