"""Groups, in one compiled program and in processes, of which a run cannot be taken up, fails, or is done."""

import errno
import functools
import os
import pickle
import types

import jax
import pytest

import agentkit
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.errors import CheckpointError
from agentkit.experiment.on_device.population import Population
from agentkit.experiment.sweeps import jobs, together
from agentkit.experiment.sweeps.jobs import FINISHED, Job, Outcome, read_outcome, write_outcome
from agentkit.experiment.training.signals import StopOnSignal
from tests.experiment.on_device_runs import Endless
from tests.experiment.test_populations import random_policy, summing_update

CONFIG = ReplayConfig(replay_size=40, min_replay_size=10, batch_size=4, updates_per_step=0.25, n_step=1)
AGENT = Agent(
    CONFIG,
    Transitions(CONFIG),
    make_policy=lambda networks, evaluation=False: random_policy(),
    make_update=lambda networks: summing_update(False),
)


def test_a_run_that_cannot_be_taken_up_is_named_and_the_others_go_on(tmp_path, monkeypatch):
    """Its place in the program waits, whose bits so are those of before.

    In the landing tier, since it alone notices that one run stops a group.
    """
    build_run, seen = together.build_run, []

    def build_one(run, *others):
        if run.experiment.seed == 0:
            raise CheckpointError("its replay has another form")
        return build_run(run, *others)

    def run_none(population, learners, targets):
        seen.append(targets)
        assert jax.tree.map(jax.numpy.shape, [learner.state for learner in learners]) == [(), ()]
        raise InterruptedError  # Before it compiles its loop.

    monkeypatch.setattr(together, "build_run", build_one)
    monkeypatch.setattr(Population, "run", run_none)
    settings = {"num_envs": 2, "on_device": True, "evaluation_period": 0}
    with StopOnSignal() as stop, together.JobsTogether(stop) as jobs:
        for seed in (0, 1):
            folder = tmp_path / f"seed{seed}"
            plan = agentkit.ExperimentConfig(AGENT, Endless, 40, seed=seed, run_directory=folder, **settings)
            jobs.start(Job(f"seed {seed}", plan))
        [(job, outcome)] = jobs.poll()
        assert (job.name, outcome.state, jobs.running) == ("seed 0", "failed", ("seed 1",))
        with pytest.raises(InterruptedError):
            jobs.poll()
    assert seen == [[0, 40]]
    assert "another form" in outcome.error and read_outcome(tmp_path / "seed0") == outcome
    assert "CheckpointError" in (tmp_path / "seed0" / "output.log").read_text()


def fill_disk(monkeypatch):
    def write(path, *content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    monkeypatch.setattr(jobs, "write_json", write)
    monkeypatch.setattr(together, "open_to_append", write)


def test_a_run_that_failed_on_a_full_disk_is_told_of_on_the_device(tmp_path, monkeypatch):
    def prepare(experiment, resume):
        raise CheckpointError("no space")

    monkeypatch.setattr(together, "prepare", prepare)
    plan = agentkit.ExperimentConfig(AGENT, Endless, 40, num_envs=2, on_device=True, run_directory=tmp_path)
    with StopOnSignal() as stop, together.JobsTogether(stop) as run:
        run.start(Job("seed 0", plan))
        fill_disk(monkeypatch)
        assert [(outcome.state, outcome.error) for _, outcome in run.poll()] == [("failed", "no space")]


def test_a_process_that_failed_on_a_full_disk_ends_no_other(tmp_path, monkeypatch):
    codes = {"seed 0": 1, "seed 1": None}

    def start_process(code, message, *others):
        return types.SimpleNamespace(poll=functools.partial(codes.get, pickle.loads(message).name), kill=lambda: None)

    monkeypatch.setattr(jobs, "start_process", start_process)
    with jobs.JobProcesses() as processes:
        for number, name in enumerate(codes):
            plan = agentkit.ExperimentConfig(AGENT, Endless, 40, run_directory=tmp_path / str(number))
            processes.start(Job(name, plan))
        fill_disk(monkeypatch)
        assert [(job.name, outcome.state) for job, outcome in processes.poll()] == [("seed 0", "failed")]
        assert processes.running == ("seed 1",)


def test_a_run_that_is_done_keeps_its_place_and_stays_as_it_is(tmp_path, monkeypatch):
    """In the landing tier, since it alone notices that a resumed group trains on what has finished."""
    seen = []

    def run_none(population, learners, targets):
        seen.append(targets)
        raise InterruptedError  # Before it compiles its loop.

    monkeypatch.setattr(Population, "run", run_none)
    settings = {"num_envs": 2, "on_device": True, "evaluation_period": 0}
    plan = agentkit.ExperimentConfig(AGENT, Endless, 40, run_directory=tmp_path, **settings)
    ended = Outcome(FINISHED, 40, steps=40)
    for resume in (False, True):
        with pytest.raises(InterruptedError):
            agentkit.run_seeds(plan, [0, 1], resume=resume)
        if not resume:
            write_outcome(tmp_path / "seed0", ended)
    assert seen == [[40, 40], [0, 40]]
    assert read_outcome(tmp_path / "seed0") == ended
