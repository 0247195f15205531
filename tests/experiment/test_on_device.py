"""Training on the device: segments, values, chunks, counts, the run folder, and what is refused."""

import collections
import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import ExperimentConfig, MultiAgentConfig, checkpoint, envs, losses, nests, run, specs
from agentkit.actors.policy import stateless_policy
from agentkit.agents import registry
from agentkit.agents.common.experience import ReplayConfig, Segments, SegmentsConfig, Transitions
from agentkit.callbacks import Callback
from agentkit.envs.jax.cartpole import CartPole
from agentkit.envs.jax.dm_environment import DmEnvironment
from agentkit.envs.jax.memory_chain import MemoryChain
from agentkit.envs.jax.multi_agent_host import HostMultiAgentEnvironment
from agentkit.envs.jax.point_mass import PointMass
from agentkit.envs.jax.pooled import Pooled
from agentkit.envs.jax.step_check import check_steps
from agentkit.envs.jax.time_steps import first_step
from agentkit.errors import ConfigError, NonFiniteError, SpecError
from agentkit.experiment import ResumeError, load
from agentkit.experiment.multi_agent import on_device
from agentkit.experiment.on_device.acting import fill_pool, no_episodes, start
from agentkit.experiment.on_device.checks import check_settings, find_environment
from agentkit.experiment.on_device.loop import MOST_ROUNDS, DeviceLoop, Report, make_rounds
from agentkit.experiment.on_device.replay.store import stores_of
from agentkit.experiment.on_device.segments import collect
from agentkit.experiment.on_device.several.acting import Party
from agentkit.experiment.on_device.several.rounds import SeveralRounds
from agentkit.experiment.on_device.work import ActAndLearnOnDevice
from agentkit.learning import Linear, Update, UpdateOutput
from agentkit.learning.compiled import initial_state
from agentkit.learning.finite import start_tally
from agentkit.replay import InProcessReplay
from agentkit.testing.learning import learns
from agentkit.types import FIRST, LAST, MID, Step, has_action
from agentkit.wrappers.reward_scale import RewardScale
from agentkit.wrappers.step_limit import StepLimit
from tests.experiment.on_device_runs import (
    Alone,
    Endless,
    Marked,
    assert_equal,
    begin,
    idle_loop,
    kill_after_170_steps,
    leaves_of,
    rows_of,
)

SMALL = {"hidden_sizes": (4,), "segment_length": 5}
ON_POLICY = ["a2c", "impala", "npg", "pqn", "ppo", "reinforce", "trpo"]
WITH_MEMORY = ["impala", "ppo"]  # Those with a `core_size`.


def make_loop(environment, num_envs=4, name="a2c", **settings):
    agent = registry.make(name, SMALL | settings).with_num_envs(num_envs)
    networks = agent.make_networks(specs.make_environment_spec(environment))
    update = agent.make_update(networks)
    rounds = make_rounds(environment, agent.make_policy(networks), update, agent.experience, num_envs)
    loop = DeviceLoop(rounds)
    return loop, jax.jit(update.init)


@pytest.mark.one_case
@pytest.mark.parametrize(
    ("environment", "settings"),
    [
        (CartPole(max_steps=4), {}),  # The first case alone is in the landing tier: memories take long to compile.
        (PointMass(max_steps=3), {"core_size": 4}),
        (MemoryChain(2), {"core_size": 4, "core": "gru"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_segments_are_those_of_the_adder_bit_for_bit(environment, settings):
    """Terminations and truncations, with a memory's state among the extras and without."""
    num_envs, length = 3, 7
    agent = registry.make("ppo", SMALL | settings | {"segment_length": length, "num_minibatches": 1})
    agent = agent.with_num_envs(num_envs)
    spec = specs.make_environment_spec(environment)
    networks = agent.make_networks(spec)
    params = agent.make_update(networks)
    params = params.variables(params.init(jax.random.PRNGKey(0)))["policy"]
    policy = agent.make_policy(networks)
    first = jax.jit(lambda key: start(environment, policy, num_envs, key))(jax.random.PRNGKey(1))
    reset = jax.vmap(environment.reset)
    one_step = jax.jit(lambda acting: collect(environment, policy, params, acting, 1, reset))
    whole = jax.jit(lambda acting: collect(environment, policy, params, acting, length, reset))

    replay = InProcessReplay(agent.make_tables(spec), seed=0, in_turns=True)
    adder = agent.make_adder(replay, spec, num_envs)
    host, device, acting = [], [], first
    adder.add_first(jax.tree.map(np.asarray, first.timestep))
    for _ in range(3):
        for _ in range(length):
            was_last = np.asarray(acting.timestep.step_type) == LAST
            acting, rows, _ = one_step(acting)
            action, extras = jax.tree.map(lambda x: np.array(x[:, 0]), (rows.action, rows.extras))
            for leaf in jax.tree.leaves((action, extras)):
                leaf[was_last] = 1  # Which the adder ignores.
            adder.add(action, jax.tree.map(np.asarray, acting.timestep), extras)
        host.append(next(replay.sampler("segments", num_envs)).sample.data)
    acting = first
    for _ in range(3):
        acting, segments, _ = whole(acting)
        device.append(segments)
    starts = sum(int(np.sum(segments.start_of_episode[:, 1:])) for segments in device)
    assert starts >= 4
    for ours, theirs in zip(device, host, strict=True):
        assert_equal(ours.observation, theirs.observation)
        assert_equal(ours.start_of_episode, theirs.start_of_episode)
        for name in ("action", "reward", "discount", "extras"):  # The row behind the last has an observation only.
            cut = [jax.tree.map(lambda x: np.asarray(x)[:, :-1], getattr(each, name)) for each in (ours, theirs)]
            assert_equal(*cut)


def test_values_at_truncation_do_not_look_at_the_reset():
    """Where the value of an observation is the observation: 1 + 0.9 * 10 = 10, the value of 1 a step for ever."""
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    targets = []
    for at_reset in (10.0, 1e6):
        environment = Endless(at_reset)
        segments: Step = jax.jit(
            lambda key, environment=environment: collect(
                environment, policy, (), start(environment, policy, 2, key), 8, jax.vmap(environment.reset)
            )[1]
        )(jax.random.PRNGKey(0))
        values, mask = segments.observation[..., 0], has_action(segments.start_of_episode)
        discount = 0.9 * segments.discount[:, :-1]
        for gae_lambda in (0.0, 0.95, 1.0):
            advantage = losses.generalized_advantages(segments.reward[:, :-1], discount, values, mask, gae_lambda)
            targets.append(np.asarray((advantage + values[:, :-1])[mask == 1]))
    np.testing.assert_array_equal(segments.start_of_episode[0], [1, 0, 0, 0, 1, 0, 0, 0, 1])
    np.testing.assert_array_equal(mask[0], [1, 1, 1, 0, 1, 1, 1, 0])
    np.testing.assert_allclose(np.stack(targets[:3]), 10.0, rtol=1e-6)
    # 1e6 in single precision, as a baseline that is added and taken away: 0.1 is the rounding.
    np.testing.assert_allclose(np.stack(targets[3:]), 10.0, atol=0.1)
    at_the_end = np.stack(targets).reshape(6, 2, -1)[:, :, [2, 5]]
    np.testing.assert_allclose(at_the_end, 10.0, rtol=1e-6)


def test_a_chunk_is_equal_to_two_of_half_its_length_and_memory_stays():
    loop, init = make_loop(MemoryChain(2))
    whole = loop.run(*begin(loop, init), target=10**9, num_rounds=10)
    first = loop.run(*begin(loop, init), target=10**9, num_rounds=5)
    halves = loop.run(first.training, first.state, first.tally, 10**9, 5)
    assert_equal(whole[:3], halves[:3])
    assert_equal(jax.tree.map(lambda x: x[5:10], whole.report), jax.tree.map(lambda x: x[:5], halves.report))
    assert int(whole.num_rounds) == 10 and whole.tally.tolist() == [10, -1, 0]
    shapes = [jax.tree.map(jnp.shape, chunk) for chunk in (whole, halves)]
    assert shapes[0] == shapes[1] and whole.report.num_steps.shape == (MOST_ROUNDS,)
    del first
    chunk, sizes = whole, []
    for _ in range(4):
        chunk = loop.run(chunk.training, chunk.state, chunk.tally, 10**9, 20)
        jax.block_until_ready(chunk)
        whole = halves = None
        sizes.append(sum(array.nbytes for array in jax.live_arrays()))
    assert len(set(sizes[1:])) == 1, sizes


def test_all_chunks_run_one_program_whatever_types_an_update_returns():
    """PPO's learning rate, a number of Python's in a metric, once had each run compiled twice."""

    traced = []

    def update(training, batch):
        traced.append(training)
        return training * 0.0 + 1, UpdateOutput({"rate": jnp.asarray(0.1), "mean": jnp.mean(batch.data.reward)})

    own = Update(lambda key: 0.5, update, lambda _: {"policy": ()})
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    loop = DeviceLoop(make_rounds(CartPole(), policy, own, Segments(SegmentsConfig(segment_length=4, batch_size=2)), 2))
    key = jax.random.PRNGKey(0)
    chunk = loop.run(initial_state(own, key), loop.start(key), start_tally(0), target=10**9, num_rounds=1)
    times = len(traced)
    for _ in range(2):
        chunk = loop.run(chunk.training, chunk.state, chunk.tally, target=10**9, num_rounds=2)
    assert len(traced) == times and float(chunk.training) == 1.0


def test_a_chunk_ends_with_the_round_that_reaches_its_target():
    loop, init = make_loop(MemoryChain(2))
    chunk = loop.run(*begin(loop, init), target=47, num_rounds=200)
    steps = np.asarray(chunk.report.num_steps)[: int(chunk.num_rounds)]
    # 5 rows of 4 environments a round; episodes end in rows 3, 7, 11 and 15, and a reset, each fourth row, is no step.
    assert steps.tolist() == [16, 32, 48] and chunk.state.acting.num_steps == 48
    assert np.asarray(chunk.report.num_episodes)[:4].tolist() == [4, 8, 16, 0]
    assert np.asarray(chunk.report.episodes.total_length)[:4].tolist() == [12, 12, 24, 0]


@pytest.mark.parametrize(("pool", "most"), [(3, 3), (None, 12)])
def test_resets_are_drawn_from_a_pool_that_each_round_makes_anew(pool, most):
    """And it does not show in which chunk a round is."""
    environment = Marked(reset_pool=pool)
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))
    seen = []

    def update(training, batch):
        return training, UpdateOutput({"marks": batch.data.observation[:, :, 0]})

    experience = Segments(SegmentsConfig(segment_length=8, batch_size=6), num_envs=6)
    loop = DeviceLoop(
        make_rounds(environment, policy, Update(lambda key: (), update, lambda _: {"policy": ()}), experience, 6)
    )
    first = loop.run((), loop.start(jax.random.PRNGKey(0)), start_tally(0), 10**6, 1)
    for _ in range(3):
        seen.append(np.unique(np.asarray(first.state.metrics["marks"])[:, 5:]))  # Episodes that began in this round.
        first = loop.run(first.training, first.state, first.tally, 10**6, 1)
    assert [len(marks) for marks in seen[1:]] == [most] * 2 if pool is None else max(map(len, seen)) <= most
    assert len(np.unique(np.concatenate(seen[1:]))) == sum(map(len, seen[1:]))
    whole = loop.run((), loop.start(jax.random.PRNGKey(0)), start_tally(0), 10**6, 4)
    assert_equal(whole.state, first.state)


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_targets_on_the_way_do_not_show_where_resets_are_drawn_from_a_pool(several):
    """In the landing tier, since it alone notices that a film or an evaluation changes the training."""
    loop = idle_loop(several)
    states = []
    for targets in ([200], [7, 40, 41, 96, 200]):
        training, tally = ({"only": each} for each in ((), start_tally(0))) if several else ((), start_tally(0))
        state = loop.start(jax.random.PRNGKey(0))
        for target in targets:
            training, state, tally, _, _ = loop.run(training, state, tally, target, 100)
        states.append(state)
    assert_equal(*states)
    (store,) = stores_of(states[0].store).values()
    seen = np.asarray(store.ring.items.observation)[: int(store.ring.size), 0]
    marks = [set(seen[i : i + 64].tolist()) for i in range(0, 192, 64)]  # Of a round each.
    assert all(len(each) <= 3 + 2 for each in marks) and len(set.union(*marks)) > 6


def plan(environment="jax:catch", name="a2c", num_steps=200, agent_settings=(), **settings):
    agent = registry.make(name, SMALL | dict(agent_settings))
    defaults = {"num_envs": 4, "evaluation_period": 0, "on_device": True, "log_seconds": 0.0}
    return ExperimentConfig(agent, environment, num_steps, **(defaults | settings))


@pytest.mark.full
@pytest.mark.parametrize("batch_size", [None, 2, 8])
def test_steps_updates_and_schedules_are_those_of_the_host(tmp_path, batch_size):
    """Catch, whose episodes are equally long: updates come at the same steps, with the same learning rate."""
    settings = {"learning_rate": Linear(1e-2, 1e-3, 1_000, by="steps"), "batch_size": batch_size}
    settings |= {"num_epochs": 1, "num_minibatches": 1, "segment_length": 4}
    # 12 segments of 4 rows, 4 of which reset: the host's last step is then the last of a round.
    shared = {"agent_settings": settings, "name": "ppo", "checkpoint_period": 0, "num_steps": 4 * (12 * 4 - 4)}
    results = {}
    for where, environment in (("host", "agentkit:catch"), ("device", "jax:catch")):
        experiment = plan(environment, run_directory=tmp_path / where, on_device=where == "device", **shared)
        result = run(experiment)
        row = checkpoint.read_latest(tmp_path / where / "checkpoints").state["learner"]
        newest = (tmp_path / where / "logs" / "learner.csv").read_text().splitlines()
        last = dict(zip(newest[0].split(","), newest[-1].split(","), strict=True))
        results[where] = result.updates, row["num_updates"], float(last["learning_rate"]), int(last["steps"])
    (updates, saved, rate, steps), device = results["host"], results["device"]
    assert updates == saved and device[:2] == (updates, updates) and device[2] == pytest.approx(rate, rel=1e-6)
    assert steps == device[3] == 176 and updates == 12 * 4 // (batch_size or 4)


@pytest.mark.full
def test_a_resumed_run_has_the_same_bits(tmp_path):
    shared = {"checkpoint_period": 90}
    run(plan(num_steps=300, run_directory=tmp_path / "whole", **shared))
    run(plan(num_steps=150, run_directory=tmp_path / "parts", **shared))
    run(plan(num_steps=300, run_directory=tmp_path / "parts", **shared), resume=True)
    whole, parts = (leaves_of(tmp_path / name) for name in ("whole", "parts"))
    assert whole == parts and 300 <= whole[0] < 320
    logs = [[line.rsplit(",", 1)[0] for line in (tmp_path / name / "logs" / "train.csv").read_text().splitlines()]
            for name in ("whole", "parts")]  # fmt: skip
    assert logs[0] == logs[1] and logs[0][0].startswith("steps,episodes,episode_return,episode_length")
    with pytest.raises(ResumeError, match="on_device=True"):
        run(plan(num_steps=400, run_directory=tmp_path / "whole", on_device=False), resume=True)


@pytest.mark.full
def test_a_run_that_is_killed_between_chunks_resumes_with_the_same_bits(tmp_path):
    kill_after_170_steps(Path(__file__).stem, tmp_path / "killed")
    for name in ("killed", "whole"):
        run(plan(num_steps=300, checkpoint_period=90, run_directory=tmp_path / name), resume=name == "killed")
    assert leaves_of(tmp_path / "killed") == leaves_of(tmp_path / "whole")


@pytest.mark.full
def test_a_run_on_the_device_is_evaluated_loaded_and_logged(tmp_path):
    class Watching(Callback):
        seen = ()

        def on_evaluation(self, run, record):
            self.seen = (*self.seen, record["steps"])

    callback = Watching()
    settings = {"evaluation_period": 100, "evaluation_episodes": 2, "checkpoint_period": 100}
    result = run(plan(run_directory=tmp_path / "run", **settings), callbacks=[callback])
    assert len(result.evaluations) == 2 and callback.seen == tuple(row["steps"] for row in result.evaluations)
    assert 100 <= callback.seen[0] < 120 and 200 <= callback.seen[1] < 220
    rows = rows_of(tmp_path / "run", "train")
    assert {row["episode_length"] for row in rows} == {9.0} and all(-1 <= row["episode_return"] <= 1 for row in rows)
    assert int(load(tmp_path / "run").select_action(np.zeros((10, 5), np.float32))) in range(3)


@pytest.mark.full
def test_a_reward_that_is_nan_ends_the_run():
    with pytest.raises(NonFiniteError, match="reward or an observation that is NaN"):
        run(plan(Endless(reward=float("nan")), name="reinforce", num_steps=20))


@pytest.mark.full
@pytest.mark.parametrize(
    ("name", "settings"),
    [pytest.param(name, {}, id=f"{name}-plain") for name in ON_POLICY]
    + [pytest.param(name, {"core_size": 4}, id=f"{name}-memory") for name in WITH_MEMORY],
)
def test_all_agents_that_learn_from_segments_run(name, settings):
    minibatches = {"num_minibatches": 1} if name in ("ppo", "pqn") else {}
    loop, init = make_loop(MemoryChain(2), name=name, **settings, **minibatches)
    before = jax.tree.map(np.asarray, init(jax.random.PRNGKey(0)))
    chunk = loop.run(*begin(loop, init), target=10**9, num_rounds=3)
    assert chunk.tally.tolist() == [3, -1, 0]
    one, other = (nests.flatten_to_paths(jax.tree.map(np.asarray, each)) for each in (before, chunk.training))
    assert any(not np.array_equal(one[path], other[path]) for path in one)


class _Wrapping(Callback):
    def wrap(self, environment):
        return environment


class _OfSteps(Callback):
    def on_step(self, run, step):
        pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 2}, "workers (--workers)"),
        ({"workers": 2, "num_envs": None}, "workers (--workers)"),
        ({"ready": 2}, "ready (--ready)"),
        ({"replay": "reverb"}, "replay (--replay)"),
        ({"data": "some.npz"}, "data (--data)"),
        ({"columns": ("t",)}, "columns (--column)"),
        ({"wrappers": (RewardScale,)}, "wrappers (--wrapper)"),
        ({"callbacks": [_Wrapping()]}, "the callback _Wrapping with wrap"),
        ({"callbacks": [_OfSteps()]}, "the callback _OfSteps with on_step"),
        ({"num_steps": 2**31}, "num_steps=2,147,483,648"),
        ({"num_steps": 2**31 - 19}, "num_steps=2,147,483,629 with rounds of 20"),
        ({"environment": "agentkit:catch"}, "the environment agentkit:catch"),
        ({"agent_settings": {"batch_size": 3}}, "num_envs=4 with batch_size=3"),
        ({"agent_settings": {"batch_mode": "complete_episodes"}}, "batch_mode='complete_episodes'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_cannot_run_there_is_refused_in_a_line(tmp_path, settings, message):
    with pytest.raises(ConfigError) as error:
        run(plan(**({"run_directory": tmp_path / "run"} | settings)))
    said = str(error.value)
    assert said.startswith("on_device (--on-device) does not go with " + message) and "\n" not in said
    assert not (tmp_path / "run" / "config.json").exists()


def _short(seed):
    return StepLimit(envs.make("jax:cartpole", seed, raw=True), 5)


def _ready(seed):
    return envs.make("jax:point_mass", seed)  # With the layers that make it ready for an agent.


def test_wrappers_inside_of_a_function_are_refused_and_layers_for_agents_are_not():
    """The loop steps what is inside: episodes of 5 steps went on to 40."""
    with pytest.raises(ConfigError, match=r"with wrappers \(StepLimit in the environment _short\): .* Leave it out"):
        find_environment(plan(_short))
    assert find_environment(plan(_ready)) == PointMass()


@dataclasses.dataclass(frozen=True)
class Odd(Endless):
    """Breaks its specs in one way or another: gives what it is told to, in the place of what `Endless` does."""

    at_step: tuple = ()
    state: float | None = None
    reset_pool: int | None = None

    def step(self, state, action, key):
        after, timestep = super().step(state, action, key)
        made = {name: make(getattr(timestep, name)) for name, make in self.at_step}
        return after if self.state is None else jnp.float32(self.state), timestep._replace(**made)


@dataclasses.dataclass(frozen=True)
class Keyed(Endless):
    """Keeps a key of JAX's newer kind."""

    def reset(self, key):
        return jax.random.wrap_key_data(key), super().reset(key)[1]


@dataclasses.dataclass(frozen=True)
class Listed(Endless):
    """Promises a tuple, and gives a list at each step."""

    def observation_spec(self):
        return (super().observation_spec(),)

    def reset(self, key):
        state, timestep = super().reset(key)
        return state, timestep._replace(observation=(timestep.observation,))

    def step(self, state, action, key):
        after, timestep = super().step(state, action, key)
        return after, timestep._replace(observation=[timestep.observation])


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Odd(), ""),
        (Odd(at_step=(("observation", jnp.int32),)), r"observation: expected float32\[1\], found int32\[1\]"),
        (Odd(at_step=(("observation", lambda x: jnp.repeat(x, 2)),)), r"expected float32\[1\], found float32\[2\]"),
        (Odd(at_step=(("reward", jnp.atleast_1d),)), r"reward: expected float32\[\], found float32\[1\]"),
        (Odd(at_step=(("discount", jnp.int32),)), r"discount: expected float32\[\], found int32\[\]"),
        (Odd(at_step=(("step_type", jnp.float32),)), r"step_type: expected int32\[\], found float32\[\]"),
        (Odd(state=0.0), r"state: expected int32\[\], found float32\[\]"),
        (Listed(), r"step: observation: expected the containers \(\(\*,\)\), found \(\[\*\]\)"),
        (Keyed(), r"reset: state: expected arrays of numbers, found a key of jax.random.key"),
        (Alone(Odd(at_step=(("reward", jnp.int32),))), r"reward\['only'\]: expected float32\[\], found int32\[\]"),
        (Odd(reset_pool=0), "reset_pool: expected a whole number of at least 1, or None, found 0"),
    ],
    ids=["good", "dtype", "shape", "reward", "discount", "step type", "state", "list", "key", "several", "pool"],
)
def test_an_environment_that_breaks_its_specs_is_refused_before_anything_is_compiled(environment, message):
    if not message:
        assert find_environment(plan(environment)) == environment
        return
    several = isinstance(environment, Alone)
    find = on_device.find_environment if several else find_environment
    config = MultiAgentConfig(plan().agent, environment, 100, policy_of="shared") if several else plan(environment)
    with pytest.raises((SpecError, ConfigError), match=message):
        find(config)


@jax.tree_util.register_pytree_node_class
class Noted:
    """A container with a note on it, which is equal to its like and is written as where it lies in memory."""

    class Note:
        def __eq__(self, other):
            return isinstance(other, Noted.Note)

        def __hash__(self):
            return 0

    def __init__(self, value):
        self.value = value

    def tree_flatten(self):
        return (self.value,), Noted.Note()

    @classmethod
    def tree_unflatten(cls, note, children):
        return cls(*children)


@dataclasses.dataclass(frozen=True)
class KeepingNotes(Endless):
    """Has a container of somebody's own in its state."""

    def reset(self, key):
        state, timestep = super().reset(key)
        return Noted(state), timestep

    def step(self, state, action, key):
        after, timestep = super().step(state.value, action, key)
        return Noted(after), timestep


BY_AGENT = ("reward", "discount", "observation")


@dataclasses.dataclass(frozen=True)
class Ordered(Alone):
    """Gives other mappings by agent id than its specs are."""

    at_reset: type = collections.OrderedDict

    def reset(self, key):
        state, timestep = super().reset(key)
        return state, timestep._replace(**{name: self.at_reset(getattr(timestep, name)) for name in BY_AGENT})

    def step(self, state, action, key):
        after, timestep = super().step(state, action, key)
        own = {name: collections.OrderedDict(getattr(timestep, name)) for name in BY_AGENT}
        return after, timestep._replace(**own)


def test_containers_are_compared_as_they_are_and_agents_by_their_ids():
    """Two equal notes are written differently, and were refused; so was any mapping but a dict."""
    check_steps(KeepingNotes(), "own")
    check_steps(Ordered(Endless()), "own")
    with pytest.raises(SpecError, match=r"observation\['only'\]: expected the containers .*, found \(\[\*\]\)"):
        check_steps(Ordered(Listed()), "own")
    with pytest.raises(SpecError, match="step, whose reward must be of reset's form: reward: expected the containers"):
        check_steps(Ordered(Endless(), at_reset=dict), "own")


@dataclasses.dataclass(frozen=True)
class Choosing(Endless):
    """Shows one of 4 choices, and gives a discount."""

    choice: int = 3
    discount: float = 1.0

    def observation_spec(self):
        return specs.DiscreteArray(4)

    def reset(self, key):
        return jnp.int32(0), first_step(jnp.int32(0))

    def step(self, state, action, key):
        after, timestep = super().step(state, action, key)
        return after, timestep._replace(observation=jnp.int32(self.choice), discount=jnp.float32(self.discount))


def test_choices_and_discounts_out_of_their_range_are_counted():
    """On the host the first one is an error; in the loop it is told at the end of a chunk."""
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))

    def count(environment):
        def play(key):
            acting = start(environment, policy, 2, key)
            return collect(environment, policy, (), acting, 3, jax.vmap(environment.reset))[2].num_out_of_range

        return int(jax.jit(play)(jax.random.PRNGKey(0)))

    assert count(Choosing()) == 0
    # 3 steps of 2 environments: the first observation is a reset's.
    assert count(Choosing(choice=4)) == count(Choosing(choice=-1)) == 4
    assert count(Choosing(discount=float("nan"))) == count(Choosing(discount=-0.5)) == 6
    begins_again = Odd(at_step=(("step_type", lambda x: jnp.where(x == LAST, FIRST, x)),))
    assert count(begins_again) == 2  # The third step of each environment.
    idle = Update(lambda key: (), lambda training, batch: (training, UpdateOutput({})), lambda _: {"policy": ()})
    experience = Transitions(ReplayConfig(n_step=1, replay_size=9, min_replay_size=9))
    party = Party("only", ("only",), policy, idle, experience)
    loop = DeviceLoop(SeveralRounds(Alone(Choosing(discount=2.0)), [party], 2))
    chunk = loop.run({"only": ()}, loop.start(jax.random.PRNGKey(0)), {"only": start_tally(0)}, 6, 1)
    assert int(chunk.report.episodes.num_out_of_range[0]) == 6
    loop = DeviceLoop(SeveralRounds(Alone(begins_again), [party], 2))
    chunk = loop.run({"only": ()}, loop.start(jax.random.PRNGKey(0)), {"only": start_tally(0)}, 6, 1)
    assert int(chunk.report.episodes.num_out_of_range[0]) == 2


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_on_the_host_a_step_that_begins_an_episode_is_refused_at_once(several):
    environment = Odd(at_step=(("step_type", lambda x: jnp.full_like(x, FIRST)),))
    host = HostMultiAgentEnvironment(Alone(environment)) if several else DmEnvironment(environment)
    host.reset()
    with pytest.raises(SpecError, match=r"'s step: step_type: expected MID \(1\) or LAST \(2\), found 0"):
        host.step({"only": 0} if several else 0)


@dataclasses.dataclass(frozen=True)
class BegunBy(Endless):
    """Gives a time step of any type at a reset."""

    kind: int = LAST

    def reset(self, key):
        state, timestep = super().reset(key)
        return state, timestep._replace(step_type=jnp.int32(self.kind))


@pytest.mark.parametrize("pool", [None, 2])
@pytest.mark.parametrize("kind", [MID, LAST])
def test_a_reset_begins_an_episode_whatever_type_it_gives_as_on_the_host(kind, pool):
    """`next_step` in the place of `first_step`: with LAST no step was ever taken, with MID no episode began."""
    environment = Pooled(BegunBy(kind=kind), pool)
    policy = stateless_policy(lambda params, key, observation: jnp.int32(0))

    def play(key):
        acting = start(environment, policy, 2, key)
        return collect(environment, policy, (), acting, 8, fill_pool(environment, acting, jnp.int32(0)))

    acting, segments, _ = jax.jit(play)(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(segments.start_of_episode, [[1, 0, 0, 0, 1, 0, 0, 0, 1]] * 2)
    assert int(acting.num_steps) == 12
    party = Party("only", ("only",), policy)
    together = SeveralRounds(Alone(BegunBy(kind=kind)), [party], 2).start(jax.random.PRNGKey(0))
    np.testing.assert_array_equal(together.timestep.step_type, [FIRST] * 2)


def test_what_is_out_of_its_range_ends_the_run():
    report = Report(*map(np.array, ([20, 40], [1, 2])), no_episodes()._replace(num_out_of_range=np.array([0, 3])), True)
    work = ActAndLearnOnDevice(plan(), None, None, None, {})
    with pytest.raises(SpecError, match="By step 40 the environment jax:catch gave a choice beyond"):
        work._look_at(report)


@pytest.mark.parametrize("check", [check_settings, on_device.check_settings], ids=["one", "several"])
def test_double_precision_is_refused(check):
    """SAC and R2D2 ended in JAX's own errors of types; on the host SAC is refused for its actions."""
    config = plan() if check is check_settings else MultiAgentConfig(plan().agent, "jax:two_step_game", 9, "shared")
    check(config)
    with jax.enable_x64(True), pytest.raises(ConfigError, match="JAX_ENABLE_X64: the loop is of single precision"):
        check(config)


def test_an_agents_own_actor_is_refused(tmp_path):
    stock = plan(run_directory=tmp_path / "run")
    own = dataclasses.replace(stock, agent=dataclasses.replace(stock.agent, make_actor=lambda parts: None))
    with pytest.raises(ConfigError, match=r"an agent's own make_actor: .* Give a policy and an update"):
        run(own)


@pytest.mark.full
def test_impala_learns_catch_on_the_device():
    """With the settings, steps and threshold of test_impala.py."""
    agent = registry.make("impala", {"segment_length": 10, "learning_rate": 3e-3, "discount": 0.95})
    learns(agent, "jax:catch", 30_000, 0.8, num_envs=8, on_device=True)


@pytest.mark.full
def test_ppo_learns_cartpole_on_the_device():
    """Three times what suffices. At a constant step size it may unlearn it once (seed 1 at 190,000 steps)."""
    learns(registry.make("ppo"), "jax:cartpole", 100_000, 400.0, num_envs=64, on_device=True, num_episodes=10)
