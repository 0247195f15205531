"""The hindsight adder against a relabelling written out by hand, what it refuses, saving, and both replays."""

import re
import warnings

import dm_env
import numpy as np
import pytest

from agentkit import specs
from agentkit.adders import Hindsight, HindsightAdder, NStepAdder
from agentkit.errors import CheckpointError, ConfigError, SpecError
from agentkit.replay import InProcessReplay
from agentkit.testing import adder_cases as cases
from agentkit.testing.adder import AdderContract, RecordingWriter, assert_items, make_table
from agentkit.types import Transition

# Steps are paid 7 here, which tells their own rewards from those of other goals.
pytestmark = [pytest.mark.both_stacks, pytest.mark.filterwarnings("ignore:Rewards of the steps are not")]

GOAL = specs.Array((1,), np.float32)
SPEC = cases.SPEC._replace(observations={"achieved_goal": GOAL, "desired_goal": GOAL, "observation": cases.FLOAT})
WANTED = 99.0


def reward_of(achieved, desired):
    return -np.abs(achieved - desired)[:, 0]


def reached(achieved, desired):
    return np.all(achieved == desired, axis=-1)


def observation(t, goal=WANTED):
    """o_t = 10 t, where the goal t is achieved."""
    return {"achieved_goal": np.float32([t]), "desired_goal": np.float32([goal]), "observation": np.float32(10 * t)}


def play(adder, length, last_discount=1.0, goal=WANTED, discount=1.0, extras=False):
    adder.add_first(dm_env.restart(observation(0, goal)))
    for t in range(length):
        last = t == length - 1
        kind = dm_env.StepType.LAST if last else dm_env.StepType.MID
        timestep = dm_env.TimeStep(kind, 7.0, last_discount if last else discount, observation(t + 1, goal))
        adder.add(cases.action(t), timestep, cases.extras_of(t) if extras else ())


def item(t, goal, reward, discount):
    return Transition(
        observation(t, goal), cases.action(t), np.float32(reward), np.float32(discount), observation(t + 1, goal)
    )


def make(writer=None, tables="table", spec=SPEC, discount=0.5, extras_spec=(), **settings):
    writer = writer or RecordingWriter([make_table(HindsightAdder.layout(SPEC))], HindsightAdder.history())
    hindsight = Hindsight(**{"compute_reward": reward_of, **settings})
    kwargs = {"discount": discount, "hindsight": hindsight, "extras_spec": extras_spec}
    return HindsightAdder(writer, spec, tables=tables, **kwargs), writer


def played(length=3, last_discount=1.0, goal=WANTED, discount=1.0, **settings):
    adder, writer = make(**settings)
    play(adder, length, last_discount, goal, discount)
    return [found.data for found in writer.items]


# Goals, rewards and discounts ------------------------------------------------------------------------


@pytest.mark.parametrize("last_discount", [0.0, 1.0])
def test_final_by_hand_where_goals_end_no_episode(last_discount):
    """A termination stays one under the other goal, a truncation bootstraps."""
    end = 0.5 * last_discount
    expected = [
        *(item(0, WANTED, 7, 0.5), item(0, 3, -2, 0.5)),
        *(item(1, WANTED, 7, 0.5), item(1, 3, -1, 0.5)),
        *(item(2, WANTED, 7, end), item(2, 3, 0, end)),
    ]
    found = played(last_discount=last_discount, strategy="final")
    assert_items(found, expected, HindsightAdder.layout(SPEC).signature)


def test_the_environments_own_discount_counts_for_every_goal():
    found = played(discount=0.5, strategy="final")
    assert [float(x.discount) for x in found] == [0.25, 0.25, 0.25, 0.25, 0.5, 0.5]


def test_where_goals_end_episodes_the_discount_is_that_under_the_other_goal():
    found = {}
    for name, goal, last in (("by_goal", 3.0, 0.0), ("fall", WANTED, 0.0), ("cut", WANTED, 1.0)):
        items = played(last_discount=last, goal=goal, strategy="episode", num_relabelled=40, compute_terminated=reached)
        for t in range(3):
            true, *others = items[t * 41 : (t + 1) * 41]
            assert float(true.discount) == (0.5 if t < 2 else 0.5 * last)
            for other in others:
                where = "reached" if other.observation["desired_goal"][0] == t + 1 else "elsewhere"
                found.setdefault((name, t, where), set()).add(float(other.discount))
    for name in ("by_goal", "fall", "cut"):
        for t in range(3):
            assert found[name, t, "reached"] == {0.0}
            assert found[name, t, "elsewhere"] == ({0.0} if (name, t) == ("fall", 2) else {0.5}), (name, t)


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("future", [{1, 2, 3}, {2, 3}, {3}]), ("episode", [{1, 2, 3}] * 3), ("final", [{3}] * 3)],
)
def test_which_goals_a_strategy_draws(strategy, expected):
    k = 1 if strategy == "final" else 50
    items = played(strategy=strategy, num_relabelled=k)
    assert len(items) == 3 * (1 + k)
    for t, goals in enumerate(expected):
        block = items[t * (1 + k) : (t + 1) * (1 + k)]
        assert {float(x.observation["desired_goal"][0]) for x in block[1:]} == goals
        for x in block:
            np.testing.assert_equal(x.observation["desired_goal"], x.next_observation["desired_goal"])
            assert (float(x.observation["observation"]), float(x.next_observation["observation"])) == (
                10 * t,
                10 * t + 10,
            )
            assert int(x.action) == t + 1
        for x in block[1:]:
            assert float(x.reward) == -abs(t + 1 - float(x.observation["desired_goal"][0]))


def test_defaults_are_four_goals_a_step_and_one_with_final():
    assert len(played(strategy="future")) == 15
    assert len(played(strategy="final")) == 6


def test_without_relabelling_it_is_the_one_step_adder():
    writer = RecordingWriter([make_table(NStepAdder.layout(SPEC))], NStepAdder.history(1))
    for last in (0.0, 1.0):
        play(NStepAdder(writer, SPEC, tables="table", n=1, discount=0.5), 4, last)
    expected = [found.data for found in writer.items]
    found = [x for last in (0.0, 1.0) for x in played(4, last, num_relabelled=0)]
    assert_items(found, expected, NStepAdder.layout(SPEC).signature)


def test_rewards_of_integers_are_stored_as_the_one_step_adder_stores_them():
    spec = SPEC._replace(rewards=specs.Array((), np.int32))
    signature = HindsightAdder.layout(spec).signature
    assert signature.reward.dtype == NStepAdder.layout(spec).signature.reward.dtype == np.float32


def test_goals_depend_on_the_seed_and_on_the_episode():
    def goals(seed, episodes=1):
        adder, writer = make(seed=seed)
        for _ in range(episodes):
            play(adder, 20)
        return [float(found.data.observation["desired_goal"][0]) for found in writer.items]

    assert goals(0) == goals(0) != goals(1)
    assert goals(0, 2)[:100] == goals(0) != goals(0, 2)[100:]


def test_environments_draw_goals_of_their_own():
    """The adders of many environments, of many actors and of many runs have one seed, and begin at one number."""

    def drawn(place):
        adder, writer = make()
        adder.add_first(dm_env.restart(observation(place)))
        for t in range(20):
            kind = dm_env.StepType.LAST if t == 19 else dm_env.StepType.MID
            adder.add(cases.action(t), dm_env.TimeStep(kind, 7.0, 1.0, observation(place + t + 1)))
        goals = np.array([found.data.observation["desired_goal"][0] for found in writer.items])
        return np.where(goals == WANTED, 0, goals - place).tolist()

    assert drawn(0) == drawn(0) != drawn(200)


@pytest.mark.parametrize(("scale", "wanted"), [(1.0, WANTED), (1.0, 2.0), (1.00005, WANTED), (10.0, WANTED)])
def test_rewards_that_are_not_what_compute_reward_says_are_warned_of_once(scale, wanted):
    adder, _ = make()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(2):
            adder.add_first(dm_env.restart(observation(0, wanted)))
            for t in range(3):
                reward = float(scale * reward_of(np.float32([[t + 1]]), np.float32([[wanted]]))[0])
                kind = dm_env.StepType.LAST if t == 2 else dm_env.StepType.MID
                adder.add(cases.action(t), dm_env.TimeStep(kind, reward, 1.0, observation(t + 1, wanted)))
    expected = "step 0 has -980, compute_reward gives -98, .* with_normalization"
    assert [bool(re.search(expected, str(each.message))) for each in seen] == [True] * (scale == 10.0)


def test_rewards_are_compared_once_there_are_some():
    pays = Hindsight(lambda achieved, desired: np.float32(achieved[:, 0] == desired[:, 0]))
    for compares, number in ((True, 1), (False, 0)):
        writer = RecordingWriter([make_table(HindsightAdder.layout(SPEC))], HindsightAdder.history())
        settings = {"discount": 0.9, "hindsight": pays, "compares_rewards": compares}
        adder = HindsightAdder(writer, SPEC, tables="table", **settings)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for wanted in (5.0, 5.0, 2.0, 2.0):  # It gets to 2: only then there is a reward, of 10 in the place of 1.
                adder.add_first(dm_env.restart(observation(0, wanted)))
                adder.add(cases.action(0), dm_env.transition(0.0, observation(1, wanted)))
                adder.add(cases.action(1), dm_env.truncation(10.0 * (wanted == 2.0), observation(2, wanted)))
                assert not seen or wanted == 2.0
        assert ["step 1 has 10, compute_reward gives 1" in str(each.message) for each in seen] == [True] * number


def test_without_relabelling_rewards_are_anything():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        played(num_relabelled=0)


# The contract of adders ------------------------------------------------------------------------------


def test_a_reset_in_mid_episode_leaves_nothing():
    adder, writer = make()
    adder.add_first(dm_env.restart(observation(0)))
    adder.add(cases.action(0), dm_env.transition(1.0, observation(1)))
    adder.reset()
    assert writer.items == []
    play(adder, 2)
    assert len(writer.items) == 10
    adder.close()
    adder.close()
    assert writer.is_closed


def test_an_environment_may_reuse_its_buffers():
    adder, writer = make(strategy="final")
    buffer = observation(0)
    adder.add_first(dm_env.restart(buffer))
    for t in range(3):
        for key, value in observation(t + 1).items():
            buffer[key] = np.asarray(buffer[key])
            buffer[key][...] = value
        step = dm_env.truncation if t == 2 else dm_env.transition
        adder.add(cases.action(t), step(7.0, buffer))
    for leaf in buffer.values():
        leaf[...] = -1
    assert_items(
        [found.data for found in writer.items], played(strategy="final"), HindsightAdder.layout(SPEC).signature
    )


def test_a_priority_function_sees_the_item():
    seen = []

    def priority(data):
        seen.append(data)
        return float(len(seen))

    adder, writer = make(tables={"table": priority})
    play(adder, 3)
    assert [found.priority for found in writer.items] == list(range(1, 16))
    assert_items(seen, [found.data for found in writer.items], HindsightAdder.layout(SPEC).signature)


def test_extras_are_kept_and_checked():
    layout = HindsightAdder.layout(SPEC, cases.EXTRAS_SPEC)
    adder, writer = make(RecordingWriter([make_table(layout)], 2), strategy="final", extras_spec=cases.EXTRAS_SPEC)
    play(adder, 3, extras=True)
    assert [float(found.data.extras["log_prob"]) for found in writer.items] == [0, 0, -1, -1, -2, -2]
    with pytest.raises(SpecError, match="extras_spec of the policy"):
        play(adder, 1)


@pytest.mark.parametrize("cut", [0, 1, 2])
def test_saved_in_mid_episode(cut, tmp_path):
    whole, table = played(), make_table(HindsightAdder.layout(SPEC))
    replay = InProcessReplay([table])
    adder, _ = make(replay.writer(2))
    adder.add_first(dm_env.restart(observation(0)))
    for t in range(3):
        if t == cut:
            state = adder.save()
            replay.save(tmp_path)
            replay.close()
            replay = InProcessReplay([table])
            replay.restore(tmp_path)
            adder, _ = make(replay.writer(2))
            adder.restore(state)
        adder.add(cases.action(t), (dm_env.truncation if t == 2 else dm_env.transition)(7.0, observation(t + 1)))
    adder.close()
    with replay:
        assert_items(AdderContract.read(None, replay, "table"), whole, table.signature)


def test_a_restored_adder_goes_on_with_other_goals_than_the_first_episodes():
    adder, writer = make()
    play(adder, 20)
    other, after = make()
    other.restore(adder.save())
    play(other, 20)
    play(adder, 20)
    goals = [[float(f.data.observation["desired_goal"][0]) for f in w.items] for w in (writer, after)]
    assert goals[0][100:] == goals[1] != goals[0][:100]
    with pytest.raises(CheckpointError, match="lacks"):
        adder.restore({"steps": {}})


@pytest.mark.reverb
def test_on_reverb():
    from agentkit.replay.reverb.replay import ReverbReplay

    table = make_table(HindsightAdder.layout(SPEC))
    with ReverbReplay([table]) as replay:
        adder, _ = make(replay.writer(HindsightAdder.history()))
        play(adder, 3)
        adder.close()
        assert_items(AdderContract.read(None, replay, "table"), played(), table.signature)


# What is refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"discount": 1.5}, r"between 0 and 1, found 1\.5"),
        ({"strategy": "past"}, "found 'past'"),
        ({"num_relabelled": -1}, "found -1"),
        ({"strategy": "final", "num_relabelled": 4}, "found 4"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ConfigError, match=message):
        make(**settings)


@pytest.mark.parametrize(
    ("observations", "message"),
    [
        (GOAL, "dict of"),
        ({"observation": GOAL, "desired_goal": GOAL}, r"found \['desired_goal', 'observation'\]"),
        ({**SPEC.observations, "desired_goal": specs.Array((2,), np.float32)}, "one shape"),
        ({**SPEC.observations, "desired_goal": specs.Array((1,), np.int32)}, "one shape"),
        ({**SPEC.observations, "desired_goal": {"place": GOAL}}, "one shape"),
        ({**SPEC.observations, "achieved_goal": {"place": GOAL}}, "one shape"),
    ],
)
def test_environments_without_goals(observations, message):
    with pytest.raises(SpecError, match=message):
        make(spec=SPEC._replace(observations=observations))


def test_several_rewards():
    with pytest.raises(SpecError, match="one reward"):
        HindsightAdder.layout(SPEC._replace(rewards=specs.Array((2,), np.float32)))


@pytest.mark.parametrize("name", ["compute_reward", "compute_terminated"])
def test_a_function_that_does_not_go_row_by_row(name):
    with pytest.raises(
        SpecError, match=rf"{name} was given .* \[12\]; found \[\]" if name == "compute_reward" else name
    ):
        played(**{name: lambda achieved, desired: np.all(achieved == desired)})


def test_steps_out_of_order():
    adder, _ = make()
    with pytest.raises(SpecError, match="before add_first"):
        adder.add(cases.action(0), dm_env.transition(1.0, observation(1)))
    adder.add_first(dm_env.restart(observation(0)))
    with pytest.raises(SpecError, match="mid-episode"):
        adder.add_first(dm_env.restart(observation(0)))
