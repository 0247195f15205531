"""Weights & Biases without a network: what it has written for a later `wandb sync`, read back."""

import json
import struct
import time

import pytest

from agentkit.errors import ConfigError, MissingExtraError
from agentkit.loggers import RunInfo, WandbLogger, check_login

wandb = pytest.importorskip("wandb")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:wandb", "ignore::DeprecationWarning:pydantic")

INFO = RunInfo("dqn-catch", {"learning_rate": 0.1, "agent": "dqn"})


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")


def records(path):
    """The records of a W&B file: after a header of 7 bytes, LevelDB's log of blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, part, at = path.read_bytes(), b"", 7
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # A whole record, or the last part of one.
            record = wandb_internal_pb2.Record()
            record.ParseFromString(part)
            yield record
            part = b""


def written(directory):
    """The id, group, settings and rows of each W&B run in a folder."""
    runs = []
    for path in sorted(directory.glob("**/run-*.wandb")):
        rows, about, deadline = [], {"settings": {}}, time.monotonic() + 10
        while not any(record.HasField("exit") for record in records(path)) and time.monotonic() < deadline:
            time.sleep(0.01)  # W&B's service writes the file soon after the run has finished.
        for record in records(path):
            kind = record.WhichOneof("record_type")
            if kind == "run":
                about |= {"id": record.run.run_id, "group": record.run.run_group, "project": record.run.project}
            if kind in ("run", "config"):
                update = record.run.config.update if kind == "run" else record.config.update
                about["settings"] |= {item.key: json.loads(item.value_json) for item in update if item.key}
            if kind == "history":
                items = ((item.key or "/".join(item.nested_key), item.value_json) for item in record.history.item)
                rows.append({key: json.loads(value) for key, value in items if not key.startswith("_")})
            if kind == "exit":
                about["exit"] = record.exit.exit_code
        runs.append({**about, "rows": rows})
    return runs


@pytest.mark.full
def test_a_resumed_run_is_the_same_wandb_run_and_has_settings_and_rows(tmp_path):
    info = RunInfo("dqn-catch", INFO.config, tmp_path)
    with WandbLogger(info) as logger:
        logger.write({"steps": 10, "train/episode_return": 1.5, "learner/loss": None, "learner/q": float("nan")})
    with pytest.raises(RuntimeError), WandbLogger(info) as logger:
        logger.write({"steps": 20, "mine/success": 1})
        raise RuntimeError("the run broke")
    first, second = sorted(written(tmp_path / "logs"), key=lambda run: run["exit"])
    assert first["id"] == second["id"] and first["project"] == "agentkit" and not first["group"]
    assert first["settings"]["learning_rate"] == 0.1 and first["settings"]["agent"] == "dqn"
    assert first["rows"] == [{"steps": 10, "train/episode_return": 1.5}]
    assert second["rows"] == [{"steps": 20, "mine/success": 1}]
    assert (first["exit"], second["exit"]) == (0, 1)
    with pytest.raises(ValueError, match="closed"):
        logger.write({"steps": 30})


def test_the_users_own_wandb_run_is_used_and_left_open(tmp_path):
    with wandb.init(project="mine", dir=tmp_path) as run:
        with WandbLogger(INFO) as logger:
            logger.write({"steps": 10, "train/episode_return": 1.5})
        assert wandb.run is run
        run.log({"more": 2})
    (found,) = written(tmp_path)
    rows = [{"steps": 10, "train/episode_return": 1.5}, {"steps": 10, "more": 2}]  # W&B repeats the step itself.
    assert found["project"] == "mine" and found["rows"] == rows


def test_nobody_is_asked_to_log_in(monkeypatch, tmp_path):
    check_login()  # Offline nobody needs to be.
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="wandb login"):
        check_login()


def test_its_absence_names_the_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(MissingExtraError, match=r"agentkit-rl\[wandb\]"):
        WandbLogger(INFO)
