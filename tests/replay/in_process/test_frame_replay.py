"""Replays that store frames once: what replays of whole stacks give, to the bit, also across checkpoints and runs."""

import hashlib
import json

import dm_env
import numpy as np
import pytest
import tree

import agentkit
from agentkit import specs
from agentkit.adders import NStepAdder
from agentkit.agents import dqn
from agentkit.errors import CheckpointError
from agentkit.learning import Linear
from agentkit.replay import (
    Fifo,
    FromStep,
    InProcessReplay,
    Layout,
    MinHeap,
    Prioritized,
    Select,
    Table,
    Uniform,
)
from agentkit.replay.in_process import item_table, shared, step_store
from agentkit.replay.in_process.frame_column import FrameColumn
from agentkit.types import DrawnBatch, Transition
from agentkit.wrappers.frame_stack import FrameStack
from tests.replay.in_process.frames import KINDS, Camera, Kind, check_frames
from tests.replay.in_process.moving import make_writers, moved

HEIGHT_WIDTH_FRAMES, FRAMES_HEIGHT_WIDTH = KINDS[:2]  # as FrameStack's, and as EnvPool's
KIND = HEIGHT_WIDTH_FRAMES


def image_tables(kind: Kind = KIND) -> list[Table]:
    step = {"image": specs.Array(kind.shape, np.uint8), "action": specs.Array((), np.int32)}
    ends = {
        "first": FromStep(1, Select.FIRST),
        "action": FromStep(0, Select.FIRST),
        "last": FromStep(1, Select.LAST),
    }
    whole = {"action": FromStep(0, Select.ALL), "image": FromStep(1, Select.ALL)}
    return [
        Table("prioritized", Layout(step, ends), 11, Prioritized(0.7), Prioritized(1.0)),
        Table("heap", Layout(step, ends), 9, MinHeap(), MinHeap()),
        Table("spent", Layout(step, ends), 13, Fifo(), Uniform(), max_times_sampled=2),
        Table("sequences", Layout(step, whole, 3), 8, Prioritized(1.0), Uniform()),
    ]


class Run:
    """Random operations of two writers on many tables, recorded; it can be moved to another replay in between."""

    def __init__(self, replay: InProcessReplay):
        self.replay = replay
        self.writers = make_writers(replay)
        self.log: list = []

    def go(self, rng: np.random.Generator, cameras: list[Camera], started: list[bool], steps: int) -> None:
        for step in range(steps):
            which = int(rng.integers(2))
            writer = self.writers[which]
            if rng.random() < 0.1:
                writer.end_episode()
                started[which] = False
            image = cameras[which].step() if started[which] else cameras[which].reset()
            started[which] = True
            index = writer.append({"image": image, "action": np.int32(step)})
            for name in self.replay.tables:
                start = max(0, index - int(rng.integers(3)))
                if name == "sequences":
                    if index >= 2:
                        writer.create_item(name, rng.random(), index - 2, index + 1)
                    else:
                        writer.create_item(name, rng.random(), 0, index + 1, padding=2 - index)
                elif rng.random() < 0.7:
                    writer.create_item(name, rng.random(), start, index + 1)
            name = list(self.replay.tables)[int(rng.integers(len(self.replay.tables)))]
            sampler = self.replay.sampler(name, 4)
            if sampler.ready():
                self.log += [(x.shape, x.dtype, x.strides, x.tobytes()) for x in tree.flatten(next(sampler))]
            if rng.random() < 0.02:
                self.replay.reset(name)

    def move(self, directory) -> None:
        """Saves everything, closes it, and goes on in new objects."""
        self.replay, self.writers = moved(self.replay, self.writers, image_tables(), directory)

    def check(self) -> None:
        (store,) = self.replay.shared.stores
        in_use = np.flatnonzero(store._counts()[1 : store.num_rows]) + 1
        if isinstance(store.columns[1], FrameColumn):
            check_frames(store.columns[1], in_use)


class Script:
    """The same operations and pictures for every run that plays it."""

    def __init__(self, seed: int, kind: Kind = KIND):
        self._rng = np.random.default_rng(seed)
        self._cameras = [Camera(kind, self._rng), Camera(kind, self._rng)]
        self._started = [False, False]

    def play(self, run: Run, steps: int) -> None:
        run.go(self._rng, self._cameras, self._started, steps)


def plain_columns(monkeypatch) -> None:
    """From here on replays store stacks whole, as those of format 1 did."""
    monkeypatch.setattr(step_store, "stack_axis", lambda spec: None)
    monkeypatch.setattr(shared, "FORMAT", 1)


@pytest.mark.parametrize("kind", [HEIGHT_WIDTH_FRAMES, FRAMES_HEIGHT_WIDTH], ids=repr)
def test_a_replay_gives_what_a_replay_of_plain_columns_gives(kind, monkeypatch):
    """Prioritized removal, heaps, items that are spent, sequences with padding, resets, two writers."""
    frames = Run(InProcessReplay(image_tables(kind), seed=7))
    assert isinstance(frames.replay.shared.stores[0].columns[1], FrameColumn)
    plain_columns(monkeypatch)
    plain = Run(InProcessReplay(image_tables(kind), seed=7))
    assert isinstance(plain.replay.shared.stores[0].columns[1], np.ndarray)
    scripts = [Script(2, kind), Script(2, kind)]
    for _ in range(10):
        for run, script in zip((frames, plain), scripts, strict=True):
            script.play(run, 40)
        assert frames.log == plain.log
        frames.check()
    assert len(frames.log) > 1000


def test_a_moved_replay_goes_on_bit_for_bit_and_its_checkpoints_are_equal(tmp_path):
    runs = [Run(InProcessReplay(image_tables(), seed=7)) for _ in range(2)]
    scripts = [Script(3), Script(3)]
    for i in range(8):
        for run, script in zip(runs, scripts, strict=True):
            script.play(run, 25)
        files = []
        for number, run in enumerate(runs):
            directory = tmp_path / f"{i}.{number}"
            if number:
                run.move(directory)
            else:
                directory.mkdir()
                run.replay.save(directory)
            files.append({path.name: path.read_bytes() for path in directory.glob("steps*")})
            run.check()
        assert runs[0].log == runs[1].log
        assert files[0] == files[1] and len(files[0]) == 3
        assert runs[1].replay.shared.stores[0].columns[1]._free == runs[0].replay.shared.stores[0].columns[1]._free
    assert len(runs[0].log) > 400


def test_a_checkpoint_of_whole_stacks_is_read(tmp_path, monkeypatch):
    """One of format 1, saved in mid-episode with free rows; the restored run goes on bit for bit."""
    with monkeypatch.context() as patch:
        plain_columns(patch)
        old, script = Run(InProcessReplay(image_tables(), seed=7)), Script(4)
        script.play(old, 90)
        saved = tmp_path / "old"
        saved.mkdir()
        old.replay.save(saved)
        states = [writer.save() for writer in old.writers]
        assert json.loads((saved / "replay.json").read_text())["format"] == 1
        num_recorded = len(old.log)
        script.play(old, 60)
    new, script = Run(InProcessReplay(image_tables(), seed=7)), Script(4)
    script.play(new, 90)  # for its random state alone
    new.replay = InProcessReplay(image_tables(), seed=1)
    new.replay.restore(saved)
    new.log = []
    new.writers = [new.replay.writer(4), new.replay.writer(3)]
    for writer, state in zip(new.writers, states, strict=True):
        writer.restore(state)
    new.check()
    column = new.replay.shared.stores[0].columns[1]
    assert isinstance(column, FrameColumn)
    # Of 4 a row: its neighbour is not always its writer's step before, as two writers take turns.
    assert column.num_frames < 3 * new.replay.shared.stores[0].num_rows
    script.play(new, 60)
    assert new.log == old.log[num_recorded:] and new.log
    new.check()


@pytest.mark.parametrize("damage", ["number", "negative", "count", "short", "gone", "format"])
def test_a_damaged_checkpoint_is_refused(tmp_path, damage):
    run = Run(InProcessReplay(image_tables(), seed=7))
    Script(5).play(run, 40)
    run.replay.save(tmp_path)
    state = json.loads((tmp_path / "replay.json").read_text())
    numbers = np.fromfile(tmp_path / "steps0.1.frame_numbers.bin", np.int32)
    match damage:
        case "number" | "negative":
            numbers[8] = 10_000 if damage == "number" else -1
            numbers.tofile(tmp_path / "steps0.1.frame_numbers.bin")
            match_text = "frames it does not hold"
        case "count":
            state["stores"][0]["columns"][1]["num_frames"] += 1
            match_text = "expected"
        case "short":
            numbers[:-1].tofile(tmp_path / "steps0.1.frame_numbers.bin")
            match_text = "damaged"
        case "gone":
            (tmp_path / "steps0.1.frames.bin").unlink()
            match_text = "cannot be read"
        case "format":
            state["format"] = 3
            match_text = "format 3, expected 1 or 2"
    (tmp_path / "replay.json").write_text(json.dumps(state))
    with InProcessReplay(image_tables()) as replay:
        with pytest.raises(CheckpointError, match=match_text):
            replay.restore(tmp_path)
        assert replay.info("heap").size == 0, "a refused restore leaves the replay as it was"


# --- memory and runs -------------------------------------------------------------------------------


class Film(dm_env.Environment):
    """Episodes of `length` steps of random frames uint8 [size, size]; every third is truncated, others terminate."""

    def __init__(self, length: int, seed: int, size: int = 84):
        self._length, self._size, self._time, self._episode = length, size, 0, 0
        self._rng = np.random.default_rng(seed)

    def reset(self):
        self._time, self._episode = 0, self._episode + 1
        return dm_env.restart(self._frame())

    def step(self, action):
        self._time += 1
        last = self._time == self._length
        kind = dm_env.StepType.LAST if last else dm_env.StepType.MID
        discount = np.float32(not last or self._episode % 3 == 0)
        return dm_env.TimeStep(kind, np.float32(action), discount, self._frame())

    def _frame(self):
        return self._rng.integers(0, 256, (self._size, self._size), np.uint8)

    def observation_spec(self):
        return specs.BoundedArray((self._size, self._size), np.uint8, 0, 255)

    def action_spec(self):
        return specs.DiscreteArray(2)

    def reward_spec(self):
        return specs.Array((), np.float32)

    def discount_spec(self):
        return specs.BoundedArray((), np.float32, 0.0, 1.0)


def film_replay(length: int, num_steps: int, size: int, num_actors: int = 2) -> InProcessReplay:
    """A replay after `num_steps` of interleaved actors."""
    environments = [FrameStack(Film(length, seed), 4, flatten=False) for seed in range(num_actors)]
    spec = specs.make_environment_spec(environments[0])
    replay = InProcessReplay([Table("t", NStepAdder.layout(spec), size, Uniform(), Fifo())])
    adders = [NStepAdder(replay.writer(2), spec, tables="t", n=1, discount=1.0) for _ in environments]
    timesteps = [environment.reset() for environment in environments]
    for adder, timestep in zip(adders, timesteps, strict=True):
        adder.add_first(timestep)
    for _ in range(num_steps // num_actors):
        for i, (environment, adder) in enumerate(zip(environments, adders, strict=True)):
            if timesteps[i].last():
                timesteps[i] = environment.reset()
                adder.add_first(timesteps[i])
            timesteps[i] = environment.step(0)
            adder.add(np.int32(0), timesteps[i])
    return replay


def test_memory_of_stacks_of_four():
    """84 x 84 x 4 in episodes of 50 steps, two actors, after the table is full: at most 0.35 of plain bytes."""
    with film_replay(length=50, num_steps=1600, size=600) as replay:
        (store,) = replay.shared.stores
        plain = store.num_rows * 84 * 84 * 4
        assert replay.info("t").size == 600
        assert store.nbytes <= 0.35 * plain
        data = next(replay.sampler("t", 64)).sample.data
        assert isinstance(data, Transition)
        # Whoever was stored, in the right order: an item's next observation goes on where it began.
        np.testing.assert_array_equal(data.observation[..., 1:], data.next_observation[..., :-1])
        assert len({x.tobytes() for x in data.next_observation[..., -1]}) > 40


def test_a_checkpoint_holds_frames_once(tmp_path):
    with film_replay(length=60, num_steps=400, size=200) as replay:
        replay.save(tmp_path)
        stored = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert stored <= 0.35 * replay.shared.stores[0].num_rows * 84 * 84 * 4


def test_whole_stacks_of_a_checkpoint_are_taken_apart(tmp_path, monkeypatch):
    """One of format 1, of one actor, takes a third of its memory once it is read, and holds what it held."""
    with monkeypatch.context() as patch:
        plain_columns(patch)
        with film_replay(length=60, num_steps=400, size=400, num_actors=1) as old:
            old.save(tmp_path)
            expected, plain = old.contents("t"), old.nbytes
    with film_replay(length=60, num_steps=0, size=400, num_actors=1) as new:
        new.restore(tmp_path)
        tree.map_structure(np.testing.assert_array_equal, new.contents("t"), expected)
        assert new.nbytes <= 0.35 * plain


@pytest.mark.full
def test_dqn_is_given_the_same_batches_to_the_bit(monkeypatch):
    """A whole run on images, prioritised by what it learns, so that its updates are in the batches that follow."""
    config = dqn.Config(
        hidden_sizes=(8,),
        n_step=2,
        batch_size=8,
        updates_per_step=0.5,
        replay_size=90,  # steps are overwritten
        min_replay_size=30,
        target_update_period=10,
        epsilon=Linear(1.0, 0.05, 100),
        prioritized=True,
    )
    drawn: list[list[list[tuple[tuple[int, ...], bytes]]]] = []
    kept: list[type] = []
    sample = item_table.ItemTable.sample

    def watched(table: item_table.ItemTable, count: int) -> DrawnBatch:
        batch = sample(table, count)
        drawn[-1].append([(x.shape, hashlib.sha256(x).digest()) for x in tree.flatten(batch)])
        kept.append(type(table.store.columns[0]))
        return batch

    monkeypatch.setattr(item_table.ItemTable, "sample", watched)
    for store_whole in (False, True):
        if store_whole:
            plain_columns(monkeypatch)
        drawn.append([])
        experiment = agentkit.ExperimentConfig(
            dqn.make_agent(config),
            lambda seed: FrameStack(Film(length=17, seed=seed, size=36), 4, flatten=False),
            num_steps=250,
            evaluation_period=0,
            checkpoint_period=0,
        )
        assert agentkit.run(experiment).updates == len(drawn[-1])
    frames, whole = drawn
    assert frames == whole and len(frames) > 100
    assert kept == [FrameColumn] * len(frames) + [np.ndarray] * len(whole)
    assert len({str(batch) for batch in frames}) == len(frames)
