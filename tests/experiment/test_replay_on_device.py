"""Replay on the device: transitions, counts and values as on the host, chunks, the run folder, and what is refused."""

import dataclasses
import fractions
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import ExperimentConfig, checkpoint, nests, run, specs
from agentkit.actors.policy import Policy
from agentkit.agents import r2d2, registry
from agentkit.agents.addons import View, with_views
from agentkit.agents.common.experience import ReplayConfig, Sequences, SequencesConfig, Transitions
from agentkit.envs.jax.cartpole import CartPole
from agentkit.envs.jax.catch import Catch
from agentkit.envs.jax.memory_chain import MemoryChain
from agentkit.envs.jax.point_mass import PointMass
from agentkit.errors import ConfigError, NonFiniteError
from agentkit.experiment.on_device.acting import start, take_step
from agentkit.experiment.on_device.loop import DeviceLoop, make_rounds
from agentkit.experiment.on_device.replay.learning import UpdatesDue, find_rate
from agentkit.experiment.on_device.replay.replay_rounds import ReplayRounds
from agentkit.experiment.on_device.replay.ring import draw, set_priorities
from agentkit.experiment.on_device.replay.store import Store, make_keeper
from agentkit.learning import Linear, rate_limit
from agentkit.replay import InProcessReplay
from agentkit.testing.learning import learns
from agentkit.types import LAST
from tests.agents.test_r2d2 import memory_config
from tests.experiment.on_device_runs import (
    Endless,
    assert_equal,
    begin,
    kill_after_170_steps,
    leaves_of,
    rows_of,
)

SMALL = {"hidden_sizes": (4,), "batch_size": 8, "min_replay_size": 10, "replay_size": 60}
SMALL |= {"sequence_length": 6, "sequence_period": 3, "burn_in": 2, "core_size": 4}
DISCRETE = ["c51", "discrete_sac", "dqn", "iqn", "munchausen_dqn", "qr_dqn", "r2d2", "rainbow"]
CONTINUOUS = ["d4pg", "ddpg", "droq", "mpo", "redq", "sac", "td3"]


def make_agent(name, settings):
    known = {field.name for field in dataclasses.fields(registry.config_class(name))}
    return registry.make(name, {key: value for key, value in (SMALL | settings).items() if key in known})


def make_loop(environment, num_envs=4, name="dqn", **settings):
    agent = make_agent(name, settings)
    networks = agent.make_networks(specs.make_environment_spec(environment))
    update = agent.make_update(networks)
    rounds = make_rounds(environment, agent.make_policy(networks), update, agent.experience, num_envs)
    loop = DeviceLoop(rounds)
    return loop, jax.jit(update.init)


def random_policy(environment):
    spec = environment.action_spec()

    def act(params, key, observation, state):
        discrete = isinstance(spec, specs.DiscreteArray)
        action = (
            jax.random.randint(key, (), 0, spec.num_values, jnp.int32)
            if discrete
            else jax.random.uniform(key, spec.shape, minval=-1.0)
        )
        return action, state, jnp.sum(action) * jnp.ones(2)

    return Policy(act, extras_spec=specs.Array((2,), np.float32))


def make_parts(environment, num_envs, experience, policy=None, params=()):
    """A policy, which acts at random if none is given, the first state, and an empty store."""
    policy = random_policy(environment) if policy is None else policy

    class NoUpdate:
        def init(self, key):
            return ()

        def variables(self, training):
            return {"policy": params}

    rounds = ReplayRounds(environment, policy, NoUpdate(), experience, num_envs)
    acting = jax.jit(lambda key: start(environment, policy, num_envs, key))(jax.random.PRNGKey(1))
    store = jax.jit(rounds.first_store)(acting, jax.random.PRNGKey(2))

    keeper = make_keeper(experience, num_envs)

    @jax.jit
    def step(acting, store):
        after, row, _ = take_step(environment, policy, params, acting, jax.vmap(environment.reset))
        return after, row, Store(*keeper.add(store.recent, store.ring, acting.timestep, row, after.timestep), store.key)

    return policy, acting, store, step


def twins(environment, num_envs, experience, num_steps=40, policy=None, params=()):
    """The store after some steps, and the host's table; their counts are equal at each step."""
    policy, acting, store, step = make_parts(environment, num_envs, experience, policy, params)
    spec = specs.make_environment_spec(environment)
    replay = InProcessReplay(experience.make_tables(spec, policy.extras_spec), seed=0, in_turns=True)
    adder = experience.make_adder(replay, spec, policy.extras_spec, num_envs)
    adder.add_first(jax.tree.map(np.asarray, acting.timestep))
    ended = 0
    for _ in range(num_steps):
        was_last = np.asarray(acting.timestep.step_type) == LAST
        acting, row, store = step(acting, store)
        action, extras = jax.tree.map(np.array, (row.action, row.extras))
        for leaf in jax.tree.leaves((action, extras)):
            leaf[was_last] = 1  # Which the adder ignores.
        adder.add(action, jax.tree.map(np.asarray, acting.timestep), extras)
        info = replay.info(experience.table)
        assert (int(store.ring.num_inserted), int(store.ring.size)) == (info.num_inserted, info.size)
        ended += int(np.sum(np.asarray(acting.timestep.step_type) == LAST))
    assert ended > 10
    return store, replay


def assert_in_the_same_order(ours, theirs, oldest):
    theirs = nests.flatten_to_paths(theirs)
    for path, leaf in nests.flatten_to_paths(ours).items():
        found = np.roll(np.asarray(leaf), -oldest, axis=0)[: len(theirs[path])]
        np.testing.assert_allclose(found, theirs[path], atol=1e-6, err_msg=path)


@pytest.mark.parametrize(
    ("environment", "n"),
    [(CartPole(max_steps=6), 3), (PointMass(max_steps=3), 5), (MemoryChain(1), 1), (Catch(4, 3), 4)],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_the_ring_holds_at_each_step_the_items_of_the_hosts_table(environment, n):
    """Terminations, truncations, episodes shorter than n, a ring that wraps: the same items in the same order."""
    experience = Transitions(ReplayConfig(discount=0.9, n_step=n, replay_size=40, min_replay_size=1))
    store, replay = twins(environment, 3, experience)
    assert int(store.ring.num_inserted) > 60
    assert_in_the_same_order(store.ring.items, replay.contents("transitions")[0], int(store.ring.num_inserted) % 40)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("environment", "length", "period"),
    [(CartPole(max_steps=6), 7, 3), (PointMass(max_steps=3), 4, 4), (MemoryChain(1), 2, 1), (Catch(4, 3), 9, 2)],
    ids=lambda value: type(value).__name__ if not isinstance(value, int) else str(value),
)
def test_the_ring_holds_at_each_step_the_sequences_of_the_hosts_table(environment, length, period):
    """They run on over ends of episodes, share rows, and are all that there is room for when ring and rows wrap."""
    config = SequencesConfig(sequence_length=length, sequence_period=period, replay_size=11, min_replay_size=1)
    experience = Sequences(config)
    store, replay = twins(environment, 3, experience, 60)
    inserted = int(store.ring.num_inserted)
    assert inserted > 22 and int(store.recent.count.max()) > len(store.recent.steps.reward)
    keeper = make_keeper(experience, 3)
    sample, places, _ = draw(store.ring, jax.random.PRNGKey(0), 20)
    drawn = keeper.look_up(store.recent, sample).data
    ours = keeper.look_up(store.recent, sample._replace(data=store.ring.items)).data
    assert_equal(jax.tree.map(lambda x: np.asarray(x)[np.asarray(places)], ours), drawn)
    assert_in_the_same_order(ours, replay.contents("sequences")[0], inserted % 11)
    assert set(np.asarray(store.ring.items.environment).tolist()) == {0, 1, 2}


def test_sequences_are_drawn_by_priority():
    """By the same ring as transitions, whose priorities are those of the host's table (below): chi-square."""
    config = SequencesConfig(
        sequence_length=3, sequence_period=2, replay_size=9, min_replay_size=1, prioritized=True, priority_exponent=0.7
    )
    experience = Sequences(config)
    _, acting, store, step = make_parts(Endless(), 2, experience)
    for _ in range(15):
        acting, _, store = step(acting, store)
    priorities = jnp.arange(9.0)
    ring = store.ring._replace(marks=set_priorities(store.ring.marks, jnp.arange(9), priorities, 0.7))
    sample, places, _ = draw(ring, jax.random.PRNGKey(0), 4_000)
    expected = np.arange(9) ** 0.7 / np.sum(np.arange(9) ** 0.7)
    counts = np.bincount(places, minlength=9)
    assert counts[0] == 0 and np.sum((counts - 4_000 * expected)[1:] ** 2 / (4_000 * expected)[1:]) < 24.3  # 0.1 %.
    np.testing.assert_allclose(sample.info.probability, expected[places], rtol=1e-5)
    steps = make_keeper(experience, 2).look_up(store.recent, sample).data
    assert steps.reward.shape == (4_000, 4)
    assert_equal(
        np.asarray(steps.reward)[:, 0],
        np.asarray(store.recent.steps.reward)[sample.data.place, sample.data.environment],
    )


def test_values_at_truncation_do_not_look_at_the_reset():
    """Where the value of an observation is the observation: 1 + 0.9 * 10 = 10, the value of 1 a step for ever."""
    for at_reset in (10.0, 1e6):
        experience = Transitions(ReplayConfig(discount=0.9, n_step=2, replay_size=100))
        _, acting, store, step = make_parts(Endless(at_reset), 2, experience)
        for _ in range(12):
            acting, _, store = step(acting, store)
        # Episodes of 3 steps give 4 items each (decision 57), and a reset takes a step: 3 episodes of each environment.
        assert int(store.ring.size) == 24
        items = jax.tree.map(lambda x: np.asarray(x)[:24], store.ring.items)
        np.testing.assert_allclose(items.reward + items.discount * items.next_observation[:, 0], 10.0, rtol=1e-6)
        np.testing.assert_allclose(np.unique(items.discount), [0.81, 0.9], rtol=1e-6)


@pytest.mark.parametrize("per_call", [1, 4])
@pytest.mark.parametrize("rate", [1.0, 0.25, 2.0, 8.0, 0.1, 1 / 3, 1.5])
def test_updates_come_at_the_items_at_which_the_hosts_rate_limit_lets_them(rate, per_call):
    config = ReplayConfig(updates_per_step=rate, batch_size=32, updates_per_call=per_call, min_replay_size=50)
    limiter = rate_limit(Transitions(config).batch_plan, rate, config.min_replay_size)
    due = jax.jit(UpdatesDue(find_rate(Transitions(config)), 50, per_call))
    rng, inserted, calls = np.random.default_rng(0), 0, 0
    for _ in range(300):
        inserted += int(rng.integers(0, 5))
        counts = {"size": inserted, "inserted": inserted}
        while limiter.can_sample(32 * per_call, sampled=32 * per_call * calls, **counts):
            calls += 1
        # The host's product of a third is rounded down, and lets some updates come an item later.
        assert calls * per_call in {int(due(inserted)), int(due(inserted - (rate == 1 / 3)))}, inserted
    assert calls > 5
    near = jax.jit(UpdatesDue(fractions.Fraction(7, 1_000), 50, 1))(2_000_000_050)
    assert int(near) == 14_000_002  # Two ahead, and without an overflow.


def test_a_chunk_is_equal_to_two_of_half_its_length_and_memory_stays():
    loop, init = make_loop(MemoryChain(2), n_step=1, updates_per_step=1.0)
    whole = loop.run(*begin(loop, init), target=10**9, num_rounds=4)
    first = loop.run(*begin(loop, init), target=10**9, num_rounds=2)
    halves = loop.run(first.training, first.state, first.tally, 10**9, 2)
    assert_equal(whole[:3], halves[:3])
    # 32 steps in each of 4 environments a round; an item a step, written by the next one; two updates ahead.
    assert whole.report.num_steps[:4].tolist() == [128, 256, 384, 512] and whole.tally.tolist() == [500, -1, 0]
    assert int(whole.state.store.ring.num_inserted) == 508
    del first
    chunk, sizes = whole, []
    for _ in range(4):
        chunk = loop.run(chunk.training, chunk.state, chunk.tally, 10**9, 4)
        jax.block_until_ready(chunk)
        whole = halves = None
        sizes.append(sum(array.nbytes for array in jax.live_arrays()))
    assert len(set(sizes[1:])) == 1, sizes
    # A round ends with the step that reaches the target.
    chunk = loop.run(chunk.training, chunk.state, chunk.tally, int(chunk.state.acting.num_steps) + 10, 200)
    assert int(chunk.num_rounds) == 1 and int(chunk.report.num_steps[0]) == 20 * 128 + 12


def plan(environment="jax:catch", name="dqn", num_steps=200, agent_settings=(), **settings):
    agent = make_agent(name, dict(agent_settings))
    defaults = {"num_envs": 4, "evaluation_period": 0, "on_device": True, "log_seconds": 0.0}
    return ExperimentConfig(agent, environment, num_steps, **(defaults | settings))


@pytest.mark.full
@pytest.mark.parametrize(
    "settings", [{}, {"n_step": 3, "updates_per_step": 0.25}, {"updates_per_call": 4}], ids=range(3)
)
def test_steps_updates_and_schedules_are_those_of_the_host(tmp_path, settings):
    """Catch, whose episodes are equally long."""
    settings = settings | {"learning_rate": Linear(1e-2, 1e-3, 1_000, by="steps")}
    results = {}
    for where, environment in (("host", "agentkit:catch"), ("device", "jax:catch")):
        experiment = plan(
            environment, run_directory=tmp_path / where, on_device=where == "device", agent_settings=settings,
            num_steps=240,
        )  # fmt: skip
        result = run(experiment)
        last = rows_of(tmp_path / where, "learner")[-1]
        state = checkpoint.read_latest(tmp_path / where / "checkpoints").state["learner"]["state"]
        counts = {path: int(x) for path, x in state.items() if x.dtype == np.int32 and not x.ndim}
        results[where] = result.steps, result.updates, last["samples_per_insert"], last["steps"], counts
    assert results["host"] == results["device"] and results["device"][1] > 50
    assert 240 in counts.values()  # The steps that the schedule of the learning rate goes by.


@pytest.mark.full
@pytest.mark.parametrize("prioritized", [False, True])
def test_a_resumed_run_has_the_same_bits_and_a_checkpoint_the_items_that_are_in(tmp_path, prioritized):
    shared = {
        "checkpoint_period": 90,
        "agent_settings": {"replay_size": 4_000, "prioritized": prioritized, "n_step": 1},
    }
    run(plan(num_steps=300, run_directory=tmp_path / "whole", **shared))
    run(plan(num_steps=150, run_directory=tmp_path / "parts", **shared))
    run(plan(num_steps=300, run_directory=tmp_path / "parts", **shared), resume=True)
    assert leaves_of(tmp_path / "whole") == leaves_of(tmp_path / "parts")
    replays = []
    for name in ("whole", "parts"):
        with np.load(checkpoint.read_latest(tmp_path / name / "checkpoints").path / "replay" / "arrays.npz") as file:
            replays.append({key: file[key] for key in file.files})
    assert_equal(*replays)
    lengths = {array.shape for array in replays[0].values() if array.shape[:1] != (296,)}
    # An item of each environment is written by its next step; above the weights are their sums.
    assert lengths == ({(10,), (1,)} if prioritized else set())


@pytest.mark.full
def test_a_run_that_is_killed_between_chunks_resumes_with_the_same_bits(tmp_path):
    kill_after_170_steps(Path(__file__).stem, tmp_path / "killed")
    for name in ("killed", "whole"):
        run(plan(num_steps=300, checkpoint_period=90, run_directory=tmp_path / name), resume=name == "killed")
    assert leaves_of(tmp_path / "killed") == leaves_of(tmp_path / "whole")


@pytest.mark.full
def test_a_reward_that_is_nan_ends_the_run_and_says_whose_it_is():
    with pytest.raises(NonFiniteError, match="reward or an observation that is NaN"):
        run(plan(Endless(reward=float("nan")), num_steps=100))


@pytest.mark.full
@pytest.mark.parametrize("name", DISCRETE + CONTINUOUS)
def test_all_agents_that_learn_from_replay_run(name):
    environment = PointMass(max_steps=5) if name in CONTINUOUS else MemoryChain(2)
    loop, init = make_loop(environment, name=name, updates_per_step=1.0)
    before = jax.tree.map(np.asarray, init(jax.random.PRNGKey(0)))
    chunk = loop.run(*begin(loop, init), target=60, num_rounds=30)
    assert int(chunk.tally[0]) > 10 and int(chunk.tally[1]) == -1
    one, other = (nests.flatten_to_paths(jax.tree.map(np.asarray, each)) for each in (before, chunk.training))
    assert any(not np.array_equal(one[path], other[path]) for path in one)


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "environment", "num_steps", "threshold"),
    [
        ("dqn", "jax:catch", 2_500, 0.8),
        ("c51", "jax:catch", 2_500, 0.8),
        ("sac", "jax:point_mass", 1_600, -2.0),
        ("td3", "jax:point_mass", 1_600, -2.0),
        ("r2d2", "jax:memory_chain", 1_500, 0.9),
    ],
)
def test_it_learns_what_it_learns_on_the_host(name, environment, num_steps, threshold):
    """With settings, steps and thresholds of test_dqn.py, test_c51.py, test_sac.py, test_td3.py and test_r2d2.py."""
    if name == "r2d2":
        learns(r2d2.make_agent(memory_config()), environment, num_steps, threshold, on_device=True)
        return
    epsilon = Linear(1.0, 0.05, 1_000)
    of_values = {"n_step": 3, "learning_rate": 2e-3, "target_update_period": 50, "epsilon": epsilon}
    of_actions = {"hidden_sizes": (32, 32), "learning_rate": 3e-3, "tau": 0.02, "num_random_steps": 200}
    settings = {
        "dqn": of_values,
        "c51": {**of_values, "learning_rate": 1e-3, "num_atoms": 21, "vmin": -2.0, "vmax": 2.0},
    }.get(name, of_actions)
    agent = registry.make(name, {"batch_size": 64, "updates_per_step": 1.0, "min_replay_size": 100, **settings})
    learns(agent, environment, num_steps, threshold, on_device=True)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent_settings": {"replay_size": 20}, "num_envs": 11}, "replay_size=20 with num_envs=11"),
        ({"agent_settings": {"updates_per_step": 0.12345}}, "updates_per_step=0.12345"),
        ({"num_steps": 2**30, "agent_settings": {"updates_per_step": 2.0}}, "num_steps=1,073,741,824 with updates_per"),
        ({"name": "r2d2", "agent_settings": {"replay_size": 20}, "num_envs": 11}, "replay_size=20 with num_envs=11"),
        ({"data": "some.npz"}, "data (--data)"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_run_there_is_refused_in_a_line(tmp_path, settings, message):
    with pytest.raises(ConfigError) as error:
        run(plan(**({"run_directory": tmp_path / "run"} | settings)))
    said = str(error.value)
    assert said.startswith("on_device (--on-device) does not go with " + message) and "\n" not in said
    assert not (tmp_path / "run" / "config.json").exists()


def test_sequences_that_would_leave_out_rows_are_refused_as_on_the_host(tmp_path):
    experience = Sequences(SequencesConfig(sequence_length=10, sequence_period=12))
    said = []
    for on_device in (True, False):
        experiment = plan(name="gumbel_muzero", run_directory=tmp_path / "run", on_device=on_device)
        experiment = dataclasses.replace(experiment, agent=dataclasses.replace(experiment.agent, experience=experience))
        with pytest.raises(ConfigError, match=r"a longer period would lose steps.*length 11 and period 12") as error:
            run(experiment if on_device else dataclasses.replace(experiment, environment="agentkit:catch"))
        said.append(str(error.value))
        assert not on_device or not (tmp_path / "run" / "config.json").exists()
    assert said[0] == said[1]


def test_views_are_refused():
    stock = plan()
    with pytest.raises(ConfigError, match=r"views \(--view\)"):
        run(dataclasses.replace(stock, agent=with_views(stock.agent, {"last": View("observation", "-1:0")})))


def test_a_replay_that_does_not_fit_is_refused(tmp_path):
    settings = {"agent_settings": {"replay_size": 2**30, "n_step": 1}, "num_steps": 2**30 + 5}
    message = r"the replay of 1,073,741,824 items 4\d\d\.\d\d\. Lower replay_size"
    with pytest.raises(ConfigError, match=message):
        run(plan(run_directory=tmp_path / "run", **settings))
    assert not (tmp_path / "run" / "config.json").exists()
