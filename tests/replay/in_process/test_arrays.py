import os

import numpy as np
import pytest

from agentkit import specs
from agentkit.errors import CheckpointError, ConfigError
from agentkit.replay.in_process import arrays
from agentkit.replay.in_process.step_store import make_columns


@pytest.mark.parametrize("dtype", ["float32", "uint8", "bool", "int64", "<U3"])
@pytest.mark.parametrize("shape", [(), (0, 2), (3,), (4, 0), (5, 2, 3)])
def test_written_arrays_come_back_and_can_grow(tmp_path, dtype, shape):
    array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
    saved = arrays.write(tmp_path, "x", array)
    read = arrays.read(tmp_path, "x", saved, array.dtype, shape)
    np.testing.assert_array_equal(read, array)
    assert read.dtype == array.dtype
    if not shape:
        return
    arrays.grow(read, shape[0] + 1)
    assert read.shape[0] > shape[0]
    np.testing.assert_array_equal(read[: shape[0]], array)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
@pytest.mark.parametrize("nbytes", [8, 2**20])
def test_a_full_disk_refuses_an_array_of_any_size(tmp_path, nbytes):
    """Small arrays are written when their file is closed."""
    (tmp_path / "x.bin").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        arrays.write(tmp_path, "x", np.zeros(nbytes, np.uint8))


def test_what_does_not_fit_is_refused(tmp_path):
    array = np.arange(6, dtype=np.int32)
    saved = arrays.write(tmp_path, "x", array)
    with pytest.raises(CheckpointError, match="expected"):
        arrays.read(tmp_path, "x", saved, np.dtype(np.int64), (3,))
    with pytest.raises(CheckpointError, match="expected"):
        arrays.read(tmp_path, "x", saved, array.dtype, (5,))
    with pytest.raises(CheckpointError, match="cannot be read"):
        arrays.read(tmp_path, "y", saved, array.dtype, (6,))
    with (tmp_path / "x.bin").open("ab") as file:
        file.write(b"x")
    with pytest.raises(CheckpointError, match="found 25"):
        arrays.read(tmp_path, "x", saved, array.dtype, (6,))


def test_growth_is_gentle():
    array = np.zeros((100_000, 23), np.float32)
    arrays.grow(array, 100_001)
    assert 100_001 <= array.shape[0] <= 103_200
    arrays.grow(array, 103_500, most=103_600)
    assert array.shape[0] == 103_600


def test_objects_are_refused():
    with pytest.raises(ConfigError, match="dtype object"):
        make_columns({"a": specs.Array((), object)}, "step")
