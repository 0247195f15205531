"""Who reaches a server, tried from another address: a network namespace of its own behind a veth pair."""

import contextlib
import itertools
import os
import resource
import shutil
import socket
import subprocess
import sys

import pytest

from agentkit import ports
from agentkit.errors import ConfigError

CAN_MAKE_NAMESPACES = os.geteuid() == 0 and shutil.which("ip") is not None
needs_namespaces = pytest.mark.skipif(not CAN_MAKE_NAMESPACES, reason="network namespaces need root and iproute2")

hosts = itertools.count(os.getpid() * 10)
"""A namespace's devices go some time after it does: each host gets a name and an address of its own."""

PROBE = """
import socket, sys
for port in map(int, sys.argv[2:]):
    try:
        socket.create_connection((sys.argv[1], port), timeout=1.5).close()
        print(port, "open")
    except OSError as error:
        print(port, "closed")
"""


@contextlib.contextmanager
def another_host():
    """Yields (our address as the other host sees it, its device here, a function ports -> open ones)."""
    number = next(hosts)
    name = f"ak{number % 10**8}"
    ours, theirs = f"{name}a", f"{name}b"
    subnet = f"10.{213 + number // 250 % 8}.{number % 250}"
    address = f"{subnet}.1"

    def ip(*words):
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10.0)

    def reach(numbers):
        command = ["ip", "netns", "exec", name, sys.executable, "-c", PROBE, address, *map(str, numbers)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120.0)
        lines = [line.split() for line in done.stdout.splitlines()]
        assert len(lines) == len(numbers)
        return {int(port) for port, state in lines if state == "open"}

    ip("netns", "add", name)
    try:
        ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        ip("addr", "add", f"{address}/30", "dev", ours)
        ip("link", "set", ours, "up")
        ip("netns", "exec", name, "ip", "addr", "add", f"{subnet}.2/30", "dev", theirs)
        ip("netns", "exec", name, "ip", "link", "set", theirs, "up")
        yield address, ours, reach
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True, timeout=10.0)


@needs_namespaces
@pytest.mark.parametrize("device", ["lo", "veth", None])
def test_only_the_named_device_and_this_machine_reach_a_server(device):
    with another_host() as (address, ours, reach), socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        if device is not None:
            assert ports.bind_to_device(port, ours if device == "veth" else device)
        assert reach([port]) == (set() if device == "lo" else {port})
        socket.create_connection(("127.0.0.1", port), timeout=2.0).close()
        if device == "veth":  # Our own packets to our own address come through lo.
            socket.create_connection((address, port), timeout=2.0).close()
            assert ports.device_address(ours) == address


@needs_namespaces
def test_a_server_of_one_device_is_closed_to_another():
    with another_host() as (_, _, reach), socket.create_server(("0.0.0.0", 0)) as server:
        port = server.getsockname()[1]
        other = next(
            name for _, name in socket.if_nameindex() if name.startswith(("eth", "ens", "enp", "ifb", "dummy"))
        )
        assert ports.bind_to_device(port, other)
        assert reach([port]) == set()


def test_addresses_of_devices():
    assert ports.device_address("lo") == "localhost"
    with pytest.raises(ConfigError, match=r"Network device 'nonsense0' has no IPv4 address.*'lo'"):
        ports.device_address("nonsense0")
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not ports.bind_to_device(server.getsockname()[1], "nonsense0")


@pytest.mark.parametrize(
    ("host", "own"),
    [
        *[("127.0.0.1", True), ("192.0.2.1", False), ("localhost", False), ("", False), ("::1", False)],
        *[("255.255.255.255", False), ("224.0.0.1", False), ("0.0.0.0", False)],
    ],
)
def test_an_own_address_is_told_from_others(host, own):
    assert ports.is_own_address(host) == own


def test_the_address_that_packets_leave_from_is_an_own_one():
    assert ports.is_own_address(ports.device_address("all"))


def test_devices_are_found_by_name_on_linux_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    for device in ("lo", "all"):
        ports.check_device(device)
    with pytest.raises(ConfigError, match="Network device 'en0': agentkit finds devices by name on Linux alone"):
        ports.check_device("en0")


def test_a_port_that_cannot_be_confined_is_refused_or_told_of(monkeypatch, caplog):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=f"The server on port {port} could not be confined .*'nonsense0'"):
            ports.restrict_to_device(port, "nonsense0", "The server")
        for device in ("lo", "all"):
            ports.restrict_to_device(port, device, "The server")
        assert not caplog.messages
        monkeypatch.setattr(ports, "bind_to_device", lambda port, device: False)  # An old kernel.
        ports.restrict_to_device(port, "all", "The server")
        assert not caplog.messages
        ports.restrict_to_device(port, "lo", "The server")
    assert "Set a firewall" in caplog.messages[0]


def test_connections_to_a_port_are_kept_alive():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
            assert ports.keep_connections_alive(port) == 1
            assert client.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert client.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 5


def test_the_limit_of_descriptors_is_raised_as_far_as_the_system_goes_along(monkeypatch):
    """macOS names no hard limit, and grants 10,240."""
    limits = [(256, resource.RLIM_INFINITY)]

    def setrlimit(which, wanted):
        if wanted[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits.append(wanted)

    monkeypatch.setattr(resource, "getrlimit", lambda which: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    ports.raise_descriptor_limit()
    assert limits[1:] == [(8_192, resource.RLIM_INFINITY)]
