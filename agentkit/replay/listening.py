"""Who may reach a listening port of this process: a probe before, and a confinement after it opens."""

from __future__ import annotations

import contextlib
import os
import pathlib
import re
import socket

from agentkit.errors import ConfigError

_LISTEN_STATE = "0A"


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


def bind_to_device(port: int, device: str) -> bool:
    """Lets only traffic of network `device` reach this process's listening sockets on `port`.

    SO_BINDTODEVICE needs Linux 5.7 and no privileges. "lo" is this machine alone.

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
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode() + b"\0")
        except OSError:
            return False
        done = True
    return done


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
