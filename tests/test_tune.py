"""Ray Tune: a trial reports its evaluations, and goes on from Tune's checkpoint."""

import contextlib
import dataclasses
import os
import secrets
import sys
from types import SimpleNamespace

import pytest

import agentkit
from agentkit import checkpoint
from agentkit.agents import dqn
from agentkit.errors import ConfigError, MissingExtraError, UnknownNameError
from agentkit.experiment.sweeps.jobs import Outcome, write_outcome
from agentkit.loggers import CsvLogger
from agentkit.tune import trainable, with_settings

AGENT = dqn.make_agent(dqn.Config(hidden_sizes=(8,), min_replay_size=20, batch_size=4, replay_size=500))
EXPERIMENT = agentkit.ExperimentConfig(
    AGENT, "agentkit:catch", 100, evaluation_period=50, evaluation_episodes=2, checkpoint_period=50
)


def test_settings_are_the_agents_or_the_experiments():
    found = with_settings(EXPERIMENT, {"learning_rate": 0.25, "num_envs": 2, "seed": 7})
    assert (found.agent.config.learning_rate, found.num_envs, found.seed) == (0.25, 2, 7)
    assert found.agent.config == dataclasses.replace(AGENT.config, learning_rate=0.25)
    with pytest.raises(UnknownNameError, match="Did you mean 'learning_rate'"):
        with_settings(EXPERIMENT, {"learning_rat": 1.0})
    with pytest.raises(ConfigError, match="learning_rate must be"):
        with_settings(EXPERIMENT, {"learning_rate": -1.0})
    own = dataclasses.replace(EXPERIMENT, agent=dataclasses.replace(AGENT, make_networks=lambda spec: None))
    with pytest.raises(ConfigError, match="parts of your own"):
        with_settings(own, {"learning_rate": 1.0})


def test_a_trials_checkpoint_has_the_best_policy_too(tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    for folder in (run / "logs", run / "best" / ".partial-7-step_000000000200", copy):  # The trial goes on meanwhile.
        folder.mkdir(parents=True)
    (run / "config.json").touch()
    for name, step in (("checkpoints", 50), ("checkpoints", 100), ("best", 50)):
        checkpoint.write(run / name, step, {"name": name})
    assert agentkit.tune._copy_run(run, copy)
    assert {name: checkpoint.steps(copy / name) for name in ("checkpoints", "best")} == {
        "checkpoints": [100],
        "best": [50],
    }
    assert not list((copy / "best").glob(".partial-*"))


class Saved:
    """Stands in for Tune's checkpoint."""

    def __init__(self, folder, metadata):
        self.folder, self.metadata = folder, metadata

    def as_directory(self):
        return contextlib.nullcontext(self.folder)

    def set_metadata(self, metadata):
        self.metadata = metadata

    def get_metadata(self):
        return self.metadata


class NoProcesses:
    """Stands in for `jobs.JobProcesses`: the run of a trial ends as soon as it is looked at."""

    def __init__(self, threads):
        self.running = ()

    def start(self, job):
        self.running = (job.name,)

    def poll(self):
        self.running = ()

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        pass


@pytest.mark.parametrize(("metadata", "told"), [({"reported": 1}, [(100, 2), (150, 3)]), ({}, [])])
def test_a_restored_trial_reports_what_its_log_has_beyond_the_last_report(metadata, told, tmp_path, monkeypatch):
    """Training went on while a report was made; of an earlier version's checkpoint nobody knows."""
    saved, reports = tmp_path / "saved", []
    with CsvLogger(saved / "logs" / "evaluation.csv") as log:
        for steps in (50, 100, 150):
            log.write({"steps": steps, "episode_return": 0.0})
    checkpoint.write(saved / "checkpoints", 150, {})
    (saved / "config.json").touch()
    write_outcome(saved, Outcome("finished", 150))
    context = SimpleNamespace(
        get_trial_dir=lambda: tmp_path / "trial",
        get_trial_resources=lambda: SimpleNamespace(required_resources={"CPU": 1}),
    )
    fake = SimpleNamespace(
        get_context=lambda: context,
        get_checkpoint=lambda: Saved(saved, metadata),
        Checkpoint=SimpleNamespace(from_directory=lambda folder: Saved(folder, {})),
        report=lambda record, checkpoint: reports.append((record["steps"], checkpoint.metadata["reported"])),
    )
    monkeypatch.setattr(agentkit.tune, "_tune", lambda: fake)
    monkeypatch.setattr(agentkit.tune, "JobProcesses", NoProcesses)
    trainable(EXPERIMENT)({})
    assert reports == told


def test_without_ray_tune_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.tune", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[tune\]"):
        trainable(EXPERIMENT)


@pytest.fixture
def tune(monkeypatch, tmp_path):
    pytest.importorskip("pyarrow")
    pytest.importorskip("pydantic")
    import ray
    from ray import tune

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))  # Ray reads it once per process.
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield tune
    ray.shutdown()


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")  # Ray's own, of many kinds.
@pytest.mark.ray
def test_a_trial_reports_its_evaluations_and_goes_on_from_its_checkpoint(tune, tmp_path):
    with pytest.raises(ConfigError, match="evaluation_period must not be 0"):
        trainable(dataclasses.replace(EXPERIMENT, evaluation_period=0))
    with pytest.raises(ConfigError, match="leave out run_directory"):
        trainable(dataclasses.replace(EXPERIMENT, run_directory=tmp_path))

    def shortened(settings):
        return with_settings(EXPERIMENT, {"learning_rate": settings["learning_rate"], "num_steps": settings["steps"]})

    config = tune.RunConfig(storage_path=str(tmp_path / "tune"), name="short", verbose=0)
    (short,) = tune.Tuner(
        trainable(shortened), param_space={"learning_rate": 0.01, "steps": 50}, run_config=config
    ).fit()
    assert short.error is None and short.metrics["steps"] == 50

    def longer(settings):
        """A trial that finds the checkpoint of the short one, as one that Tune restores does."""
        from agentkit import tune as agentkit_tune

        real = agentkit_tune._tune()

        class Restored:
            Checkpoint, report, get_context = real.Checkpoint, staticmethod(real.report), staticmethod(real.get_context)

            @staticmethod
            def get_checkpoint():
                return short.checkpoint

        agentkit_tune._tune = lambda: Restored
        trainable(shortened)(settings)

    config = tune.RunConfig(storage_path=str(tmp_path / "tune"), name="long", verbose=0)
    (long,) = tune.Tuner(longer, param_space={"learning_rate": 0.01, "steps": 100}, run_config=config).fit()
    assert long.error is None
    assert list(long.metrics_dataframe["steps"]) == [100]  # Of 50 it was reported before.

    alone = agentkit.run(with_settings(EXPERIMENT, {"learning_rate": 0.01}))
    assert alone.evaluations[0]["episode_return"] == short.metrics["episode_return"]
    assert alone.evaluations[1]["episode_return"] == long.metrics["episode_return"]
    with long.checkpoint.as_directory() as folder:
        assert agentkit.evaluate(folder, 1)["steps"] == 100
