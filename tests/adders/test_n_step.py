"""The n-step adder against the hand-computed cases, a brute-force oracle, bad input and saving."""

import dm_env
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from agentkit import specs
from agentkit.adders import NStepAdder
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.testing import adder_cases as cases
from agentkit.testing.adder import RecordingWriter, assert_items, make_table
from agentkit.testing.adder_cases import SPEC, Episode

pytestmark = pytest.mark.both_stacks


def recorder(spec=SPEC, n=1, extras_spec=()):
    return RecordingWriter([make_table(NStepAdder.layout(spec, extras_spec))], NStepAdder.history(n))


@pytest.mark.parametrize("case", cases.N_STEP_CASES, ids=lambda case: case.name)
def test_hand_computed(case):
    writer = RecordingWriter([make_table(case.layout)], NStepAdder.history(case.arguments["n"]))
    adder = case.make_adder(lambda history: writer)
    for episode in case.episodes:
        cases.play(adder, episode, nested=case.nested, extras=case.extras)
    assert_items([item.data for item in writer.items], case.items, case.layout.signature)
    assert writer.save() == {"rows": {}}, "an episode's rows are forgotten with it"
    adder.close()
    assert writer.is_closed


def oracle(episode, n, gamma):
    """All transitions by the definition: the pairs (t, k), then sums written out term by term."""
    rewards = [float(r) for r in episode.rewards]
    length = len(rewards)
    discounts = [episode.discount] * length
    if episode.end == "terminate":
        discounts[-1] = 0.0
    pairs = [(max(0, end - n), end) for end in range(1, length + 1)]
    pairs += [(start, length) for start in range(max(0, length - n) + 1, length)]
    items = []
    for start, end in pairs:
        total = sum(rewards[j] * gamma ** (j - start) * float(np.prod(discounts[start:j])) for j in range(start, end))
        weight = gamma ** (end - start) * float(np.prod(discounts[start:end]))
        items.append((episode.offset + start, episode.offset + end, total, weight))
    return items


episodes = st.builds(
    Episode,
    rewards=st.lists(st.floats(-10, 10, width=32), min_size=1, max_size=12),
    end=st.sampled_from(["terminate", "truncate"]),
    discount=st.sampled_from([0.0, 0.3, 1.0]),
    offset=st.integers(0, 50),
)


@hypothesis.settings(deadline=None, max_examples=150)
@hypothesis.given(st.lists(episodes, min_size=1, max_size=3), st.integers(1, 6), st.floats(0, 1))
def test_against_brute_force(played, n, gamma):
    writer = recorder(n=n)
    adder = NStepAdder(writer, SPEC, tables="table", n=n, discount=gamma)
    for episode in played:
        cases.play(adder, episode)
    expected = [item for episode in played for item in oracle(episode, n, gamma)]
    assert len(writer.items) == len(expected)
    for (_, _, data), (start, end, reward, discount) in zip(writer.items, expected, strict=True):
        np.testing.assert_array_equal(data.observation, cases.observation(start))
        np.testing.assert_array_equal(data.next_observation, cases.observation(end))
        assert data.action == start + 1
        np.testing.assert_allclose(data.reward, reward, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(data.discount, discount, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("n", [1, 3])
def test_number_of_items(length, n):
    writer = recorder(n=n)
    cases.play(NStepAdder(writer, SPEC, tables="table", n=n, discount=1.0), Episode([1.0] * length))
    assert len(writer.items) == (length + n - 1 if length >= n else 2 * length - 1)


@pytest.mark.parametrize(
    "arguments", [{"n": 0, "discount": 1.0}, {"n": 1, "discount": 1.1}, {"n": 1, "discount": float("nan")}]
)
def test_impossible_settings(arguments):
    with pytest.raises(ConfigError):
        NStepAdder(recorder(), SPEC, tables="table", **arguments)


@pytest.mark.parametrize("tables", [{}, {"table": "abs"}])
def test_impossible_tables(tables):
    with pytest.raises(ConfigError):
        NStepAdder(recorder(), SPEC, tables=tables, n=1, discount=1.0)


def one_step(**changes):
    fields = {
        "step_type": dm_env.StepType.MID,
        "reward": 1.0,
        "discount": 1.0,
        "observation": cases.observation(1),
    }
    return dm_env.TimeStep(**{**fields, **changes})


BAD_STEPS = {
    "first": (one_step(step_type=dm_env.StepType.FIRST), "MID or LAST"),
    "no reward": (one_step(reward=None), "with a reward and a discount"),
    "no discount": (one_step(discount=None), "with a reward and a discount"),
    "batched reward": (one_step(reward=np.ones(4, np.float32)), r"reward leaf 'value': .*float32\[4\]"),
    "reward nest": (one_step(reward={"a": 1.0}), "reward has another structure"),
    "reward text": (one_step(reward="one"), "reward leaf"),
}


@pytest.mark.parametrize("name", BAD_STEPS)
def test_bad_step(name):
    timestep, message = BAD_STEPS[name]
    writer = recorder()
    adder = NStepAdder(writer, SPEC, tables="table", n=1, discount=1.0)
    adder.add_first(dm_env.restart(cases.observation(0)))
    with pytest.raises(SpecError, match=message):
        adder.add(cases.action(0), timestep)
    assert not writer.items
    adder.add(cases.action(0), one_step())  # what was refused left no trace
    adder.add(cases.action(1), dm_env.termination(1.0, cases.observation(2)))
    assert len(writer.items) == 2


def test_order_of_calls():
    adder = NStepAdder(recorder(), SPEC, tables="table", n=1, discount=1.0)
    with pytest.raises(SpecError, match="before add_first"):
        adder.add(cases.action(0), one_step())
    with pytest.raises(SpecError, match="type FIRST"):
        adder.add_first(one_step())
    with pytest.raises(SpecError, match="type FIRST, found a tuple"):
        adder.add_first((1, 2))
    with pytest.raises(SpecError, match="observation leaf"):
        adder.add_first(dm_env.restart(np.zeros(3, np.float32)))
    adder.add_first(dm_env.restart(cases.observation(0)))
    with pytest.raises(SpecError, match="mid-episode"):
        adder.add_first(dm_env.restart(cases.observation(0)))
    adder.add(cases.action(0), dm_env.termination(1.0, cases.observation(1)))
    with pytest.raises(SpecError, match="before add_first"):
        adder.add(cases.action(0), one_step())


def test_extras_that_do_not_fit():
    adder = NStepAdder(recorder(extras_spec=cases.EXTRAS_SPEC), SPEC, tables="table", n=1, discount=1.0,
                       extras_spec=cases.EXTRAS_SPEC)  # fmt: skip
    adder.add_first(dm_env.restart(cases.observation(0)))
    with pytest.raises(SpecError, match="extras_spec of the policy"):
        adder.add(cases.action(0), one_step())


def test_discounts_that_do_not_fit():
    other = SPEC._replace(discounts={"x": cases.FLOAT, "y": cases.FLOAT})
    with pytest.raises(SpecError, match="one for every reward"):
        NStepAdder(recorder(), other, tables="table", n=1, discount=1.0)
    wide = SPEC._replace(discounts=specs.Array((3,), np.float32))
    with pytest.raises(SpecError, match="cannot multiply"):
        NStepAdder(recorder(), wide, tables="table", n=1, discount=1.0)


def test_integer_rewards_are_summed_as_float32():
    spec = SPEC._replace(rewards=specs.Array((), np.int32))
    writer = recorder(spec, n=2)
    cases.play(NStepAdder(writer, spec, tables="table", n=2, discount=0.5), Episode([1, 3]))
    rewards = [item.data.reward for item in writer.items]
    assert [float(r) for r in rewards] == [1.0, 2.5, 3.0]
    assert all(r.dtype == np.float32 for r in rewards)


def test_one_discount_for_many_rewards():
    spec = SPEC._replace(rewards=specs.Array((2,), np.float32))
    writer = recorder(spec, n=2)
    adder = NStepAdder(writer, spec, tables="table", n=2, discount=0.5)
    adder.add_first(dm_env.restart(cases.observation(0)))
    adder.add(cases.action(0), one_step(reward=np.array([1, 10], np.float32)))
    adder.add(cases.action(1), dm_env.truncation(np.array([2, 20], np.float32), cases.observation(2)))
    assert [item.data.reward.tolist() for item in writer.items] == [[1, 10], [2, 20], [2, 20]]
    assert [float(item.data.discount) for item in writer.items] == [0.5, 0.25, 0.5]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("with_priorities", [False, True])
@pytest.mark.parametrize("cut", [0, 1, 3])
def test_saved_in_mid_episode(nested, with_priorities, cut):
    spec = cases.NESTED_SPEC if nested else SPEC
    tables = {"table": (lambda data: float(np.sum(data.action))) if with_priorities else None}
    episode = Episode([0.1, 0.2, 0.3, 0.4], discount=0.9)

    def run(cut_at):
        writer = recorder(spec, n=3)
        items = writer.items
        adder = NStepAdder(writer, spec, tables=tables, n=3, discount=0.7)
        adder.add_first(dm_env.restart(cases.observation(0, nested)))
        for i, (act, timestep, _) in enumerate(cases.steps_of(episode, nested=nested)):
            if i == cut_at:
                state = adder.save()
                writer = recorder(spec, n=3)
                writer.items = items
                adder = NStepAdder(writer, spec, tables=tables, n=3, discount=0.7)
                adder.restore(state)
            adder.add(act, timestep)
        return items

    whole, resumed = run(None), run(cut)
    assert [item.priority for item in whole] == [item.priority for item in resumed]
    assert_items([i.data for i in resumed], [i.data for i in whole], NStepAdder.layout(spec).signature)


def test_restoring_what_does_not_fit():
    adder = NStepAdder(recorder(n=3), SPEC, tables="table", n=3, discount=1.0)
    adder.add_first(dm_env.restart(cases.observation(0)))
    for t in range(3):
        adder.add(cases.action(t), one_step())
    state = adder.save()
    with pytest.raises(CheckpointError, match="sums more steps"):
        NStepAdder(recorder(), SPEC, tables="table", n=1, discount=1.0).restore(state)
    with pytest.raises(CheckpointError, match="observation"):
        spec = SPEC._replace(observations=specs.Array((5,), np.float32))
        NStepAdder(recorder(spec), spec, tables="table", n=3, discount=1.0).restore(state)
    with pytest.raises(CheckpointError, match="lacks"):
        adder.restore({"start": 1})
