import contextlib
import functools
import json
import os
import shutil
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
    connect_to_run,
    run_store,
    run_store_client,
)
from agentkit.distributed.address_file import write_address_file
from agentkit.distributed.run_store import MAX_MESSAGE
from agentkit.distributed.run_store_client import from_body, to_body
from agentkit.errors import ConfigError
from agentkit.wire import Client, RefusedError, derive_keys
from agentkit.wire.message import PART_BYTES
from agentkit.wire.server import HANDSHAKE_SECONDS

pytestmark = pytest.mark.both_stacks

RUN = "0123456789abcdef0123456789abcdef"


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
    assert 0.2 < time.monotonic() - start < 4.9  # Who is not woken waits for its deadline.
    assert store.get("key") == {"a": [1, 2.5, None, "x"]}
    with pytest.raises(RunStoreError, match="Nothing was published under 'other'"):
        two.get("other", timeout=0.3)
    one.close()
    two.close()


def test_counts_of_nodes_that_died_stay_counted(store):
    store.restore_counts({"steps": 1000})
    first = client(store, node="actor-0")
    assert first.heartbeat({"steps": 10}, {}, 0.0) == {"stop": False, "totals": {"steps": 1010}, "has_endpoint": False}
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


def test_a_supervised_nodes_old_process_is_told_to_stop_and_counted_no_more(store):
    """It was taken for lost, where only the way to it was."""
    store.node("actor-0", supervised=True, incarnation=0)
    old, new = client(store, node="actor-0"), client(store, node="actor-0", incarnation=1)
    assert old.heartbeat({"steps": 1000}, {}, 0.0)["stop"] is False
    store.node("actor-0", incarnation=1)
    for steps in (10, 20, 30):
        assert old.heartbeat({"steps": 1000 + steps}, {}, 0.0)["stop"] is True
        assert new.heartbeat({"steps": steps}, {}, 0.0)["stop"] is False
        assert store.totals() == {"steps": 1000 + steps} and store.last_heartbeat("actor-0")[0] == 1
    old.close()
    new.close()


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
    assert time.monotonic() - start < 4.0


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
        b"x" * (2 * PART_BYTES),
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
    assert time.monotonic() - start < 4.9  # The deadline of those that are given none is 5 s.
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


def test_more_than_a_message_may_hold_is_refused_and_a_long_status_is_not(store):
    made = client(store)
    with pytest.raises(RunStoreError, match="at most 1048576 are taken"):
        made.put("long", "x" * MAX_MESSAGE)
    for i in range(3):
        made.put(f"key {i}", "x" * (MAX_MESSAGE // 2))
    assert len(json.dumps(made.status())) > MAX_MESSAGE
    made.close()


def test_a_member_whose_messages_are_none_of_the_stores_harms_nobody(store):
    member = Client(f"tcp://{store.address}", derive_keys(RUN))
    for body in (None, "text", [1, 2], {"do": "stop"}, to_body("text")[:-1], to_body([1]), to_body({})):
        with pytest.raises(RefusedError, match="malformed"):
            member.ask(body, 5.0)
    assert from_body(member.ask(to_body({"do": "status"}), 5.0))["values"] == {}
    member.close()


def listening(answer):
    """The address of an impostor, who gives each connection to `answer`."""

    def listen():
        with contextlib.suppress(OSError):  # It was closed.
            while True:
                connection, _ = impostor.accept()
                with connection, contextlib.suppress(OSError):
                    answer(connection)

    impostor = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=listen)
    thread.start()

    @contextlib.contextmanager
    def open_until_the_end():
        try:
            yield f"127.0.0.1:{impostor.getsockname()[1]}"
        finally:
            impostor.shutdown(socket.SHUT_RDWR)
            impostor.close()
            thread.join(10.0)
            assert not thread.is_alive()

    return open_until_the_end()


def test_who_listens_and_does_not_know_the_run_id_is_named_at_once():
    heard = []

    def answer(connection):
        heard.append(connection.recv(1000))
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    start = time.monotonic()
    with listening(answer) as address, pytest.raises(WrongRunError, match="not this run's store"):
        RunStoreClient(address, RUN, timeout=15.0)
    assert time.monotonic() - start < 10.0 and heard and RUN.encode() not in b"".join(heard)


def test_a_tunnel_whose_far_end_is_away_is_no_other_run():
    """`ssh -L` takes a connection and closes it without a word; a node waits as for any store that is away."""
    with listening(lambda connection: None) as address, pytest.raises(RunStoreError, match="did not answer") as caught:
        RunStoreClient(address, RUN, timeout=1.8)
    assert not isinstance(caught.value, WrongRunError)


def test_a_store_that_comes_back_while_a_stranger_is_looked_for_is_none(store, monkeypatch):
    made = client(store)
    monkeypatch.setattr(Client, "is_stranger", True)
    assert run_store_client._speaks(store.address) and not made._is_another_run()
    made.close()


def test_who_sends_all_on_reads_nothing_and_says_nothing(store):
    """He stands between a client and the real store: sees what they show each other, and changes it."""
    heard, threads, bad = bytearray(), [], threading.Event()

    def pass_on(source, target, changes):
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                heard.extend(data)
                if changes and bad.is_set():
                    data = data[:-1] + bytes([data[-1] ^ 1])
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def answer(connection):
        host, port = store.address.split(":")
        with socket.create_connection((host, int(port))) as real:
            thread = threading.Thread(target=pass_on, args=(connection, real, True))
            threads.append(thread)
            thread.start()
            pass_on(real, connection, False)

    with listening(answer) as address:
        made = RunStoreClient(address, RUN, timeout=10.0)
        made.put("a key of the run", "its value")
        assert store.get("a key of the run") == "its value"
        bad.set()
        with pytest.raises(RunStoreError):
            made._ask({"do": "put", "key": "evil", "value": 1}, 1.0)
        assert store.get("evil") is None, "a message that was changed was taken"
        made.close()
        store.close()
    for thread in threads:
        thread.join(10.0)
    assert len(heard) > 500
    for secret in (RUN.encode(), b"a key of the run", b"its value", b"put"):
        assert secret not in heard


def test_strangers_keep_no_node_out_and_do_not_stay(store):
    """Many of them, and each sends a byte now and then."""
    member = client(store, node="actor-0")
    host, port = store.address.split(":")
    strangers = [socket.create_connection((host, int(port)), timeout=10.0) for _ in range(200)]
    start = time.monotonic()
    try:
        late = client(store, node="actor-1")
        assert time.monotonic() - start < HANDSHAKE_SECONDS, "it waited for the strangers to be dropped"
        last = strangers[-1]
        last.settimeout(0.2)
        while True:  # A byte in time does not keep a connection.
            assert time.monotonic() - start < 4 * HANDSHAKE_SECONDS
            try:
                last.sendall(b"\xff")
                if not last.recv(1000):
                    break
            except TimeoutError:
                continue
            except OSError:
                break
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


def test_a_reader_finds_the_board_as_it_was_or_as_it_is_to_be(tmp_path, monkeypatch):
    board, seen = tmp_path / "board.json", []
    monkeypatch.setattr("agentkit.files.os.fsync", lambda descriptor: seen.append(json.loads(board.read_text())))
    place = {"host": socket.gethostname(), "folder": [tmp_path.stat().st_dev, tmp_path.stat().st_ino]}
    boards = [{"address": f"127.0.0.1:{port}", "run_id": RUN, **place} for port in (8, 9)]
    board.write_text(json.dumps(boards[0]))
    write_address_file(tmp_path, boards[1]["address"], RUN)
    assert seen == [boards[0]] and json.loads(board.read_text()) == boards[1]
    assert list(tmp_path.iterdir()) == [board] and board.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("moved", [False, True])
def test_a_copied_folder_speaks_for_no_program(moved, store, tmp_path):
    run, copy = tmp_path / "run", tmp_path / "copy"
    write_address_file(run, store.address, RUN)
    (run.rename if moved else functools.partial(shutil.copytree, run))(copy)
    if not moved:
        with pytest.raises(ConfigError, match=f"No launched program runs in {copy}: "):
            connect_to_run(copy)
        board = json.loads((copy / "board.json").read_text())  # Other hosts, and earlier versions, cannot tell.
        (copy / "board.json").write_text(json.dumps({**board, "host": "another"}))
        connect_to_run(copy).close()
        (copy / "board.json").write_text(json.dumps({"address": store.address, "run_id": RUN}))
    connect_to_run(copy).close()


@pytest.mark.parametrize(
    "text",
    [
        *["", '{"address": "127.0.', "[]", '{"address": "127.0.0.1:9"}', "\udc80"],
        *['{"address": "h:9", "run_id": "\\ud800"}', f'{{"address": "h:9", "run_id": "a", "more": {"1" * 5_000}}}'],
    ],
    ids=range(7),
)
def test_a_file_that_was_cut_off_is_no_bare_error(text, tmp_path):
    """A resumed launch looks into it, and an earlier version's program may have been killed while it wrote it."""
    (tmp_path / "board.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunStoreError, match=r"board.json is damaged: expected an object with a text 'address'"):
        connect_to_run(tmp_path)


@pytest.mark.parametrize(
    "address",
    ["tcp://127.0.0.1:7700", "http://h:7700", "my host:7700", "[::1]:7700", "-h:7700", "h:7700 ", "h:²", "h:700000"],
)
def test_what_the_wire_cannot_connect_to_is_refused_at_once(address):
    with pytest.raises(ConfigError, match="address as host:port, of a name or an IPv4 address"):
        RunStoreClient(address, RUN, timeout=60.0)


def test_an_address_that_cannot_be_is_refused_at_once():
    with pytest.raises(ConfigError, match=r"port 1 to 65535, found .127\.0\.0\.1:99999"):
        RunStoreClient("127.0.0.1:99999", RUN, timeout=60.0)
    with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1:99999"):
        RunStore(RUN, port=99999)


def test_a_peek_and_a_put_with_a_timeout_are_short_though_the_store_is_away_and_others_wait_for_it(store):
    reader = client(store)
    assert reader.peek("key") is None
    store.put("key", 3)
    assert reader.peek("key", 5.0) == 3
    store.close()
    reader._client.patience = 5.0  # As if its host had vanished: for long nobody knows that it is away.

    def put():
        with contextlib.suppress(RunStoreError):  # After its own deadline, or as soon as the client is closed.
            reader.put("key", 4)

    waiting = threading.Thread(target=put)
    for _ in range(2):  # Alone, and beside a thread that waits.
        started = time.monotonic()
        assert reader.peek("key") is None
        with pytest.raises(RunStoreError, match=r"did not answer for 0\.2 s"):
            reader.put("key", 5, 0.2)
        assert time.monotonic() - started < 2.0
        if not waiting.is_alive():
            waiting.start()
            time.sleep(0.2)
    reader.close()
    waiting.join(5.0)
    assert not waiting.is_alive()
