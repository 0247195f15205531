"""The episode adder against the hand-computed cases, on bad input and across saving."""

import dm_env
import numpy as np
import pytest

from agentkit.adders import EpisodeAdder
from agentkit.errors import CheckpointError, ConfigError
from agentkit.testing import adder as cases
from agentkit.testing.adder import SPEC, Episode, RecordingWriter, make_table


def recorder(max_length):
    return RecordingWriter([make_table(EpisodeAdder.layout(SPEC, max_length))], EpisodeAdder.history(max_length))


@pytest.mark.parametrize("case", cases.EPISODE_CASES, ids=lambda case: case.name)
def test_hand_computed(case):
    writer = RecordingWriter([make_table(case.layout)], case.arguments["max_length"])
    adder = case.make_adder(lambda history: writer)
    for episode in case.episodes:
        cases.play(adder, episode, nested=case.nested, extras=case.extras)
    cases.assert_items([item.data for item in writer.items], case.items, case.layout.signature)


@pytest.mark.parametrize("arguments", [{"max_length": 1}, {"max_length": 3, "too_long": "cut"}])
def test_impossible_settings(arguments):
    with pytest.raises(ConfigError):
        EpisodeAdder(recorder(3), SPEC, tables="table", **arguments)


def test_longest_episode_that_fits():
    writer = recorder(4)
    adder = EpisodeAdder(writer, SPEC, tables="table", max_length=4, too_long="error")
    cases.play(adder, Episode([1, 2, 4]))
    assert len(writer.items) == 1
    with pytest.raises(ConfigError, match="max_length = 4"):
        cases.play(adder, Episode([1, 2, 4, 8]))


@pytest.mark.parametrize("cut", [0, 1, 3])
def test_saved_in_mid_episode(cut):
    episode = Episode([1, 2, 4, 8], "truncate")

    def run(cut_at):
        writer = recorder(3)
        items = writer.items
        adder = EpisodeAdder(writer, SPEC, tables="table", max_length=3)
        adder.add_first(dm_env.restart(cases.observation(0)))
        for i, (act, timestep, _) in enumerate(cases.steps_of(episode)):
            if i == cut_at:
                state = adder.save()
                writer = recorder(3)
                writer.items = items
                adder = EpisodeAdder(writer, SPEC, tables="table", max_length=3)
                adder.restore(state)
            adder.add(act, timestep)
        return [item.data for item in items]

    cases.assert_items(run(cut), run(None), EpisodeAdder.signature(SPEC, 3))


@pytest.mark.parametrize("end", ["terminate", "die"])
def test_an_episode_after_one_that_was_split_begins_at_its_own_first_row(end):
    writer = recorder(3)
    adder = EpisodeAdder(writer, SPEC, tables="table", max_length=3, too_long="split")
    cases.play(adder, cases.Episode([1.0] * 4, end))
    count = len(writer.items)
    cases.play(adder, cases.Episode([1.0], offset=20))
    assert count == (2 if end == "terminate" else 1) and len(writer.items) == count + 1
    np.testing.assert_array_equal(writer.items[-1].data.observation[0], cases.observation(20))
    assert writer.items[-1].data.start_of_episode.tolist() == [True, False, False]


def test_restoring_what_does_not_fit():
    with pytest.raises(CheckpointError, match="lacks"):
        EpisodeAdder(recorder(3), SPEC, tables="table", max_length=3).restore({"start": 1})
