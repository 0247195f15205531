"""The segment adders: rows worked out by hand, by property, on bad input, across saving, and on replays."""

import contextlib

import dm_env
import hypothesis
import numpy as np
import pytest
import tree
from hypothesis import strategies as st

from agentkit import specs
from agentkit.adders import BatchedSegmentAdder, SegmentAdder, segment_layout
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.replay import Fifo, InProcessReplay, Prioritized, Queue, Table
from agentkit.testing.adder import RecordingWriter, assert_items, make_table
from agentkit.testing.adder_cases import (
    EXTRAS_SPEC,
    NESTED_SPEC,
    SPEC,
    Episode,
    expected_steps,
    observation,
    play,
    steps_of,
)

pytestmark = pytest.mark.both_stacks

FIRST, MID, LAST = dm_env.StepType


def recorder(length, spec=SPEC, extras_spec=()):
    return RecordingWriter([make_table(segment_layout(spec, length, extras_spec))], 1)


def single(writer, length=3, spec=SPEC, **kwargs):
    return SegmentAdder(writer, spec, tables="table", length=length, **kwargs)


def batched(writer, num_envs, length=3, spec=SPEC, **kwargs):
    return BatchedSegmentAdder(writer, spec, tables="table", length=length, num_envs=num_envs, **kwargs)


class Stream:
    """Episodes of one environment as a batch steps them: a call after LAST starts the next one."""

    def __init__(self, episodes):
        self.episodes = iter(episodes)
        self.steps = None
        self.rows = []  # (time, action, reward, discount, is_first), as they must be written
        self.begin()

    def begin(self):
        episode = next(self.episodes)
        self.steps, self.time, self.is_first = iter(steps_of(episode)), episode.offset, True
        self.timestep = dm_env.TimeStep(FIRST, 0.0, 1.0, observation(episode.offset))

    def advance(self):
        """The time step of the next call, with the action that was taken; appends the row that it completes."""
        if self.timestep.last():
            self.rows.append((self.time, 0, 0.0, 0.0, False))
            self.begin()
            return np.array(77, np.int32), self.timestep  # An action that nobody took.
        action, self.timestep, _ = next(self.steps)
        self.rows.append((self.time, int(action), self.timestep.reward, self.timestep.discount, self.is_first))
        self.time, self.is_first = self.time + 1, False
        return action, self.timestep


def stack(timesteps):
    return dm_env.TimeStep(
        np.array([t.step_type for t in timesteps], np.int32),
        np.array([t.reward for t in timesteps], np.float32),
        np.array([t.discount for t in timesteps], np.float32),
        np.stack([t.observation for t in timesteps]),
    )


def rows_of(item):
    columns = (item.observation[:, 0], item.action, item.reward, item.discount, item.start_of_episode)
    return [(int(t), int(a), float(r), float(d), bool(s)) for t, a, r, d, s in zip(*columns, strict=True)]


def test_one_environment_by_hand():
    writer = recorder(3, extras_spec=EXTRAS_SPEC)
    adder = single(writer, extras_spec=EXTRAS_SPEC)
    play(adder, Episode([1, 2], "terminate"), extras=True)
    assert len(writer.items) == 1  # With its last step: nobody has to act for it.
    play(adder, Episode([3, 4, 5], "truncate", offset=10), extras=True)
    play(adder, Episode([6, 7], "terminate", offset=20), extras=True)
    expected = [
        expected_steps("^0:1:1", "1:2:0", "2", "^2", extras=True),
        expected_steps("^10:3:1", "11:4:1", "12:5:1", "13", extras=True),
        expected_steps("13", "^20:6:1", "21:7:0", "22", extras=True),
    ]
    assert_items([item.data for item in writer.items], expected, segment_layout(SPEC, 3, EXTRAS_SPEC).signature)


def test_a_segment_longer_than_its_episodes():
    writer = recorder(7)
    adder = single(writer, length=7)
    for episode in (Episode([1], "truncate"), Episode([2, 3], "terminate", offset=5), Episode([4, 5, 6], offset=8)):
        play(adder, episode)
    expected = [expected_steps("^0:1:1", "1", "^5:2:1", "6:3:0", "7", "^8:4:1", "9:5:1", "10")]
    assert_items([item.data for item in writer.items], expected, segment_layout(SPEC, 7).signature)


def test_after_a_reset_no_rows_from_before_it_are_shown():
    writer = RecordingWriter([make_table(segment_layout(SPEC, 2, (), 2))], 1)
    adder = SegmentAdder(writer, SPEC, tables="table", length=2, history=2)
    play(adder, Episode([1, 2, 4], "die"))
    play(adder, Episode([5, 6], "die", offset=50))
    found = writer.items[-1].data
    assert found.observation[:, 0].tolist() == [0, 0, 50, 51, 52]
    assert not found.start_of_episode[:2].any() and not found.action[:2].any()


def test_two_environments_by_hand():
    writer = recorder(3)
    adder = batched(writer, 2)
    # The second one terminates at the last row of the segment; its final observation is behind it.
    streams = [Stream([Episode([1, 2], "truncate"), Episode([3] * 9, offset=10)]), Stream([Episode([5, 6, 7])] * 2)]
    adder.add_first(stack([s.timestep for s in streams]))
    for _ in range(6):
        actions, timesteps = zip(*(s.advance() for s in streams), strict=True)
        adder.add(np.stack(actions), stack(timesteps))
    expected = [
        expected_steps("^0:1:1", "1:2:1", "2", "^10"),
        expected_steps("^0:5:1", "1:6:1", "2:7:0", "3"),
        expected_steps("^10:3:1", "11:3:1", "12:3:1", "13"),
        expected_steps("3", "^0:5:1", "1:6:1", "2"),
    ]
    assert_items([item.data for item in writer.items], expected, segment_layout(SPEC, 3).signature)


episodes = st.lists(
    st.tuples(st.integers(1, 6), st.sampled_from(["terminate", "truncate"])).map(
        lambda pair: Episode([float(i + 1) for i in range(pair[0])], pair[1])
    ),
    min_size=1,
    max_size=4,
)


@hypothesis.settings(max_examples=100)
@hypothesis.given(st.lists(episodes, min_size=1, max_size=3), st.integers(1, 7), st.integers(1, 25))
def test_every_row_is_written_once_and_in_order(per_environment, length, num_calls):
    writer = recorder(length)
    adder = batched(writer, len(per_environment), length)
    streams = [Stream([e._replace(offset=10 * i) for i, e in enumerate(each * 26)]) for each in per_environment]
    adder.add_first(stack([s.timestep for s in streams]))
    for call in range(num_calls):
        actions, timesteps = zip(*(s.advance() for s in streams), strict=True)
        adder.add(np.stack(actions), stack(timesteps))
        assert len(writer.items) == (call + 1) // length * len(streams)
    for s in streams:
        s.advance()
    for i, stream in enumerate(streams):
        items = [rows_of(item.data) for item in writer.items[i :: len(streams)]]
        assert [row for item in items for row in item[:-1]] == stream.rows[: num_calls // length * length]
        for k, item in enumerate(items):
            time, *_, is_first = stream.rows[(k + 1) * length]
            assert item[-1] == (time, 0, 0.0, 0.0, is_first)


@hypothesis.settings(max_examples=50)
@hypothesis.given(episodes, st.integers(1, 7))
def test_one_environment_writes_what_a_batch_of_one_does(given, length):
    one, many = recorder(length), recorder(length)
    adder, batch = single(one, length), batched(many, 1, length)
    stream = Stream([*given, Episode([1])])
    batch.add_first(stack([stream.timestep]))
    for episode in given:
        play(adder, episode)
        for _ in range(len(episode.rewards) + 1):
            action, timestep = stream.advance()
            batch.add(action[None], stack([timestep]))
    assert len(one.items) == len(many.items)
    for mine, theirs in zip(one.items, many.items, strict=True):
        found, expected = rows_of(mine.data), rows_of(theirs.data)
        assert found[:-1] == expected[:-1]
        if not expected[-1][-1]:  # A next episode's first observation is not known in time, and not needed.
            assert found[-1] == expected[-1]
        else:
            assert found[-1][-1]


def test_nested_observations_rewards_and_discounts():
    writer = recorder(2, NESTED_SPEC)
    adder = single(writer, 2, NESTED_SPEC)
    play(adder, Episode([1, 2, 3], "truncate"), nested=True)
    found = writer.items[0].data
    np.testing.assert_array_equal(found.observation["velocity"], [0, -1, -2])
    np.testing.assert_array_equal(found.reward["b"], [[1, 2], [2, 4], [0, 0]])
    np.testing.assert_array_equal(found.discount["a"], [1, 1, 0])


def test_an_environment_may_reuse_its_buffers():
    writer = recorder(2)
    adder, buffer = single(writer, 2), np.zeros(2, np.float32)
    adder.add_first(dm_env.restart(buffer))
    for t, (action, timestep, _) in enumerate(steps_of(Episode([1, 2]))):
        buffer[:] = observation(t + 1)
        adder.add(action, timestep._replace(observation=buffer))
        buffer[:] = -1
    assert_items([writer.items[0].data], [expected_steps("^0:1:1", "1:2:0", "2")], segment_layout(SPEC, 2).signature)


@pytest.mark.parametrize("cut", range(6))
def test_saved_in_mid_segment(cut):
    def drive(adder, stream, num_calls):
        for _ in range(num_calls):
            action, timestep = stream.advance()
            adder.add(action[None], stack([timestep]))

    stream, writer = Stream([Episode([1, 2])] * 9), recorder(4)
    adder = batched(writer, 1, 4)
    adder.add_first(stack([stream.timestep]))
    drive(adder, stream, cut)
    state = adder.save()
    resumed = batched(writer, 1, 4)
    resumed.restore(state)
    drive(adder, Stream([Episode([9] * 20)]), 2)  # What is saved does not change any more.
    del writer.items[cut // 4 :]
    drive(resumed, stream, 8 - cut)
    times = [row[0] for item in writer.items for row in rows_of(item.data)[:-1]]
    assert times == [0, 1, 2, 0, 1, 2, 0, 1]


def test_one_environment_saved_between_and_in_episodes():
    for cut in range(4):
        writer = recorder(2)
        adder = single(writer, 2)
        adder.add_first(dm_env.restart(observation(0)))
        for i, (action, timestep, _) in enumerate(steps_of(Episode([1, 2, 3]))):
            if i == cut:
                state, adder = adder.save(), single(writer, 2)
                adder.restore(state)
            adder.add(action, timestep)
        if cut == 3:
            state, adder = adder.save(), single(writer, 2)
            adder.restore(state)
        play(adder, Episode([4], offset=7))
        times = [row[0] for item in writer.items for row in rows_of(item.data)[:-1]]
        assert times == [0, 1, 2, 3, 7, 8]


def test_reset_drops_what_is_unfinished():
    writer = recorder(4)
    adder = single(writer, 4)
    play(adder, Episode([1]))
    play(adder, Episode([1], "die", offset=5))
    play(adder, Episode([1, 2, 3, 4], offset=10))
    assert [row[0] for row in rows_of(writer.items[0].data)] == [10, 11, 12, 13, 14]


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="length >= 1"):
        single(recorder(1), 0)
    with pytest.raises(ConfigError, match="num_envs >= 1"):
        batched(recorder(3), 0)
    adder = batched(recorder(3), 2)
    first = stack([Stream([Episode([1])]).timestep] * 2)
    mid = first._replace(step_type=np.array([MID, MID]))
    with pytest.raises(SpecError, match="before add_first"):
        adder.add(np.zeros(2, np.int32), mid)
    with pytest.raises(SpecError, match="observations of the batch"):
        adder.add_first(first._replace(observation=first.observation[:1]))
    adder.add_first(first)
    for action, timestep, extras, match in [
        (np.int32(0), mid, (), "actions of the batch"),
        (np.zeros(2, np.int32), mid._replace(reward=np.float32(0)), (), "rewards of the batch"),
        (np.zeros(2, np.int32), mid._replace(discount=np.ones((2, 1))), (), "discounts of the batch"),
        (np.zeros(2, np.int32), mid._replace(observation={}), (), "observations of the batch"),
        (np.zeros(2, np.int32), mid, {"log_prob": np.zeros(2)}, "extras"),
    ]:
        with pytest.raises(SpecError, match=match):
            adder.add(action, timestep, extras)
    adder.add(np.zeros(2, np.int32), mid)
    with pytest.raises(SpecError, match="add_first was called with rows"):
        adder.add_first(first)
    adder.reset()
    adder.add_first(first)
    alone = single(recorder(3))
    with pytest.raises(SpecError, match="before add_first"):
        alone.add(np.int32(0), dm_env.transition(1.0, observation(1)))
    play(alone, Episode([1]))
    with pytest.raises(SpecError, match="before add_first"):  # Though a segment is unfinished.
        alone.add(np.int32(0), dm_env.transition(1.0, observation(1)))
    batch = batched(recorder(3), 2)
    batch.add_first(first)
    with pytest.raises(SpecError, match="add_first was called with rows"):
        batch.add_first(first)
    with pytest.raises(SpecError, match="in mid-episode"):
        one = single(recorder(3))
        one.add_first(dm_env.restart(observation(0)))
        one.add_first(dm_env.restart(observation(0)))


def test_another_adders_state_is_refused():
    state = batched(recorder(3), 2).save()
    with pytest.raises(CheckpointError, match="do not fit"):
        batched(recorder(3), 1).restore(state)
    with pytest.raises(CheckpointError, match="do not fit"):
        batched(recorder(3, extras_spec=EXTRAS_SPEC), 2, extras_spec=EXTRAS_SPEC).restore(state)
    with pytest.raises(CheckpointError, match="lacks"):
        single(recorder(3)).restore(state)
    long = batched(recorder(5), 1, 5)
    stream = Stream([Episode([1] * 9)])
    long.add_first(stack([stream.timestep]))
    for _ in range(4):
        action, timestep = stream.advance()
        long.add(action[None], stack([timestep]))
    with pytest.raises(CheckpointError, match="4 rows"):
        batched(recorder(3), 1).restore(long.save())


def _queue(name="table", size=8):
    limiter = Queue(size)
    return Table(name, segment_layout(SPEC, 3), size, Fifo(), rate_limiter=limiter, max_times_sampled=1)


def _in_process(tables):
    return InProcessReplay(tables)


def _reverb(tables):
    from agentkit.replay import ReverbReplay

    return ReverbReplay(tables)


@pytest.mark.parametrize("make_replay", [_in_process, pytest.param(_reverb, marks=pytest.mark.reverb)])
def test_through_a_queue(make_replay):
    """All N segments are to be drawn when `add` returns, each once, whole, and two tables get the same."""
    seen = []

    def priority(data):
        seen.append(tree.map_structure(np.array, data))
        return 1.0

    with make_replay([_queue("a"), _queue("b")]) as replay:
        adder = BatchedSegmentAdder(replay.writer(1), SPEC, tables={"a": None, "b": priority}, length=3, num_envs=2)
        streams = [Stream([Episode([1, 2])] * 9), Stream([Episode([5, 6, 7, 8])] * 9)]
        adder.add_first(stack([s.timestep for s in streams]))
        samplers = {name: replay.sampler(name, 2, timeout=120.0) for name in "ab"}
        for _ in range(3):
            for _ in range(3):
                actions, timesteps = zip(*(s.advance() for s in streams), strict=True)
                adder.add(np.stack(actions), stack(timesteps))
            drawn = {name: next(sampler).sample.data for name, sampler in samplers.items()}
            for i in range(2):
                one = {name: tree.map_structure(lambda x: x[i], data) for name, data in drawn.items()}  # noqa: B023
                assert rows_of(one["a"]) == rows_of(one["b"]) == rows_of(seen[-2 + i])
                assert rows_of(one["a"])[:-1] == streams[i].rows[-3:]
        adder.close()
        adder.close()
        for sampler in samplers.values():
            sampler.close()
        assert replay.info("a").num_inserted == replay.info("a").num_sampled == 6


@pytest.mark.parametrize("make_replay", [_in_process, pytest.param(_reverb, marks=pytest.mark.reverb)])
def test_segments_without_a_priority_get_the_largest_seen(make_replay):
    def write(number):
        stream = Stream([Episode([number] * 9)])
        adder.reset()
        adder.add_first(stack([stream.timestep]))
        for _ in range(3):
            action, timestep = stream.advance()
            adder.add(action[None], stack([timestep]))

    def draw(number):
        with contextlib.closing(replay.sampler("table", number, timeout=120.0)) as sampler:
            keys, sample = next(sampler)
        return keys, sample.info.priority

    with make_replay([Table("table", segment_layout(SPEC, 3), 200, Prioritized(1.0))]) as replay:
        adder = batched(replay.writer(1), 1)
        write(1)
        (key,), (priority,) = draw(1)
        assert priority == 1.0
        replay.update_priorities("table", np.array([key]), np.array([8.0]))
        write(2)
        keys, priorities = draw(200)
        assert len(set(keys.tolist())) == 2 and set(priorities) == {8.0}
        adder.close()


def test_specs_are_of_one_environment():
    layout = segment_layout(SPEC, 3, EXTRAS_SPEC)
    assert layout.signature.observation == specs.Array((4, 2), np.float32, "observation")
    assert layout.signature.extras["log_prob"].shape == (4,)
