"""How an actor and an inference server speak: frames of raw array bytes over TCP, and never pickle.

A frame is its length, its kind, and a body:

    server                              actor
      CHALLENGE  nonce              ->
                                    <-  HELLO    nonce, proof
      KNOWN      proof              ->           or REFUSED_RUN
                                    <-  SESSION  proof, JSON: layouts, seed, session
      WELCOME    proof, JSON        ->           or REFUSED_LAYOUT with a reason
                                    <-  REQUEST  step_type, observation
      REPLY      version, age, ...  ->

Each proves that it knows the run's secret by an HMAC of both nonces: the secret is not sent. What follows is
neither encrypted nor signed; listen on loopback or a private network. The bodies of requests and replies are
one element of a packed numpy dtype that both sides derive from the environment's spec and from the welcome.
"""

from __future__ import annotations

import enum
import hmac
import json
import socket
import struct
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tree

from agentkit import nests, specs
from agentkit.errors import AgentkitError, SpecError
from agentkit.types import Nest

PROTOCOL = 4
NONCE_BYTES = PROOF_BYTES = 32
MAX_HANDSHAKE = 1 << 20
"""The longest frame, bytes, that is read from a peer before both know what their frames hold."""

MAX_STRANGERS = 64
"""Connections at once whose actors have not proved yet that they know the run id."""

MAX_STRANGER_FRAME = 1024
"""The longest frame, bytes, that is read from one of these."""

HANDSHAKE_SECONDS = 5.0
"""How long one of these may take in all."""

CONNECT_SECONDS = 10.0
"""How long an actor waits for each answer of a server that may be at work."""

_HEADER = struct.Struct("!IB")
_CHUNK = 1 << 16


class Kind(enum.IntEnum):
    """Tells the kinds of frames apart."""

    CHALLENGE = 1
    HELLO = 2
    WELCOME = 3
    REFUSED_RUN = 4
    REFUSED_LAYOUT = 5
    REQUEST = 6
    REPLY = 7
    KNOWN = 8
    SESSION = 9


class InferenceClosedError(AgentkitError, RuntimeError):
    """Says that the inference server is gone, or that this end of the connection was closed."""


class ProtocolError(AgentkitError, ConnectionError):
    """Says that a frame came that may not come there; the connection is closed, and made anew."""


def frame(kind: Kind, *parts: bytes | bytearray | memoryview) -> bytes:
    """Returns a frame's bytes."""
    return b"".join((_HEADER.pack(sum(map(len, parts)), kind), *parts))


class FrameReader:
    """Cuts the bytes that come from one socket into frames."""

    def __init__(self, max_bytes: int = MAX_HANDSHAKE):
        """`max_bytes` is the longest body to accept; it may be changed by `accept`."""
        self.accept(max_bytes)
        self._held = bytearray()

    def accept(self, max_bytes: int) -> None:
        """Sets the longest body to accept; more is received at a time only from who may send more."""
        self.max_bytes = max_bytes
        self._chunk = _CHUNK if max_bytes != MAX_STRANGER_FRAME else max_bytes

    def read(self, connection: socket.socket) -> tuple[int, bytearray] | None:
        """Receives once; a frame's kind and body if one is whole by then, else None.

        Raises:
            EOFError: the other end has closed.
            ProtocolError: the frame is longer than allowed.
            OSError: see `socket.recv`.
        """
        chunk = connection.recv(max(self._chunk, self._missing()))
        if not chunk:
            raise EOFError("the other end closed the connection")
        self._held += chunk
        return self.take()

    def take(self) -> tuple[int, bytearray] | None:
        """Takes a frame that has been received already, if there is one; raises as `read`."""
        if self._missing() > 0:
            return None
        size, kind = _HEADER.unpack_from(self._held)
        end = _HEADER.size + size
        body = self._held[_HEADER.size : end]
        del self._held[:end]
        return kind, body

    def _missing(self) -> int:
        """Returns how many bytes at least are missing to a whole frame."""
        if len(self._held) < _HEADER.size:
            return _HEADER.size - len(self._held)
        size, _ = _HEADER.unpack_from(self._held)
        if size > self.max_bytes:
            raise ProtocolError(f"Expected a frame of at most {self.max_bytes} bytes, found one of {size}.")
        return _HEADER.size + size - len(self._held)


def proof(run_id: str, who: str, nonces: Sequence[bytes], body: bytes) -> bytes:
    """Shows that the sender knows `run_id`, to whoever drew one of the nonces; 32 bytes.

    Args:
        run_id: the run's secret.
        who: "actor" or "server": what one says cannot be sent back as the other's.
        nonces: the server's and the actor's.
        body: what it vouches for.
    """
    return hmac.digest(run_id.encode(), b"|".join((b"agentkit inference", who.encode(), *nonces, body)), "sha256")


# What travels, as data ---------------------------------------------------------------------------------


class Session(NamedTuple):
    """Introduces an actor to the server: the content of its SESSION, as JSON.

    Attributes:
        seed: of its PRNG key.
        actor_index: of the actors that explore together: index, count >= 1, and the steps that it has taken already.
        state: what the last reply of an earlier connection gave it (as hexadecimal digits); empty for nothing.
        layout: what it expects of the server, see `layout_of`.
    """

    seed: int
    actor_index: tuple[int, int, int]
    state: bytes
    layout: dict[str, Any]

    def encode(self) -> bytes:
        """Encodes the session as JSON."""
        return json.dumps({**self._asdict(), "state": self.state.hex()}).encode()

    @classmethod
    def decode(cls, body: bytes) -> Session:
        """Decodes the bytes that `encode` gave; raises ProtocolError on anything else."""
        try:
            found = json.loads(body)
            index, count, steps = map(int, found["actor_index"])
            seed = int(found["seed"])
            if not (0 <= seed < 1 << 63 and 0 <= index < 1 << 31 and 0 < count < 1 << 31 and 0 <= steps < 1 << 31):
                raise ValueError(f"seed {seed}, actor_index {index, count, steps}")
            return cls(seed, (index, count, steps), bytes.fromhex(found["state"]), dict(found["layout"]))
        except (ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"Expected a SESSION in JSON, found {error!r}.") from error


def layout_of(spec: specs.EnvironmentSpec, num_envs: int | None) -> dict[str, Any]:
    """Returns the facts on which both sides must agree before any array travels, as JSON has them."""
    return {
        "protocol": PROTOCOL,
        "byte_order": sys.byteorder,
        "num_envs": num_envs,
        "observations": describe(spec.observations),
        "actions": describe(spec.actions),
    }


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str | None:
    """Describes the first part in which two layouts differ, in words; None if they are equal."""
    for name, value in expected.items():
        if found.get(name) != value:
            return f"expected {name} {value}, found {found.get(name)}"
    return None


def describe(spec: Nest) -> Any:
    """Returns a nest of array specs as JSON has it; `build` takes it back.

    Raises:
        SpecError: a container other than dict (with string keys), list, tuple and named tuple, or a leaf that
            is no array of numbers.
    """

    def describe_leaf(leaf: Any, path: str) -> dict[str, Any]:
        if not (specs.is_spec(leaf) and nests.is_numeric(np.dtype(leaf.dtype))):
            raise SpecError(f"{path}: expected a numeric array, found {leaf!r}.")
        return {"array": [np.dtype(leaf.dtype).name, list(leaf.shape)]}

    try:
        return nests.describe(spec, describe_leaf, "spec")
    except SpecError as error:
        raise SpecError(
            f"An inference server cannot send this: {error} Or act without one (num_inference=0)."
        ) from error


def build(node: Any) -> Nest:
    """Returns the nest of array specs that `describe` described.

    Raises:
        SpecError: no such description, or a named tuple whose class is not loaded in this process.
    """

    def build_leaf(leaf: dict[str, Any]) -> specs.Array:
        match leaf:
            case {"array": [str(name), list(shape)]}:
                return specs.Array(tuple(shape), nests.numeric_dtype(name))
        raise SpecError(f"Expected the description of a nest of arrays, found {leaf!r}.")

    return nests.build(node, build_leaf)


def request_dtype(observations: Nest, num_envs: int | None) -> np.dtype:
    """Describes one actor's request: ``step_type`` and the leaves of its observation."""
    lead = _lead(num_envs)
    return np.dtype([("step_type", np.int8, lead), *fields("observation", observations, lead)])


def reply_dtype(results: tuple[Nest, Nest], num_envs: int | None, state_bytes: int) -> np.dtype:
    """Describes the answer to one actor: version and age, the leaves of action and extras, its new session state."""
    return np.dtype(
        [
            ("version", np.int64),
            ("age_seconds", np.float64),
            *fields("result", results, _lead(num_envs)),
            ("state", np.uint8, (state_bytes,)),
        ]
    )


def fields(name: str, spec: Nest, lead: tuple[int, ...] = ()) -> list[tuple[str, np.dtype, tuple[int, ...]]]:
    """Returns the fields ``name0``, ``name1``, ... of a packed dtype, one for each leaf, with leading axes."""
    return [(f"{name}{i}", np.dtype(leaf.dtype), (*lead, *leaf.shape)) for i, leaf in enumerate(tree.flatten(spec))]


def _lead(num_envs: int | None) -> tuple[int, ...]:
    return () if num_envs is None else (num_envs,)
