"""Parameters over the wire: who is served, how long who waits, publishers that are killed. Hammers are processes."""

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

from agentkit.errors import ConfigError, UnknownNameError
from agentkit.variables import served
from agentkit.variables.served import ServedPublisher, ServedSource
from agentkit.wire import Client, RefusedError, derive_keys

pytestmark = pytest.mark.both_stacks

HAMMER = pathlib.Path(__file__).with_name("hammer.py")
ROOT = pathlib.Path(__file__).resolve().parents[2]
FREE = "tcp://127.0.0.1:*"
LONG = 60.0


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"


def start(*args):
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(HAMMER), *map(str, args)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def test_another_runs_parameters_are_not_read():
    with contextlib.closing(ServedPublisher("run", FREE)) as publisher:
        publisher.publish(0, {"policy": np.zeros(2)})
        with pytest.raises(ConnectionError, match="No server of this run answers"):
            ServedSource(publisher.address, "another run", timeout=0.7).get(["policy"])
        assert ServedSource(publisher.address, "run").get(["policy"]).version == 0


def test_a_server_that_is_away_costs_one_timeout_and_then_nothing():
    address = free_address()
    source = ServedSource(address, "run", timeout=1.0)
    begun = time.monotonic()
    with pytest.raises(ConnectionError):
        source.get(["policy"])
    assert 0.9 < time.monotonic() - begun < 5
    begun = time.monotonic()
    for _ in range(10):
        with pytest.raises(ConnectionError):
            source.get(["policy"])
    assert time.monotonic() - begun < 5  # Ten timeouts would be ten seconds.
    with contextlib.closing(ServedPublisher("run", address)) as publisher:
        publisher.publish(3, {"policy": np.zeros(2)})
        deadline, found = time.monotonic() + LONG, None
        while found is None and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionError, TimeoutError):
                found = source.get(["policy"])
            time.sleep(0.02)
        assert found.version == 3


def test_two_publishers_at_one_address_are_refused():
    with contextlib.closing(ServedPublisher("run", FREE)) as publisher, pytest.raises(ConfigError, match="in use"):
        ServedPublisher("run", publisher.address)


@pytest.mark.parametrize(
    "question",
    [
        None,
        {},
        {"names": 3, "newer_than": 0, "generation": None},
        [1, 2],
        np.zeros(2),
        {"names": [], "newer_than": np.zeros(2), "generation": None},
    ],
    ids=repr,
)
def test_what_is_no_question_is_refused_and_others_are_served(question):
    with contextlib.closing(ServedPublisher("run", FREE)) as publisher:
        publisher.publish(0, {"policy": np.zeros(2)})
        member = Client(publisher.address, derive_keys("run"))
        with pytest.raises(RefusedError):
            member.ask(question, LONG)
        member.close()
        with pytest.raises(UnknownNameError):
            ServedSource(publisher.address, "run").get(["another"])
        assert ServedSource(publisher.address, "run").get(["policy"]).version == 0


def test_who_is_of_another_version_is_told_that_and_who_has_left_is_forgotten(monkeypatch):
    monkeypatch.setattr(served, "LINGER_SECONDS", 0.1)
    with contextlib.closing(ServedPublisher("run", FREE)) as publisher:
        publisher.publish(0, {"policy": np.zeros(2)})
        for _ in range(3):
            with contextlib.closing(ServedSource(publisher.address, "run")) as source:
                source.get(["policy"])
            time.sleep(0.15)
        assert len(publisher._told) == 1
        monkeypatch.setattr("agentkit.wire.client.encode", lambda number, nest: [f"[0, {number}, null]".encode()])
        source = ServedSource(publisher.address, "run")
        with contextlib.closing(source), pytest.raises(RefusedError, match="version 0 of the wire"):
            source.get(["policy"])


def test_a_publisher_that_closes_stays_for_those_who_ask_and_lack_the_newest(monkeypatch):
    """A learner's last parameters are for an evaluator on another host, too, and are gone with the learner."""
    monkeypatch.setattr(served, "LINGER_SECONDS", LONG)
    publisher = ServedPublisher("run", FREE)
    publisher.publish(0, {"policy": np.zeros(2)})
    source = ServedSource(publisher.address, "run")
    assert source.get(["policy"]).version == 0
    publisher.publish(1, {"policy": np.ones(2)})
    closing = threading.Thread(target=publisher.close)
    begun = time.monotonic()
    closing.start()
    time.sleep(0.5)
    assert closing.is_alive() and source.get(["policy"], newer_than=0).version == 1
    closing.join(LONG / 2)
    assert not closing.is_alive() and time.monotonic() - begun < LONG / 2, "it waited for nobody"


def test_a_publisher_that_closes_waits_for_nobody_who_is_gone(monkeypatch):
    monkeypatch.setattr(served, "LINGER_SECONDS", 0.5)
    publisher = ServedPublisher("run", FREE)
    publisher.publish(0, {"policy": np.zeros(2)})
    ServedSource(publisher.address, "run").get(["policy"])
    publisher.publish(1, {"policy": np.ones(2)})
    begun = time.monotonic()
    publisher.close()
    assert time.monotonic() - begun < 5.0


@pytest.mark.full
def test_no_reader_ever_sees_a_torn_tree():
    address = free_address()
    publisher = start("publish", "wire", address, 240.0, 2_000, 0)
    try:
        assert publisher.stdout.readline() == "published\n"
        readers = [start("read", "wire", address, LONG, 50) for _ in range(2)]
        for reader in readers:
            out, _ = reader.communicate(timeout=240.0)
            told = json.loads(out.splitlines()[-1])
            assert told["torn"] == told["backwards"] == 0 and told["fetched"] == 50, told
    finally:
        publisher.kill()
        publisher.communicate()


@pytest.mark.full
def test_readers_survive_a_publisher_killed_at_any_instant():
    """Each learner goes on from an older checkpoint."""
    address, rng, held = free_address(), random.Random(0), -1
    source = ServedSource(address, "hammered", timeout=1.0)
    for i in range(8):
        first = 1_000_000 - 10_000 * i
        publisher = start("publish", "wire", address, 240.0, 2_000, first)
        try:
            assert publisher.stdout.readline() == "published\n"
            begin, found = time.monotonic(), None
            while found is None or not first <= found.version < first + 10_000:
                assert time.monotonic() - begin < LONG
                with contextlib.suppress(ConnectionError, TimeoutError):
                    found = source.get(["policy"], newer_than=held)
                    held = held if found is None else found.version
                time.sleep(0.01)
            layers = [layer["w"] for name, layer in found.variables["policy"].items() if name.startswith("layer")]
            assert all((layer == held).all() for layer in layers)
            time.sleep(rng.uniform(0, 0.1))
        finally:
            publisher.kill()
            publisher.communicate()
        begin = time.monotonic()
        for _ in range(20):  # What was under way may still come.
            with contextlib.suppress(ConnectionError, TimeoutError):
                found = source.get(["policy"], newer_than=held)
                held = held if found is None else found.version
        assert time.monotonic() - begin < 10
