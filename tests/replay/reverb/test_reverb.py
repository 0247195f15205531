"""ReverbReplay against the replay contract and the adder contract, and what only it does."""

import concurrent.futures
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

pytest.importorskip("reverb")

from agentkit import errors, specs
from agentkit.replay.in_process import InProcessReplay
from agentkit.replay.rate_limiter import MinSize, Queue, SampleToInsertRatio
from agentkit.replay.reverb.replay import ReverbReplay
from agentkit.replay.table import Fifo, FromStep, Layout, MinHeap, Prioritized, Select, Table
from agentkit.testing.adder import AdderContract
from agentkit.testing.replay import (
    LONG,
    ReplayContract,
    draw,
    make_step,
    numbers,
    pair_table,
    sequence_layout,
    wait_until,
    write_pairs,
)

pytestmark = pytest.mark.reverb


class TestReverbReplay(ReplayContract):
    prefetches = True

    def make_replay(self, tables, **kwargs):
        return ReverbReplay(tables, **kwargs)


class TestAddersOnReverb(AdderContract):
    def make_replay(self, tables):
        return ReverbReplay(tables, default_timeout=LONG)


# --- one process in turns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch_size, samples_per_insert, buffer", [(4, 4.0, 8.0), (8, 1.0, 8.0), (4, 1.5, 6.0), (8, 32.0, 64.0)]
)
def test_turns_in_one_thread_never_deadlock(batch_size, samples_per_insert, buffer):
    """A step where it may be inserted, a batch where there is one: the ratio holds, nobody waits."""
    limiter = SampleToInsertRatio(samples_per_insert, 20, buffer)
    with ReverbReplay([pair_table(max_size=500, rate_limiter=limiter)], default_timeout=LONG) as replay:
        writer, sampler = replay.writer(1), replay.sampler("pairs", batch_size)
        taken = inserted = 0
        deadline = time.monotonic() + LONG
        while inserted < 200:
            assert time.monotonic() < deadline
            if replay.can_insert("pairs"):
                index = writer.append(make_step(inserted))
                writer.create_item("pairs", 1.0, index, index + 1, inline=np.float32(0))
                inserted += 1
            while sampler.ready():
                next(sampler)
                taken += batch_size
        owed = (inserted - 20) * samples_per_insert
        slack = buffer + 2 * batch_size + samples_per_insert  # up to one batch drawn ahead
        assert owed - slack <= taken <= owed + slack
        writer.close()  # all that was let in is in


def test_nothing_is_drawn_that_nobody_asked_for():
    """One batch ahead and no more, where each draw is counted."""
    queue = pair_table(max_size=64, sampler=Fifo(), rate_limiter=Queue(64), max_times_sampled=1)
    with ReverbReplay([queue], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        write_pairs(writer, "pairs", range(40))
        sampler = replay.sampler("pairs", 4)
        for i in range(3):
            assert next(sampler).sample.data.action.tolist() == list(range(4 * i, 4 * i + 4))
        time.sleep(0.3)
        assert replay.info("pairs").num_sampled == 16
        sampler.close()
        # What it held is lost with it; another sampler goes on behind.
        assert numbers(draw(replay, "pairs", 4, batch_size=4)) == [16, 17, 18, 19]
        writer.close()


def test_two_samplers_of_a_queue_lose_nothing():
    queue = pair_table(max_size=50, sampler=Fifo(), rate_limiter=Queue(50), max_times_sampled=1)
    with ReverbReplay([queue], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        samplers = [replay.sampler("pairs", 4), replay.sampler("pairs", 3)]
        got = []

        def read(sampler):
            for _ in range(12):
                got.extend(next(sampler).sample.data.action.tolist())

        threads = [threading.Thread(target=read, args=(s,), daemon=True) for s in samplers]
        for thread in threads:
            thread.start()
        for i in range(100):
            write_pairs(writer, "pairs", [i])
        for thread in threads:
            thread.join(LONG)
        assert len(got) == 84 and len(set(got)) == 84 and max(got) < 100


def test_a_padded_item_where_only_the_ends_count():
    with ReverbReplay([pair_table(sampler=Fifo(), max_times_sampled=1)], default_timeout=LONG) as replay:
        writer = replay.writer(2)
        writer.append(make_step(1))
        writer.append(make_step(2))
        writer.create_item("pairs", 1.0, 0, 2, inline=np.float32(3), padding=1000)
        with pytest.raises(errors.SpecError, match="padding"):
            writer.append(make_step(3))
        writer.end_episode()
        assert writer.append(make_step(4)) == 0
        writer.create_item("pairs", 1.0, 0, 1, inline=np.float32(3))
        writer.flush()
        sampler = replay.sampler("pairs", 2)
        data = next(sampler).sample.data
        assert data.action.tolist() == [1, 4]
        assert data.last.tolist() == [[0, 0], [4, -4]]


def test_tables_of_two_kinds_of_step():
    other = Layout({"x": specs.Array((3,), np.float64)}, {"x": FromStep(0, Select.FIRST)})
    with ReverbReplay([pair_table(), Table("other", other, 10)], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        with pytest.raises(errors.SpecError, match="fits no table"):
            writer.append({"x": np.zeros(3, np.float32)})
        writer.append({"x": np.arange(3.0)})
        writer.create_item("other", 1.0, 0, 1)
        with pytest.raises(errors.SpecError, match="other steps"):
            writer.create_item("pairs", 1.0, 0, 1, inline=np.float32(0))
        writer.close()
        sampler = replay.sampler("other", 1)
        np.testing.assert_array_equal(next(sampler).sample.data["x"], [[0, 1, 2]])


def test_long_sequences_span_chunks():
    table = Table("sequences", sequence_layout(70), 10, sampler=Fifo(), max_times_sampled=1)
    with ReverbReplay([table], default_timeout=LONG) as replay:
        writer = replay.writer(70)
        for i in range(100):
            writer.append(make_step(i))
            if i in (69, 99):
                writer.create_item("sequences", 1.0, i - 69, i + 1)
        writer.close()
        sampler = replay.sampler("sequences", 2)
        actions = next(sampler).sample.data["action"]
        np.testing.assert_array_equal(actions, [np.arange(70), np.arange(30, 100)])


def test_a_slow_writer_sends_unasked():
    """What waits for its chunk to be full does not wait for long, nor at the end of an episode."""
    with ReverbReplay([pair_table()], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        for i in range(2):
            writer.append(make_step(i))
            writer.create_item("pairs", 1.0, i, i + 1, inline=np.float32(0))
            time.sleep(0.2)
        assert wait_until(lambda: replay.info("pairs").num_inserted >= 1)
        writer.append(make_step(2))
        writer.end_episode()
        assert wait_until(lambda: replay.info("pairs").num_inserted == 2)
        writer.close()


def test_a_checkpoint_of_another_layout_is_refused(tmp_path):
    with ReverbReplay([pair_table()]) as replay:
        replay.save(tmp_path)
        index = tmp_path / "replay.json"
        index.write_text(index.read_text().replace("agentkit-reverb-2, bytes-2", "agentkit-reverb-1"))
    with ReverbReplay([pair_table()]) as replay, pytest.raises(errors.CheckpointError, match="another way"):
        replay.restore(tmp_path)


def test_a_checkpoint_of_the_other_kind_of_replay_is_refused_by_name(tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "reverb").mkdir()
    with ReverbReplay([pair_table()]) as reverb, InProcessReplay([pair_table()]) as own:
        reverb.save(tmp_path / "reverb")
        own.save(tmp_path / "own")
        with pytest.raises(errors.CheckpointError, match=r"saved by Reverb.*--replay reverb"):
            own.restore(tmp_path / "reverb")
        with pytest.raises(errors.CheckpointError, match=r"agentkit's own replay.*leave replay='reverb'"):
            reverb.restore(tmp_path / "own")


def test_a_power_that_overflows_is_refused():
    with ReverbReplay([pair_table(sampler=Prioritized(2.0))]) as replay:
        writer = replay.writer(1)
        writer.append(make_step(0))
        with pytest.raises(errors.SpecError, match="too great"):
            writer.create_item("pairs", 1e200, 0, 1, inline=np.float32(0))
        with pytest.raises(errors.SpecError, match="too great"):
            replay.update_priorities("pairs", np.zeros(1, np.uint64), np.array([1e200]))


# --- an address, security ----------------------------------------------------------------------------


def test_a_client_at_an_address():
    tables = [pair_table(max_size=8, rate_limiter=SampleToInsertRatio(2.0, 2, 8.0))]
    with ReverbReplay(tables, default_timeout=LONG) as server:
        with ReverbReplay(tables, address=server.address, default_timeout=LONG) as client:
            writer = client.writer(1)
            write_pairs(writer, "pairs", range(4))
            assert client.info("pairs") == server.info("pairs")
            assert client.can_insert("pairs") and not client.can_insert("pairs", 10)
            key = {info.key for _, info in draw(client, "pairs", 4, batch_size=4)}.pop()
            client.update_priorities("pairs", np.array([key]), np.array([7.0]))
            writer.close()
            with pytest.raises(errors.CheckpointError, match="process that runs it"):
                client.restore("anywhere")
        (drawn,) = {info.priority for _, info in draw(server, "pairs", 1) if info.key == key} or {7.0}
        assert drawn == 7.0


@pytest.mark.parametrize(
    "other",
    [
        pair_table(max_size=9),
        pair_table(max_size=8, sampler=MinHeap()),
        pair_table(max_size=8, rate_limiter=MinSize(3)),
        Table("pairs", sequence_layout(2), 8),
        pair_table("others", max_size=8),
    ],
    ids=["max_size", "sampler", "rate_limiter", "signature", "name"],
)
def test_a_server_of_other_tables_is_refused(other):
    with (
        ReverbReplay([pair_table(max_size=8)]) as server,
        pytest.raises((errors.ConfigError, errors.UnknownNameError), match=server.address),
    ):
        ReverbReplay([other], address=server.address, default_timeout=5.0)


def test_nobody_at_the_address():
    with pytest.raises(errors.ReplayClosedError, match=r"No Reverb server answers at localhost:1 \(0\.5 s\)"):
        ReverbReplay([pair_table()], address="localhost:1", default_timeout=0.5)


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


def test_a_port_that_is_taken_is_refused():
    """By another server (gRPC would share it without a word), and by anything else."""
    port = free_port()
    with ReverbReplay([pair_table()], port=port) as replay:
        assert replay.address == f"localhost:{port}"
        with pytest.raises(errors.ConfigError, match=f"Port {port} is taken"):
            ReverbReplay([pair_table()], port=port)
    with ReverbReplay([pair_table()], port=port):
        pass  # free again
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1)
        with pytest.raises(errors.ConfigError, match="is taken"):
            ReverbReplay([pair_table()], port=listener.getsockname()[1])


def outward_address():
    """An address of this machine that is not loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
        except OSError:
            return None
        return probe.getsockname()[0]


def can_connect(host, port):
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return True
    except OSError:
        return False


def test_listens_to_this_machine_alone_unless_told(caplog):
    host = outward_address()
    for listen, reachable in (("lo", False), ("all", True)):
        port = free_port()
        with ReverbReplay([pair_table()], port=port, listen=listen):
            assert can_connect("127.0.0.1", port)
            if host is not None and not host.startswith("127."):
                assert can_connect(host, port) == reachable
    assert not caplog.records, "it says so where it cannot be confined"
    with pytest.raises(errors.ConfigError, match="no-such-device"):
        ReverbReplay([pair_table()], listen="no-such-device")


def test_settings_that_contradict_each_other():
    with pytest.raises(errors.ConfigError, match="belong to a server"):
        ReverbReplay([pair_table()], address="localhost:1", port=2)
    with pytest.raises(errors.ConfigError, match="1 to 65535"):
        ReverbReplay([pair_table()], port=0)
    strange = Layout(specs.Array((), np.dtype("datetime64[s]")), FromStep(0, Select.FIRST))
    with pytest.raises(errors.ConfigError, match="cannot store"):
        ReverbReplay([Table("strange", strange, 1)])


# --- life cycle --------------------------------------------------------------------------------------


def test_restore_comes_first(tmp_path):
    with ReverbReplay([pair_table()]) as replay:
        replay.save(tmp_path)
        writer = replay.writer(1)
        with pytest.raises(errors.CheckpointError, match="before any writer"):
            replay.restore(tmp_path)
        writer.close()


def test_a_changed_byte_is_noticed(tmp_path):
    """Reverb would read some of them as other data."""
    with ReverbReplay([pair_table()], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        write_pairs(writer, "pairs", range(5))
        replay.save(tmp_path)
        writer.close()
    for path in sorted(tmp_path.rglob("*.tfrecord")):
        good = path.read_bytes()
        path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
        with ReverbReplay([pair_table()]) as replay:
            with pytest.raises(errors.CheckpointError, match=f"(?s){path.name}.*damaged"):
                replay.restore(tmp_path)
            assert replay.info("pairs").size == 0
        path.write_bytes(good)


def test_saved_again_and_again(tmp_path):
    """Earlier saves stay readable, though Reverb keeps only its last checkpoint."""
    with ReverbReplay([pair_table()], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        for i in range(3):
            write_pairs(writer, "pairs", [i])
            (tmp_path / str(i)).mkdir()
            replay.save(tmp_path / str(i))
        writer.close()
    for i in range(3):
        with ReverbReplay([pair_table()], default_timeout=LONG) as replay:
            replay.restore(tmp_path / str(i))
            assert replay.info("pairs").size == i + 1


def test_a_connection_that_was_lost_for_a_moment_costs_no_checkpoint(tmp_path, monkeypatch):
    with ReverbReplay([pair_table()], default_timeout=LONG) as replay:
        writer = replay.writer(1)
        write_pairs(writer, "pairs", [5])
        client, failures = replay._client, [RuntimeError("connections to all backends failing")]
        save = client.checkpoint
        monkeypatch.setattr(client, "checkpoint", lambda: _raise(failures.pop()) if failures else save())
        replay.save(tmp_path)
        writer.close()
        assert not failures
    with ReverbReplay([pair_table()], default_timeout=LONG) as replay:
        replay.restore(tmp_path)
        assert replay.info("pairs").size == 1


def _raise(error):
    raise error


def test_closing_leaves_no_thread_and_no_file(tmp_path):
    before = {thread.name for thread in threading.enumerate()}
    replay = ReverbReplay([pair_table()], checkpoint_directory=tmp_path)
    assert list(tmp_path.iterdir())
    samplers = [replay.sampler("pairs", 2) for _ in range(2)]
    writer = replay.writer(1)
    write_pairs(writer, "pairs", range(3))
    next(samplers[0])
    replay.reset("pairs")
    replay.close()
    gc.collect()
    assert wait_until(lambda: {thread.name for thread in threading.enumerate()} <= before)
    assert not list(tmp_path.iterdir())


def test_close_wakes_a_writer_that_waits():
    queue = pair_table(max_size=1, sampler=Fifo(), rate_limiter=Queue(1), max_times_sampled=1)
    replay = ReverbReplay([queue], default_timeout=LONG)
    writer = replay.writer(1)
    write_pairs(writer, "pairs", [0])
    raised = []

    def wait():
        try:
            write_pairs(writer, "pairs", [1])
        except errors.AgentkitError as error:
            raised.append(type(error))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.3)
    replay.close()
    thread.join(5)
    assert raised == [errors.ReplayClosedError]


SERVER = """
    import sys, time
    from agentkit.replay.reverb.replay import ReverbReplay
    from agentkit.testing.replay import pair_table
    replay = ReverbReplay([pair_table()], port=int(sys.argv[1]))
    print("up", flush=True)
    time.sleep(60)
"""


def start_server(port, folder):
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SERVER), str(port)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},  # who is killed leaves its files behind
    )
    assert process.stdout.readline().strip() == "up"
    return process


def stop_server(server):
    server.kill()
    server.wait()
    server.stdout.close()


def in_flight_when_killed(server, call):
    """Returns what a call raises whose server dies before it answers."""
    os.kill(server.pid, signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        error = pool.submit(call)
        time.sleep(0.5)  # The request is on its way.
        stop_server(server)
        return error.exception(LONG)


@pytest.mark.full  # two processes import TensorFlow
def test_a_server_that_is_killed_and_comes_back(tmp_path):
    """Every call ends with ReplayClosedError within its timeout; then the same objects go on."""
    port = free_port()
    server = start_server(port, tmp_path)
    replay = ReverbReplay([pair_table()], address=f"localhost:{port}", default_timeout=LONG)
    writer, sampler = replay.writer(1, timeout=0.5), replay.sampler("pairs", 2, timeout=0.5)

    def update_priorities():
        replay.update_priorities("pairs", np.ones(1, np.uint64), np.ones(1))

    try:
        write_pairs(writer, "pairs", range(4))
        assert wait_until(sampler.ready)
        next(sampler)
        assert isinstance(in_flight_when_killed(server, update_priorities), errors.ReplayClosedError)
        replay.default_timeout = 0.5
        calls = [
            lambda: write_pairs(writer, "pairs", [5]),
            lambda: [next(sampler) for _ in range(1000)],
            lambda: replay.info("pairs"),
            lambda: replay.can_insert("pairs"),
            lambda: replay.reset("pairs"),
            update_priorities,
        ]
        for call in calls:
            with pytest.raises(errors.ReplayClosedError):
                call()
        server = start_server(port, tmp_path)
        replay.default_timeout = LONG

        def delivered():
            try:
                writer.flush()
            except (errors.ReplayClosedError, errors.ReplayTimeoutError):
                return False
            return True

        assert wait_until(delivered)
        assert replay.info("pairs").num_inserted == 1
    finally:
        replay.close()
        stop_server(server)


LEFT_OPEN = """
    import threading, time
    from agentkit.replay.reverb.replay import ReverbReplay
    from agentkit.testing.replay import make_step, pair_table
    import numpy as np
    replay = ReverbReplay([pair_table()])
    writer, sampler = replay.writer(1), replay.sampler("pairs", 2, timeout=30)
    writer.append(make_step(0))
    writer.create_item("pairs", 1.0, 0, 1, np.float32(0))
    writer.flush()
    next(sampler)
    empty = replay.sampler("pairs", 100, timeout=30)
    threading.Thread(target=lambda: next(empty), daemon=True).start()
    print(time.monotonic(), flush=True)
    {end}
"""


@pytest.mark.full  # so does this one
@pytest.mark.parametrize("end, code", [("pass", 0), ("raise KeyError('the environment broke')", 1)])
def test_an_interpreter_that_ends_with_everything_open(end, code):
    program = textwrap.dedent(LEFT_OPEN).format(end=end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    took = time.monotonic() - float(done.stdout)
    assert done.returncode == code, done.stderr
    assert ("the environment broke" in done.stderr) == (code == 1)
    assert took < 25  # a second on a machine that does nothing else


def test_without_reverb_the_error_names_the_extra():
    program = """
        import sys
        sys.modules["reverb"] = None
        from agentkit import errors
        try:
            from agentkit.replay import ReverbReplay
        except errors.MissingExtraError as error:
            print(error)
    """
    program = textwrap.dedent(program)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert "agentkit-rl[reverb]" in done.stdout, done.stderr
