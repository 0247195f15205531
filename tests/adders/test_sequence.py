"""The sequence adder against the hand-computed cases, by property, on bad input and across saving."""

import dm_env
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from agentkit.adders import SequenceAdder
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.losses import loss_mask
from agentkit.testing import adder_cases as cases
from agentkit.testing.adder import RecordingWriter, assert_items, make_table
from agentkit.testing.adder_cases import SPEC, Episode
from agentkit.types import has_action, has_observation

MODES = ["pad", "truncate", "overlap", "continue"]


def recorder(length):
    return RecordingWriter([make_table(SequenceAdder.layout(SPEC, length))], SequenceAdder.history(length))


@pytest.mark.parametrize("case", cases.SEQUENCE_CASES, ids=lambda case: case.name)
def test_hand_computed(case):
    writer = RecordingWriter([make_table(case.layout)], case.arguments["length"])
    adder = case.make_adder(lambda history: writer)
    for episode in case.episodes:
        cases.play(adder, episode, nested=case.nested, extras=case.extras)
    assert_items([item.data for item in writer.items], case.items, case.layout.signature)


@hypothesis.settings(deadline=None, max_examples=100)
@hypothesis.given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(1, 6).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length))),
    st.sampled_from(MODES),
)
def test_properties(lengths, shape, mode):
    length, period = shape
    writer = recorder(length)
    adder = SequenceAdder(writer, SPEC, tables="table", length=length, period=period, end_of_episode=mode)
    rows, offset = [], 0
    for actions in lengths:
        cases.play(adder, Episode([1.0] * actions, offset=offset))
        rows.append(list(range(offset, offset + actions + 1)))
        offset += actions + 1
    found = []
    for item in writer.items:
        times = item.data.observation[:, 0].astype(int).tolist()
        is_padding = item.data.start_of_episode & (np.arange(length) > 0) & (mode != "continue")
        found.append([t for i, t in enumerate(times) if not is_padding[i]])
        assert item.data.reward.shape == (length,)
    if mode == "continue":
        stream = [t for episode in rows for t in episode]
        assert found == [stream[i : i + length] for i in range(0, len(stream) - length + 1, period)]
        return
    assert all(any(set(item) <= set(episode) for episode in rows) for item in found)
    covered = [t for episode in rows for t in episode if any(t in item for item in found)]
    if mode == "truncate":
        assert all(len(item) == length for item in found)
        uncovered = sum(map(len, rows)) - len(covered)
        assert uncovered <= sum(max(period, length) - 1 if len(r) < length else period - 1 for r in rows)
    else:
        assert covered == [t for episode in rows for t in episode]
    if mode == "overlap":
        assert all(len(item) == min(length, len(r)) for item in found for r in rows if item[-1] == r[-1])


@pytest.mark.parametrize("mode", ["pad", "overlap"])
@pytest.mark.parametrize(
    ("num_steps", "acts", "seen"),
    [(2, [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]), (4, [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]), (5, [1] * 5, [1] * 5)],
)
def test_losses_leave_final_rows_and_padding_out(mode, num_steps, acts, seen):
    """A value of theirs was learnt otherwise: that of no action, after an episode that was only cut off, too."""
    writer = recorder(6)
    adder = SequenceAdder(writer, SPEC, tables="table", length=6, period=5, end_of_episode=mode)
    cases.play(adder, Episode([1.0] * num_steps, "truncate", offset=1))
    start = np.stack([writer.items[0].data.start_of_episode])
    assert has_action(start)[0].tolist() == acts and has_observation(start)[0].tolist() == seen
    assert loss_mask(start, burn_in=0)[0].tolist() == acts


@pytest.mark.parametrize(
    "arguments",
    [
        {"length": 0, "period": 1},
        {"length": 3, "period": 0},
        {"length": 3, "period": 4},
        {"length": 3, "period": 1, "end_of_episode": "split"},
    ],
)
def test_impossible_settings(arguments):
    with pytest.raises(ConfigError):
        SequenceAdder(recorder(3), SPEC, tables="table", **arguments)


def test_order_and_fit():
    adder = SequenceAdder(recorder(3), SPEC, tables="table", length=3, period=1)
    with pytest.raises(SpecError, match="before add_first"):
        adder.add(cases.action(0), dm_env.transition(1.0, cases.observation(1)))
    adder.add_first(dm_env.restart(cases.observation(0)))
    with pytest.raises(SpecError, match="mid-episode"):
        adder.add_first(dm_env.restart(cases.observation(0)))
    with pytest.raises(SpecError, match="extras"):
        adder.add(cases.action(0), dm_env.transition(1.0, cases.observation(1)), {"x": 1})
    with pytest.raises(SpecError, match="action"):
        adder.add(np.zeros(2), dm_env.transition(1.0, cases.observation(1)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cut", [0, 1, 2, 3])
@pytest.mark.parametrize("with_priorities", [False, True])
def test_saved_in_mid_episode(mode, cut, with_priorities):
    tables = {"table": (lambda data: float(np.sum(data.action))) if with_priorities else None}
    first, second = Episode([1, 2, 4, 8]), Episode([0.1, 0.2, 0.3, 0.4], "truncate", offset=6)

    def make(writer):
        return SequenceAdder(writer, SPEC, tables=tables, length=3, period=2, end_of_episode=mode)

    def run(cut_at):
        writer = recorder(3)
        items = writer.items
        adder = make(writer)
        cases.play(adder, first)
        adder.add_first(dm_env.restart(cases.observation(6)))
        for i, (act, timestep, _) in enumerate(cases.steps_of(second)):
            if i == cut_at:
                state = adder.save()
                writer = recorder(3)
                writer.items = items
                adder = make(writer)
                adder.restore(state)
            adder.add(act, timestep)
        return items

    whole, resumed = run(None), run(cut)
    assert [item.priority for item in whole] == [item.priority for item in resumed]
    assert_items([i.data for i in resumed], [i.data for i in whole], SequenceAdder.layout(SPEC, 3).signature)


def test_restoring_what_does_not_fit():
    adder = SequenceAdder(recorder(3), SPEC, tables="table", length=3, period=2)
    with pytest.raises(CheckpointError, match="lacks"):
        adder.restore({"stop": 1})
