"""Keys of a run: a pair for its servers and one for its clients, both derived from the run's secret (decision 105).

Who knows the secret is a member, and holds both pairs. It is in the run folder's ``board.json`` (mode 600), and comes
to nodes on other hosts as it does for the run store; no key travels.
"""

from __future__ import annotations

import hmac
from typing import NamedTuple

import zmq
from zmq.utils import z85

from agentkit.errors import ConfigError

_LEAST_SECRET, _LEAST_DIFFERENT = 22, 8
"""Characters of a secret, and how many different ones: base64 writes 128 random bits with 22."""


class Keys(NamedTuple):
    """Holds a run's keys for CURVE (Bernstein et al., CurveZMQ, RFC 26), 40 characters of Z85 each."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes


def check_secret(secret: str) -> str:
    """Returns a run's secret.

    Raises:
        ConfigError: it cannot be one of 128 random bits.
    """
    if len(secret) < _LEAST_SECRET or len(set(secret)) < _LEAST_DIFFERENT:
        raise ConfigError(
            f"The run id must have at least {_LEAST_SECRET} characters, {_LEAST_DIFFERENT} of them different, found "
            f"{len(secret)} with {len(set(secret))}: who guesses it may join and stop the run. Make one with: openssl "
            "rand -hex 16"
        )
    return secret


def derive_keys(secret: str) -> Keys:
    """Returns the keys of the run with this secret: the same in each of its processes.

    Args:
        secret: the run id, of 128 random bits: whoever records a handshake can try guesses on it. See `check_secret`.
    """
    found = []
    for who in ("server", "client"):
        private = z85.encode(hmac.digest(secret.encode(), f"agentkit wire 1, {who}".encode(), "sha256"))
        found += [zmq.curve_public(private), private]
    return Keys(*found)


def keys_at(address: str, secret: str) -> Keys | None:
    """Returns the keys for an address of a run's server: none on one host, where the system keeps others out."""
    return derive_keys(secret) if address.startswith("tcp://") else None
