"""Files of a stranger's folder: links are not written through, pipes not waited for, and sizes have limits."""

import errno
import io
import os
import signal
import zipfile

import numpy as np
import pytest

from agentkit import checkpoint, files
from agentkit.callbacks import best
from agentkit.cli import main
from agentkit.datasets import read_episodes
from agentkit.errors import CheckpointError, ConfigError, VariablesTimeoutError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.policies.policy_file import read_policy
from agentkit.experiment.runs.config_json import write_config
from agentkit.experiment.runs.lock import run_lock
from agentkit.experiment.sweeps import jobs
from agentkit.experiment.sweeps.trials import SweepFolder
from agentkit.loggers import CsvLogger, JsonLinesLogger, read_csv, read_jsonl
from tests.experiment.own_parts import SMALL


def _lock(folder):
    with run_lock(folder):
        pass


def _lock_best(folder):
    with best._locked(folder / "best"):
        pass


def _take_turn(folder):
    with SweepFolder(folder).turn():
        pass


def _log_csv(folder):
    with_log = CsvLogger(folder / "log.csv")
    with_log.write({"steps": 1})
    with_log.close()


def _log_jsonl(folder):
    log = JsonLinesLogger(folder / "log.jsonl", resume_step=0)
    log.write({"steps": 1})
    log.close()


def _write_json(folder):
    checkpoint.write_json(folder / "config.json", {"agent": 1})


WRITERS = {
    "lock": _lock,
    "best/.lock": _lock_best,
    "turn": _take_turn,
    "log.csv.tmp": _log_csv,
    "log.jsonl": _log_jsonl,
    "log.jsonl.tmp": _log_jsonl,
    "config.json.PID.tmp": _write_json,
}
_LINE = '{"steps": 0, "of the user\'s": 1}\n'


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("outside", [True, False])
def test_nothing_is_written_through_a_link(name, outside, tmp_path):
    folder = tmp_path / "run"
    (folder / "best").mkdir(parents=True)
    target = (tmp_path if outside else folder) / "users.txt"
    content = "" if name == "log.jsonl" else _LINE  # Another one is read, and written anew.
    target.write_text(content)
    link = folder / name.replace("PID", str(os.getpid()))
    link.symlink_to(target)
    if name == "log.jsonl.tmp":
        (folder / "log.jsonl").write_text(_LINE)
    try:
        WRITERS[name](folder)
    except ConfigError as error:
        assert "symbolic link" in str(error)
        assert link.is_symlink()
    else:
        assert not link.is_symlink(), "a file of the folder's own is in its place"
    assert target.read_text() == content


def test_a_lock_that_is_held_is_not_emptied(tmp_path):
    (tmp_path / "lock").write_text("process 1 on another\n")
    with files.open_lock(tmp_path / "lock") as file:
        assert file.read() == "process 1 on another\n"


@pytest.mark.parametrize("error", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_disk_without_locks_keeps_nobody_out(error, tmp_path, monkeypatch):
    def refuse(*rest):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr("fcntl.lockf", refuse)
    monkeypatch.setattr("fcntl.flock", refuse)
    for lock in (_lock, _lock_best, _take_turn):
        lock(tmp_path)
    error = errno.EIO
    with pytest.raises(OSError, match="Input/output error"):
        _take_turn(tmp_path)


@pytest.mark.parametrize("name", ["checkpoints", "logs/tensorboard", "videos/a.gif"])
def test_no_run_is_begun_in_a_folder_with_a_link_out_of_it(name, tmp_path):
    folder, users = tmp_path / "run", tmp_path / "users"
    users.mkdir()
    (folder / name).parent.mkdir(parents=True)
    (folder / name).symlink_to(users)
    with pytest.raises(ConfigError, match=f"{name} is a symbolic link to {users}.*Delete the link"), run_lock(folder):
        pass
    (folder / name).unlink()
    (folder / "run-1").mkdir()
    (folder / "latest-run").symlink_to("run-1")  # As W&B makes them.
    tmp_path.joinpath("alias").symlink_to(folder)
    with run_lock(tmp_path / "alias"):
        assert (folder / "lock").is_file()


@pytest.fixture(name="run")
def _run(tmp_path):
    """A run folder without a log yet; who waits in it for ever is woken."""
    from agentkit.agents import dqn

    folder = tmp_path / "run"
    write_config(ExperimentConfig(dqn.make_agent(SMALL), "agentkit:catch", 40, run_directory=folder), folder)
    (folder / "logs").mkdir()

    def wake(*rest):
        raise TimeoutError("It waits for a pipe.")

    before = signal.signal(signal.SIGALRM, wake)
    signal.alarm(10)
    yield folder
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_pipe_is_not_waited_for(run, capsys):
    manifest = run / "checkpoints" / "step_000000000001" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    names = ("logs/train.csv", "logs/evaluation.csv", "logs/evaluation.jsonl", "outcome.json")
    for path in (*(run / name for name in names), manifest):
        os.mkfifo(path)
    for read in (
        lambda: read_csv(run / "logs" / "train.csv"),
        lambda: read_jsonl(run / "logs" / "evaluation.jsonl"),
        lambda: jobs.read_progress(run),
        lambda: jobs.read_outcome(run),
    ):
        with pytest.raises(ConfigError, match="expected a regular file, found a pipe"):
            read()
    with pytest.warns(UserWarning), pytest.raises(CheckpointError, match="expected a regular file, found a pipe"):
        checkpoint.read_latest(run / "checkpoints")
    for words in (["plot", str(run)], ["compare", str(run)]):
        assert main(words) == 2
        assert "expected a regular file, found a pipe" in capsys.readouterr().err.splitlines()[-1]


@pytest.fixture(name="small")
def _small(monkeypatch):
    """Limits that a test reaches without gigabytes."""
    monkeypatch.setattr(files, "_MOST_ARRAYS", 2**20)


def test_an_array_has_no_more_memory_than_its_file_may_ask_for(tmp_path, small):
    columns = {"observations": np.zeros((300_000, 4), np.float32), "agentkit_policy": np.zeros(8, np.uint8)}
    np.savez_compressed(tmp_path / "a.npz", **columns)
    for read in (files.read_npz, read_policy, lambda path: read_episodes(str(path))):
        with pytest.raises(ValueError, match=r"hold more than 1\.0 MiB of arrays; at most 100 times the file"):
            read(tmp_path / "a.npz")
    assert files.read_npz(tmp_path / "a.npz", lambda name: name != "observations").keys() == {"agentkit_policy"}
    np.savez(tmp_path / "b.npz", **columns)  # Of its own size on the disk.
    assert files.read_npz(tmp_path / "b.npz")["observations"].shape == (300_000, 4)


def test_hdf5_has_no_more_memory_than_its_file_may_ask_for(tmp_path, small):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        for name in ("observations", "actions", "rewards", "terminals"):
            file.create_dataset(name, (2**40,), np.float32, chunks=(2**20,))  # Which takes no room until it is written.
    with pytest.raises(ConfigError, match=r"hold more than 1\.0 MiB of arrays"):
        read_episodes(str(tmp_path / "a.hdf5"))
    with h5py.File(tmp_path / "b.hdf5", "w") as file:
        group = file.create_group("episode_0")
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            group[name] = group  # Without an end.
    with pytest.raises(ConfigError):
        read_episodes(str(tmp_path / "b.hdf5"))


@pytest.mark.parametrize(
    ("header", "match"),
    [
        ({"descr": "<f4", "fortran_order": False, "shape": (2**45,)}, "is damaged: it says float32"),
        ({"descr": "|O", "fortran_order": False, "shape": (1,)}, "Object arrays"),
    ],
    ids=["size", "pickle"],
)
def test_a_header_is_not_believed(header, match, tmp_path):
    content = io.BytesIO()
    np.lib.format.write_array_header_1_0(content, header)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", content.getvalue() + bytes(64))
    with pytest.raises(ValueError, match=match):
        files.read_npz(tmp_path / "a.npz")


def test_agentkits_own_timeouts_are_no_refusal_of_the_disk(tmp_path):
    with pytest.raises(VariablesTimeoutError), files.refusing_unwritable(tmp_path):
        raise VariablesTimeoutError("Nothing was published.")
    with pytest.raises(ConfigError, match="cannot be written: No space left"), files.refusing_unwritable(tmp_path):
        raise OSError(28, "No space left")
