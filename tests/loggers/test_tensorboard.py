import math
import struct
import subprocess
import sys

import pytest

from agentkit.agents import dqn
from agentkit.errors import MissingExtraError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.runs.loggers import RunLoggers
from agentkit.loggers import TensorboardLogger


def _events(directory):
    """Each event, read back from the files' records."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    for path in sorted(directory.glob("events*")):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            yield event_pb2.Event.FromString(data[12 : 12 + length])
            data = data[16 + length :]


def _scalars(directory):
    """(tag, value, step) of each event."""
    return [(v.tag, v.simple_value, event.step) for event in _events(directory) for v in event.summary.value]


def _hyperparameters(directory):
    """What TensorBoard's page of that name is told: the run's settings, the names of its results, whether it ended."""
    plugin = pytest.importorskip("tensorboardX.proto.plugin_hparams_pb2")
    settings, results, ended = {}, [], False
    for event in _events(directory):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                data = plugin.HParamsPluginData.FromString(value.metadata.plugin_data.content)
                settings |= {name: v.WhichOneof("kind") for name, v in data.session_start_info.hparams.items()}
                results += [info.name.tag for info in data.experiment.metric_infos]
                ended = ended or data.HasField("session_end_info")
    return settings, results, ended


def test_hyperparameters_and_the_end_are_written_for_tensorboards_page(tmp_path):
    settings = {"learning_rate": 0.1, "agent": "sac", "double": True}
    with TensorboardLogger(tmp_path / "a", "learner", hyperparameters=settings) as logger:
        logger.write({"steps": 10, "loss": 0.5})
    found, results, ended = _hyperparameters(tmp_path / "a")
    assert found == {"learning_rate": "number_value", "agent": "string_value", "double": "bool_value"}
    assert results == ["evaluation/episode_return", "train/episode_return"] and ended
    assert ("learner/loss", 0.5, 10) in _scalars(tmp_path / "a")
    with (
        pytest.raises(RuntimeError, match="broke"),
        TensorboardLogger(tmp_path / "b", "learner", hyperparameters=settings),
    ):
        raise RuntimeError("the run broke")
    assert not _hyperparameters(tmp_path / "b")[2]


def test_scalars_are_written_by_label_at_the_step(tmp_path):
    with TensorboardLogger(tmp_path, "learner") as logger:
        logger.write({"steps": 10, "loss": 0.5, "missing": None, "bad": math.nan})
        logger.write({"steps": 20, "loss": 0.25})
        logger.write({"loss": 1})
    logger.close()
    assert _scalars(tmp_path) == [
        ("learner/loss", 0.5, 10),
        ("learner/loss", 0.25, 20),
        ("learner/loss", 1.0, 3),
    ]
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 30})


def test_no_log_of_a_resumed_run_hides_rows_of_another(tmp_path):
    """A SessionLog.START does in TensorBoard's Python classes: of all files of the folder that are read before."""
    pytest.importorskip("tensorboardX")
    experiment = ExperimentConfig(
        dqn.make_agent(), "agentkit:catch", 100, loggers=["tensorboard"], run_directory=tmp_path
    )
    with RunLoggers(experiment, resume_step=20) as logs:
        for label in ("train", "evaluation"):
            logs.log(label).write({"steps": 31, "x": 1.0, "seconds": 3.0})
    folder = tmp_path / "logs" / "tensorboard"
    assert {(tag, step) for tag, _, step in _scalars(folder)} >= {("train/x", 31), ("evaluation/x", 31)}
    assert not any(event.HasField("session_log") for event in _events(folder))


def test_no_tensorflow_is_imported(tmp_path):
    code = (
        "import sys; from agentkit.loggers import TensorboardLogger\n"
        f"logger = TensorboardLogger({str(tmp_path)!r}, 'a')\n"
        "logger.write({'steps': 1, 'b': 2}); logger.close()\n"
        "assert not {'tensorflow', 'jax'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_its_absence_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[tensorboard\]"):
        TensorboardLogger(tmp_path, "a")
