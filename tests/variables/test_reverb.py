"""The parameter server, and parameters in it: what only Reverb has. The hammers are other processes."""

import contextlib
import json
import os
import pathlib
import random
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("reverb")

from agentkit.errors import ConfigError, ReplayClosedError, ReplayTimeoutError
from agentkit.replay.reverb import parameter_server
from agentkit.replay.reverb.parameter_server import ParameterServerClient, ReverbParameterServer, Stamp
from agentkit.variables import ReverbPublisher, ReverbSource

pytestmark = pytest.mark.reverb

HAMMER = pathlib.Path(__file__).with_name("hammer.py")
ROOT = pathlib.Path(__file__).resolve().parents[2]
LONG = 60.0
CHILD = 240.0  # TensorFlow takes its time to load where the machine is busy


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start(*args):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HAMMER), *map(str, args)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def last_line(process):
    out, _ = process.communicate(timeout=CHILD)
    assert process.returncode == 0
    return json.loads(out.splitlines()[-1])


# --- the parameter server -------------------------------------------------------------------------------------


def test_a_letter_is_read_once_by_each_reader():
    with contextlib.closing(ReverbParameterServer("run")) as server:
        client, other = ParameterServerClient(server.address, "run"), ParameterServerClient(server.address, "run")
        assert client.get() is None
        stamp = server.put({"x": [1, None]}, [np.arange(3), np.ones((), np.float32), np.zeros((0, 2), bool)])
        assert stamp == Stamp(server.sender, 1)
        publication = client.get()
        assert (publication.stamp, publication.header) == (stamp, {"x": [1, None]})
        assert [(a.dtype, a.shape) for a in publication.arrays] == [("int64", (3,)), ("float32", ()), ("bool", (0, 2))]
        assert client.get(stamp) is None
        assert client.get(Stamp("another", 1)).stamp == other.get().stamp == stamp
        server.put({}, [])
        assert client.get(stamp).stamp == Stamp(server.sender, 2)


def test_a_parameter_server_of_another_run_is_not_read():
    import reverb

    with contextlib.closing(ReverbParameterServer("secret of/run a")) as server:
        server.put({}, [])
        with pytest.raises(ReplayClosedError, match=r"expected the table parameters/\w+ of this run, found the tables"):
            ParameterServerClient(server.address, "run", timeout=0.5).get()
        (table,) = reverb.Client(server.address).server_info(5)
        assert "secret" not in table
        assert ParameterServerClient(server.address, "secret of/run a").get().stamp.number == 1
    with pytest.raises(ConfigError, match="run id"):
        ReverbParameterServer("")
    with pytest.raises(ConfigError, match="run id"):
        ParameterServerClient("localhost:1", "")


def test_a_server_that_is_away_costs_one_timeout_and_then_nothing():
    port = free_port()
    client = ParameterServerClient(f"localhost:{port}", "run", timeout=1.0)
    start_time = time.monotonic()
    with pytest.raises(ReplayClosedError, match=rf"localhost:{port} (has not answered for 1\.\d|cannot be read)"):
        client.get()
    first = time.monotonic() - start_time
    assert 0.9 < first < 5
    start_time = time.monotonic()
    for _ in range(10):
        with pytest.raises(ReplayClosedError):
            client.get()
    assert time.monotonic() - start_time < 0.5
    with contextlib.closing(ReverbParameterServer("run", port=port)) as server:
        server.put({}, [])
        deadline = time.monotonic() + LONG
        publication = None
        while publication is None and time.monotonic() < deadline:
            with contextlib.suppress(ReplayClosedError):
                publication = client.get()
            time.sleep(0.02)
        assert publication.stamp == Stamp(server.sender, 1)


def test_a_sample_that_hangs_is_given_up(monkeypatch):
    """As with a host that lost its power: no answer ever, and no reset."""
    monkeypatch.setattr(parameter_server, "ABANDON_SECONDS", 0.5)
    with contextlib.closing(ReverbParameterServer("run")) as server:
        client = ParameterServerClient(server.address, "run", timeout=0.1)
        read, over = client._read, threading.Event()
        client._read = lambda *args: over.wait(10 * LONG)
        with pytest.raises(ReplayClosedError, match="has not answered"):
            client.get()
        client._read = read
        time.sleep(0.5)
        server.put({}, [])
        deadline = time.monotonic() + LONG
        publication = None
        while publication is None and time.monotonic() < deadline:
            with contextlib.suppress(ReplayClosedError):
                publication = client.get()
            time.sleep(0.01)
        over.set()
        assert publication is not None and publication.stamp.number == 1


def test_a_letter_that_is_not_taken_in_time():
    with contextlib.closing(ReverbParameterServer("run", timeout=0.2)) as server:
        server._client = type("Hanging", (), {"insert": staticmethod(lambda *_: time.sleep(5))})
        with pytest.raises(ReplayTimeoutError, match=r"did not take a publication of 24 bytes within 0\.2 s"):
            server.put({}, [np.zeros(3)])


def test_what_reverb_cannot_carry_is_refused_and_the_parameter_server_lives():
    with contextlib.closing(ReverbParameterServer("run")) as server:
        with pytest.raises(ConfigError, match=r"dtypes: \['object'\]"):
            server.put({}, [np.array([None])])
        server.put({}, [])
        assert ParameterServerClient(server.address, "run").get().stamp.number == 1


def test_two_parameter_servers_on_one_port_are_refused():
    with contextlib.closing(ReverbParameterServer("run")) as server, pytest.raises(ConfigError, match="is taken"):
        ReverbParameterServer("run", port=server.port)


def test_an_unknown_device_is_refused():
    with pytest.raises(ConfigError, match="network device 'nowhere9'"):
        ReverbParameterServer("run", listen="nowhere9")


def test_other_machines_cannot_reach_it():
    own = _own_address()
    if own is None:
        pytest.skip("this machine has no address but loopback")
    with contextlib.closing(ReverbParameterServer("run")) as server:
        # Traffic to an own address goes over lo; a device that is not lo must not see the socket.
        listening = subprocess.run(["ss", "-ltnH", f"sport = :{server.port}"], capture_output=True, text=True)
        if listening.returncode:
            pytest.skip("no ss")
        assert "%lo:" in listening.stdout


def _own_address():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        return probe.getsockname()[0]


def test_the_same_process_id_in_another_container_is_refused_on_loopback(monkeypatch):
    """Reverb takes it for the same process, and crashes."""
    with contextlib.closing(ReverbParameterServer("run")) as server:
        server.put({}, [])
        monkeypatch.setattr(parameter_server, "_process", lambda: f"{os.getpid()}-elsewhere")
        with pytest.raises(ReplayClosedError, match="both have process id"):
            ParameterServerClient(server.address, "run", timeout=0.2).get()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "no publication of this program"),
        (b"[]", "no publication of this program"),
        (b'{"sender": "s", "number": 1, "header": {"version": "x"}}', "are no parameters"),
    ],
)
def test_a_strangers_letter_is_no_crash(content, message):
    import reverb

    with contextlib.closing(ReverbPublisher("run")) as publisher:
        source = ReverbSource(publisher.address, "run", timeout=0.5)
        stranger = reverb.Client(publisher.address)
        (table,) = stranger.server_info(5)
        stranger.insert([np.frombuffer(content, np.uint8), np.zeros(3)], {table: 1.0})
        deadline, found = time.monotonic() + LONG, ""
        while message not in found:
            assert time.monotonic() < deadline
            with pytest.raises(ConnectionError) as raised:
                source.get(["policy"])
            found = str(raised.value)
            time.sleep(0.01)


@pytest.mark.full
def test_nothing_is_left_behind(tmp_path):
    code = """
    import numpy as np
    from agentkit.variables import ReverbPublisher, ReverbSource
    publisher = ReverbPublisher("run")
    publisher.publish(0, {"policy": np.ones(2)})
    assert ReverbSource(publisher.address, "run").get(["policy"]).version == 0
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True, timeout=CHILD)
    assert os.listdir(tmp_path) == []


# --- parameters in it --------------------------------------------------------------------------------


@pytest.mark.full
def test_no_reader_ever_sees_a_torn_tree():
    port = free_port()
    publisher = start("publish", "reverb", port, CHILD, 2_000, 0)
    try:
        assert publisher.stdout.readline() == "published\n"
        readers = [start("read", "reverb", port, 60.0, 50) for _ in range(2)]
        for told in map(last_line, readers):
            assert told["torn"] == told["backwards"] == 0
            assert told["fetched"] == 50
    finally:
        publisher.kill()
        publisher.communicate()


@pytest.mark.full
def test_readers_survive_a_publisher_killed_at_any_instant():
    """Four times here, as Reverb starts slowly; each learner goes on from an older checkpoint."""
    port, rng, held = free_port(), random.Random(0), -1
    source = ReverbSource(f"localhost:{port}", "hammered", timeout=1.0)
    waits = []
    for i in range(4):
        first = 1_000_000 - 10_000 * i
        publisher = start("publish", "reverb", port, CHILD, 2_000, first)
        try:
            assert publisher.stdout.readline() == "published\n"
            begin, found = time.monotonic(), None
            while found is None or not first <= found.version < first + 10_000:
                assert time.monotonic() - begin < LONG
                with contextlib.suppress(ConnectionError):
                    found = source.get(["policy"], newer_than=held)
                    held = held if found is None else found.version
                time.sleep(0.01)
            waits.append(time.monotonic() - begin)
            layers = [layer["w"] for name, layer in found.variables["policy"].items() if name.startswith("layer")]
            assert all((layer == held).all() for layer in layers)
            time.sleep(rng.uniform(0, 0.1))
        finally:
            publisher.kill()
            publisher.communicate()
        begin = time.monotonic()
        for _ in range(20):  # What was under way may still come.
            with contextlib.suppress(ConnectionError):
                found = source.get(["policy"], newer_than=held)
                held = held if found is None else found.version
        assert time.monotonic() - begin < 10
    print("seconds until the next learner was found:", [round(wait, 2) for wait in waits])
