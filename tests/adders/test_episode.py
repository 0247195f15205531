"""The episode adder against the hand-computed cases, on bad input and across saving."""

import dm_env
import numpy as np
import pytest
import tree

from agentkit.adders import EpisodeAdder, SegmentAdder, segment_layout
from agentkit.errors import CheckpointError, ConfigError
from agentkit.testing import adder_cases as cases
from agentkit.testing.adder import RecordingWriter, assert_items, make_table
from agentkit.testing.adder_cases import EXTRAS_SPEC, NESTED_SPEC, SPEC, Episode, play
from agentkit.types import has_action, has_observation


def adder_of(length, spec=SPEC, extras_spec=(), **settings):
    writer = RecordingWriter([make_table(EpisodeAdder.layout(spec, length, extras_spec))], EpisodeAdder.history())
    return writer, EpisodeAdder(writer, spec, tables="table", length=length, extras_spec=extras_spec, **settings)


@pytest.mark.parametrize("case", cases.EPISODE_CASES, ids=lambda case: case.name)
def test_hand_computed(case):
    writer = RecordingWriter([make_table(case.layout)], EpisodeAdder.history())
    adder = case.make_adder(lambda history: writer)
    for episode in case.episodes:
        play(adder, episode, nested=case.nested, extras=case.extras)
    assert_items([item.data for item in writer.items], case.items, case.layout.signature)


def test_which_rows_hold_an_action_and_which_an_observation():
    writer, adder = adder_of(4, too_long="split")
    play(adder, Episode([1, 2], "truncate"))
    play(adder, Episode([3, 4, 5, 6, 7, 8], offset=7))
    short, full, rest = (item.data.start_of_episode[None] for item in writer.items)
    assert has_action(short).tolist() == [[1, 1, 0, 0]] and has_observation(short).tolist() == [[1, 1, 1, 0]]
    assert has_action(full).tolist() == [[1, 1, 1, 1]] and has_observation(full).tolist() == [[1, 1, 1, 1]]
    assert has_action(rest).tolist() == [[1, 1, 0, 0]]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("num_steps", [3, 6])
def test_the_rows_are_those_of_segments(nested, num_steps):
    spec = NESTED_SPEC if nested else SPEC
    episode = Episode(list(range(1, num_steps + 1)), discount=0.5)
    writer, adder = adder_of(3, spec, EXTRAS_SPEC, too_long="split")
    other = RecordingWriter([make_table(segment_layout(spec, 3, EXTRAS_SPEC))], 1)
    for each in (adder, SegmentAdder(other, spec, tables="table", length=3, extras_spec=EXTRAS_SPEC)):
        play(each, episode, nested=nested, extras=True)
    assert len(writer.items) == num_steps // 3
    for found, wanted in zip(writer.items, other.items, strict=True):
        # Behind a segment's last row waits the final observation's own row, so that its start is not known yet.
        tree.map_structure(lambda x, y: np.testing.assert_array_equal(x[:3], y[:3]), found.data, wanted.data)


@pytest.mark.parametrize("arguments", [{"length": 0}, {"length": 3, "too_long": "cut"}])
def test_impossible_settings(arguments):
    with pytest.raises(ConfigError, match=r"length >= 1|'error', 'split'"):
        EpisodeAdder(adder_of(3)[0], SPEC, tables="table", **arguments)


def test_longest_episode_that_fits():
    writer, adder = adder_of(3)
    play(adder, Episode([1, 2, 4]))
    assert len(writer.items) == 1
    with pytest.raises(ConfigError, match=r"more than 3 steps.*segment_length"):
        play(adder, Episode([1, 2, 4, 8]))
    assert len(writer.items) == 1


@pytest.mark.parametrize("cut", range(5))
def test_saved_in_mid_episode(cut):
    def run(cut_at):
        writer, adder = adder_of(3, too_long="split")
        adder.add_first(dm_env.restart(cases.observation(0)))
        for number, (action, timestep, _) in enumerate(cases.steps_of(Episode([1, 2, 4, 8, 16], "truncate"))):
            if number == cut_at:
                state = adder.save()
                items, (writer, adder) = writer.items, adder_of(3, too_long="split")
                writer.items = items
                adder.restore(state)
            adder.add(action, timestep)
        return [item.data for item in writer.items]

    assert len(run(cut)) == 2
    assert_items(run(cut), run(None), EpisodeAdder.layout(SPEC, 3).signature)


@pytest.mark.parametrize("end", ["terminate", "die"])
def test_an_episode_after_one_that_was_split_begins_at_its_own_first_row(end):
    writer, adder = adder_of(3, too_long="split")
    play(adder, Episode([1.0] * 4, end))
    count = len(writer.items)
    play(adder, Episode([1.0], offset=20))
    assert count == (2 if end == "terminate" else 1) and len(writer.items) == count + 1
    np.testing.assert_array_equal(writer.items[-1].data.observation[0], cases.observation(20))
    assert writer.items[-1].data.start_of_episode.tolist() == [True, False, True, True]


def test_restoring_what_does_not_fit():
    adder = adder_of(3)[1]
    with pytest.raises(CheckpointError, match="lacks"):
        adder.restore({"row": 1})
    adder.add_first(dm_env.restart(cases.observation(0)))
    with pytest.raises(CheckpointError, match="Resume with the agent"):
        adder_of(3, NESTED_SPEC)[1].restore(adder.save())
