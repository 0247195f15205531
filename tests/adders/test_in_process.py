"""Every adder and case on the in-process replay, and resuming in mid-episode bit for bit."""

import dm_env
import numpy as np
import pytest
import tree

from agentkit.adders import SequenceAdder
from agentkit.replay import InProcessReplay
from agentkit.testing import adder_cases as cases
from agentkit.testing.adder import AdderContract, assert_items, make_table
from agentkit.testing.adder_cases import CASES


class TestAddersInProcess(AdderContract):
    def make_replay(self, tables):
        return InProcessReplay(tables)


@pytest.mark.parametrize("name", ["3_step_longer_episode", "overlap", "continue", "episode_split"])
@pytest.mark.parametrize("cut", [0, 1, 2])
def test_replay_and_adder_saved_in_mid_episode(name, cut, tmp_path):
    case = next(case for case in CASES if case.name == name)
    table = make_table(case.layout)
    replay = InProcessReplay([table])
    adder = case.make_adder(replay.writer)
    for episode in case.episodes:
        adder.add_first(dm_env.restart(cases.observation(episode.offset)))
        for i, (act, timestep, _) in enumerate(cases.steps_of(episode)):
            if i == cut and episode is case.episodes[0]:
                state = adder.save()
                replay.save(tmp_path)
                replay.close()
                replay = InProcessReplay([table])
                replay.restore(tmp_path)
                adder = case.make_adder(replay.writer)
                adder.restore(state)
            adder.add(act, timestep)
    adder.close()
    with replay:
        assert_items(AdderContract.read(None, replay, "table"), case.items, table.signature)


def test_a_sequence_stores_each_step_once():
    table = make_table(SequenceAdder.layout(cases.SPEC, 4))
    with InProcessReplay([table]) as replay:
        adder = SequenceAdder(replay.writer(4), cases.SPEC, tables="table", length=4, period=1)
        cases.play(adder, cases.Episode(np.ones(20)))
        adder.close()
        assert replay.info("table").num_inserted == 18


@pytest.mark.parametrize("name", ["3_step_longer_episode", "overlap", "episode_split"])
def test_an_adder_that_is_given_a_replay_asks_it_for_a_writer_with_its_history(name):
    case = next(case for case in CASES if case.name == name)

    def items(given):
        """Returns what the adder has stored that is made with what `given` returns of a replay."""
        with InProcessReplay([make_table(case.layout)]) as replay:
            adder = case.make_adder(given(replay))
            for episode in case.episodes:
                cases.play(adder, episode)
            adder.close()
            return replay.contents("table")[0]

    by_writer, by_replay = items(lambda replay: replay.writer), items(lambda replay: lambda history: replay)
    tree.map_structure(np.testing.assert_array_equal, by_writer, by_replay)
