import json
import os
import pathlib
import pickle
import subprocess
import sys
import warnings
from typing import Any

import numpy as np
import pytest

import agentkit
from agentkit import checkpoint
from agentkit.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.both_stacks

STATE = {
    "int": 3,
    "big": 2**80,
    "float": 0.1,
    "infinite": float("inf"),
    "bool": True,
    "none": None,
    "text": "käse",
    "empty": {},
    "list": [1, {"x": np.arange(3)}],
    "arrays": {"f": np.linspace(0, 1, 5, dtype=np.float32), "key": np.array([1, 2**32 - 1], np.uint32)},
    "scalar": np.float64(0.1),
    "zero_dim": np.array(7, np.int8),
    "zero_size": np.zeros((0, 3), np.float16),
}


def _kill(mode: str, folder: pathlib.Path, *arguments: object) -> dict[str, Any]:
    script = pathlib.Path(__file__).with_name("checkpoint_killer.py")
    command = [sys.executable, str(script), mode, str(folder), *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(pathlib.Path(agentkit.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _damage(path: pathlib.Path, how: str) -> None:
    data = path.read_bytes()
    if how == "missing":
        path.unlink()
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "torn":
        path.write_bytes(data[: len(data) // 2])
    elif how == "longer":
        path.write_bytes(data + b"x")
    else:
        middle = len(data) // 2
        path.write_bytes(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :])


def _write(directory: pathlib.Path, step: int, **kwargs: Any) -> pathlib.Path:
    folders = {"replay": lambda folder: (folder / "items.bin").write_bytes(bytes(1_000))}
    return checkpoint.write(directory, step, {"step": step, "x": np.full(100, step)}, folders, **kwargs)


def test_state_comes_back_with_its_values_shapes_and_dtypes(tmp_path: pathlib.Path) -> None:
    checkpoint.write(tmp_path / "new" / "folder", 12, STATE)
    found = checkpoint.read_latest(tmp_path / "new" / "folder")
    assert found is not None and found.step == 12
    assert found.state.keys() == STATE.keys()
    for name in ("int", "big", "float", "infinite", "bool", "none", "text", "empty"):
        assert found.state[name] == STATE[name] and type(found.state[name]) is type(STATE[name])
    for name, expected in [("f", STATE["arrays"]["f"]), ("key", STATE["arrays"]["key"])]:
        value = found.state["arrays"][name]
        assert value.dtype == expected.dtype and value.tobytes() == expected.tobytes()
    for name in ("scalar", "zero_dim", "zero_size"):
        expected = np.asarray(STATE[name])
        assert found.state[name].dtype == expected.dtype and found.state[name].shape == expected.shape
        np.testing.assert_array_equal(found.state[name], expected)
    np.testing.assert_array_equal(found.state["list"][1]["x"], np.arange(3))


def test_folders_of_components_are_kept(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path, 1)
    found = checkpoint.read_latest(tmp_path)
    assert found is not None and found.path == path
    assert (found.path / "replay" / "items.bin").read_bytes() == bytes(1_000)


def test_the_newest_that_holds_a_folder_is_found(tmp_path: pathlib.Path) -> None:
    path = _write(tmp_path, 1)
    checkpoint.write(tmp_path, 2, {"x": 1})
    found = checkpoint.read_latest(tmp_path, holding="replay")
    assert found is not None and found.path == path
    assert checkpoint.read_latest(tmp_path, holding="others") is None


def test_nothing_yet_is_none(tmp_path: pathlib.Path) -> None:
    assert checkpoint.read_latest(tmp_path / "absent") is None
    (tmp_path / "notes.txt").write_text("not a checkpoint")
    assert checkpoint.read_latest(tmp_path) is None


def test_only_the_newest_are_kept(tmp_path: pathlib.Path) -> None:
    for step in (5, 10, 100, 1_000):
        _write(tmp_path, step, max_to_keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_000000000100", "step_000000001000"]
    newest = _write(tmp_path, 2_000, max_to_keep=1)
    assert list(tmp_path.iterdir()) == [newest]
    seen = [path for path in checkpoint._seen_whole if path.is_relative_to(tmp_path)]
    assert seen == [newest]  # A run of a year writes thousands.


def test_the_newest_contents_stay_however_many_are_written_without(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, 100)
    full = _write(tmp_path, 200)
    for step in (200, 300, 400, 400):  # The first one rewrites the step of the contents.
        checkpoint.write(tmp_path, step, {"step": step})
        found = checkpoint.read_latest(tmp_path, holding="replay")
        assert found is not None and found.path == full
    assert checkpoint.steps(tmp_path) == [200, 300, 400]
    _write(tmp_path, 500)
    assert sorted(checkpoint.steps(tmp_path)) == [400, 500]


def test_a_damaged_one_is_not_kept_in_place_of_a_whole_one(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, 100)
    _damage(_write(tmp_path, 200) / "arrays.npz", "flipped")
    _write(tmp_path, 300)
    assert checkpoint.steps(tmp_path) == [100, 300]
    _damage(_write(tmp_path, 400) / "replay" / "items.bin", "torn")
    checkpoint.write(tmp_path, 500, {})
    assert checkpoint.steps(tmp_path) == [300, 500]


def test_a_step_written_again_replaces_itself(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, 1)
    for value in range(3):
        checkpoint.write(tmp_path, 2, {"value": value})
    found = checkpoint.read_latest(tmp_path)
    assert found is not None and found.step == 2 and found.state["value"] == 2
    assert len(list(tmp_path.iterdir())) == 2


def test_what_was_just_written_is_kept_though_damaged_newer_ones_exist(tmp_path: pathlib.Path) -> None:
    for step in (100, 200):
        _damage(_write(tmp_path, step) / "arrays.npz", "torn")
    written = _write(tmp_path, 50)
    assert written.is_dir()
    found = checkpoint.read_latest(tmp_path)
    assert found is not None and found.step == 50


@pytest.mark.parametrize("arguments", [{"step": -1}, {"step": 1, "max_to_keep": 0}])
def test_impossible_arguments_are_refused(tmp_path: pathlib.Path, arguments: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="found step="):
        checkpoint.write(tmp_path, state={}, **arguments)


@pytest.mark.parametrize("how", ["missing", "empty", "torn", "longer", "flipped"])
@pytest.mark.parametrize("name", ["arrays.npz", "state.json", "manifest.json", "replay/items.bin"])
def test_damage_is_seen_and_the_one_before_is_read(tmp_path: pathlib.Path, name: str, how: str) -> None:
    _write(tmp_path, 1)
    broken = _write(tmp_path, 2)
    _damage(broken / name, how)
    with pytest.warns(UserWarning, match=f"damaged checkpoint: {broken}"):
        found = checkpoint.read_latest(tmp_path)
    assert found is not None and found.step == 1 and found.state["step"] == 1


@pytest.mark.parametrize("read", [checkpoint.read_latest, lambda folder: checkpoint.read_all(folder)[0]])
def test_a_checkpoint_that_its_writer_replaces_meanwhile_is_no_damage(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, read: Any
) -> None:
    read_arrays, step, most = checkpoint.read_npz, 1, 4

    def replace(path: pathlib.Path) -> dict[str, np.ndarray]:
        nonlocal step
        if step < most:
            step += 1
            _write(tmp_path, step, max_to_keep=1)
        return read_arrays(path)

    _write(tmp_path, 1)
    monkeypatch.setattr("agentkit.checkpoint.read_npz", replace)
    assert read(tmp_path).step == 4
    most = 1_000
    with pytest.raises(CheckpointError, match=r"No checkpoint can be read.*No such file"):
        read(tmp_path)
    assert step < 100


def test_one_with_a_replay_that_is_replaced_meanwhile_is_found_too(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, 1)
    is_dir, writes = pathlib.Path.is_dir, iter([2])

    def replace(path: pathlib.Path) -> bool:
        if path.name == "replay" and (step := next(writes, None)) is not None:
            _write(tmp_path, step, max_to_keep=1)
        return is_dir(path)

    monkeypatch.setattr(pathlib.Path, "is_dir", replace)
    found = checkpoint.read_latest(tmp_path, holding="replay")
    assert found is not None and found.step == 2


def test_a_file_too_many_is_damage(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, 1)
    (_write(tmp_path, 2) / "replay" / "stray.bin").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"stray\.bin"):
        found = checkpoint.read_latest(tmp_path)
    assert found is not None and found.step == 1


def test_all_damaged_is_an_error_that_names_each(tmp_path: pathlib.Path) -> None:
    for path in [_write(tmp_path, step) for step in (1, 2)]:
        _damage(path / "state.json", "torn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(CheckpointError, match=r"(?s)step_000000000002.*state\.json.*step_000000000001"):
            checkpoint.read_latest(tmp_path)


def test_every_flipped_byte_of_a_manifest_is_survived(tmp_path: pathlib.Path) -> None:
    """JSON with one byte changed may still be JSON, of another structure."""
    manifest = _write(tmp_path, 1) / "manifest.json"
    data = manifest.read_bytes()
    rewritten = 0
    for i in range(len(data)):
        for bit in (0, 4, 7):
            manifest.write_bytes(data[:i] + bytes([data[i] ^ (1 << bit)]) + data[i + 1 :])
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    found = checkpoint.read_latest(tmp_path)
                except CheckpointError:
                    continue
            # Some flips only change white space; what is read is whole all the same.
            assert found is not None and found.state["step"] == 1
            rewritten += 1
    assert rewritten < len(data) / 2
    for text in ("[]", "3", '{"arrays.npz": 3}', '{"arrays.npz": {}}', "null"):
        manifest.write_text(text)
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError):
            checkpoint.read_latest(tmp_path)


class Custom:
    pass


@pytest.mark.parametrize(
    ("leaf", "message"),
    [
        (Custom(), "'/a/b'.*found Custom"),
        ({1, 2}, "'/a/b'.*found set"),
        (b"bytes", "'/a/b'.*found bytes"),
        (1j, "'/a/b'.*found complex"),
        (np.array([Custom()]), "'/a/b'.*found object"),
        (np.zeros(2, [("x", np.int32)]), r"'/a/b'.*found \[\('x'"),
        ([0, Custom()], "'/a/b/1'.*found Custom"),
        ({3: "x"}, "'/a/b'.*string keys.*found 3"),
        ({"__array__": "a0"}, "'/a/b'.*__array__"),
    ],
)
def test_a_leaf_that_cannot_be_saved_is_named_and_leaves_nothing(
    tmp_path: pathlib.Path, leaf: Any, message: str
) -> None:
    _write(tmp_path, 1)
    with pytest.raises(CheckpointError, match=message):
        checkpoint.write(tmp_path, 2, {"a": {"b": leaf}})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4"])
@pytest.mark.parametrize("shape", [(), (0, 2), (2, 3)])
def test_numbers_that_numpy_lacks_come_back_as_they_were(
    tmp_path: pathlib.Path, dtype: str, shape: tuple[int, ...]
) -> None:
    import ml_dtypes

    value = np.asarray(np.arange(np.prod(shape)).reshape(shape), getattr(ml_dtypes, dtype))
    checkpoint.write(tmp_path, 1, {"w": [value.T, value[()]]})
    for found, written in zip(checkpoint.read_latest(tmp_path).state["w"], (value.T, value), strict=True):
        assert found.dtype == written.dtype and found.shape == written.shape
        np.testing.assert_array_equal(found.astype(np.float32), written.astype(np.float32))


def test_jax_arrays_are_refused_by_name(tmp_path: pathlib.Path) -> None:
    import jax.numpy as jnp

    with pytest.raises(CheckpointError, match=r"'/w'.*found ArrayImpl.*Convert it in save"):
        checkpoint.write(tmp_path, 1, {"w": jnp.zeros(2)})


def test_no_pickle_is_read(tmp_path: pathlib.Path) -> None:
    """An attacker's arrays.npz with a right manifest is refused, not executed."""
    path = _write(tmp_path, 1)
    with open(path / "arrays.npz", "wb") as file:
        np.savez(file, a0=np.array([Custom], object))
    (path / "manifest.json").unlink()
    checkpoint._write_manifest(path)
    with pytest.warns(UserWarning, match="allow_pickle"), pytest.raises(CheckpointError):
        checkpoint.read_latest(tmp_path)
    with open(path / "arrays.npz", "wb") as file:
        pickle.dump({}, file)
    checkpoint._write_manifest(path)
    with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError):
        checkpoint.read_latest(tmp_path)


def test_a_component_that_fails_leaves_nothing(tmp_path: pathlib.Path) -> None:
    _write(tmp_path, 1)

    def fail(folder: pathlib.Path) -> None:
        (folder / "half").write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        checkpoint.write(tmp_path, 2, {}, {"replay": fail})
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]


def test_a_failing_sync_is_an_error_and_the_old_one_stays(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(tmp_path, 1)

    def fail(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("agentkit.checkpoint.os.fsync", fail)
    expected = (
        "Could not write.*the disk is full.*No space left.*Older checkpoints are untouched; the last good one is .*1"
    )
    with pytest.raises(CheckpointError, match=expected):
        _write(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["step_000000000001"]


def test_a_full_disk_is_called_so_where_numpy_only_counts_bytes(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: object, **arrays: np.ndarray) -> None:
        raise OSError("4090 requested and 0 written")

    monkeypatch.setattr("agentkit.checkpoint.np.savez", fail)
    with pytest.raises(CheckpointError, match=r"the disk is full.*There is no older one"):
        _write(tmp_path, 2)


def test_a_full_disk_is_an_error_and_the_old_one_stays(tmp_path: pathlib.Path) -> None:
    result = _kill("full", tmp_path)
    assert "Could not write the checkpoint" in result["message"] and "File too large" in result["message"]
    assert result["found"] == 1 and result["names"] == ["step_000000000001"]


def test_no_free_descriptor_is_an_error_of_the_checkpoint_alone(tmp_path: pathlib.Path) -> None:
    resource = pytest.importorskip("resource")
    good, limits = _write(tmp_path, 1), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(CheckpointError) as caught:
            checkpoint.write(tmp_path, 2, {})
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert f"Could not write the checkpoint {tmp_path}" in str(caught.value)
    assert "Too many open files" in str(caught.value) and "Older checkpoints are untouched." in str(caught.value)
    assert list(tmp_path.iterdir()) == [good]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="Could not write"):
        _write(tmp_path / "file", 1)


@pytest.mark.full
def test_kill_9_at_random_instants_leaves_the_last_or_the_one_before(tmp_path: pathlib.Path) -> None:
    result = _kill("random", tmp_path / "run", 40)
    assert result["kills"] == 40
    # Otherwise the kills fell between writes and showed nothing.
    assert result["interrupted_writes"] >= 5
    assert result["last_step"] >= 10


@pytest.mark.one_case
@pytest.mark.parametrize("rewrite", ["next", "same"])
@pytest.mark.parametrize("max_to_keep", [1, 2])
def test_a_kill_at_each_file_operation_leaves_a_whole_checkpoint(
    tmp_path: pathlib.Path, max_to_keep: int, rewrite: str
) -> None:
    result = _kill("everywhere", tmp_path / "run", max_to_keep, rewrite)
    assert result["operations"] > 20


def test_syncing_as_windows_allows(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There no folder can be opened, and only who may write to a file may wait for it."""
    writable, real_open, real_fsync = set(), os.open, os.fsync

    def open_as_there(path: Any, flags: int, *rest: Any) -> int:
        if os.path.isdir(path):
            raise PermissionError(13, "Permission denied", str(path))
        descriptor = real_open(path, flags, *rest)
        writable.discard(descriptor)
        if flags & (os.O_WRONLY | os.O_RDWR):
            writable.add(descriptor)
        return descriptor

    def sync_as_there(descriptor: int) -> None:
        if descriptor not in writable:
            raise OSError(9, "Bad file descriptor")
        real_fsync(descriptor)

    monkeypatch.setattr(checkpoint, "_WINDOWS", True)
    monkeypatch.setattr(os, "open", open_as_there)
    monkeypatch.setattr(os, "fsync", sync_as_there)
    checkpoint.write(tmp_path, 1, STATE, {"replay": lambda folder: (folder / "x").write_bytes(b"y") and None})
    assert checkpoint.read_latest(tmp_path).step == 1
    monkeypatch.setattr(checkpoint, "_WINDOWS", False)
    with pytest.raises(CheckpointError, match="Could not write"):
        checkpoint.write(tmp_path, 2, STATE)
