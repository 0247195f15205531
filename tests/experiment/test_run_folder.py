import json
import os
import sys

import pytest

import agentkit
from agentkit.agents import dqn
from agentkit.errors import ConfigError, MissingExtraError, UnknownNameError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.runs.config_json import read_record, write_config
from agentkit.files import MOST_JSON
from agentkit.loggers import CsvLogger


@pytest.fixture
def folder(tmp_path):
    record = {"agent": "dqn", "agent_config": {"discount": 0.9}, "environment": "agentkit:catch", "seed": 3}
    (tmp_path / "config.json").write_text(json.dumps(record))
    for name, steps in (("train", (10, 40)), ("train-1", (20, 30)), ("train-own", (5,)), ("learner", (10,))):
        with CsvLogger(tmp_path / "logs" / f"{name}.csv") as logger:
            for step in steps:
                logger.write({"steps": step, "episode_return": step / 2, "loss": None})
    return tmp_path


def test_settings_that_could_not_be_read_again_are_refused_before_the_run(tmp_path):
    settings = {"rows": 10, "map": "#" * (MOST_JSON + 2**20)}
    experiment = ExperimentConfig(dqn.make_agent(), "agentkit:catch", 10, environment_settings=settings)
    expected = (
        r"config.json would have 17\.0 MiB, .* 16\.0 MiB .*; environment_settings alone 17\.0 MiB.* path of a file"
    )
    with pytest.raises(ConfigError, match=expected):
        write_config(experiment, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_config_is_told_in_whole_sentences(tmp_path):
    (tmp_path / "config.json").write_text(" " * (MOST_JSON + 1))
    with pytest.raises(ConfigError, match=r"16\.0 MiB are read\. Restore it"):
        read_record(tmp_path)


def test_a_run_has_its_config_and_the_rows_of_all_its_nodes(folder):
    run = agentkit.open_run(folder)
    assert run.config["seed"] == 3 and run.config["agent_config"] == {"discount": 0.9}
    assert run.logs == ["learner", "train", "train-own"]
    assert run.rows("train") == [{"steps": s, "episode_return": s / 2} for s in (10, 20, 30, 40)]
    assert run.rows("evaluation") == []


def test_each_policys_log_is_its_own_also_where_their_ids_end_in_numbers(folder):
    record = json.loads((folder / "config.json").read_text())
    policies = {name: {"agent": "dqn", "agent_config": {}} for name in ("dqn-1", "dqn-2")}
    several = {"policies": policies, "policy_of": "each", "loggers": [], "num_steps": 9}
    (folder / "config.json").write_text(json.dumps(record | several))
    for number in (1, 2):
        with CsvLogger(folder / "logs" / f"learner-dqn-{number}.csv") as logger:
            logger.write({"steps": number})
    run = agentkit.open_run(folder)
    assert run.logs == ["learner", "learner-dqn-1", "learner-dqn-2", "train", "train-own"]
    assert run.rows("learner-dqn-2") == [{"steps": 2.0}]
    with pytest.raises(UnknownNameError, match=r"'learner-dqn'\. Did you mean 'learner-dqn-"):
        run.rows("learner-dqn")


def test_a_log_is_a_data_frame(folder):
    pytest.importorskip("pandas")
    frame = agentkit.open_run(folder).log("train")
    assert list(frame.columns) == ["steps", "episode_return"] and list(frame["steps"]) == [10, 20, 30, 40]
    with pytest.raises(ConfigError, match=r"no log 'evaluation' \(yet\)\. It has: learner, train, train-own"):
        agentkit.open_run(folder).log("evaluation")


def test_what_is_missing_is_said(folder, tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="not a run folder"):
        agentkit.open_run(tmp_path / "logs")
    with pytest.raises(UnknownNameError, match=r"'trian'\. Did you mean 'train'"):
        agentkit.open_run(folder).rows("trian")
    (folder / "logs" / "train.csv").write_text("steps,episode_return\n1,x\n")
    with pytest.raises(ConfigError, match=r"train.csv is damaged"):
        agentkit.open_run(folder).rows("train")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[pandas\]"):
        agentkit.open_run(folder).log("learner")


@pytest.mark.parametrize("words", [["--run-id", "S3CRET" * 3, "--seed", "1"], ["--run-id=" + "S3CRET" * 3]])
def test_a_runs_config_keeps_no_secret_and_outlives_a_power_failure(words, tmp_path, monkeypatch):
    """It is on the disk, and so are the names of its folder and of the folder around that, once it is written."""
    synced = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(os.stat(descriptor).st_ino))
    monkeypatch.setattr("sys.argv", ["agentkit", "node", "replay", *words])
    run = tmp_path / "runs" / "mine"
    write_config(ExperimentConfig(dqn.make_agent(), "agentkit:catch", num_steps=10), run)
    text = (run / "config.json").read_text()
    assert (
        "S3CRET" not in text
        and "--run-id" in text
        and json.loads(text)["command"][:3] == ["agentkit", "node", "replay"]
    )
    assert {path.stat().st_ino for path in (run / "config.json", run, run.parent)} <= set(synced)
