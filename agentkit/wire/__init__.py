"""One wire between the processes of a program: requests and answers of nests, encrypted between hosts (pyzmq)."""

from agentkit.wire.client import Client, RefusedError, WireClosedError, WireTimeoutError
from agentkit.wire.keys import Keys, check_secret, derive_keys, keys_at
from agentkit.wire.message import MessageError
from agentkit.wire.server import Request, Server, listen_address, private_address, reachable_address

__all__ = [
    "Client",
    "Keys",
    "MessageError",
    "RefusedError",
    "Request",
    "Server",
    "WireClosedError",
    "WireTimeoutError",
    "check_secret",
    "derive_keys",
    "keys_at",
    "listen_address",
    "private_address",
    "reachable_address",
]
