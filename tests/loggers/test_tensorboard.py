import math
import struct
import subprocess
import sys

import pytest

from agentkit.errors import MissingExtraError
from agentkit.loggers import TensorboardLogger


def _scalars(directory):
    """(tag, value, step) of each event, read back from the file's records."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    (path,) = directory.glob("events*")
    data, scalars = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        event = event_pb2.Event.FromString(data[12 : 12 + length])
        scalars += [(v.tag, v.simple_value, event.step) for v in event.summary.value]
        data = data[16 + length :]
    return scalars


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
