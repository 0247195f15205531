"""Who may act through a server and what they may say: other runs, other layouts, nonsense; and who listens in."""

import contextlib
import hashlib
import socket
import threading
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import specs
from agentkit.actors import InferenceClient, InferenceServer, Policy, RemoteActor
from agentkit.actors.remote import ONLY, InferenceClosedError
from agentkit.errors import SpecError
from agentkit.wire import Client as WireClient
from agentkit.wire import RefusedError, derive_keys, listen_address
from tests.actors.served import (
    OBSERVATIONS,
    RUN,
    make_spec,
    only,
    recurrent,
    remote,
    serving,
)

pytestmark = pytest.mark.both_stacks


def test_another_runs_actor_gets_no_action() -> None:
    spec = make_spec()
    with serving(recurrent(), spec) as server:
        stranger, friend = remote(server, spec, run_id="another secret", outage_seconds=1.0), remote(server, spec)
        with pytest.raises(InferenceClosedError, match="No inference server answered"):
            stranger.select_action(np.float32(0))
        friend.select_action(np.float32(0))
        assert server.num_actors == 1
        friend.close()
        stranger.close()


def test_whoever_listens_in_learns_neither_the_run_id_nor_observations() -> None:
    known = np.frombuffer(b"an observation, to be found in no packet", np.uint8)
    spec, heard = make_spec(specs.Array(known.shape, known.dtype)), bytearray()
    with serving(recurrent(), spec) as server, socket.create_server(("127.0.0.1", 0)) as listener:
        host, _, port = server.address.removeprefix("tcp://").rpartition(":")

        def pass_on(source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                while data := source.recv(1 << 16):
                    heard.extend(data)
                    target.sendall(data)
                target.shutdown(socket.SHUT_WR)

        client = InferenceClient(lambda: f"tcp://127.0.0.1:{listener.getsockname()[1]}", RUN)
        actor = RemoteActor(client, spec, seed=0)
        asker = threading.Thread(target=actor.select_action, args=(known,))
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
    assert len(heard) > 1000 and b"CURVE" in heard and actor.version == 5
    for secret in (RUN.encode(), RUN.encode().hex().encode(), known.tobytes(), b"observation", b"step_type"):
        assert secret not in heard
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
        None,
        "observation",
        {},
        {"layout": 3},
        {"layout": {}, "seed": 0, "actor_index": [0, 1, 0], "policy": ONLY},
        {"layout": {}, "seed": 0, "actor_index": [0, 1, 0], "policy": "another"},
        {"rows": [3]},
        {"rows": {ONLY: [{"state": [], "step_type": np.int8(0), "observation": [np.float32(0)]}]}},
        {"rows": {ONLY: [{"state": None, "step_type": np.zeros(3, np.int8), "observation": [np.zeros((1 << 20, 3))]}]}},
        {"rows": {"another": []}},
    ],
)
def test_a_member_that_talks_nonsense_is_refused_and_harms_nobody(words: Any) -> None:
    spec = make_spec()
    with serving(recurrent(), spec) as server:
        friend, member = remote(server, spec), WireClient(server.address, derive_keys(RUN))
        friend.select_action(np.float32(0))
        with pytest.raises(RefusedError):
            member.ask(words, 60.0)
        friend.select_action(np.float32(0))
        assert server.num_actors == 1 and server.num_requests == 2
        friend.close()
        member.close()


def test_results_that_cannot_be_sent_are_refused_when_the_server_is_made() -> None:
    policy = Policy(lambda params, key, o, state: (jnp.zeros(2), (), {1: jnp.zeros(())}))
    with pytest.raises(SpecError, match="num_inference=0"):
        InferenceServer(only(policy, make_spec()), RUN, listen_address("lo"))
