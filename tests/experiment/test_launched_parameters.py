"""Readers of a learner that comes back elsewhere: they find it, whichever way its parameters travel."""

import contextlib
import functools
import socket
import time
from types import SimpleNamespace

import numpy as np
import pytest

from agentkit.distributed import RunStore, RunStoreClient
from agentkit.errors import ConfigError
from agentkit.experiment.launching.sharing import transports
from agentkit.variables import SharedMemoryPublisher
from agentkit.variables.served import ServedPublisher, ServedSource

pytestmark = pytest.mark.both_stacks

RUN = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr(transports, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(transports, "ServedSource", functools.partial(ServedSource, timeout=0.3))


@pytest.fixture(name="store")
def _store():
    with RunStore(RUN) as store:
        yield store


@pytest.fixture(name="context")
def _context(store):
    with contextlib.closing(RunStoreClient(store.address, RUN, node="actor-0")) as client:
        yield SimpleNamespace(store=client)


class Learner:
    """A learner on a machine, whose parameters are all its version."""

    def __init__(self, store, machine, version, path):
        self.endpoint = {"node": "learner-0", "host": machine, "shared_memory": str(path)}
        if machine == socket.gethostname():
            self.publisher = SharedMemoryPublisher(path)
        else:
            self.publisher = ServedPublisher(RUN, "tcp://127.0.0.1:*")
            self.endpoint["served"] = self.publisher.address
        self.publisher.publish(version, {"policy": np.full(3, version)})
        store.put("endpoint/learner-0", {"incarnation": 0, "value": self.endpoint})


def wait_for(client, version):
    deadline = time.monotonic() + 30.0
    while client.version != version:
        assert time.monotonic() < deadline, (client.version, client.lost)
        client.update()
        time.sleep(0.01)
    assert client.params.tolist() == [version] * 3


HERE = socket.gethostname()


@pytest.mark.parametrize("places", [("there", "elsewhere"), (HERE, "there"), ("there", HERE)])
def test_a_learner_that_comes_back_on_another_machine_is_found(places, store, context, tmp_path):
    """From an older checkpoint, too. Its old shared memory stays, and says nothing of its end."""
    first = Learner(store, places[0], 100, tmp_path / "parameters")
    client = transports.make_client(context, first.endpoint, place=lambda params: params)
    wait_for(client, 100)
    if places[0] != HERE:
        first.publisher.close()
    second = Learner(store, places[1], 40, tmp_path / "parameters")
    wait_for(client, 40)
    assert client._find_period() == (transports.SHARED_SECONDS if places[1] == HERE else transports.SERVED_SECONDS)
    second.publisher.publish(41, {"policy": np.full(3, 41)})
    wait_for(client, 41)
    second.publisher.close()


def test_a_learner_that_comes_back_where_nobody_can_read_it_is_an_error(store, context, tmp_path):
    first = Learner(store, HERE, 100, tmp_path / "parameters")
    source = transports.make_source(context, first.endpoint)
    assert source.get(("policy",)).version == 100
    away = {"node": "learner-0", "host": "there", "shared_memory": "there"}
    store.put("endpoint/learner-0", {"incarnation": 1, "value": away})
    time.sleep(0.2)
    with pytest.raises(ConfigError, match=r"The learner is on there, .*--listen"):
        source.get(("policy",), newer_than=100)
    first.publisher.close()


@pytest.mark.parametrize("said", [None, {"incarnation": 0, "value": None}, {"incarnation": 0, "value": {"own": 1}}])
def test_a_reader_stays_where_the_run_store_says_nothing_of_parameters(said, store, context, tmp_path):
    """It was started again and has not heard of the learner, or a learner of the user's own tells more than that."""
    first = Learner(store, HERE, 100, tmp_path / "parameters")
    store.put("endpoint/learner-0", said)
    client = transports.make_client(context, first.endpoint, place=lambda params: params)
    wait_for(client, 100)
    time.sleep(0.2)
    first.publisher.publish(101, {"policy": np.full(3, 101)})
    wait_for(client, 101)
    first.publisher.close()


def test_a_learner_whose_port_somebody_has_takes_another_one(store, monkeypatch):
    """The one before it, say, which was cut off and lives on: readers ask the store where the learner is."""
    monkeypatch.setattr(transports, "listen_address", lambda device, port=None: f"tcp://127.0.0.1:{port or '*'}")
    monkeypatch.setattr(transports, "reachable_address", lambda address, device: address)
    with contextlib.ExitStack() as stack:
        client = stack.enter_context(contextlib.closing(RunStoreClient(store.address, RUN, node="learner-0")))
        context, ports = SimpleNamespace(name="learner-0", store=client), []
        for _ in range(2):
            publisher = stack.enter_context(contextlib.closing(transports.make_publisher(context, "eth0")))
            ports.append(int(publisher.endpoint["served"].rpartition(":")[2]))
            assert store.get("port/learner-0") == ports[-1]
        assert ports[0] != ports[1]
    transports.forget_parameters(RUN)
