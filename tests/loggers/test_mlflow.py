"""MLflow with a store in a local folder."""

import pytest

from agentkit.errors import MissingExtraError
from agentkit.loggers import BestEffortLogger, MlflowLogger, RunInfo
from agentkit.loggers.claims import claim

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


def test_a_name_with_signs_that_mlflow_refuses_costs_no_row(client, tmp_path):
    with MlflowLogger(RunInfo("dqn", {}, tmp_path)) as logger:
        logger.write(
            {"steps": 1, "learner/loss": 1.0, "learner/q(max)": 2.0, "learner//td": 3.0, "learner/a-b.c d": 4.0}
        )
    (run,) = runs(client)
    assert run.data.metrics == {"learner/loss": 1.0, "learner/q_max_": 2.0, "learner/td": 3.0, "learner/a-b.c d": 4.0}


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


@pytest.mark.parametrize("has_folder", [True, False])
def test_an_outage_at_the_start_costs_no_hyperparameters_and_makes_one_run(client, tmp_path, monkeypatch, has_folder):
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient

    calls, send = iter(range(100)), MlflowClient.log_batch

    def fail_twice(*args, **kwargs):
        if next(calls) < 2:
            raise MlflowException("API request failed with 503")
        send(*args, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", fail_twice)
    info = RunInfo("dqn", {f"setting_{i}": i for i in range(101)}, tmp_path / "run" if has_folder else None)
    logger = BestEffortLogger(lambda: MlflowLogger(info), "mlflow", retry_seconds=0.0)
    for step in range(4):
        logger.write({"steps": step, "a": 1.0})
    logger.close()
    (run,) = runs(client)
    assert run.data.params == {name: str(value) for name, value in info.config.items()}
    assert [each.step for each in client.get_metric_history(run.info.run_id, "a")] == [1, 2, 3]


def test_a_full_disk_at_the_start_makes_one_run_which_is_gone_on_with(client, tmp_path, monkeypatch):
    outcomes = iter([OSError(28, "No space left on device")] * 2)

    def fail_twice(path, own):
        if (error := next(outcomes, None)) is not None:
            raise error
        return claim(path, own)

    monkeypatch.setattr("agentkit.loggers.mlflow.claim", fail_twice)
    info = RunInfo("dqn", {"a": 1}, tmp_path)
    for start in (0, 3):
        logger = BestEffortLogger(lambda: MlflowLogger(info), "mlflow", retry_seconds=0.0)
        for step in range(start, start + 3):
            logger.write({"steps": step, "b": 1.0})
        logger.close()
    (run,) = runs(client)
    assert run.data.params == {"a": "1"}
    assert [each.step for each in client.get_metric_history(run.info.run_id, "b")] == [0, 1, 2, 3, 4, 5]


def test_who_goes_on_with_a_run_without_hyperparameters_sends_them(client, tmp_path):
    MlflowLogger(RunInfo("dqn", {}, tmp_path)).close()  # As if it was killed before it sent them.
    for value in (1, 2):
        MlflowLogger(RunInfo("dqn", {"a": value}, tmp_path)).close()
    (run,) = runs(client)
    assert run.data.params == {"a": "1"}


def test_its_absence_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[mlflow\]"):
        MlflowLogger(RunInfo("a", {}))
