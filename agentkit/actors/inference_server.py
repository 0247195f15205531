"""The server that chooses actions for many actors in one compiled call.

From SEED RL (Espeholt et al. 2020, arXiv:1910.06591): actors step environments and send observations; parameters,
policy states and PRNG keys are with the server. It pays for large networks, whose weights are then read once per
batch and held once per machine, or where only the server has an accelerator.

One thread does all: Python lets only one run at a time, and while it computes, the system's socket buffers take what
comes. So there is nothing to lock, and who calls `serve` learns of every error (decision 24).
"""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
import tree

from agentkit import ports, specs
from agentkit.actors import remote_protocol as protocol
from agentkit.actors.compiled import act_in_each, compiler_options
from agentkit.actors.policy import ActorIndex, Policy, first_state
from agentkit.actors.remote_protocol import FrameReader, Kind, ProtocolError, Session
from agentkit.core import Parameters
from agentkit.distributed.run_store_client import keep_alive
from agentkit.errors import ConfigError, SpecError
from agentkit.nests import make_builder
from agentkit.types import FIRST, MID

MAX_WAIT_SECONDS = 0.002
"""How long the first observation of a batch waits for the others."""

SLOW_FACTOR = 10.0
"""An actor that takes this many times `max_wait_seconds` to its next observation is not waited for."""

MAX_STATE_BYTES = 1 << 16
"""Policy states up to this size go back with each reply, so that a restarted server goes on from them."""


class AgedParameters(Parameters, Protocol):
    """Describes parameters that know how old they are: a `VariableClient`."""

    @property
    def version(self) -> int:
        """Counts the learner updates that the parameters have seen."""
        ...

    @property
    def age_seconds(self) -> float:
        """Returns the seconds since the parameters were published."""
        ...


class InferenceServer:
    """Serves `RemoteActor`s of one run. Call `serve` again and again, always from one thread; a context manager.

    Attributes:
        address: "host:port" for the actors.
        num_batches: calls of the policy so far.
        num_requests: observations answered so far (of N environments each, where actors are batched).
    """

    def __init__(
        self,
        policy: Policy,
        spec: specs.EnvironmentSpec,
        client: AgedParameters,
        run_id: str,
        *,
        num_envs: int | None = None,
        listen: str = "lo",
        max_wait_seconds: float = MAX_WAIT_SECONDS,
    ):
        """Waits for the first parameters, and listens on a free port.

        Args:
            policy: how to act in a single environment.
            spec: the environment's.
            client: where parameters come from; on the device, see `VariableClient`'s `place`.
            run_id: the run's secret, which actors must know too.
            num_envs: environments that each actor steps together; None for one, unbatched.
            listen: the network device to listen on: "lo" is this machine alone, "all" every device.
            max_wait_seconds: how long the first observation of a batch waits for the others.

        Raises:
            ConfigError: there is no such network device, or the port could not be confined to it.
            SpecError: the policy's actions, extras or state cannot be sent.
        """
        self._client = client
        self._run_id = run_id
        self._max_wait_seconds = max_wait_seconds
        self._layout = protocol.layout_of(spec, num_envs)
        self._request_dtype = protocol.request_dtype(spec.observations, num_envs)
        self._build_observation = make_builder(spec.observations)
        self._batched = _BatchedPolicy(policy, spec, client.params, num_envs)
        self.num_batches = self.num_requests = 0
        self._selector = selectors.DefaultSelector()
        self._peers: set[_Peer] = set()
        self._listener, self.address = _listen(listen)
        self._selector.register(self._listener, selectors.EVENT_READ)

    @property
    def num_actors(self) -> int:
        """Counts the actors that are connected and welcome."""
        return sum(peer.welcome for peer in self._peers)

    def serve(self, seconds: float) -> int:
        """Serves actors for `seconds`; returns the number of requests answered meanwhile.

        Raises:
            VariablesTimeoutError: see `VariableClient.update`.
        """
        before, until = self.num_requests, time.monotonic() + seconds
        self._client.update()
        while (now := time.monotonic()) < until:
            due = self._due(now)
            if due <= now:
                self._answer()
                continue
            for key, events in self._selector.select(min(due, until) - now):
                if key.data is None:
                    self._accept()
                else:
                    self._attend(key.data, events)
            self._drop_silent(time.monotonic())
        return self.num_requests - before

    def close(self) -> None:
        """Stops listening and drops every connection. May be called twice."""
        for peer in list(self._peers):
            self._drop(peer)
        self._listener.close()
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- connections -------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # It may have gone by now.
            connection, _ = self._listener.accept()
            strangers = [peer for peer in self._peers if not peer.known]
            if len(strangers) >= protocol.MAX_STRANGERS:  # They keep no actor out.
                self._drop(min(strangers, key=lambda peer: peer.time))
            peer = _Peer(connection)
            self._peers.add(peer)
            self._selector.register(connection, selectors.EVENT_READ, peer)
            self._send(peer, protocol.frame(Kind.CHALLENGE, peer.nonce))

    def _attend(self, peer: _Peer, events: int) -> None:
        """Takes what has come from an actor; whatever breaks there ends its connection and nothing else."""
        try:
            if events & selectors.EVENT_WRITE:
                self._send(peer)
            if events & selectors.EVENT_READ:
                found = peer.reader.read(peer.connection)
                while found is not None:
                    self._take(peer, *found)
                    found = peer.reader.take()
        except BlockingIOError:
            return
        except (OSError, EOFError, SpecError):
            self._drop(peer)

    def _take(self, peer: _Peer, kind: int, body: bytearray) -> None:
        if not peer.known and kind == Kind.HELLO:
            self._recognize(peer, bytes(body))
        elif peer.known and not peer.welcome and kind == Kind.SESSION:
            self._greet(peer, bytes(body))
        elif peer.welcome and kind == Kind.REQUEST and peer.request is None and len(body) == peer.reader.max_bytes:
            peer.request, peer.time = body, time.monotonic()
        else:
            raise ProtocolError(f"Expected a request of {peer.reader.max_bytes} bytes, found kind {kind}.")

    def _recognize(self, peer: _Peer, body: bytes) -> None:
        """Takes an actor for one of the run that knows its secret, and shows it that the server knows it, too."""
        peer.nonces = (peer.nonce, body[: protocol.NONCE_BYTES])
        self._check_proof(peer, body[protocol.NONCE_BYTES :], b"")
        peer.known = True
        peer.reader.accept(protocol.MAX_HANDSHAKE)
        self._send(peer, protocol.frame(Kind.KNOWN, protocol.proof(self._run_id, "server", peer.nonces, b"")))

    def _check_proof(self, peer: _Peer, given: bytes, text: bytes) -> None:
        if not hmac.compare_digest(given, protocol.proof(self._run_id, "actor", peer.nonces, text)):
            self._send(peer, protocol.frame(Kind.REFUSED_RUN))
            raise ProtocolError("a stranger")

    def _greet(self, peer: _Peer, body: bytes) -> None:
        """Lets an actor in that means the same arrays; tells others why not."""
        given, text = body[: protocol.PROOF_BYTES], body[protocol.PROOF_BYTES :]
        self._check_proof(peer, given, text)
        session = Session.decode(text)
        difference = protocol.difference(self._layout, session.layout)
        if difference is not None:
            self._send(peer, protocol.frame(Kind.REFUSED_LAYOUT, difference.encode()))
            raise ProtocolError(difference)
        peer.state = self._batched.start(session)
        welcome = self._batched.description
        answer = protocol.proof(self._run_id, "server", peer.nonces, welcome)
        peer.welcome, peer.time = True, time.monotonic()
        peer.reader.accept(self._request_dtype.itemsize)
        keep_alive(peer.connection)
        self._send(peer, protocol.frame(Kind.WELCOME, answer, welcome))

    def _send(self, peer: _Peer, data: bytes = b"") -> None:
        """Sends what it can of what waits and of `data`; the rest goes when the socket takes it."""
        peer.unsent += data
        try:
            sent = peer.connection.send(peer.unsent)
            del peer.unsent[:sent]
        except BlockingIOError:
            pass
        if bool(peer.unsent) != peer.watches_write:
            peer.watches_write = bool(peer.unsent)
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.unsent else 0)
            self._selector.modify(peer.connection, events, peer)

    def _drop(self, peer: _Peer) -> None:
        self._peers.discard(peer)
        self._selector.unregister(peer.connection)
        peer.connection.close()

    def _drop_silent(self, now: float) -> None:
        for peer in [peer for peer in self._peers if not peer.welcome]:
            if now - peer.time > protocol.HANDSHAKE_SECONDS:
                self._drop(peer)

    # --- batches -----------------------------------------------------------------------------------

    def _due(self, now: float) -> float:
        """Returns when to answer: as soon as all who are expected to have asked, or the first has waited enough."""
        patience = SLOW_FACTOR * self._max_wait_seconds
        first, missing = math.inf, False
        for peer in self._peers:
            if peer.request is not None:
                first = min(first, peer.time)
            elif peer.welcome and now - peer.time < patience:
                missing = True
        return first + self._max_wait_seconds if missing else first

    def _answer(self) -> None:
        """Answers all who have asked, as one batch."""
        asking = [peer for peer in self._peers if peer.request is not None]
        requests = np.frombuffer(b"".join(_padded([peer.request for peer in asking])), self._request_dtype)  # [P]
        states = b"".join(_padded([peer.state for peer in asking]))
        step_type, *leaves = [requests[name] for name in self._request_dtype.names or ()]
        observation = self._build_observation(iter(leaves))
        replies, new_states = self._batched.act(self._client.params, states, step_type, observation)
        self.num_batches += 1
        self.num_requests += len(asking)
        replies["version"], replies["age_seconds"] = self._client.version, self._client.age_seconds
        for i, peer in enumerate(asking):
            peer.request, peer.state, peer.time = None, new_states[i].tobytes(), time.monotonic()
            try:
                self._send(peer, protocol.frame(Kind.REPLY, replies[i].tobytes()))
            except OSError:
                self._drop(peer)
        self._client.update()  # While the actors step their environments.


class _Peer:
    """One connection. `time` is when it began, was welcome, asked or was answered: whichever was last."""

    def __init__(self, connection: socket.socket):
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.connection = connection
        self.nonce = os.urandom(protocol.NONCE_BYTES)
        self.nonces: tuple[bytes, bytes] = (self.nonce, b"")
        self.reader = FrameReader(protocol.MAX_STRANGER_FRAME)
        self.unsent = bytearray()
        self.watches_write = self.known = self.welcome = False
        self.time = time.monotonic()
        self.request: bytearray | None = None
        self.state = b""


class _BatchedPolicy:
    """A policy for A actors at once: bytes in, bytes out. A is padded to a power of two, for few compilations.

    The state of an actor is its PRNG key and the leaves of its policy state, as one packed element. Its first
    `num_kept` bytes go back with each reply: all of it, or where that is too much the key, which is never used twice.
    `description` is what an actor must know to read replies, JSON.
    """

    def __init__(self, policy: Policy, spec: specs.EnvironmentSpec, params: Any, num_envs: int | None):
        init, act = _functions(policy, num_envs)
        self._init = init
        self._act = jax.jit(jax.vmap(act, in_axes=(None, 0, 0, 0)), **compiler_options())
        lead = () if num_envs is None else (num_envs,)
        observation = tree.map_structure(lambda s: np.zeros((*lead, *s.shape), s.dtype), spec.observations)
        shapes = jax.eval_shape(lambda key: init(key, ActorIndex()), jax.random.PRNGKey(0))
        result, _ = jax.eval_shape(act, params, shapes, np.full(lead, MID, np.int8), observation)
        # Extras and actions are described without the axis of environments, as specs are.
        self._results = jax.tree.map(lambda x: specs.Array(x.shape[len(lead) :], x.dtype), result)
        leaves, self._structure = jax.tree.flatten(shapes)
        try:
            self._state_dtype = np.dtype([(f"state{i}", np.dtype(x.dtype), x.shape) for i, x in enumerate(leaves)])
        except TypeError as error:  # such as JAX's typed PRNG keys
            raise SpecError(f"Expected a policy state of numeric arrays, found {shapes[1]}. Keep raw keys.") from error
        key_bytes = np.dtype(leaves[0].dtype).itemsize * math.prod(leaves[0].shape)
        self.num_kept = size if (size := self._state_dtype.itemsize) <= MAX_STATE_BYTES else key_bytes
        self._reply_dtype = protocol.reply_dtype(self._results, num_envs, self.num_kept)
        self._result_fields = [name for name in self._reply_dtype.names or () if name.startswith("result")]
        welcome = {"results": protocol.describe(self._results), "state_bytes": self.num_kept}
        self.description = json.dumps(welcome).encode()

    def start(self, session: Session) -> bytes:
        """Returns the state of an actor that comes, or comes back with what it has kept."""
        if len(session.state) not in (0, self.num_kept):
            raise ProtocolError(f"Expected a state of {self.num_kept} bytes, found {len(session.state)}.")
        first = self._init(jax.random.PRNGKey(session.seed), ActorIndex(*session.actor_index))
        return session.state + self._pack(first, ())[()].tobytes()[len(session.state) :]

    def act(self, params: Any, states: bytes, step_type: np.ndarray, observation: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns replies and new states, both packed ``[P]``, for observations whose leaves are ``[P, ...]``."""
        rows = np.frombuffer(states, self._state_dtype)  # [P]
        state = jax.tree.unflatten(self._structure, [rows[name] for name in self._state_names])
        result, state = jax.device_get(self._act(params, state, step_type, observation))
        new = self._pack(state, rows.shape)
        replies = np.empty(len(rows), self._reply_dtype)
        for name, leaf in zip(self._result_fields, tree.flatten(result), strict=True):
            replies[name] = leaf
        replies["state"] = new.view(np.uint8).reshape(len(rows), -1)[:, : self.num_kept]
        return replies, new

    def _pack(self, state: Any, shape: tuple[int, ...]) -> np.ndarray:
        packed = np.empty(shape, self._state_dtype)
        for name, leaf in zip(self._state_names, jax.tree.leaves(state), strict=True):
            packed[name] = np.asarray(leaf)
        return packed

    @property
    def _state_names(self) -> tuple[str, ...]:
        return self._state_dtype.names or ()


def _functions(policy: Policy, num_envs: int | None) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Returns ``(key, actor_index) -> state`` and ``(params, state, step_type, observation) -> (results, state)``.

    Both are for one actor. Keys are split as `PolicyActor` and `BatchedPolicyActor` split them, so that actions are
    the same.
    """

    def init(key: Any, actor_index: ActorIndex) -> tuple:
        init_key, key = jax.random.split(key)
        return key, first_state(policy, init_key, actor_index, num_envs)

    def act(params: Any, state: Any, step_type: Any, observation: Any) -> tuple:
        key, act_key = jax.random.split(state[0])
        if num_envs is not None:
            action, policy_state, extras = act_in_each(policy, params, act_key, observation, state[1], step_type)
        else:
            is_first, kept = step_type == FIRST, state[1]
            begun = jax.tree.map(lambda new, old: jnp.where(is_first, new, old), policy.reset(kept), kept)
            action, policy_state, extras = policy.act(params, act_key, observation, begun)
        return (action, extras), (key, policy_state)

    return init, act


def _padded(parts: list[Any]) -> list[Any]:
    """Returns the parts, the last one repeated until their number is a power of two."""
    return parts + parts[-1:] * ((1 << (len(parts) - 1).bit_length()) - len(parts))


def _listen(device: str) -> tuple[socket.socket, str]:
    """Returns a listening socket, confined to a network device, and its address."""
    ports.raise_descriptor_limit()
    host = "127.0.0.1" if device == "lo" else ports.device_address(device)
    listener = socket.create_server(("127.0.0.1" if device == "lo" else "0.0.0.0", 0), backlog=1024)
    port = listener.getsockname()[1]
    if device != "all" and not ports.bind_to_device(port, device):
        listener.close()
        raise ConfigError(f"The inference server could not be confined to network device {device!r}. Is there one?")
    listener.setblocking(False)
    return listener, f"{host}:{port}"
