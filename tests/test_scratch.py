"""Temporary folders and shared memory of killed programs: removed by the next one; of living ones, never."""

import os
import subprocess
import sys
import time

import numpy as np
import pytest

from agentkit import scratch
from agentkit.variables import SharedMemoryPublisher, SharedMemorySource, remove_unused_shared_memory, shared_memory
from agentkit.variables.shared_memory import shared_memory_path

HOLD = """
import sys, time
import numpy as np
from agentkit.scratch import make_scratch
from agentkit.variables import SharedMemoryPublisher
publisher = SharedMemoryPublisher(sys.argv[2])
publisher.publish(1, {"a": np.zeros(3)})
print(make_scratch("test", sys.argv[1]), flush=True)
time.sleep(60)
"""


@pytest.fixture(name="name")
def _name():
    name = f"test-{os.getpid()}"
    yield name
    shared_memory_path(name).unlink(missing_ok=True)


def test_what_a_killed_program_leaves_is_removed_and_what_a_living_one_uses_is_not(tmp_path, name, monkeypatch):
    monkeypatch.setattr(scratch, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(shared_memory, "KEPT_SECONDS", 0.0)
    command = [sys.executable, "-c", HOLD, str(tmp_path), name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        (folder,) = (tmp_path / other.stdout.readline().strip() for _ in range(1))
        (folder / "data").write_text("x")
        mine = scratch.make_scratch("test", tmp_path)
        remove_unused_shared_memory()
        assert folder.is_dir() and shared_memory_path(name).exists()
        other.kill()
    reader = SharedMemorySource(name)
    assert reader.get(["a"]).version == 1
    remove_unused_shared_memory()
    assert shared_memory_path(name).exists(), "a reader has it mapped"
    reader.close()
    remove_unused_shared_memory()
    assert not shared_memory_path(name).exists()
    again = scratch.make_scratch("test", tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([mine, again])
    for made in (mine, again, again):
        scratch.remove_scratch(made)
    assert list(tmp_path.iterdir()) == []


def test_parameters_stay_for_a_while_after_their_publishers_end(name):
    """Else a run that starts elsewhere takes them from an evaluator that has its last evaluation still to begin."""
    publisher = SharedMemoryPublisher(name)
    publisher.publish(1, {"a": np.zeros(3)})
    hours_ago = time.time() - 3 * 3_600
    os.utime(shared_memory_path(name), (hours_ago, hours_ago))
    publisher.publish(2, {"a": np.ones(3)})
    del publisher  # Ends as a process does: its mapping goes, its file stays.
    remove_unused_shared_memory()
    assert SharedMemorySource(name).get(["a"]).version == 2
    os.utime(shared_memory_path(name), (hours_ago, hours_ago))
    remove_unused_shared_memory()
    assert not shared_memory_path(name).exists()


def test_what_is_young_or_of_another_kind_stays(tmp_path):
    for kind in ("test", "other"):
        (tmp_path / f"agentkit-{kind}-{os.getuid()}-old").mkdir()
    os.utime(tmp_path / f"agentkit-other-{os.getuid()}-old", (time.time() - 60,) * 2)
    scratch.remove_scratch(scratch.make_scratch("test", tmp_path))
    assert len(list(tmp_path.iterdir())) == 2


def test_a_publisher_whose_memory_was_removed_makes_it_again(name):
    import numpy as np

    publisher = SharedMemoryPublisher(name)
    publisher.publish(1, {"a": np.zeros(3)})
    shared_memory_path(name).unlink()
    publisher.publish(2, {"a": np.ones(3)})
    assert SharedMemorySource(name).get(["a"]).version == 2
    publisher.close()


def test_a_named_folder_is_found_again_after_a_kill_and_others_of_its_kind_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(scratch, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    killed = tmp_path / f"agentkit-test-{os.getuid()}-killed"
    for left in ("killed", "other"):
        (tmp_path / f"agentkit-test-{os.getuid()}-{left}").mkdir(mode=0o700)
    (killed / "socket").touch()
    with scratch.named_scratch("test", "killed") as folder:
        assert folder == killed and (folder / "socket").exists() and folder.stat().st_mode & 0o077 == 0
        assert list(tmp_path.iterdir()) == [folder]
        with scratch.named_scratch("test", "second"):
            assert folder.exists(), "it is in use"
    assert list(tmp_path.iterdir()) == []
