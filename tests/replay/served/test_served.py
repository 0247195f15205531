"""The in-process replay behind the wire: the contract of every backend, and each row once, whatever happens."""

import collections
import contextlib
import copy
import errno
import math
import os
import random
import threading
import time

import numpy as np
import pytest
import tree

from agentkit import checkpoint, errors
from agentkit.replay import Fifo, InProcessReplay, Prioritized, Queue, SampleToInsertRatio
from agentkit.replay.in_process import arrays
from agentkit.replay.served import ServedReplay, server, writer
from agentkit.replay.served.client import AHEAD, UPDATES_UNDER_WAY
from agentkit.testing.adder import AdderContract
from agentkit.testing.replay import ReplayContract, make_step, pair_table, wait_until, write_pairs
from agentkit.wire import Client, RefusedError, WireTimeoutError, derive_keys, private_address
from tests.replay.served.pair import Host, Served

LONG = 30.0


class TestServedReplay(ReplayContract):
    def make_replay(self, tables, **kwargs):
        return Served(tables, **kwargs)


class TestAddersOnServed(AdderContract):
    def make_replay(self, tables):
        return Served(tables, default_timeout=LONG)


@pytest.fixture
def hosts():
    made = []

    def make(*tables, **kwargs):
        made.append(Host(list(tables), **kwargs))
        return made[-1]

    yield make
    for host in made:
        host.close()


def write_trios(to, numbers):
    """Writes an item over each three steps in a row: its first step is its number."""
    for number in numbers:
        index = to.append(make_step(number))
        if index >= 2:
            to.create_item("pairs", 1.0, index - 2, index + 1, inline=np.float32(number - 2))


def stored(host):
    """The numbers of all items at the server, oldest first; checks that each is whole."""
    data, _ = host.server.replay.contents("pairs")
    np.testing.assert_array_equal(data.first[:, 0], data.action)
    np.testing.assert_array_equal(data.value, data.action)
    np.testing.assert_array_equal(data.last[:, 0], data.action + 2)
    return data.action.tolist()


@pytest.mark.parametrize("tcp", [False, True], ids=["ipc", "tcp"])
def test_each_row_arrives_once_and_in_order_over_lost_connections(hosts, tcp, monkeypatch):
    monkeypatch.setattr(writer, "MAX_STEPS", 3)  # Many blocks, of which several are on their way at each cut.
    host = hosts(pair_table(max_size=10_000), tcp=tcp)
    replay = host.connect(default_timeout=LONG)
    one = replay.writer(3)
    thread = threading.Thread(target=write_trios, args=(one, range(3000)), daemon=True)
    thread.start()
    cuts = 0
    while thread.is_alive() and cuts < 12:
        time.sleep(0.02)
        host.cut()
        cuts += 1
    thread.join(LONG)
    one.flush()
    assert cuts >= 3, "the writer was done before anything was cut"
    assert stored(host) == list(range(2998))
    replay.close()


def test_a_server_that_comes_back_with_a_checkpoint_gets_no_row_twice(hosts, tmp_path, monkeypatch):
    """What was confirmed after the checkpoint goes with the server; all else is there once, with its history."""
    monkeypatch.setattr(writer, "MAX_STEPS", 4)
    # The limit stops the writer in the middle of a block: 103 items are in, and the block's others wait.
    table = pair_table(max_size=10_000, rate_limiter=SampleToInsertRatio(1.0, 1, (-1e6, 103.0)))
    host = hosts(table)
    replay = host.connect(default_timeout=LONG)
    one = replay.writer(3)
    thread = threading.Thread(target=write_trios, args=(one, range(400)), daemon=True)
    thread.start()
    assert wait_until(lambda: replay.info("pairs").num_inserted == 103)
    time.sleep(0.2)
    replay.save(tmp_path)
    host.kill()
    assert thread.is_alive()
    host.start(tmp_path)
    assert host.server.replay.info("pairs").num_inserted == 103
    replay.count_as_sampled("pairs", 150)
    assert wait_until(lambda: replay.info("pairs").num_inserted == 253)
    host.stop()
    assert stored(host) == list(range(253)), "the block of which one item was in came again, and that item did not"
    host.kill()  # The checkpoint is old by now.
    host.start(tmp_path)
    replay.count_as_sampled("pairs", 1000)
    thread.join(LONG)
    one.flush()
    found = stored(host)
    assert found[:103] == list(range(103))
    rest = found[103:]
    assert rest == list(range(rest[0], 398)), "each row once, and in order"
    # Its first one begins a block of four: what was confirmed is lost as whole blocks, and of the next nothing is.
    assert 240 <= rest[0] <= 253 and rest[0] % 4 == 2
    replay.close()


def test_a_writer_that_is_not_heard_for_long_tells_its_history_again(hosts):
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG)
    one = replay.writer(3)
    write_trios(one, range(4))
    one.flush()
    host.stop()
    (stream,) = host.server._streams.values()
    stream.heard -= 1e6
    host.server._next_sweep = 0.0
    host._run()
    assert wait_until(lambda: not host.server._streams)
    for number in (4, 5):
        index = one.append(make_step(number))
        one.create_item("pairs", 1.0, index - 2, index + 1, inline=np.float32(number - 2))
    one.close()
    assert stored(host) == [0, 1, 2, 3]
    assert wait_until(lambda: not host.server._streams and not host.server.replay.shared.confirmed)
    store = host.server.replay.shared.stores[0]
    assert store.num_rows - 1 - store.num_free == 8, "a first and a last step of each item, and nothing else"
    replay.close()


def test_of_more_writers_than_are_remembered_those_gone_longest_are_forgotten(hosts, tmp_path, monkeypatch):
    """Not those that were there first, and none before it had the time to come back: its rows would go in again."""
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG)
    replay.push = lambda seconds: None  # No other thread hears answers.
    writers = [replay.writer(3) for _ in range(2)]
    for number, each in enumerate(writers):
        each._hear_now = lambda timeout: False
        write_trios(each, range(number, number + 3))
        each._send()
        del each._hear_now
    assert wait_until(lambda: replay.info("pairs").num_inserted == 2)
    replay.save(tmp_path)
    host.kill()
    monkeypatch.setattr(server, "MAX_CONFIRMED", 1)
    host.start(tmp_path)
    for each in writers:
        each.flush()
    assert sorted(stored(host)) == [0, 1]
    for most, each in [(2, writers[1]), (1, writers[0])]:  # The first one is gone last.
        host.stop()
        monkeypatch.setattr(server, "MAX_CONFIRMED", most)
        host.server._streams[each._name].heard -= 1e6
        host.server._next_sweep = 0.0
        host._run()
        assert wait_until(lambda name=each._name: name not in host.server._streams)
    host.stop()
    assert list(host.server.replay.shared.confirmed) == [writers[0]._name]
    replay.close()


def test_a_server_that_goes_while_it_is_told_a_history_is_told_it_when_it_comes_back(hosts):
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG)
    one = replay.writer(3, timeout=0.5)
    write_trios(one, range(4))
    one.flush()
    host.kill()
    host.start()
    asked, handle = threading.Event(), host.server._handle
    host.server._handle = lambda request: asked.set() if request.body["do"] == "open" else handle(request)
    killer = threading.Thread(target=lambda: asked.wait(LONG) and host.kill())
    killer.start()
    for number in (4, 5):
        index = one.append(make_step(number))
        one.create_item("pairs", 1.0, index - 2, index + 1, inline=np.float32(number - 2))
    with pytest.raises(errors.ReplayClosedError):
        one.flush()
    killer.join()
    host.start()
    one.flush()
    assert stored(host) == [2, 3], "the first server's items went with it, those under way came once"
    replay.close()


def test_an_item_arrives_though_its_writer_does_nothing_more(hosts):
    """Else an actor that waits for parameters, and a learner that waits for its last items, wait for each other."""
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG)
    one = replay.writer(1)
    one.append(make_step(3))
    one.create_item("pairs", 1.0, 0, 1, inline=np.float32(3))
    assert wait_until(lambda: replay.info("pairs").num_inserted == 1)
    replay.close()


def test_many_writers_are_told_apart(hosts):
    host = hosts(pair_table(max_size=10_000))
    replays = [host.connect(default_timeout=LONG) for _ in range(4)]

    def write(replay, base):
        one = replay.writer(1)
        write_pairs(one, "pairs", range(base, base + 300))
        one.close()

    threads = [threading.Thread(target=write, args=(r, 1000 * i)) for i, r in enumerate(replays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    data, _ = host.server.replay.contents("pairs")
    for i in range(4):
        mine = [number for number in data.action.tolist() if number // 1000 == i]
        assert mine == list(range(1000 * i, 1000 * i + 300))
    for replay in replays:
        replay.close()


def test_a_sampler_that_draws_ahead_stays_within_the_limit_and_takes_back_what_it_did_not_get(hosts):
    host = hosts(pair_table(rate_limiter=SampleToInsertRatio(2.0, 4, 8.0)))
    replay = host.connect(default_timeout=LONG, draw_ahead=True)
    one = replay.writer(1)
    write_pairs(one, "pairs", range(8))
    sampler = replay.sampler("pairs", 4, timeout=0.3)
    assert wait_until(sampler.ready)
    for _ in range(4):
        next(sampler)
    with pytest.raises(errors.ReplayTimeoutError):
        next(sampler)
    assert replay.info("pairs").num_sampled == 16
    sampler.close()
    write_pairs(one, "pairs", range(4))
    assert replay.info("pairs").num_sampled == 16, "what it asked for is not drawn for nobody"
    replay.close()


def test_new_priorities_that_go_off_without_a_wait_arrive_in_order_or_are_said_to_be_late(hosts):
    host = hosts(pair_table(sampler=Prioritized(1.0)))
    replay = host.connect(default_timeout=2.0, draw_ahead=True)
    one = replay.writer(1)
    write_pairs(one, "pairs", range(4))
    one.flush()
    sampler = replay.sampler("pairs", 32)
    keys = np.unique(next(sampler).keys)
    for number in range(5 * UPDATES_UNDER_WAY):
        replay.update_priorities("pairs", keys, np.full(len(keys), number + 2.0))
    assert replay.info("pairs").size == 4  # Asked after them, and answered so.
    for _ in range(AHEAD + 1):  # What was drawn before they came.
        batch = next(sampler)
    assert np.all(batch.sample.info.priority == 5 * UPDATES_UNDER_WAY + 1.0)
    host.stop()
    for _ in range(UPDATES_UNDER_WAY):
        replay.update_priorities("pairs", keys, np.ones(len(keys)))
    with pytest.raises(errors.ReplayTimeoutError, match="no new priorities for 2 s"):
        replay.update_priorities("pairs", keys, np.ones(len(keys)))
    replay.close()


def test_a_batch_that_comes_late_is_told_from_the_answer_to_ready(hosts):
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG)
    write_pairs(replay.writer(1), "pairs", range(8))
    sampler = replay.sampler("pairs", 4, timeout=0.5)
    host.stop()  # It is at work.
    with pytest.raises(errors.ReplayTimeoutError):
        next(sampler)
    host._run()
    assert wait_until(lambda: replay.info("pairs").num_sampled == 4)
    sampler._timeout = LONG
    assert sampler.ready()
    for _ in range(3):
        assert next(sampler).sample.data.action.shape == (4,)
    assert sampler.ready() and replay.info("pairs").num_sampled == 12, "a batch is lost, or drawn for nobody"
    replay.close()


def test_a_queue_is_not_drawn_from_ahead(hosts):
    host = hosts(pair_table(max_size=64, sampler=Fifo(), rate_limiter=Queue(64), max_times_sampled=1))
    replay = host.connect(default_timeout=LONG, draw_ahead=True)
    one = replay.writer(1)
    write_pairs(one, "pairs", range(12))
    sampler = replay.sampler("pairs", 4)
    assert next(sampler).sample.data.action.tolist() == [0, 1, 2, 3]
    sampler.close()
    assert replay.info("pairs")[1:] == (8, 64, 12, 4)
    replay.close()


@pytest.mark.parametrize("ahead", [1, AHEAD])
def test_batches_that_are_lost_with_a_connection_come_again_and_are_not_drawn_again(hosts, ahead):
    """Of a queue, their rows would be gone."""
    host = hosts(pair_table(max_size=64, sampler=Fifo(), rate_limiter=Queue(64), max_times_sampled=1))
    replay = host.connect(default_timeout=LONG)
    sampler = replay.sampler("pairs", 2)
    sampler._ahead = ahead  # As of tables whose items stay.
    sampler._request()
    assert wait_until(lambda: sampler._receive(0.0) is None and len(host.server._draws["pairs"]) == ahead)
    host.stop()
    write_pairs(host.server.replay.writer(1), "pairs", range(24))
    host._run()
    assert wait_until(lambda: replay.info("pairs").num_sampled == 2 * ahead)
    host.cut()  # The batches are on their way.
    for first in range(0, 10, 2):
        assert next(sampler).sample.data.action.tolist() == [first, first + 1]
    assert 1 <= len(host.server._given) <= ahead, "it keeps what may have to come again, and nothing else"
    sampler.close()
    assert not host.server._given
    replay.close()


def test_a_sampler_that_is_left_keeps_batches_for_a_minute_and_waits_for_no_absent_server(hosts):
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG, draw_ahead=True)
    write_pairs(replay.writer(1), "pairs", [1])
    sampler = replay.sampler("pairs", 1)
    next(sampler)
    assert wait_until(lambda: host.server._given), "batches that were asked for ahead are given"
    host.stop()
    host.server._sweep(time.monotonic() + 70.0)
    assert not host.server._given
    host.server.close()
    time.sleep(0.2)  # Nobody has told the sampler yet that the server is gone.
    started = time.monotonic()
    sampler.close()
    assert time.monotonic() - started < 0.5
    replay.close()


def test_an_absent_server_is_said_to_be_away_and_found_again(hosts):
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG)
    one, sampler = replay.writer(1), replay.sampler("pairs", 1, timeout=1.0)
    write_pairs(one, "pairs", [1])
    next(sampler)
    host.kill()
    with pytest.raises(errors.ReplayClosedError, match="away"):
        replay.info("pairs")
    with pytest.raises(errors.ReplayClosedError):
        for _ in range(10):
            try:
                next(sampler)
            except errors.ReplayTimeoutError:
                continue
    with pytest.raises(errors.ReplayClosedError, match="away"):
        host.connect(connect_timeout=0.3)
    host.start()
    write_pairs(one, "pairs", [2])
    assert next(sampler).sample.data.action.tolist() == [2]
    replay.close()


def test_what_is_made_after_a_move_connects_to_where_the_server_is(hosts):
    """Also where nobody has asked anything meanwhile, so that nobody has noticed; a sampler waits for 2 s alone."""
    host = hosts(pair_table())
    replay = host.connect(default_timeout=LONG, find_address=lambda: host.address)
    host.kill()
    host.address = private_address(host.folder, "elsewhere")
    host.start()
    sampler = replay.sampler("pairs", 1)
    assert not sampler.ready()
    assert replay.info("pairs").size == 0 and replay.address == host.address
    replay._find_address = lambda: None
    write_pairs(replay.writer(1), "pairs", [1])
    assert next(replay.sampler("pairs", 1)).sample.data.action.tolist() == [1]
    replay.close()


def test_other_tables_and_strangers_are_refused(hosts):
    host = hosts(pair_table(max_size=7), tcp=True)
    with pytest.raises(errors.ConfigError, match="max_size: expected 8, found 7"):
        ServedReplay([pair_table(max_size=8)], host.address, host.keys)
    with pytest.raises(errors.UnknownNameError, match="others"):
        ServedReplay([pair_table("others")], host.address, host.keys)
    with pytest.raises(errors.ReplayClosedError):
        ServedReplay(host.tables, host.address, derive_keys("another run"), connect_timeout=0.5)


NASTY = [
    None, True, -1, 0, 1, 7, 2**62, 1e300, math.inf, math.nan, "", "pairs", "writer", [], [[1]], {},
    {"sequence": math.inf}, np.zeros(3), np.zeros((0, 2), np.int64), np.array(["a"]),
]  # fmt: skip


def _requests():
    """Requests of each kind, as clients send them."""
    row = {"writer": "writer", "session": 1, "sequence": 1, "position": 0}
    steps = [np.asarray(leaf)[None] for leaf in tree.flatten(make_step(0))]
    item = {"table": "pairs", "first": np.array([0]), "stop": np.array([1]), "padding": np.zeros(1, np.int32)}
    item |= {"priority": np.ones(1), "inline": [np.zeros(1, np.float32)]}
    block = {"do": "block", **row, "steps": steps, "starts": np.array([0]), "items": []}
    return [
        block, block | {"items": [item]}, {"do": "leave", "writer": "writer"}, {"do": "cancel", "sampler": "me"},
        {"do": "sample", "table": "pairs", "batch_size": 1, "wait": 0.0, "sampler": "me", "oldest_waiting": 1},
        {"do": "can_insert", "table": "pairs", "num_items": 1}, {"do": "can_sample", "table": "pairs", "batch_size": 1},
        {"do": "info", "table": "pairs"}, {"do": "update", "table": "pairs", "keys": [1], "priorities": [1.0]},
        {"do": "count", "table": "pairs", "num_sampled": 1},
    ]  # fmt: skip


@pytest.mark.both_stacks
def test_whatever_a_request_says_the_server_goes_on(hosts):
    """Requests with up to two other values in them, also in what a block says of its items."""
    host, rng = hosts(pair_table()), random.Random(0)
    replay, client = host.connect(default_timeout=LONG), Client(host.address)
    opening = {"do": "open", "writer": "writer", "session": 1, "store": 0, "history": 3, "blocks": []}
    counts = collections.Counter()
    for number in range(300):
        with contextlib.suppress(errors.AgentkitError):
            client.ask(opening | {"session": number}, 1.0)
        body = copy.deepcopy(rng.choice([opening, *_requests()]))
        if "session" in body:
            body["session"] = number
        inside = rng.choice([body, *body.get("items", ())])
        for name in rng.sample(sorted(inside), rng.randint(0, 2)):
            inside[name] = rng.choice(NASTY)
        try:
            client.ask(body, 0.02)
            counts[body["do"]] += 1
        except RefusedError:
            counts["refused"] += 1
        except (WireTimeoutError, errors.AgentkitError):
            client.forget()  # It waits for its turn, or cannot be sent.
    assert counts["refused"] > 60 and counts["block"] > 10
    write_pairs(replay.writer(1), "pairs", [5])
    assert 5 in {int(next(replay.sampler("pairs", 1)).sample.data.action[0]) for _ in range(100)}
    replay.close()
    client.close()


@pytest.mark.parametrize("sampler", [Fifo(), Prioritized(0.6)], ids=str)
def test_what_is_saved_served_is_restored_in_process(hosts, tmp_path, sampler):
    host = hosts(pair_table(max_size=50, sampler=sampler))
    replay = host.connect(default_timeout=LONG)
    one = replay.writer(3)
    write_trios(one, range(120))
    one.flush()
    replay.save(tmp_path)
    with InProcessReplay(host.tables) as ours:
        ours.restore(tmp_path)
        assert ours.contents("pairs")[0].action.tolist() == stored(host) == list(range(68, 118))
    replay.close()


@pytest.mark.parametrize("is_served", [True, False])
def test_a_full_disk_under_the_contents_is_called_one(hosts, tmp_path, monkeypatch, is_served):
    def refuse(*rest):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    host = hosts(pair_table(max_size=50))
    replay = host.connect() if is_served else InProcessReplay(host.tables)
    good = checkpoint.write(tmp_path, 1, {}, {"replay": replay.save})
    monkeypatch.setattr(arrays, "write", refuse)
    expected = f"the disk is full.*No space left.*Free some space.*untouched; the last good one is {good}"
    with pytest.raises(errors.CheckpointError, match=expected) as caught:
        checkpoint.write(tmp_path, 2, {}, {"replay": replay.save})
    assert "\n" not in str(caught.value) and list(tmp_path.iterdir()) == [good]
    replay.close()


@pytest.mark.full
def test_writers_at_full_speed_leave_a_sampler_most_of_its_rate(hosts):
    """Loose, since all share the cores of this machine: neither starves, and the sampler keeps a tenth."""
    host = hosts(pair_table(max_size=100_000))
    replay = host.connect(default_timeout=LONG, draw_ahead=True)
    one = replay.writer(1)
    write_pairs(one, "pairs", range(1000))
    stopping = threading.Event()

    def push():
        mine = host.connect(default_timeout=LONG).writer(1)
        while not stopping.is_set():
            index = mine.append(make_step(0))
            mine.create_item("pairs", 1.0, index, index + 1, inline=np.float32(0))

    def batches(seconds):
        sampler, count = replay.sampler("pairs", 256), 0
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            next(sampler)
            count += 1
        sampler.close()
        return count

    alone = batches(4.0)
    threads = [threading.Thread(target=push, daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    beside = batches(4.0)
    stopping.set()
    for thread in threads:
        thread.join(LONG)
    assert replay.info("pairs").num_inserted > 2000, "the writers starve"
    assert beside > 0.1 * alone, f"{alone} batches alone, {beside} beside writers"
    replay.close()
