"""Says who may reach a listening port of this process: a probe before it opens, a restriction to a device after."""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import logging
import os
import pathlib
import re
import socket
import struct
import sys
from collections.abc import Sequence

from agentkit.errors import ConfigError

_LISTEN_STATE = "0A"
_LOGGER = logging.getLogger(__name__)


def raise_descriptor_limit(wanted: int = 1 << 16) -> None:
    """Lets this process have as many connections as the system allows it without asking, up to `wanted`."""
    try:
        import resource
    except ImportError:  # Windows has no such limit.
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    while soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return
        wanted //= 2  # macOS grants less than its hard limit says.


def check_port_free(port: int) -> None:
    """Refuses a port on which anyone listens.

    gRPC sets SO_REUSEPORT: a second server would start without an error, and the system would send
    each client to either of the two at random.

    Raises:
        ConfigError: the port is taken, or is no port.
    """
    if not 0 < port < 65536:
        raise ConfigError(f"A port is a number from 1 to 65535, found {port!r}.")
    for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
        try:
            probe = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        with probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                with contextlib.suppress(OSError):
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                probe.bind((host, port))
                probe.listen(1)
            except OSError as error:
                if family == socket.AF_INET6 and "assign" in str(error).lower():
                    continue
                raise ConfigError(
                    f"Port {port} is taken ({error.strerror}). Choose another one, or none for a free one."
                ) from error


def restrict_to_device(port: int, device: str, what: str) -> None:
    """Lets only traffic of network `device`, and this machine's own, reach our listening sockets on `port`.

    Where not even "lo" can be had, an old kernel is the reason, and a warning is logged.

    Args:
        port: it is open by now.
        device: "lo" is this machine alone, "all" leaves the port open to every device.
        what: listens there, for people, e.g. "The Reverb server".

    Raises:
        ConfigError: there is no such device. Close the port.
    """
    if device == "all" or bind_to_device(port, device):
        return
    message = f"{what} on port {port} could not be confined to network device {device!r}"
    if device != "lo":
        raise ConfigError(f"{message}. Name a device of this machine, or set listen='all'.")
    _LOGGER.warning("%s: other machines may reach it. Set a firewall.", message)


def bind_to_device(port: int, device: str) -> bool:
    """Lets only traffic of network `device`, and this machine's own, reach our listening sockets on `port`.

    "lo" is this machine alone: SO_BINDTODEVICE, which needs Linux 5.7 and no privileges. For another device
    that would shut out this machine itself, whose packets to its own address come through "lo"; there a
    socket filter looks at the device that each packet came by.

    Returns:
        Whether it could be had.
    """
    inodes = _listening_inodes(port)
    done = False
    for entry in _entries("/proc/self/fd"):
        try:
            match = re.match(r"socket:\[(\d+)\]", os.readlink(entry))
        except OSError:
            continue
        if match is None or match[1] not in inodes:
            continue
        try:
            with socket.socket(fileno=os.dup(int(entry.name))) as listening:
                if device == "lo":
                    listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo\0")
                else:
                    _accept_only(listening, [socket.if_nametoindex("lo"), socket.if_nametoindex(device)])
        except OSError:
            return False
        done = True
    return done


def _accept_only(listening: socket.socket, devices: Sequence[int]) -> None:
    """Attaches a classic BPF program: drop every packet that came by none of these devices (by index)."""
    load_device = (0x20, 0, 0, (-0x1000 + 8) & 0xFFFFFFFF)  # ld [SKF_AD_OFF + SKF_AD_IFINDEX]
    tests = [(0x15, len(devices) - k, 0, index) for k, index in enumerate(devices)]  # jeq #index, accept
    drop, accept = (0x06, 0, 0, 0), (0x06, 0, 0, 0xFFFFFFFF)  # ret #0, ret #all
    program = [load_device, *tests, drop, accept]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    so_attach_filter = 26
    listening.setsockopt(socket.SOL_SOCKET, so_attach_filter, struct.pack("HL", len(program), ctypes.addressof(code)))


def check_device(device: str) -> None:
    """Refuses a network device that is not there, or has no address, before anything listens on it.

    Raises:
        ConfigError: it names those there are.
    """
    if device not in ("lo", "all"):
        device_address(device)


def is_own_address(host: str) -> bool:
    """Returns whether this is an IPv4 address of this machine; names are not looked up, and nothing is sent.

    What leaves for an address of its own leaves from that one. (A machine may be set to bind any address.)
    """
    try:
        if ipaddress.IPv4Address(host).is_loopback:
            return True
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return probe.getsockname()[0] == host
    except (ValueError, OSError):
        return False


def device_address(device: str) -> str:
    """Returns the address at which others reach a server that listens on a device.

    Args:
        device: "lo" for this machine alone; "all" for the address that packets to elsewhere leave from; or
            a device's name.

    Raises:
        ConfigError: no such device, or it has no IPv4 address; or a name, and the system is not Linux.
    """
    if device == "lo":
        return "localhost"
    if device != "all" and sys.platform != "linux":
        raise ConfigError(
            f"Network device {device!r}: agentkit finds devices by name on Linux alone. Use lo for this machine alone, "
            "or all, and a firewall."
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            if device == "all":
                probe.connect(("192.0.2.1", 9))  # Sends nothing: it only chooses a route.
                return str(probe.getsockname()[0])
            import fcntl  # Not on Windows, where no program is launched.

            siocgifaddr = 0x8915  # On Linux.
            found = fcntl.ioctl(probe.fileno(), siocgifaddr, struct.pack("256s", device.encode()[:15]))
            return socket.inet_ntoa(found[20:24])
        except OSError as error:
            devices = sorted(name for _, name in socket.if_nameindex())
            raise ConfigError(
                f"Network device {device!r} has no IPv4 address here ({error.strerror}). Devices: {devices}."
            ) from error


def keep_connections_alive(port: int) -> int:
    """Makes TCP notice within about 11 s that the host at the other end of a connection has vanished.

    Reverb sets no keepalive: without this a sampler whose server lost its power waits for ever, also
    after the server is back. New connections need it too, so call it every few seconds.

    Args:
        port: of the other end.

    Returns:
        How many connections there are.
    """
    found = 0
    for entry in _entries("/proc/self/fd"):
        try:
            if not os.readlink(entry).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.getpeername()[1] == port:
                    keep_alive(connection)
                    found += 1
        except (OSError, IndexError):  # closed by now, not connected, or not TCP
            continue
    return found


def keep_alive(connection: socket.socket) -> None:
    """Sets keepalive on one TCP connection: silence of 11 s ends it."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 11_000)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _listening_inodes(port: int) -> set[str]:
    inodes = set()
    for table in ("/proc/self/net/tcp", "/proc/self/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in pathlib.Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTEN_STATE and int(fields[1].rsplit(":", 1)[1], 16) == port:
                    inodes.add(fields[9])
    return inodes


def _entries(directory: str) -> list[pathlib.Path]:
    try:
        return list(pathlib.Path(directory).iterdir())
    except OSError:
        return []
