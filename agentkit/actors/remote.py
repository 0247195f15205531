"""An actor whose policy runs in another process, an `InferenceServer`. Needs no JAX here."""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

import dm_env
import numpy as np

from agentkit import specs
from agentkit.actors import remote_protocol as protocol
from agentkit.actors.remote_protocol import FrameReader, InferenceClosedError, Kind, ProtocolError, Session
from agentkit.core import Actor, Adder
from agentkit.distributed.run_store_client import RunStoreError, WrongRunError, keep_alive
from agentkit.errors import ConfigError, SpecError
from agentkit.nests import LeafReader, make_builder
from agentkit.types import FIRST, MID, Nest

FIRST_PAUSE = 0.05
LONGEST_PAUSE = 1.0
"""Seconds between two attempts to reach a server that is away; each pause is longer than the last."""


class RemoteActor(Actor):
    """Acts in one environment, or in N that step together, with actions from a server.

    It waits for a server that is away, and tells the next one the state of its policy as it was after the last
    reply (if that is small, see `inference_server.MAX_STATE_BYTES`; else a recurrent state begins anew).
    """

    def __init__(
        self,
        find_address: Callable[[], str],
        run_id: str,
        spec: specs.EnvironmentSpec,
        *,
        seed: int,
        adder: Adder | None = None,
        num_envs: int | None = None,
        actor_index: tuple[int, int, int] = (0, 1, 0),
        outage_seconds: float = 300.0,
    ):
        """Makes a `RemoteActor`; it connects when it first acts or is updated with `wait`.

        Args:
            find_address: where the server is now, "host:port"; asked again at each attempt to connect.
            run_id: the run's secret.
            spec: the environment's, without the axis of N.
            seed: actions are those of a local actor with the key ``jax.random.PRNGKey(seed)``.
            adder: records the experience, of the whole batch where there is one; None records nothing.
            num_envs: N; None for one environment, unbatched.
            actor_index: of the actors that explore together, an `ActorIndex`: index, count, and steps taken before.
            outage_seconds: how long a call waits for a server that is away.
        """
        self._find_address = find_address
        self._run_id = run_id
        self._seed = seed
        self._adder = adder
        self._actor_index = actor_index
        self._num_envs = num_envs
        self._outage_seconds = outage_seconds
        self._layout = protocol.layout_of(spec, num_envs)
        observations = spec.observations if num_envs is None else specs.add_leading(spec.observations, num_envs)
        self._read_leaves = LeafReader(observations, "observation")
        self._request = np.empty((), protocol.request_dtype(spec.observations, num_envs))
        self._step_type: Any = np.full(() if num_envs is None else num_envs, FIRST, np.int8)
        self._connection: socket.socket | None = None
        self._reader = FrameReader()
        self._closed = False
        self._reply_dtype = np.dtype(np.void)
        self._result_fields: list[str] = []
        self._build: Callable[..., Any] = tuple
        self._extras: Nest = ()
        self._state = b""
        self._version = -1
        self._published = -np.inf

    @property
    def version(self) -> int:
        """Counts the learner updates that the last action's parameters had seen; -1 before the first action."""
        return self._version

    @property
    def age_seconds(self) -> float:
        """Returns the age of the last action's parameters by the server's account; infinite before the first action."""
        return time.monotonic() - self._published

    def select_action(self, observation: Nest) -> Nest:
        """See `core.Actor`.

        Raises:
            InferenceClosedError: no server answered for `outage_seconds`, or `disconnect` was called.
            WrongRunError: the server belongs to another run.
            SpecError: the observation is not as the spec says, or the server's environment is another one.
        """
        names = self._request.dtype.names or ()
        self._request["step_type"] = self._step_type
        for name, leaf in zip(names[1:], self._read_leaves(observation), strict=True):
            self._request[name] = leaf
        (reply,) = np.frombuffer(self._ask(protocol.frame(Kind.REQUEST, self._request.tobytes())), self._reply_dtype)
        self._step_type = np.full_like(self._step_type, MID)
        self._state = reply["state"].tobytes()
        self._version = int(reply["version"])
        self._published = time.monotonic() - float(reply["age_seconds"])
        action, self._extras = self._build(iter([np.asarray(reply[name]) for name in self._result_fields]))
        return action

    def observe_first(self, timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`; each of N environments is at the start of an episode."""
        self._step_type = np.full_like(self._step_type, FIRST)
        if self._adder is not None:
            self._adder.add_first(timestep)

    def observe(self, action: Nest, next_timestep: dm_env.TimeStep) -> None:
        """See `core.Actor`; of N environments, one whose step type is FIRST has just been reset."""
        if self._num_envs is not None:
            self._step_type = np.asarray(next_timestep.step_type, np.int8)
        if self._adder is not None:
            self._adder.add(action, next_timestep, self._extras)

    def update(self, wait: bool = False) -> None:
        """Connects, with `wait`; the server keeps the parameters fresh. Raises as `select_action`."""
        if wait and self._connection is None:
            self._ask(b"")

    def disconnect(self) -> None:
        """Ends a call that waits in another thread, and refuses new ones."""
        self._closed = True
        with contextlib.suppress(OSError, AttributeError):
            self._connection.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]  # None has no such attribute.

    def close(self) -> None:
        """Closes the adder and the connection. May be called twice."""
        self._closed = True
        self._drop()
        if self._adder is not None:
            self._adder.close()

    # --- the connection ----------------------------------------------------------------------------

    def _ask(self, request: bytes) -> bytearray:
        """Returns the body of the reply, from whichever server is there; connects alone if `request` is empty."""
        deadline, pause = time.monotonic() + self._outage_seconds, FIRST_PAUSE
        while True:
            try:
                if self._closed:
                    raise InferenceClosedError("This RemoteActor was closed.")
                if self._connection is None:
                    self._connect()
                return self._exchange(request, deadline) if request else bytearray()
            except Exception as error:
                self._drop()
                if isinstance(error, ConfigError) or not isinstance(error, OSError | EOFError | RunStoreError):
                    raise  # Another run's server or run store, another environment's, or closed: waiting does not help.
                if time.monotonic() >= deadline and not self._closed:
                    raise InferenceClosedError(
                        f"No inference server answered for {self._outage_seconds:g} s ({error!r}). "
                        "Look at the log of the node inference-0, or act without (num_inference=0)."
                    ) from error
            if not self._closed:
                time.sleep(min(pause, max(deadline - time.monotonic(), 0.0)))
                pause = min(1.5 * pause, LONGEST_PAUSE)

    def _exchange(self, request: bytes, deadline: float) -> bytearray:
        assert self._connection is not None
        self._connection.settimeout(max(deadline - time.monotonic(), 0.1))
        self._connection.sendall(request)
        return self._receive(Kind.REPLY)

    def _receive(self, *kinds: Kind) -> bytearray:
        assert self._connection is not None
        found = None
        while found is None:
            found = self._reader.read(self._connection)
        kind, body = found
        if kind == Kind.REFUSED_RUN:
            raise WrongRunError(
                "The inference server belongs to another run, or the run id is wrong. "
                "Use the address and the run id of one run."
            )
        if kind == Kind.REFUSED_LAYOUT:
            raise SpecError(
                f"The inference server serves another environment: {body.decode(errors='replace')}. "
                "Start server and actors with one and the same experiment."
            )
        if kind not in kinds:
            raise ProtocolError(f"Expected a frame of kind {kinds}, found {kind}.")
        return body

    def _connect(self) -> None:
        """Shakes hands: each side proves that it knows the run id, and both learn what the other's frames hold."""
        host, _, port = self._find_address().rpartition(":")
        self._connection = socket.create_connection((host.strip("[]"), int(port)), timeout=protocol.CONNECT_SECONDS)
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        keep_alive(self._connection)
        self._reader = FrameReader()
        nonces = bytes(self._receive(Kind.CHALLENGE)), os.urandom(protocol.NONCE_BYTES)
        hello = Session(self._seed, self._actor_index, self._state, self._layout).encode()
        self._connection.sendall(protocol.frame(Kind.HELLO, nonces[1], self._prove(nonces, b"")))
        self._check_server(nonces, bytes(self._receive(Kind.KNOWN)), b"")
        self._connection.sendall(protocol.frame(Kind.SESSION, self._prove(nonces, hello), hello))
        body = bytes(self._receive(Kind.WELCOME))
        given, welcome = body[: protocol.PROOF_BYTES], body[protocol.PROOF_BYTES :]
        self._check_server(nonces, given, welcome)
        self._understand(json.loads(welcome))

    def _prove(self, nonces: tuple[bytes, bytes], text: bytes) -> bytes:
        return protocol.proof(self._run_id, "actor", nonces, text)

    def _check_server(self, nonces: tuple[bytes, bytes], given: bytes, text: bytes) -> None:
        if not hmac.compare_digest(given, protocol.proof(self._run_id, "server", nonces, text)):
            raise WrongRunError("What answers as the inference server does not know the run id. Who listens there?")

    def _understand(self, welcome: dict[str, Any]) -> None:
        results = protocol.build(welcome["results"])
        self._reply_dtype = protocol.reply_dtype(results, self._num_envs, int(welcome["state_bytes"]))
        self._result_fields = [name for name in self._reply_dtype.names or () if name.startswith("result")]
        self._build = make_builder(results)
        self._reader.accept(self._reply_dtype.itemsize)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
