import contextlib
import json
import os
import socket
import threading
import time

import pytest

from agentkit.distributed import (
    NodeTakenError,
    RunStore,
    RunStoreClient,
    RunStoreError,
    WrongRunError,
    run_store,
    run_store_server,
)
from agentkit.distributed.run_store_server import MAX_LINE, MAX_STRANGERS
from agentkit.errors import ConfigError

pytestmark = pytest.mark.both_stacks

RUN = "a-secret"


@pytest.fixture
def store():
    with RunStore(RUN) as made:
        yield made


def client(store, **kwargs):
    return RunStoreClient(store.address, RUN, **{"timeout": 5.0, **kwargs})


def test_a_value_is_seen_by_all_and_waited_for(store):
    one, two = client(store), client(store)
    threading.Timer(0.3, one.put, ("key", {"a": [1, 2.5, None, "x"]})).start()
    start = time.monotonic()
    assert two.get("key", timeout=5.0) == {"a": [1, 2.5, None, "x"]}
    assert 0.2 < time.monotonic() - start < 2.0
    assert store.get("key") == {"a": [1, 2.5, None, "x"]}
    with pytest.raises(RunStoreError, match="Nothing was published under 'other'"):
        two.get("other", timeout=0.3)
    one.close()
    two.close()


def test_counts_of_nodes_that_died_stay_counted(store):
    store.restore_counts({"steps": 1000})
    first = client(store, node="actor-0")
    assert first.heartbeat({"steps": 10}, {}, 0.0) == {"stop": False, "totals": {"steps": 1010}}
    assert first.heartbeat({"steps": 15}, {}, 0.0)["totals"] == {"steps": 1015}
    again = client(store, node="actor-0", incarnation=1)
    assert again.heartbeat({"steps": 2}, {"rate": 0.5}, 0.0)["totals"] == {"steps": 1017}
    other = client(store, node="actor-1")
    assert other.heartbeat({"steps": 3, "episodes": 1}, {}, 0.0)["totals"] == {"steps": 1020, "episodes": 1}
    node = store.status()["nodes"]["actor-0"]
    assert node["counts"] == {"steps": 17} and node["gauges"] == {"rate": 0.5} and node["incarnation"] == 1
    store.forget_node("actor-1")
    assert store.totals() == {"steps": 1020, "episodes": 1}
    for made in (first, again, other):
        made.close()


def test_who_outlives_the_run_store_is_counted_once():
    with RunStore(RUN) as store:
        alive, killed = client(store, node="actor-0"), client(store, node="actor-1")
        alive.heartbeat({"steps": 40}, {}, 0.0)
        killed.heartbeat({"steps": 30}, {}, 0.0)
        saved = alive.save_counts()
        assert saved["totals"] == {"steps": 70}
        alive.heartbeat({"steps": 50}, {}, 0.0)  # After the checkpoint.
        port = int(store.address.rpartition(":")[2])
    with RunStore(RUN, port=port) as store:
        store.restore_counts(**json.loads(json.dumps(saved)))
        assert alive.heartbeat({"steps": 60}, {}, 0.0)["totals"] == {"steps": 90}
        assert alive.heartbeat({"steps": 61}, {}, 0.0)["totals"] == {"steps": 91}
        assert store.status()["nodes"]["actor-0"]["counts"] == {"steps": 21}  # Since the checkpoint.
        fresh = client(store, node="actor-1")
        assert fresh.heartbeat({"steps": 5}, {}, 0.0)["totals"] == {"steps": 96}
        again = alive.save_counts()
        assert again["totals"] == {"steps": 96} and again["counted"]["actor-0"]["counts"] == {"steps": 61}
        for made in (alive, killed, fresh):
            made.close()


def test_the_word_to_stop_comes_with_the_next_beat(store):
    made = client(store, node="actor-0")
    other = client(store, node="actor-1")
    store.stop_node("actor-1")
    assert not made.heartbeat({}, {}, 0.0)["stop"] and other.heartbeat({}, {}, 0.0)["stop"]
    store.stop("enough")
    store.stop("too late")
    assert made.heartbeat({}, {}, 0.0)["stop"] and store.stop_reason == "enough"
    made.close()
    other.close()


def test_another_run_is_refused(store):
    start = time.monotonic()
    with pytest.raises(WrongRunError, match="another run or version, or the run id is wrong"):
        RunStoreClient(store.address, "wrong", timeout=5.0)
    assert time.monotonic() - start < 2.0


@pytest.mark.parametrize(
    "words",
    [
        b"",
        b"\n",
        b"garbage\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"[1, 2]\n",
        b'{"run_id": 5}\n',
        b'{"protocol": 2, "nonce": "n"}\n{"proof": "x"}\n',
        b"x" * MAX_LINE,
    ],
)
def test_a_stranger_is_dropped_and_harms_nobody(store, words):
    host, port = store.address.split(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as stranger:
        answer = b""
        with contextlib.suppress(ConnectionError, OSError):  # It may be dropped before it has said all.
            stranger.sendall(words + b'{"do": "put", "key": "evil", "value": 1}\n')
            stranger.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: stranger.recv(1000), b""))
    assert b"value" not in answer
    made = client(store)
    made.put("good", 1)
    assert store.get("evil") is None and store.get("good") == 1
    made.close()


def test_a_malformed_message_of_a_member_is_answered_with_an_error(store):
    made = client(store)
    with pytest.raises(RunStoreError, match="unknown message 'dance'"):
        made._ask({"do": "dance"}, 2.0)
    with pytest.raises(RunStoreError, match="malformed"):
        made._ask({"do": "get"}, 2.0)
    made.put("still", "here")
    made.close()


def test_a_client_finds_a_board_that_was_restarted_on_its_port():
    first = RunStore(RUN)
    made = RunStoreClient(first.address, RUN, node="actor-0", timeout=10.0)
    port = int(first.address.split(":")[1])
    first.close()
    with pytest.raises(RunStoreError, match="did not answer"):
        made._ask({"do": "status"}, 0.5)
    threading.Timer(0.5, lambda: boards.append(RunStore(RUN, port=port))).start()
    boards: list[RunStore] = []
    assert made.heartbeat({"steps": 4}, {}, 0.0)["totals"] == {"steps": 4}
    made.close()
    boards[0].close()


def test_a_board_that_is_not_there_is_told_within_its_deadline():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.monotonic()
    with pytest.raises(RunStoreError, match="did not answer"):
        RunStoreClient(f"127.0.0.1:{port}", RUN, timeout=0.5)
    assert time.monotonic() - start < 3.0
    with pytest.raises(ConfigError, match="host:port"):
        RunStoreClient("nonsense", RUN)


def test_a_port_that_is_taken_is_refused(store):
    with pytest.raises(ConfigError, match="cannot listen"):
        RunStore(RUN, port=int(store.address.split(":")[1]))


def test_the_status_is_plain_json(store):
    made = client(store, node="learner-0")
    made.heartbeat({"updates": 1}, {"x": 1.0}, 0.5)
    made.command("scale", role="actor", count=3)
    store.node("learner-0", state="ready", restarts=2, last_error="none")
    status = json.loads(json.dumps(made.status()))
    node = status["nodes"]["learner-0"]
    assert node["state"] == "ready" and node["restarts"] == 2 and node["idle_seconds"] == 0.5
    assert 0 <= node["beat_age_seconds"] < 5 and node["pid"] > 0
    assert store.commands.get(timeout=1.0) == ("scale", {"role": "actor", "count": 3})
    made.close()


def talk(address, *lines):
    """What the store answers to a client of one's own, line by line."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port)), timeout=10.0) as made, made.makefile("rb") as reader:
        for line in lines:
            made.sendall(json.dumps(line).encode() + b"\n")
            yield json.loads(reader.readline())


def test_a_client_of_an_older_protocol_is_refused_in_words(store):
    (answer,) = talk(store.address, {"run_id": RUN})
    assert "speaks protocol 3, the client 1: use one version" in answer["error"]


def test_an_impostor_learns_nothing_and_is_believed_nothing(store):
    """It sends the challenges of the real store on, and has the client's proof; and sees all that is sent."""
    heard = []

    def listen():
        connection, _ = impostor.accept()
        with connection, connection.makefile("rb") as reader:
            host, port = store.address.split(":")
            with socket.create_connection((host, int(port))) as real, real.makefile("rb") as answers:
                heard.append(reader.readline())
                real.sendall(heard[-1])
                connection.sendall(answers.readline())
                heard.append(reader.readline())
                connection.sendall(b'{"value": {"proof": "' + json.loads(heard[-1])["proof"].encode() + b'"}}\n')
                heard.append(reader.readline())

    with socket.create_server(("127.0.0.1", 0)) as impostor:
        thread = threading.Thread(target=listen)
        thread.start()
        with pytest.raises(WrongRunError, match="does not know the run id"):
            RunStoreClient(f"127.0.0.1:{impostor.getsockname()[1]}", RUN, timeout=5.0)
        thread.join()
    assert RUN.encode() not in b"".join(heard) and heard[2] == b""


def test_strangers_keep_no_node_out_and_do_not_stay(store, monkeypatch):
    """Far more of them than may stay, and each sends a byte now and then."""
    monkeypatch.setattr(run_store_server, "HANDSHAKE_SECONDS", 1.0)
    member = client(store, node="actor-0")
    host, port = store.address.split(":")
    strangers = [socket.create_connection((host, int(port)), timeout=10.0) for _ in range(3 * MAX_STRANGERS)]
    start = time.monotonic()
    try:
        for stranger in strangers:
            with contextlib.suppress(OSError):  # It has been dropped by now.
                stranger.sendall(b"{")
        late = client(store, node="actor-1")
        assert time.monotonic() - start < 10.0
        assert len(store._server._strangers) <= MAX_STRANGERS
        while store._server._strangers:  # A byte in time does not keep a connection.
            assert time.monotonic() - start < 15.0
            for stranger in strangers:
                with contextlib.suppress(OSError):
                    stranger.sendall(b" ")
            time.sleep(0.2)
    finally:
        for stranger in strangers:
            stranger.close()
    assert late.heartbeat({"steps": 1}, {}, 0.0) and member.heartbeat({"steps": 1}, {}, 0.0)
    late.close()
    member.close()


def test_one_name_has_one_life_at_a_time(store, monkeypatch):
    first, second = (client(store, node="actor-7", life=life) for life in ("one", "two"))
    assert first.claim("actor-7", "one") is None and first.claim("actor-7", "one") is None
    first.heartbeat({"steps": 10}, {}, 0.0)
    assert second.claim("actor-7", "two")["pid"] == os.getpid()
    with pytest.raises(NodeTakenError, match=f"process {os.getpid()} on {socket.gethostname()} is actor-7 now"):
        second.heartbeat({"steps": 99}, {}, 0.0)
    assert store.totals() == {"steps": 10}
    monkeypatch.setattr(run_store, "SILENT_SECONDS", 0.2)
    time.sleep(0.3)
    assert second.claim("actor-7", "two") is None, "it was silent for too long"
    assert second.heartbeat({"steps": 5}, {}, 0.0)["totals"] == {"steps": 15}
    with pytest.raises(NodeTakenError):
        first.heartbeat({"steps": 11}, {}, 0.0)
    second.heartbeat({"steps": 6}, {}, 0.0, leaving=True)
    assert first.claim("actor-7", "three") is None, "it has left"
    first.close()
    second.close()


@pytest.mark.parametrize(
    "part",
    [
        {"idle_seconds": "abc"}, {"idle_seconds": -1.0}, {"counts": {"steps": 1e30}}, {"counts": {"steps": None}},
        {"counts": 3}, {"gauges": {"rate": "fast"}}, {"pid": None}, {"incarnation": float("inf")},
    ],
)  # fmt: skip
def test_a_malformed_beat_is_refused_and_changes_nothing(store, part):
    made = client(store, node="actor-0")
    made.heartbeat({"steps": 3}, {}, 0.25)
    before = store.last_heartbeat("actor-0")[2], store.totals()
    beat = {
        "do": "beat",
        "node": "actor-0",
        "incarnation": 0,
        "pid": 1,
        "host": "h",
        "process": "p",
        "counts": {},
        "gauges": {},
    }
    with pytest.raises(RunStoreError, match="malformed"):
        made._ask({**beat, "idle_seconds": 0.0, "ready": True, "leaving": False, **part}, 2.0)
    assert (store.last_heartbeat("actor-0")[2], store.totals()) == before == (0.25, {"steps": 3})
    made.close()


def test_an_address_that_cannot_be_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"port 1 to 65535, found .127\.0\.0\.1:99999"):
        RunStoreClient("127.0.0.1:99999", RUN, timeout=60.0)
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:99999"):
        RunStore(RUN, port=99999)
