"""Rings on the device: what is drawn how often, sum trees, priorities as on the host, and what a resume takes."""

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import specs
from agentkit.actors.policy import stateless_policy
from agentkit.agents import dqn
from agentkit.agents.common.experience import ReplayConfig, Transitions
from agentkit.errors import CheckpointError
from agentkit.experiment.on_device import work
from agentkit.experiment.on_device.checks import needed_experience
from agentkit.experiment.on_device.loop import DeviceLoop, State, make_rounds
from agentkit.experiment.on_device.replay import ring as ring_module
from agentkit.experiment.on_device.replay.ring import draw, insert, make_ring, set_priorities
from agentkit.experiment.on_device.replay.store import ONLY, Store
from agentkit.experiment.on_device.replay.sum_tree import NOWHERE, draw_places, make_tree, set_weights
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
from agentkit.learning import Update, UpdateOutput
from agentkit.learning.finite import describe_bad, start_tally
from agentkit.replay import InProcessReplay
from agentkit.types import FIRST, LAST
from tests.experiment.on_device_runs import Endless, assert_equal, idle_loop


def test_draws_are_uniform_over_the_items_that_are_there_and_are_counted():
    ring = make_ring(jnp.float32(0), 8)
    ring = insert(ring, jnp.arange(6.0), jnp.array([True, False, True, True, False, True]))
    assert ring.items.tolist()[:5] == [0, 2, 3, 5, 0] and int(ring.size) == 4
    sample, places, marks = jax.jit(lambda ring, key: draw(ring, key, 4_000))(ring, jax.random.PRNGKey(0))
    values, counts = np.unique(sample.data, return_counts=True)
    assert values.tolist() == [0, 2, 3, 5] and counts.min() > 850
    times = marks.times_drawn
    assert times.tolist() == [*counts.tolist(), 0, 0, 0, 0] and ring.items[places].tolist() == sample.data.tolist()
    info = jax.tree.map(lambda x: set(np.asarray(x).tolist()), sample.info)
    assert (info.probability, info.table_size, info.priority) == ({0.25}, {4}, {1.0})
    assert info.times_sampled == set(counts.tolist())
    ring = insert(ring._replace(marks=marks), 10.0 + jnp.arange(6.0), jnp.ones(6, bool))
    assert ring.items.tolist() == [14, 15, 3, 5, 10, 11, 12, 13] and int(ring.size) == 8
    assert ring.marks.times_drawn.tolist() == [0, 0, counts[2], counts[3], 0, 0, 0, 0]


def test_a_sum_tree_holds_the_sums_and_draws_what_has_a_weight():
    weights = make_tree(2_000)
    assert [len(level) for level in weights] == [2_016, 64, 32]
    places = jnp.array([0, 31, 32, 1_999, NOWHERE, 700], jnp.int32)
    weights = jax.jit(set_weights)(weights, places, jnp.array([1.0, 2.0, 3.0, 4.0, 100.0, 0.0]))
    weights = jax.jit(set_weights)(weights, jnp.array([31, 31], jnp.int32), jnp.array([5.0, 5.0]))
    assert [float(level.sum()) for level in weights] == [13.0] * 3 and weights[1][:3].tolist() == [6.0, 3.0, 0.0]
    drawn, chance = jax.jit(lambda tree, key: draw_places(tree, key, 8_000))(weights, jax.random.PRNGKey(0))
    found, counts = np.unique(drawn, return_counts=True)
    assert found.tolist() == [0, 31, 32, 1_999]
    expected = np.array([1, 5, 3, 4]) / 13
    assert np.sum((counts - 8_000 * expected) ** 2 / (8_000 * expected)) < 16.3  # Chi-square, 3 degrees: 0.1 %.
    np.testing.assert_allclose(chance, expected[np.searchsorted(found, drawn)], rtol=1e-6)


def test_priorities_are_those_of_the_hosts_table():
    """New items get the largest so far, exponents, a priority that is not finite, one of 0, and a ring that wraps."""
    config = ReplayConfig(prioritized=True, priority_exponent=0.6, replay_size=50, min_replay_size=1, n_step=1)
    spec = specs.make_environment_spec(Endless())
    replay = InProcessReplay(Transitions(config).make_tables(spec, ()), seed=0, in_turns=True)
    adder = Transitions(config).make_adder(replay, spec, ())
    ring = make_ring(jnp.int32(0), 50, prioritized=True)
    put = jax.jit(lambda ring, x: insert(ring, x[None], jnp.ones(1, bool), 0.6))
    change = jax.jit(lambda marks, places, new: set_priorities(marks, places, new, 0.6))
    rng = np.random.default_rng(0)
    for i in range(70):
        first, last = (dm_env.TimeStep(kind, 0.0, 0.0, np.full(1, i, np.float32)) for kind in (FIRST, LAST))
        adder.add_first(first._replace(step_type=dm_env.StepType.FIRST))
        adder.add(np.int32(0), last._replace(step_type=dm_env.StepType.LAST))
        ring = put(ring, jnp.int32(i))
        if i % 5 == 4:
            drawn = next(replay.sampler("transitions", 8))
            which = drawn.sample.data.observation[:, 0].astype(np.int32)
            new = np.float32(rng.exponential(2.0, 100)[which])
            new[0], new[which == which[1]] = np.nan, 0.0
            keep = np.isfinite(new)
            replay.update_priorities("transitions", drawn.keys[keep], new[keep])
            ring = ring._replace(marks=change(ring.marks, jnp.asarray(which % 50), jnp.asarray(new)))
    sampler = replay.sampler("transitions", 50)
    drawn = tree.map_structure(lambda *parts: np.concatenate(parts), *(next(sampler).sample for _ in range(60)))
    which = drawn.data.observation[:, 0].astype(np.int32)
    sample, places, _ = jax.jit(lambda ring, key: draw(ring, key, 3_000))(ring, jax.random.PRNGKey(0))
    chance = np.zeros(70)
    chance[which] = drawn.info.probability
    np.testing.assert_allclose(sample.info.probability, chance[sample.data], rtol=1e-4)
    np.testing.assert_allclose(ring.marks.priorities[which % 50], drawn.info.priority, rtol=1e-5)
    assert np.asarray(sample.data).min() >= 20 and (np.asarray(sample.data) % 50 == places).all()
    counts, expected = np.bincount(sample.data, minlength=70)[chance > 0], 3_000 * chance[chance > 0]
    assert np.sum((counts - expected) ** 2 / expected) < 86.7  # Chi-square, at most 49 degrees: 0.1 % of 48.


def test_priorities_that_no_table_takes_change_nothing_and_are_told_of():
    """As a learner on the host does of NaN, and a table there of what is below 0."""
    update = Update(
        lambda key: jnp.float32(0),
        lambda value, batch: (value, UpdateOutput({"loss": jnp.float32(0)}, jnp.full(4, value))),
        lambda value: {"policy": ()},
    )
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    config = ReplayConfig(
        prioritized=True, replay_size=40, min_replay_size=1, batch_size=4, updates_per_step=1.0, n_step=1
    )
    loop = DeviceLoop(make_rounds(Endless(), policy, update, Transitions(config), 1))
    for value, largest, first_bad in ((7.0, 7.0, -1), (0.0, 1.0, -1), (np.nan, 1.0, 1), (np.inf, 1.0, 1), (-1, 1.0, 1)):
        chunk = loop.run(jnp.float32(value), loop.start(jax.random.PRNGKey(0)), start_tally(0), 10, 1)
        assert float(chunk.state.store.ring.marks.largest) == largest
        assert int(chunk.tally[0]) > 5 and int(chunk.tally[1]) == first_bad
        if first_bad > 0:
            assert chunk.state.store.ring.marks.tree[0].sum() == chunk.state.store.ring.size
            message = describe_bad((), ["loss"], chunk.tally)
            assert "finite: new priorities were nan, inf or below 0 at update 1." in message


def test_an_item_drawn_twice_has_the_weight_of_the_priority_that_is_kept(monkeypatch):
    """On a GPU two writes to one place come in any order; among weights another one may stay."""
    weights = []
    monkeypatch.setattr(ring_module, "set_weights", lambda tree, places, new: weights.append(new) or tree)
    places = jnp.array([2, 1, 2], jnp.int32)
    marks = set_priorities(make_ring(jnp.int32(0), 4, prioritized=True).marks, places, jnp.array([1.0, 5.0, 3.0]), 0.5)
    assert marks.priorities[2] in (1.0, 3.0)
    np.testing.assert_allclose(weights[0], np.asarray(marks.priorities)[places] ** 0.5, rtol=1e-6)


def test_where_all_priorities_are_0_draws_are_uniform_as_on_the_host():
    @jax.jit
    def run(key):
        ring = insert(make_ring(jnp.int32(0), 100, prioritized=True), jnp.arange(6), jnp.ones(6, bool), 0.6)
        return draw(ring._replace(marks=set_priorities(ring.marks, jnp.arange(6), jnp.zeros(6), 0.6)), key, 600)

    sample, places, marks = run(jax.random.PRNGKey(0))
    found, counts = np.unique(places, return_counts=True)
    assert found.tolist() == list(range(6)) and counts.min() > 60 and int(marks.times_drawn.sum()) == 600
    assert (sample.info.probability == np.float32(1 / 6)).all() and not sample.info.priority.any()


class Held:
    """Is all that saving and restoring ask of chunks."""

    def __init__(self, state):
        self.state = state

    def counts(self):
        return {ONLY: (0, 0)}


def test_a_replay_is_resumed_in_the_memory_of_one(tmp_path):
    """In the landing tier, since it alone notices that a large one can be saved and not resumed."""

    def make():
        loop = idle_loop(several=False)
        return loop, ActAndLearnOnDevice(None, Held(loop.start(jax.random.PRNGKey(0))), None, None, {})

    def live_bytes(*_):
        sizes.append(sum(array.nbytes for array in jax.live_arrays()))

    sizes: list[int] = []
    loop, saved = make()
    saved._chunks.state = loop.run((), saved._chunks.state, start_tally(0), 100, 9).state
    (tmp_path / "replay").mkdir()
    saved.contents["replay"](tmp_path / "replay")
    expected = jax.tree.map(np.asarray, saved._chunks.state.store.items())
    del saved
    _, resumed = make()
    empty = jax.tree.leaves(resumed._chunks.state.store.items())
    with pytest.MonkeyPatch.context() as patch:
        check, put = work._check_form, jax.device_put
        patch.setattr(work, "_check_form", lambda *args: (check(*args), live_bytes()))
        patch.setattr(jax, "device_put", lambda *args, **kwargs: (live_bytes(), put(*args, **kwargs))[1])
        live_bytes()
        resumed.restore_replay(tmp_path)
        live_bytes()
    assert max(sizes) == sizes[0] and all(leaf.is_deleted() for leaf in empty)
    assert_equal(jax.tree.map(np.asarray, resumed._chunks.state.store.items()), expected)
    with np.load(tmp_path / "replay" / "arrays.npz") as file:
        np.savez(tmp_path / "replay" / "arrays.npz", **{"0": file["0"]})
    with pytest.raises(CheckpointError, match="does not fit"):
        resumed.restore_replay(tmp_path)


def test_a_prioritized_replay_grows_with_the_run_and_keeps_its_tree(tmp_path):
    """A checkpoint fits the ring of a longer run, and of a shorter one that has room for its items."""
    agent = dqn.make_agent(dqn.Config(prioritized=True, replay_size=30_000, n_step=1))
    sizes = [needed_experience(agent, steps).config.replay_size for steps in (10, 2_000, 2_100, 10**6)]
    assert sizes == [1_025, 2_000, 2_100, 30_000] and [len(make_tree(size)) for size in sizes] == [3] * 4
    rows = [np.full(-(-1_020 // 32**level), 1.0 + level, np.float32) for level in range(3)]
    (tmp_path / "replay").mkdir()
    for i, size in enumerate((2_100, 1_100, 2_000)):  # The second is restored from the first, the third from that.
        ring = make_ring(jnp.int32(0), size, prioritized=True)._replace(num_inserted=jnp.int32(1_020))
        filled = [np.zeros(level.shape, level.dtype) for level in ring.marks.tree]
        for level, row in zip(filled, rows, strict=True):
            level[: len(row)] = row
        marks = ring.marks if i else ring.marks._replace(tree=tuple(map(jnp.asarray, filled)))
        chunks = Held(State((), Store((), ring._replace(marks=marks), jnp.zeros(2)), {}))
        held = ActAndLearnOnDevice(None, chunks, None, None, {})
        if i:
            held.restore_replay(tmp_path)
        held.contents["replay"](tmp_path / "replay")
        if not i:  # As earlier versions saved it: with sums of a tree that nothing is under.
            saved = dict(np.load(tmp_path / "replay" / "arrays.npz"))
            saved["1"] = np.pad(saved["1"], (0, 900))
            np.savez(tmp_path / "replay" / "arrays.npz", **saved)
        assert_equal(list(chunks.state.store.ring.marks.tree), filled)
