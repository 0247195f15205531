"""InProcessReplay against a pure Python oracle, over random operations; and across save and restore."""

import contextlib
import dataclasses
import itertools
import json
import threading

import numpy as np
import pytest
import tree
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentkit import specs
from agentkit.errors import CheckpointError, ReplayClosedError
from agentkit.replay import (
    Fifo,
    InProcessReplay,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Table,
    Uniform,
)
from agentkit.testing.replay import make_step, pair_layout, pair_table, sequence_layout
from agentkit.testing.replay_history import ends_table, make_image_step, sequence_table
from tests.replay.in_process.moving import make_writers, moved

SELECTORS = [Uniform(), Fifo(), Lifo(), MinHeap(), MaxHeap(), Prioritized(0.0), Prioritized(0.7)]


@dataclasses.dataclass
class Item:
    number: int
    last: int
    priority: float
    stamp: int  # order of inserts and updates
    born: int
    key: int
    times: int = 0


class Oracle:
    """A table as a list of items."""

    def __init__(self, table: Table):
        self.table = table
        self.items: list[Item] = []
        self.clock = itertools.count()

    def choose(self, selector) -> Item | None:
        """The item a deterministic selector takes, None for a random one."""
        match selector:
            case Fifo():
                return min(self.items, key=lambda x: x.born)
            case Lifo():
                return max(self.items, key=lambda x: x.born)
            case MinHeap():
                return min(self.items, key=lambda x: (x.priority, x.stamp))
            case MaxHeap():
                return min(self.items, key=lambda x: (-x.priority, x.stamp))
        return None

    def chances(self, selector) -> dict[int, float]:
        """Key -> chance."""
        chosen = self.choose(selector)
        if chosen is not None:
            return {chosen.key: 1.0}
        weights = {x.key: 1.0 for x in self.items}
        if isinstance(selector, Prioritized):
            ranked = {x.key: x.priority**selector.exponent for x in self.items if x.priority > 0}
            weights = ranked or weights
        total = sum(weights.values())
        return {key: weight / total for key, weight in weights.items()}

    def insert(self, number: int, last: int, priority: float, key: int) -> Item | None:
        """Returns the item that must go, None if any may."""
        now = next(self.clock)
        self.items.append(Item(number, last, priority, now, now, key))
        return self.choose(self.table.remover)

    def sample(self, key: int, size: int, probability: float, priority: float, times: int | None) -> Item:
        chances = self.chances(self.table.sampler)
        assert key in chances
        assert probability == pytest.approx(chances[key], rel=1e-9)
        assert size == len(self.items)
        item = next(x for x in self.items if x.key == key)
        assert priority == item.priority
        item.times += 1
        if times is not None:
            assert times == item.times
        if self.table.max_times_sampled and item.times >= self.table.max_times_sampled:
            self.items.remove(item)
        return item


def contents(replay: InProcessReplay, name: str) -> dict[int, tuple[int, int]]:
    """Key -> (number, last) of every item, by looking inside."""
    items = replay.shared.items[name]
    slots = items._slots.by_age()
    data = items._gather(slots)
    keys = items._keys[slots].tolist()
    return dict(zip(keys, zip(data.action.tolist(), data.last[:, 0].astype(int).tolist(), strict=True), strict=True))


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "insert", "insert", "sample", "update", "end", "reset"]),
        st.integers(0, 10_000),
    ),
    min_size=20,
    max_size=90,
)


@pytest.mark.parametrize("sampler", SELECTORS, ids=repr)
@pytest.mark.parametrize("remover", SELECTORS[:6], ids=repr)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    operations=OPERATIONS,
    max_size=st.integers(1, 9),
    max_times=st.sampled_from([0, 0, 1, 3]),
    seed=st.integers(0, 99),
)
def test_replay_does_what_the_oracle_does(sampler, remover, operations, max_size, max_times, seed):
    table = pair_table(max_size=max_size, sampler=sampler, remover=remover, max_times_sampled=max_times)
    oracle, seen = Oracle(table), set()
    with InProcessReplay([table], seed=seed) as replay:
        writer = replay.writer(4)
        last = -1
        for what, n in operations:
            if what == "insert":
                last += 1
                index = writer.append(make_step(last))
                back = min(index, n % 4)
                priority = float(n % 5)
                key = writer.create_item("pairs", priority, index - back, index + 1, np.float32(last - back))
                assert key not in seen
                seen.add(key)
                gone = oracle.insert(last - back, last, priority, key)
                if len(oracle.items) > max_size:
                    left = contents(replay, "pairs")
                    out = [x for x in oracle.items if x.key not in left]
                    assert len(out) == 1 and gone in (None, out[0])
                    assert out[0].key in oracle.chances(remover)
                    oracle.items.remove(out[0])
            elif what == "sample":
                batch = 1 + n % max_size
                with contextlib.closing(replay.sampler("pairs", batch)) as s:
                    draws = sum(max_times - x.times for x in oracle.items) if max_times else batch
                    assert s.ready() == (len(oracle.items) > 0 and draws >= batch)
                    if s.ready():
                        keys, sample = next(s)
                        for i in range(batch):
                            key, probability, size, priority, times = (x[i].item() for x in (keys, *sample.info))
                            item = oracle.sample(key, size, probability, priority, times if max_times else None)
                            data = tree.map_structure(lambda x, i=i: x[i], sample.data)
                            assert data.action == data.first[0] == data.value == item.number
                            assert data.last[0] == -data.last[1] == item.last
            elif what == "update":
                known = sorted(seen)[:: 1 + n % 3]
                keys = np.array([*known, 2**60 + n, 0], np.uint64)
                priorities = np.arange(len(keys)) * (n % 7) % 5.0
                replay.update_priorities("pairs", keys, priorities)
                for key, priority in zip(keys.tolist(), priorities.tolist(), strict=True):
                    for item in oracle.items:
                        if item.key == key:
                            item.priority, item.stamp = priority, next(oracle.clock)
            elif what == "end":
                writer.end_episode()
            else:
                if n % 4 == 0:
                    replay.reset("pairs")
                    oracle.items.clear()
            assert replay.info("pairs").size == len(oracle.items) <= max_size
        assert contents(replay, "pairs") == {x.key: (x.number, x.last) for x in oracle.items}
        _check_no_leak(replay, [writer])


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_histories_are_kept_as_long_as_items_look_at_them(seed, tmp_path):
    """Of two tables, whose items are removed in any order, also after a restore, and until they are reset."""
    rng = np.random.default_rng(seed)
    tables = [ends_table(Uniform()), sequence_table(Fifo())]

    def write(replay, writer, num_episodes):
        for _ in range(num_episodes):
            for i in range(int(rng.integers(1, 15))):
                writer.append(make_image_step(i))
                writer.create_item("ends", 1.0, max(0, i - int(rng.integers(0, 8))), i + 1, np.int32(i))
                if i and rng.integers(2):
                    writer.create_item("sequences", 1.0, i - 1, i + 1, np.int32(i))
            _check_no_leak(replay, [writer])
            writer.end_episode()

    with InProcessReplay(tables) as replay, InProcessReplay(tables) as restored:
        write(replay, replay.writer(13), 10)
        assert replay.shared.stores[0].num_rows < 120, "rows are used again"
        replay.save(tmp_path)
        restored.restore(tmp_path)
        np.testing.assert_array_equal(restored.shared.stores[0]._references, replay.shared.stores[0]._references)
        writer = restored.writer(13)
        write(restored, writer, 10)
        writer.close()
        for table in tables:
            restored.reset(table.name)
        _check_no_leak(restored, [])
        assert restored.shared.stores[0].num_free == restored.shared.stores[0].num_rows - 1


def _check_no_leak(replay: InProcessReplay, writers) -> None:
    """Every row is free, in an item, or in a writer's history; references are what these add up to."""
    for store in replay.shared.stores:
        expected = np.zeros(len(store._references), np.int64)
        for items in replay.shared.items.values():
            for rows in items.held_rows():
                np.add.at(expected, rows.reshape(-1), 1)
        for writer in writers:
            np.add.at(expected, list(writer._history), 1)
        np.testing.assert_array_equal(store._references[1 : store.num_rows], expected[1 : store.num_rows])
        free = 1 + np.flatnonzero(expected[1 : store.num_rows] == 0)
        assert sorted(store._free) == free.tolist()
        for column in store.columns:
            assert not column.take(np.zeros(1, np.intp), 0).any(), "the padding row stays zero"


def many_tables() -> list[Table]:
    tables = [
        pair_table(f"{i}", max_size=5 + i, sampler=s, remover=r, max_times_sampled=3 * (i % 2))
        for i, (s, r) in enumerate(zip(SELECTORS, SELECTORS[::-1], strict=True))
    ]
    return [*tables, Table("sequences", sequence_layout(3), 8, sampler=Prioritized(1.0), remover=Uniform())]


class Run:
    """Random operations on many tables, recorded; it can be moved to another replay in between."""

    def __init__(self, replay: InProcessReplay):
        self.replay = replay
        self.writers = make_writers(replay)
        self.lengths = [0, 0]
        self.log: list = []

    def go(self, rng: np.random.Generator, steps: int) -> None:
        for _ in range(steps):
            which = int(rng.integers(2))
            writer, tables = self.writers[which], list(self.replay.tables)
            if rng.random() < 0.1:
                writer.end_episode()
            index = writer.append(make_step(int(rng.integers(1000))))
            for name in tables:
                if name == "sequences":
                    if index >= 2:
                        self.log.append(writer.create_item(name, rng.random(), index - 2, index + 1))
                elif rng.random() < 0.7:
                    start = max(0, index - int(rng.integers(3)))
                    key = writer.create_item(name, rng.random(), start, index + 1, np.float32(index))
                    self.log.append(key)
            name = tables[int(rng.integers(len(tables)))]
            sampler = self.replay.sampler(name, 4)
            if sampler.ready():
                batch = next(sampler)
                self.log += [x.tolist() for x in tree.flatten(batch)]
                if rng.random() < 0.5:
                    self.replay.update_priorities(name, batch.keys, rng.random(4))
            if rng.random() < 0.02:
                self.replay.reset(name)

    def move(self, directory) -> None:
        """Saves everything, closes it, and goes on in new objects."""
        self.replay, self.writers = moved(self.replay, self.writers, many_tables(), directory)


def test_a_restored_run_goes_on_bit_for_bit(tmp_path):
    runs = [Run(InProcessReplay(many_tables(), seed=7)) for _ in range(2)]
    rngs = [np.random.default_rng(3) for _ in runs]
    for i in range(12):
        for run, rng in zip(runs, rngs, strict=True):
            run.go(rng, 25)
        runs[1].move(tmp_path / str(i))
        assert runs[0].log == runs[1].log
    assert len(runs[0].log) > 2000
    _check_no_leak(runs[1].replay, runs[1].writers)
    infos = [[run.replay.info(name) for name in run.replay.tables] for run in runs]
    assert infos[0] == infos[1]


def test_saving_changes_nothing(tmp_path):
    runs = [Run(InProcessReplay(many_tables(), seed=7)) for _ in range(2)]
    rngs = [np.random.default_rng(4) for _ in runs]
    for i in range(5):
        for run, rng in zip(runs, rngs, strict=True):
            run.go(rng, 15)
        (tmp_path / str(i)).mkdir()
        runs[1].replay.save(tmp_path / str(i))
    assert runs[0].log == runs[1].log


def test_seeds_matter():
    logs = []
    for seed in (1, 1, 2, np.random.SeedSequence(1)):
        run = Run(InProcessReplay(many_tables(), seed=seed))
        run.go(np.random.default_rng(0), 40)
        logs.append(run.log)
    assert logs[0] == logs[1] == logs[3] != logs[2]


def test_restore_refuses_rows_that_are_not_there(tmp_path):
    tables = [pair_table(max_size=4)]
    with InProcessReplay(tables) as replay:
        writer = replay.writer(1)
        for i in range(4):
            writer.append(make_step(i))
            writer.create_item("pairs", 1.0, i, i + 1, np.float32(i))
        replay.save(tmp_path)
    rows = np.fromfile(tmp_path / "table0.rows.bin", np.int32)
    (rows + 100).tofile(tmp_path / "table0.rows.bin")
    with InProcessReplay(tables) as replay:
        with pytest.raises(CheckpointError, match="does not hold"):
            replay.restore(tmp_path)
        assert replay.info("pairs").size == 0, "a refused restore leaves the replay as it was"


@pytest.mark.parametrize(
    "path", [["tables", 0, "num_keys"], ["tables", 0, "slots", "size"], ["stores", 0, "num_rows"], ["format"]]
)
@pytest.mark.parametrize("value", [None, -1, 3, "x", [], 10**12])
def test_restore_refuses_damaged_state(tmp_path, path, value):
    tables = [pair_table(max_size=4)]
    with InProcessReplay(tables) as replay:
        writer = replay.writer(1)
        for i in range(6):
            writer.append(make_step(i))
            writer.create_item("pairs", 1.0, i, i + 1, np.float32(i))
        replay.save(tmp_path)
    state = json.loads((tmp_path / "replay.json").read_text())
    place = state
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    (tmp_path / "replay.json").write_text(json.dumps(state))
    with InProcessReplay(tables) as replay, pytest.raises(CheckpointError):
        replay.restore(tmp_path)


def test_restore_refuses_a_writer_in_mid_episode_and_frees_writers_that_never_return(tmp_path):
    tables = [pair_table(max_size=4)]
    with InProcessReplay(tables) as replay:
        writer = replay.writer(3)
        for i in range(3):
            writer.append(make_step(i))
        state = writer.save()
        (tmp_path / "a").mkdir()
        replay.save(tmp_path / "a")
        with pytest.raises(CheckpointError, match="mid-episode"):
            replay.restore(tmp_path / "a")
    with InProcessReplay(tables) as replay:
        with pytest.raises(CheckpointError, match="Restore the replay first"):
            replay.writer(3).restore(state)
        replay.restore(tmp_path / "a")
        with pytest.raises(CheckpointError, match="history"):
            replay.writer(2).restore(state)
        with pytest.raises(CheckpointError, match="no saved writer"):
            replay.writer(3).restore({"rows": [1]})
        (tmp_path / "b").mkdir()
        replay.save(tmp_path / "b")
        assert replay.shared.stores[0].num_free == 3
        _check_no_leak(replay, [])


@pytest.mark.parametrize("closed", [True, False])
def test_writers_that_are_gone_free_their_steps(closed):
    with InProcessReplay([pair_table(max_size=4)]) as replay:
        for _ in range(50):
            writer = replay.writer(10)
            for i in range(10):
                writer.append(make_step(i))
            if closed:
                writer.close()
            del writer
        assert replay.shared.stores[0].num_rows <= 12


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("begun", [False, True])
def test_a_writer_of_a_closed_replay_says_that_it_is_closed(begun, kinds):
    """With one kind of step and with two, of which the first step chooses."""
    other = dataclasses.replace(pair_table(), name="other", layout=sequence_layout(3))
    replay = InProcessReplay([pair_table(), other][:kinds])
    writer = replay.writer(3)
    if begun:
        writer.append(make_step(0))
    replay.close()
    with pytest.raises(ReplayClosedError, match="This replay is closed"):
        writer.append(make_step(1))
    if begun:
        with pytest.raises(ReplayClosedError, match="This replay is closed"):
            writer.create_item(pair_table().name, 1.0, 0, 1)


def test_a_writer_that_is_gone_is_in_no_checkpoint_and_in_nobodys_way(tmp_path):
    def begin_and_go(replay):
        writer = replay.writer(5)
        for i in range(3):
            writer.append(make_step(i))  # And never ends its episode.

    with InProcessReplay([pair_table()]) as replay:
        begin_and_go(replay)
        replay.save(tmp_path)
        assert json.loads((tmp_path / "replay.json").read_text())["windows"] == []
        begin_and_go(replay)
        replay.restore(tmp_path)


def test_each_step_is_stored_once():
    """Sequences that overlap, in two tables, over a thousand steps: rows are steps, and no more."""
    tables = [Table(f"{n}", sequence_layout(n), 1000) for n in (8, 16)] + [pair_table(max_size=1000)]
    with InProcessReplay(tables) as replay:
        writer = replay.writer(16)
        for i in range(1000):
            writer.append(make_step(i))
            writer.create_item("pairs", 1.0, max(0, i - 3), i + 1, np.float32(0))
            for n in (8, 16):
                if i + 1 >= n:
                    writer.create_item(str(n), 1.0, i + 1 - n, i + 1)
        assert replay.shared.stores[0].num_rows == 1001
        assert len(replay.shared.stores) == 1


@pytest.mark.full
def test_memory_of_a_transition():
    """At most 1.3 times the raw bytes of a HalfCheetah transition stored once, at every size."""
    step = {"observation": specs.Array((17,), np.float32), "action": specs.Array((6,), np.float32)}
    layout = pair_layout()
    layout = dataclasses.replace(layout, step=step, inline=(specs.Array((), np.float32), specs.Array((), np.float32)))
    raw, size = (17 + 6 + 1 + 1) * 4, 200_000
    with InProcessReplay([Table("t", layout, size)]) as replay:
        writer = replay.writer(2)
        value = {"observation": np.zeros(17, np.float32), "action": np.zeros(6, np.float32)}
        inline = (np.float32(0), np.float32(0))
        for i in range(size + 5000):
            writer.append(value)
            if i:
                writer.create_item("t", 1.0, i - 1, i + 1, inline)
            if i in (100_000, 130_000, size, size + 4999):
                assert replay.nbytes <= 1.3 * raw * replay.info("t").size


def test_tables_of_different_steps_share_a_replay():
    other = pair_layout()
    step = {"pixels": specs.Array((4,), np.uint8), "zero": specs.Array((0,), np.float32)}
    other = dataclasses.replace(other, step=step)
    with InProcessReplay([pair_table(), Table("other", other, 5)]) as replay:
        one, two = replay.writer(1), replay.writer(1)
        with pytest.raises(ValueError, match="fits no table"):
            one.append({"wrong": 1})
        one.append(make_step(1))
        two.append({"pixels": np.zeros(4, np.uint8), "zero": np.zeros(0, np.float32)})
        one.create_item("pairs", 1.0, 0, 1, np.float32(1))
        two.create_item("other", 1.0, 0, 1, np.float32(1))
        with pytest.raises(ValueError, match="another writer"):
            one.create_item("other", 1.0, 0, 1, np.float32(1))
        assert next(replay.sampler("other", 2)).sample.data.last.shape == (2, 0)


def test_priorities_that_overflow_their_power_are_refused():
    with InProcessReplay([pair_table(sampler=Prioritized(2.0))]) as replay:
        writer = replay.writer(1)
        writer.append(make_step(1))
        key = writer.create_item("pairs", 1e140, 0, 1, np.float32(1))
        with pytest.raises(ValueError, match="too great"):
            writer.create_item("pairs", 1e150, 0, 1, np.float32(1))
        with pytest.raises(ValueError, match="too great"):
            replay.update_priorities("pairs", np.array([key]), np.array([1e200]))
        assert next(replay.sampler("pairs", 2)).sample.info.probability.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("sampler", [Prioritized(1.0), MinHeap()], ids=repr)
def test_keys_that_nobody_was_given_name_nothing(sampler):
    with InProcessReplay([pair_table(max_size=4, sampler=sampler, max_times_sampled=1)]) as replay:
        writer = replay.writer(1)
        sampler = replay.sampler("pairs", 1)
        for i in range(20):
            writer.append(make_step(i))
            writer.create_item("pairs", 1.0, i, i + 1, np.float32(i))
            sample = next(sampler).sample
            assert sample.data.value.tolist() == [i] and sample.info.probability.tolist() == [1.0]
            replay.update_priorities("pairs", np.arange(200, dtype=np.uint64), np.full(200, 0.5))


def test_two_threads_leave_the_counts_exact():
    """Writers and samplers at once, with removal by draws: nothing is lost and nothing leaks."""
    tables = [pair_table(max_size=50, max_times_sampled=2), Table("sequences", sequence_layout(4), 30)]
    with InProcessReplay(tables) as replay:
        writers = [replay.writer(5) for _ in range(2)]
        stop, errors = threading.Event(), []

        def write(writer):
            for i in range(1500):
                index = writer.append(make_step(i % 1000))
                writer.create_item("pairs", 1.0, index, index + 1, np.float32(i))
                if index >= 3:
                    writer.create_item("sequences", 1.0, index - 3, index + 1)
                if i % 37 == 0:
                    writer.end_episode()

        def read(table):
            sampler = replay.sampler(table, 8)
            drawn = 0
            while not stop.is_set():
                if sampler.ready():
                    action = next(sampler).sample.data
                    drawn += 8
                    if table == "sequences":
                        steps = np.diff(action["action"], axis=1) % 1000
                        if not (steps == 1).all():
                            errors.append(action)
            if replay.info(table).num_sampled != drawn:
                errors.append((table, drawn))

        threads = [threading.Thread(target=write, args=(w,)) for w in writers]
        readers = [threading.Thread(target=read, args=(t,)) for t in ("pairs", "sequences")]
        for thread in threads + readers:
            thread.start()
        for thread in threads:
            thread.join()
        stop.set()
        for thread in readers:
            thread.join()
        assert not errors
        assert replay.info("pairs").num_inserted == 3000
        _check_no_leak(replay, writers)
