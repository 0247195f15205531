"""Loggers of a run: by name and the user's own, all at once, in one process; over a resume; refused in time."""

import sys
import textwrap
import tracemalloc
import types
import warnings
from typing import ClassVar

import jax.numpy as jnp
import pytest

from agentkit import loggers
from agentkit.agents import dqn, ppo
from agentkit.errors import ConfigError, MissingExtraError, UnknownNameError
from agentkit.experiment import ExperimentConfig, MultiAgentConfig, launch, read_config, resume, run
from agentkit.experiment.runs.loggers import RunLoggers, make_logger
from agentkit.experiment.runs.logs import shows_progress
from agentkit.loggers import read_csv, read_jsonl

pytestmark = pytest.mark.both_stacks

SMALL = dqn.Config(hidden_sizes=(8,), min_replay_size=16, batch_size=8)


def experiment(directory, **settings):
    agent = settings.pop("agent", None) or dqn.make_agent(SMALL)
    settings = {"evaluation_period": 30, "evaluation_episodes": 1, "log_seconds": 0.0, **settings}
    return ExperimentConfig(agent, "agentkit:catch", settings.pop("num_steps", 60), run_directory=directory, **settings)


def make_own_loss(networks, config):
    """DQN's loss with a metric of the user's own."""
    loss = dqn.make_loss(networks, config)

    def with_metric(*args):
        output = loss(*args)
        return output._replace(metrics={**output.metrics, "own_metric": jnp.float32(7.0)})

    return with_metric


class Closing(loggers.Logger):
    """Keeps what it is told."""

    made: ClassVar[list["Closing"]] = []

    def __init__(self, info):
        self.info, self.rows, self.closed = info, [], False
        self.made.append(self)

    def write(self, values):
        self.rows.append(dict(values))

    def close(self):
        self.closed = True


@pytest.mark.full
def test_every_logger_gets_every_log_and_the_users_own_metrics(tmp_path):
    Closing.made.clear()
    mine = loggers.InMemoryLogger()
    agent = dqn.make_agent(SMALL, make_loss=make_own_loss)
    run(experiment(tmp_path, agent=agent, loggers=["jsonl", Closing, mine]))
    (own,) = Closing.made
    assert own.closed and own.rows == mine.rows and own.info.node is None and own.info.directory == tmp_path
    assert own.info.config["hidden_sizes"] == "8" and own.info.config["seed"] == 0
    for label in ("train", "evaluation", "learner"):
        _, rows = read_csv(tmp_path / "logs" / f"{label}.csv")
        lines = read_jsonl(tmp_path / "logs" / f"{label}.jsonl")
        given = [row for row in mine.rows if any(name.startswith(f"{label}/") for name in row)]
        assert (
            [row["steps"] for row in given] == [line["steps"] for line in lines] == [int(row["steps"]) for row in rows]
        )
        for row, line in zip(given, lines, strict=True):
            assert {name.removeprefix(f"{label}/"): value for name, value in row.items()} == line
    assert {line["own_metric"] for line in lines} == {7.0} and {row["own_metric"] for row in rows} == {"7.0"}
    mine.write({"steps": 1})  # Nobody has closed it.


def test_a_resumed_run_goes_on_in_its_logs_and_with_its_seconds(tmp_path, monkeypatch):
    module = """
        from agentkit.loggers import Logger
        class Mine(Logger):
            steps = []
            def __init__(self, run): self.resume_step = run.resume_step
            def write(self, values): self.steps.append((self.resume_step, values["steps"]))
    """
    (tmp_path / "my_run_loggers.py").write_text(textwrap.dedent(module))
    monkeypatch.syspath_prepend(tmp_path)
    import my_run_loggers

    folder = tmp_path / "run"
    run(experiment(folder, loggers=["jsonl", my_run_loggers.Mine]))
    seconds = [float(row["seconds"]) for row in read_csv(folder / "logs" / "train.csv")[1]]
    resume(folder, num_steps=90)
    assert {before for before, _ in my_run_loggers.Mine.steps} == {None, 60}
    assert [line["steps"] for line in read_jsonl(folder / "logs" / "evaluation.jsonl")] == [30, 60, 90]
    after = [float(row["seconds"]) for row in read_csv(folder / "logs" / "train.csv")[1]]
    assert after[: len(seconds)] == seconds and after == sorted(after) and len(after) == 10


def test_a_long_log_goes_on_with_its_seconds_without_being_held_in_memory(tmp_path):
    path, settings = tmp_path / "logs" / "train-1.csv", experiment(tmp_path)
    path.parent.mkdir()
    path.write_text("steps,seconds\n" + "".join(f"{step},{step / 10}\n" for step in range(20_000)))
    make_logger(settings, "another", 0).close()  # What is made once is not counted.
    tracemalloc.start()
    with make_logger(settings, "train-1", 15_000) as logger:
        assert tracemalloc.get_traced_memory()[1] < 400_000  # As dicts the rows have millions.
        tracemalloc.stop()
        logger.write({"steps": 15_001})
    *_, before, after = read_csv(path)[1]
    assert before == {"steps": "15000", "seconds": "1500.0"} and 1_500 <= float(after["seconds"]) < 1_600


@pytest.mark.parametrize("node", [None, "evaluation"])
def test_the_logs_of_a_resumed_run_count_their_seconds_alike(tmp_path, node):
    """That of evaluations had its last row long before: it ran behind. Other actors' are not read by a node."""
    logs = {"train": "19000,190\n20000,200", "learner": "18700,187", "evaluation": "10000,100", "train-7": "9,999"}
    (tmp_path / "logs").mkdir()
    for label, rows in logs.items():
        (tmp_path / "logs" / f"{label}.csv").write_text(f"steps,seconds\n{rows}\n")
    with RunLoggers(experiment(tmp_path), 19_000, node) as run_loggers:
        for label in ("train", "learner", "evaluation", "mine"):
            run_loggers.log(label).write({"steps": 19_001})
    for label in ("train", "learner", "evaluation", "mine"):
        assert 190 <= float(read_csv(tmp_path / "logs" / f"{label}.csv")[1][-1]["seconds"]) < 197


def test_a_log_that_is_made_later_counts_its_seconds_from_the_runs_beginning(tmp_path, monkeypatch):
    now = iter((1_000.0, 1_100.0))
    clock = types.SimpleNamespace(monotonic=lambda: next(now))
    monkeypatch.setattr("agentkit.experiment.runs.loggers.time", clock, raising=False)
    with RunLoggers(experiment(tmp_path), None) as run_loggers:
        run_loggers.log("mine").write({"steps": 3})
    assert 100 <= float(read_csv(tmp_path / "logs" / "mine.csv")[1][0]["seconds"]) < 107


def test_a_logger_that_cannot_be_had_again_is_told_and_only_where_it_is_needed(tmp_path, monkeypatch):
    class Inside(Closing):
        pass

    run(experiment(tmp_path, loggers=["jsonl", Inside]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = read_config(tmp_path)
    assert again.loggers[0] == "jsonl" and again.describe()["loggers"] == read_config(tmp_path).describe()["loggers"]
    with pytest.warns(UserWarning, match=r"own gets nothing.*inside of a function.*loggers="):
        resume(tmp_path, num_steps=70)


def test_a_name_in_a_strangers_folder_imports_nothing(tmp_path, monkeypatch):
    run(experiment(tmp_path / "run", loggers=["jsonl"]))
    path = tmp_path / "run" / "config.json"
    path.write_text(path.read_text().replace('"jsonl"', '{"function": "strangers_logger:Mine", "digest": "0"}'))
    (tmp_path / "strangers_logger.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (missing,) = read_config(tmp_path / "run").loggers
    assert "strangers_logger" not in sys.modules and "--import strangers_logger" in missing.reason


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ("tensorbord", UnknownNameError, "Did you mean 'tensorboard'"),
        ([3], ConfigError, r"functions RunInfo -> Logger, found 3"),
        ([lambda: None], ConfigError, r"functions RunInfo -> Logger"),
        (None, ConfigError, "loggers: expected a list, found None"),
    ],
)
def test_what_is_no_logger_is_refused_when_the_config_is_made(tmp_path, wrong, error, message):
    with pytest.raises(error, match=message):
        experiment(tmp_path, loggers=wrong)


def test_what_cannot_log_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="the class itself"):
        launch(experiment(tmp_path / "run", loggers=[loggers.InMemoryLogger()]))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[mlflow\]"):
        run(experiment(tmp_path / "run", loggers="mlflow"))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("settings", [{"loggers": ["jsonl"]}, {"loggers": ["tensorboard"]}, {"tensorboard": True}])
def test_a_log_in_files_needs_a_folder(settings):
    with pytest.raises(ConfigError, match=r"loggers: \w+ writes files and needs a run folder. Give run_directory"):
        run(experiment(None, **settings))


def test_an_own_logger_whose_disk_is_full_ends_nothing_and_one_with_a_mistake_does(tmp_path, capsys):
    class Full(Closing):
        def write(self, values):
            raise OSError(28, "No space left on device")

    class Wrong(Closing):
        def write(self, values):
            raise KeyError("a mistake of mine")

    assert run(experiment(tmp_path / "a", loggers=[Full])).steps == 60
    assert capsys.readouterr().err.count("cannot be written: [Errno 28]") == 1
    with pytest.raises(KeyError, match="a mistake of mine"):
        run(experiment(tmp_path / "b", loggers=[Wrong]))
    with pytest.raises(ConfigError, match="is no agentkit"):
        run(experiment(tmp_path / "c", loggers=[lambda info: 5]))


def test_a_node_of_a_program_says_which_it_is(tmp_path):
    Closing.made.clear()
    with make_logger(experiment(tmp_path, loggers=[Closing]), "train-1", None) as log:
        log.write({"steps": 9})
    (own,) = Closing.made
    assert own.info.node == "train-1" and own.closed and own.rows[0]["steps"] == 9
    assert read_csv(tmp_path / "logs" / "train-1.csv")[1][0]["steps"] == "9"


@pytest.mark.parametrize(("node", "label"), [(None, "learner"), ("program", "program")])
def test_loggers_of_several_agents_get_the_settings_of_each_policy_that_learns(tmp_path, monkeypatch, node, label):
    policies = {"a": dqn.make_agent(SMALL), "b": ppo.make_agent(ppo.Config(learning_rate=0.5)), "c": "random"}
    settings = {"policy_of": {"0": "a", "1": "b", "2": "c"}, "tensorboard": True, "loggers": [Closing]}
    given = {}
    monkeypatch.setattr(loggers, "TensorboardLogger", lambda _, label, hyperparameters: given.update({
        label: hyperparameters
    }) or loggers.InMemoryLogger())  # fmt: skip
    Closing.made.clear()
    config = MultiAgentConfig(policies, "agentkit:tic_tac_toe", 300, run_directory=tmp_path, **settings)
    with RunLoggers(config, None, node) as run_loggers:
        for name in ("train", "learner", "program"):
            run_loggers.log(name)
    found = Closing.made[0].info.config
    assert (found["agent"], found["a.hidden_sizes"], found["b.learning_rate"]) == ("dqn, ppo", "8", 0.5)
    assert "c.agent" not in found and given[label] == found
    assert [name for name, each in given.items() if each is not None] == [label], "TensorBoard wants them once"


def test_logs_of_the_users_own_are_made_when_first_asked_for(tmp_path):
    with RunLoggers(experiment(tmp_path, loggers=["jsonl"]), None) as run_loggers:
        run_loggers.log("mine").write({"steps": 3, "success": True})
        assert run_loggers.log("mine") is run_loggers.log("mine")
    assert read_csv(tmp_path / "logs" / "mine.csv")[1][0]["success"] == "1"
    assert [path.name for path in sorted((tmp_path / "logs").iterdir())] == ["mine.csv", "mine.jsonl"]


def test_nothing_is_shown_where_there_is_no_standard_error(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    assert not shows_progress(None)
