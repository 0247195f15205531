"""MLflow with a store in a local folder."""

import pytest

from agentkit.errors import MissingExtraError
from agentkit.loggers import BestEffortLogger, MlflowLogger, RunInfo

pytest.importorskip("mlflow")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture
def client(tmp_path, monkeypatch):
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MlflowClient()


def runs(client):
    experiment = client.get_experiment_by_name("agentkit")
    return client.search_runs([experiment.experiment_id])


def test_a_resumed_run_is_the_same_mlflow_run(client, tmp_path):
    info = RunInfo("dqn-catch", {"learning_rate": 0.1, "agent": "dqn" * 400}, tmp_path / "run")
    with MlflowLogger(info) as logger:
        logger.write({"steps": 10, "train/episode_return": 1.5, "learner/q": float("nan"), "learner/loss": None})
    assert [run.info.status for run in runs(client)] == ["FINISHED"]
    with pytest.raises(RuntimeError), MlflowLogger(info) as logger:
        logger.write({"steps": 20, "train/episode_return": 2.5})
        raise RuntimeError("the run broke")
    (run,) = runs(client)
    assert run.info.run_name == "dqn-catch" and run.info.status == "FAILED"
    assert run.data.params["learning_rate"] == "0.1" and len(run.data.params["agent"]) == 500
    assert set(run.data.metrics) == {"train/episode_return"}
    history = client.get_metric_history(run.info.run_id, "train/episode_return")
    assert [(metric.step, metric.value) for metric in history] == [(10, 1.5), (20, 2.5)]


def test_the_nodes_of_a_program_share_one_run_which_ends_with_the_learner(client, tmp_path):
    with MlflowLogger(RunInfo("dqn", {"a": 1}, tmp_path, node="train")) as logger:
        logger.write({"steps": 1, "train/episode_return": 1.0})
    assert [run.info.status for run in runs(client)] == ["RUNNING"]
    with MlflowLogger(RunInfo("dqn", {"a": 1}, tmp_path, node="learner")) as logger:
        logger.write({"steps": 1, "learner/loss": 1.0})
    (run,) = runs(client)
    assert run.info.status == "FINISHED" and set(run.data.metrics) == {"train/episode_return", "learner/loss"}


def test_a_store_that_fails_is_told_once_and_ends_nothing(client, tmp_path, monkeypatch, capsys):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    info = RunInfo("dqn", {}, tmp_path)
    logger = BestEffortLogger(lambda: MlflowLogger(info), "mlflow")

    def refuse(*args, **kwargs):
        raise MlflowException("API request failed with 503")

    monkeypatch.setattr(MlflowClient, "log_batch", refuse)
    for step in range(3):
        logger.write({"steps": step, "a": 1.0})
    assert logger.num_dropped == 3 and capsys.readouterr().err.count("mlflow cannot be written: API request") == 1


def test_its_absence_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[mlflow\]"):
        MlflowLogger(RunInfo("a", {}))
