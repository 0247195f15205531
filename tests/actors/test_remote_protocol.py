"""Who may act through a server and what they may say: strangers, other layouts, nonsense; frames and descriptions."""

import contextlib
import hashlib
import socket
import threading
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from agentkit import specs
from agentkit.actors import InferenceServer, Policy, RemoteActor, remote_protocol
from agentkit.actors.remote_protocol import FrameReader, Kind
from agentkit.distributed import WrongRunError
from agentkit.errors import SpecError
from tests.actors.served import (
    OBSERVATIONS,
    RUN,
    SCALAR,
    Client,
    Extras,
    make_spec,
    recurrent,
    remote,
    serving,
)

pytestmark = pytest.mark.both_stacks

# Refusals ---------------------------------------------------------------------------------------------


def test_another_runs_actor_is_refused() -> None:
    spec = make_spec()
    with serving(recurrent(), spec) as server:
        stranger, friend = remote(server, spec, run_id="another secret"), remote(server, spec)
        with pytest.raises(WrongRunError, match="another run"):
            stranger.select_action(np.float32(0))
        friend.select_action(np.float32(0))
        assert server.num_actors == 1
        friend.close()


def test_a_server_that_does_not_know_the_run_id_is_refused() -> None:
    """One that lets anybody in, to hand out actions of its own."""
    spec = make_spec()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(remote_protocol.frame(Kind.CHALLENGE, bytes(32)))
                reader = FrameReader()
                while reader.read(connection) is None:
                    pass
                connection.sendall(remote_protocol.frame(Kind.KNOWN, bytes(32)))

        thread = threading.Thread(target=answer)
        thread.start()
        actor = RemoteActor(lambda: f"127.0.0.1:{listener.getsockname()[1]}", RUN, spec, seed=0)
        with pytest.raises(WrongRunError, match="does not know the run id"):
            actor.update(wait=True)
        thread.join(60.0)


def test_the_run_id_is_not_sent() -> None:
    spec, heard = make_spec(), bytearray()
    with serving(recurrent(), spec) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        host, _, port = server.address.rpartition(":")

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    heard.extend(data)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        actor = RemoteActor(lambda: f"127.0.0.1:{listener.getsockname()[1]}", RUN, spec, seed=0)
        asker = threading.Thread(target=actor.select_action, args=(np.float32(0),))
        asker.start()
        near, (far, _) = socket.create_connection((host, int(port))), listener.accept()
        threads = [threading.Thread(target=pass_on, args=pair) for pair in ((near, far), (far, near))]
        for thread in threads:
            thread.start()
        asker.join(120.0)
        actor.close()
        for thread in threads:
            thread.join(60.0)
        near.close()
        far.close()
    assert b"observations" in heard and RUN.encode() not in heard and RUN.encode().hex().encode() not in heard
    for name in ("sha256", "md5", "sha1"):
        assert hashlib.new(name, RUN.encode()).digest() not in heard


@pytest.mark.parametrize(
    ("theirs", "num_envs", "named"),
    [(make_spec(OBSERVATIONS), None, "observations"), (make_spec(), 2, "num_envs")],
)
def test_another_layout_is_refused(theirs: Any, num_envs: int | None, named: str) -> None:
    spec = make_spec()
    with serving(recurrent(), spec) as server:
        with pytest.raises(SpecError, match=f"another environment: expected {named}"):
            remote(server, theirs, num_envs=num_envs).update(wait=True)
        actor = remote(server, spec)
        actor.select_action(np.float32(0))
        actor.close()


def test_an_observation_that_is_not_as_promised_is_refused_here() -> None:
    spec = make_spec(OBSERVATIONS)
    with serving(recurrent(), spec) as server:
        actor = remote(server, spec)
        with pytest.raises(SpecError, match="position"):
            actor.select_action({"image": np.zeros((2, 3), np.uint8), "position": np.zeros(3, np.float32)})
        actor.close()


@pytest.mark.parametrize(
    "words",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        bytes(4096),
        remote_protocol.frame(Kind.REQUEST, bytes(5)),
        b"\0\0\0\2\2{}",
        b"\0\0\4\1\2",  # The head of a HELLO of 1,025 bytes.
        remote_protocol.frame(Kind.SESSION, bytes(64)),
    ],
)
def test_a_stranger_that_talks_nonsense_is_dropped_and_harms_nobody(words: bytes) -> None:
    spec = make_spec()
    with serving(recurrent(), spec) as server:
        friend = remote(server, spec)
        friend.select_action(np.float32(0))
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60.0) as stranger:
            stranger.sendall(words)
            with contextlib.suppress(ConnectionError):
                while stranger.recv(4096):
                    pass
        friend.select_action(np.float32(0))
        assert server.num_actors == 1
        friend.close()


def test_a_stranger_that_says_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_protocol, "HANDSHAKE_SECONDS", 0.3)
    with serving(recurrent(), make_spec()) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=60.0) as stranger:
            assert len(stranger.recv(4096)) == 37
            assert stranger.recv(4096) == b""


def test_strangers_keep_no_actor_out_and_get_little_memory() -> None:
    spec = make_spec()
    with serving(recurrent(), spec) as server, contextlib.ExitStack() as stack:
        host, _, port = server.address.rpartition(":")
        for _ in range(3 * remote_protocol.MAX_STRANGERS):
            stranger = stack.enter_context(socket.create_connection((host, int(port)), timeout=60.0))
            with contextlib.suppress(ConnectionError):  # It has been dropped, or is for what it says.
                stranger.sendall(b"\0\0\3\xff\2" + bytes(100))  # The first 100 of 1,023 bytes.
        friend = remote(server, spec)
        friend.select_action(np.float32(0))
        strangers = [peer for peer in server._peers if not peer.known]
        assert server.num_actors == 1 and 1 <= len(strangers) <= remote_protocol.MAX_STRANGERS
        friend.close()


def test_results_that_cannot_be_sent_are_refused_when_the_server_is_made() -> None:
    policy = Policy(lambda params, key, o, state: (jnp.zeros(2), (), {1: jnp.zeros(())}))
    with pytest.raises(SpecError, match="num_inference=0"):
        InferenceServer(policy, make_spec(), Client(), RUN)


# Frames and layouts -----------------------------------------------------------------------------------


def test_frames_are_cut_wherever_the_stream_is() -> None:
    near, far = socket.socketpair()
    with near, far:
        data = b"".join(remote_protocol.frame(Kind.REQUEST, bytes([i]) * i) for i in range(5))
        reader, found = FrameReader(), []
        for i in range(len(data)):
            near.sendall(data[i : i + 1])
            frame = reader.read(far)
            while frame is not None:
                found.append(frame)
                frame = reader.take()
        assert found == [(Kind.REQUEST, bytes([i]) * i) for i in range(5)]
        near.sendall(b"\xff" * 5)
        with pytest.raises(remote_protocol.ProtocolError, match="at most"):
            reader.read(far)
        near.close()
        with pytest.raises(EOFError):
            FrameReader().read(far)


def test_descriptions_come_back_as_they_were() -> None:
    array = specs.Array((2,), np.int8)
    nest = {"b": (array, [SCALAR]), "a": Extras(specs.Array((0, 3), ml_dtypes.bfloat16), ())}
    found = remote_protocol.build(remote_protocol.describe(nest))
    assert found == nest and type(found["a"]) is Extras
    with pytest.raises(SpecError, match="Import its module"):
        remote_protocol.build({"namedtuple": ["no.such.module", "A"], "fields": {}})
    with pytest.raises(SpecError, match="Expected the description"):
        remote_protocol.build({"array": 3})
