"""What only shared memory has: files, kills, other layouts. The hammers are other processes."""

import json
import os
import pathlib
import random
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import timeit

import numpy as np
import pytest

from agentkit.errors import ConfigError, VariablesTimeoutError
from agentkit.variables import SharedMemoryPublisher, SharedMemorySource, remove_shared_memory
from agentkit.variables.shared_memory import shared_memory_path

pytestmark = pytest.mark.both_stacks

HAMMER = pathlib.Path(__file__).with_name("hammer.py")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def start(*args):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HAMMER), *map(str, args)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)


def last_line(process):
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


def filled(version, size=8):
    return {"policy": {"w": np.full(size, version, np.float32), "b": np.full((), version, np.int64)}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "parameters"


@pytest.mark.one_case
@pytest.mark.parametrize(("size", "times"), [(10, 3000), (10_000, 30)])
def test_no_reader_ever_sees_a_torn_tree(path, size, times):
    publisher = start("publish", "memory", path, 240.0, size, 0)
    try:
        assert publisher.stdout.readline() == "published\n"
        readers = [start("read", "memory", path, 20.0, times) for _ in range(2)]
        for told in map(last_line, readers):
            assert told["torn"] == told["backwards"] == 0
            # On a busy machine there may be no time for all.
            assert times // 10 <= told["fetched"] <= told["version"] + 1
    finally:
        publisher.kill()
        publisher.communicate()


@pytest.mark.full
def test_a_publisher_killed_at_any_instant_leaves_a_whole_version(path):
    """And readers go on at once, with it and with the next learner, which restarted lower."""
    rng, held, source = random.Random(0), -1, SharedMemorySource(path)
    sys.path.insert(0, str(HAMMER.parent))
    try:
        from hammer import is_whole
    finally:
        sys.path.remove(str(HAMMER.parent))
    for i in range(20):
        size = rng.choice([5, 2_000, 20_000])
        publisher = start("publish", "memory", path, 60.0, size, 1_000_000 - 10_000 * i)
        assert publisher.stdout.readline() == "published\n"
        time.sleep(rng.uniform(0, 0.05))
        publisher.kill()
        publisher.communicate()
        found = source.get(["policy"], newer_than=held)
        assert found is not None and is_whole(found.version, found.variables["policy"])
        assert 0 <= found.version - (1_000_000 - 10_000 * i) < 10_000
        held = found.version
        assert source.get(["policy"], newer_than=held) is None
    assert os.listdir(path.parent) == ["parameters"]


def test_a_reader_goes_on_while_the_publisher_is_stopped_in_the_middle(path):
    publisher = start("publish", "memory", path, 60.0, 200_000, 0)
    assert publisher.stdout.readline() == "published\n"
    try:
        source = SharedMemorySource(path, timeout=1.0)
        for _ in range(5):
            os.kill(publisher.pid, signal.SIGSTOP)
            found = source.get(["policy"])
            assert (found.variables["policy"]["layer_5"]["w"] == found.version).all()
            os.kill(publisher.pid, signal.SIGCONT)
            time.sleep(0.02)
    finally:
        publisher.kill()
        publisher.communicate()


def test_a_half_written_slot_is_never_read(path):
    """What a kill in the middle leaves, made by hand at the worst place: all but the last word."""
    publisher, source = SharedMemoryPublisher(path), SharedMemorySource(path)
    publisher.publish(0, filled(0))
    publisher.publish(1, filled(1))
    words = publisher._segment._words
    words[16] += 1  # the slot of the first publication, which is not the newest any more
    assert source.get(["policy"]).version == 1
    words[8] += 1  # the slot of the second: overtaken while it is copied
    assert publisher._segment.read(["policy"]) is None
    publisher.close()


def test_a_reader_that_is_overtaken_for_too_long_says_so(path):
    publisher, source = SharedMemoryPublisher(path), SharedMemorySource(path, timeout=0.1)
    publisher.publish(0, filled(0))
    publisher._segment._words[16] -= 1
    with pytest.raises(VariablesTimeoutError, match=r"changed while they were copied, for 0\.1 s"):
        source.get(["policy"])
    publisher.publish(1, filled(1))
    assert source.get(["policy"]).version == 1
    publisher.close()


def test_asking_for_nothing_newer_takes_microseconds(path):
    publisher, source = SharedMemoryPublisher(path), SharedMemorySource(path)
    publisher.publish(3, filled(3, size=1_000_000))
    timer = timeit.Timer(lambda: source.get(("policy",), newer_than=3), timer=time.process_time)
    seconds = min(timer.repeat(5, 1000)) / 1000
    assert seconds < 100e-6  # 4 us; a copy takes 1,000.
    publisher.close()


def test_the_file_is_this_users_alone_and_goes_with_the_publisher(path):
    publisher = SharedMemoryPublisher(path)
    assert not path.exists()
    publisher.publish(0, filled(0))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["parameters"]
    publisher.close()
    assert os.listdir(path.parent) == []


def test_a_name_is_a_file_in_memory():
    name = f"test-{os.getpid()}"
    publisher, source = SharedMemoryPublisher(name), SharedMemorySource(name)
    publisher.publish(0, filled(0))
    try:
        assert shared_memory_path(name).name == f"agentkit-parameters-{os.getuid()}-{name}"
        assert source.get(["policy"]).version == 0
    finally:
        remove_shared_memory(name)
    assert not shared_memory_path(name).exists()
    # Who has it mapped reads on, and the publisher makes it anew.
    assert source.get(["policy"], newer_than=0) is None
    publisher.publish(1, filled(1))
    assert source.get(["policy"], newer_than=0).version == 1
    publisher.close()
    with pytest.raises(ConfigError, match="empty name"):
        shared_memory_path("")


def test_leftovers_of_a_killed_publisher_go_with_the_next_one(path):
    leftover = path.with_name("parameters.new-123-abcd")
    leftover.write_bytes(b"half")
    SharedMemoryPublisher(path)
    assert not leftover.exists()
    leftover.write_bytes(b"half")
    path.write_bytes(b"killed")
    remove_shared_memory(path)
    assert os.listdir(path.parent) == []


def test_the_newest_publisher_takes_over_and_the_older_one_is_told(path):
    old, new, source = SharedMemoryPublisher(path), SharedMemoryPublisher(path), SharedMemorySource(path)
    old.publish(10, filled(10))
    assert source.get(["policy"]).version == 10
    new.publish(5, filled(5))
    with pytest.raises(ConfigError, match="Another publisher has taken over"):
        old.publish(11, filled(11))
    old.close()
    assert source.get(["policy"], newer_than=10).version == 5
    new.close()


@pytest.mark.parametrize("content", [b"", b"x" * 10, b"x" * 4096, b"agentkv1" + b"\xff" * 4096])
def test_another_file_is_refused(path, content):
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"parameters (is not a file|holds no shared)"):
        SharedMemorySource(path).get(["policy"])


def test_a_folder_or_a_link_is_refused(path):
    path.mkdir()
    with pytest.raises(ConfigError, match="is not a file"):
        SharedMemorySource(path).get(["policy"])
    path.rmdir()
    path.symlink_to("/etc/hostname")
    with pytest.raises(ConfigError, match="cannot be read"):
        SharedMemorySource(path).get(["policy"])


@pytest.mark.skipif(os.getuid() != 0, reason="needs root to make another user's file")
def test_another_users_file_is_refused(path):
    publisher = SharedMemoryPublisher(path)
    publisher.publish(0, filled(0))
    os.chown(path, 65534, 65534)
    with pytest.raises(ConfigError, match="this user's"):
        SharedMemorySource(path).get(["policy"])


def test_a_missing_folder_is_an_error_of_the_publisher_and_no_news_for_a_reader(tmp_path):
    path = tmp_path / "missing" / "parameters"
    assert SharedMemorySource(path).get(["policy"]) is None
    with pytest.raises(ConfigError, match="could not be shared"):
        SharedMemoryPublisher(path).publish(0, filled(0))


def test_an_actor_that_uses_it_loads_nothing_heavy(path):
    code = f"""
    import sys
    import numpy as np
    from agentkit.variables import SharedMemoryPublisher, SharedMemorySource, VariableClient
    SharedMemoryPublisher({str(path)!r}).publish(0, {{"policy": np.ones(10)}})
    VariableClient(SharedMemorySource({str(path)!r})).update(wait=True)
    print(sorted({{"jax", "tensorflow", "reverb", "haiku"}} & sys.modules.keys()))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "[]\n"


def test_no_room_is_an_error_and_no_crash(tmp_path):
    """As in a container with 64 MB of shared memory; without care the first write is a SIGBUS."""
    mount = ["unshare", "-rm", "sh", "-c", f'mount -t tmpfs -o size=1m none {tmp_path} && "$@"', "sh"]
    if shutil.which("unshare") is None or subprocess.run([*mount, "true"], stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no file system of an own size can be had here")
    code = f"""
    import os
    import numpy as np
    from agentkit.errors import ConfigError
    from agentkit.variables import SharedMemoryPublisher, SharedMemorySource
    publisher = SharedMemoryPublisher("{tmp_path}/parameters")
    publisher.publish(0, {{"policy": np.ones(10)}})
    try:
        publisher.publish(1, {{"policy": np.ones(1 << 20)}})
    except ConfigError as error:
        print(error)
    assert os.listdir("{tmp_path}") == ["parameters"]
    assert SharedMemorySource("{tmp_path}/parameters").get(["policy"]).version == 0
    """
    command = [*mount, sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True, timeout=60)
    assert "twice their size" in done.stdout
