"""Normalisation: its statistics against numpy's, who sees them, that they are learned by, and what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from agentkit import envs, specs
from agentkit.actors import Policy, PolicyVariables
from agentkit.actors.policy import first_state
from agentkit.agents import dqn, ppo, r2d2, sac, td3
from agentkit.agents.addons import with_normalization, with_rnd
from agentkit.agents.addons.normalization import Config, MakePolicy, normalized_update
from agentkit.agents.addons.rewards import Networks
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig
from agentkit.experiment.checks.agent_fits import check_fit
from agentkit.learning import Update, UpdateOutput
from agentkit.specs import EnvironmentSpec
from agentkit.types import ReplaySample, SampleInfo, Step, Transition
from tests.agents.addons.scaled import SCALES

NUMBER = specs.Array((), np.float32)
VECTOR = EnvironmentSpec(specs.Array((3,), np.float32), specs.DiscreteArray(2), NUMBER, NUMBER)
MIXED = {
    "camera": specs.BoundedArray((8, 8, 3), np.uint8, 0, 255),
    "choice": specs.DiscreteArray(4),
    "depth": specs.BoundedArray((8, 8, 1), np.float32, 0.0, 1.0),
    "vector": specs.Array((3,), np.float32),
}


def quickly(function, *args):
    """Calls a function compiled in a third of the time, as the learner does what runs once."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    return jax.jit(function).lower(*args).compile(compiler_options=options)(*args)


def recording(spec=VECTOR, *, observations=True, rewards=True, **config):
    """The update of an agent that learns nothing, and says which batch it was given; and its first state."""

    def update(state, batch):
        return state + 1, UpdateOutput({"data": batch.data}, jnp.arange(2.0))

    own = Update(lambda key: jnp.zeros((), jnp.int32), update, lambda state: {"policy": state, "other": -state})
    made = normalized_update(own, spec, observations, rewards, Config(**config))
    return made, made.init(jax.random.PRNGKey(0))


def transitions(seed, size=50, observation=None):
    rng = np.random.default_rng(seed)
    first, last = np.float32(rng.normal([5.0, -2e3, 1e-4], [1.0, 3e2, 1e-3], (2, size, 3)))
    reward, ones = np.float32(rng.normal(3.0, 2.0, size)), np.ones(size, np.float32)
    if observation is not None:
        first, last = observation(first), observation(last)
    return Transition(first, np.zeros(size, np.int32), reward, ones, last)


def test_statistics_are_numpys_over_all_batches_and_scale_both_ends_of_each():
    update, state = recording(max_observation=2.0, max_reward=1.5)
    batches = [transitions(seed) for seed in range(3)]
    for batch in batches:
        state, output = quickly(update.update, state, ReplaySample((), batch))
    seen = np.concatenate([batch.observation for batch in batches]).astype(np.float64)
    size = np.sqrt(np.mean(np.square(np.concatenate([batch.reward for batch in batches]))))
    published = update.variables(state)
    (found,) = published["policy"].statistics
    np.testing.assert_allclose(found.mean, seen.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(found.squares / found.count), seen.std(axis=0), rtol=1e-4)
    assert (published["policy"].params, published["other"]) == (3, -3)
    data = output.metrics["data"]
    for name in ("observation", "next_observation"):
        expected = (getattr(batches[-1], name) - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8)
        assert np.abs(expected).max() > 2.0
        np.testing.assert_allclose(getattr(data, name), np.clip(expected, -2.0, 2.0), atol=1e-3)
    np.testing.assert_allclose(data.reward, np.minimum(batches[-1].reward / size, 1.5), rtol=1e-4)
    np.testing.assert_allclose(output.metrics["reward_scale"], size, rtol=1e-4)
    np.testing.assert_array_equal(output.priorities, [0.0, 1.0])


def test_rows_of_sequences_without_an_action_are_left_out():
    """Episodes' final rows and the row to bootstrap from are normalised, and no part of the statistics."""
    rng = np.random.default_rng(0)
    observation, reward = np.float32(rng.normal(7.0, 2.0, (2, 5, 3))), np.float32([[1, 2, 0, 3, 0]] * 2)
    start = np.array([[True, False, False, True, False], [False] * 5])
    zeros = np.zeros((2, 5), np.int32)
    update, state = recording()
    data = Step(observation, zeros, reward, zeros + 1.0, start)
    state, output = quickly(update.update, state, ReplaySample((), data))
    acted = np.concatenate([observation[0, [0, 1, 3]], observation[1, :4]])
    rewarded = np.concatenate([reward[0, [0, 1, 3]], reward[1, :4]])
    (found,), (size,) = state.observations, state.rewards
    assert (found.count, size.count) == (7, 7)
    np.testing.assert_allclose(found.mean, acted.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(
        output.metrics["data"].observation, (observation - acted.mean(axis=0)) / acted.std(axis=0), rtol=1e-3, atol=1e-4
    )
    np.testing.assert_allclose(
        output.metrics["data"].reward, reward / np.sqrt(np.mean(rewarded**2)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.full
def test_r2d2_learns_from_normalised_sequences():
    config = r2d2.Config(hidden_sizes=(4,), core_size=4, sequence_length=4, sequence_period=2, burn_in=1, n_step=1)
    agent = with_normalization(r2d2.make_agent(config), rewards=True)
    update = agent.make_update(agent.make_networks(VECTOR))
    rows = specs.zeros(agent.make_tables(VECTOR)[0].layout.signature)
    data = jax.tree.map(lambda x: np.stack([x] * 3), rows)
    rng = np.random.default_rng(0)
    observation = np.float32(rng.normal(1e3, 1.0, data.observation.shape))
    data = data._replace(
        observation=observation, reward=np.ones_like(data.reward), discount=np.ones_like(data.discount)
    )
    info = SampleInfo(*[np.ones(3)] * 4)
    state = quickly(update.init, jax.random.PRNGKey(0))
    later, output = quickly(update.update, state, ReplaySample(info, data))
    assert np.isfinite(output.metrics["loss"]) and output.priorities.shape == (3,)
    (found,), (size,) = later.observations, later.rewards
    np.testing.assert_allclose(found.mean, observation[:, :-1].mean(axis=(0, 1)), rtol=1e-6)
    assert (found.count, size.count) == (12, 12)


def test_images_and_choices_pass():
    update, state = recording(VECTOR._replace(observations=MIXED), rewards=False)
    rng = np.random.default_rng(0)

    def mixed(vector):
        images = rng.integers(0, 256, (len(vector), 8, 8, 3)).astype(np.uint8)
        depth = rng.random((len(vector), 8, 8, 1)).astype(np.float32)
        return {"camera": images, "choice": np.arange(len(vector)) % 4, "depth": depth, "vector": vector}

    batch = transitions(0, observation=mixed)
    state, output = quickly(update.update, state, ReplaySample((), batch))
    seen = output.metrics["data"]
    for end, given in ((seen.observation, batch.observation), (seen.next_observation, batch.next_observation)):
        for name in ("camera", "choice", "depth"):
            np.testing.assert_array_equal(end[name], given[name])
        assert np.abs(end["vector"]).max() <= 10.0 < np.abs(given["vector"]).max()
    np.testing.assert_array_equal(seen.reward, batch.reward)
    assert state.rewards == () and [bool(each) for each in state.observations] == [False, False, False, True]


def test_agents_of_a_team_that_have_ended_count_for_nothing_and_are_seen_as_zeros():
    """In both ends of transitions, in sequences, and in acting."""
    choice, vector = specs.DiscreteArray(2), specs.Array((3,), np.float32)
    observations = {"agents": {"a": vector, "b": vector}, "active": specs.Array((2,), bool)}
    spec = EnvironmentSpec(observations, {"a": choice, "b": choice}, NUMBER, NUMBER)
    update, state = recording(spec, rewards=False)
    active = np.array([[True, i < 20] for i in range(50)])

    def team(seen):
        return {"agents": {"a": seen, "b": np.where(active[:, 1:], seen, 0.0).astype(np.float32)}, "active": active}

    batch = transitions(0, observation=team)
    state, output = quickly(update.update, state, ReplaySample((), batch))
    data, (_, *found) = output.metrics["data"], state.observations
    for name, statistics, count in zip("ab", found, (50, 20), strict=True):
        assert statistics.count == count
        own = batch.observation["agents"][name][:count]
        np.testing.assert_allclose(statistics.mean, own.mean(axis=0), rtol=1e-4)
        for end in (data.observation, data.next_observation):
            assert np.all(end["agents"][name][:count] != 0.0) and np.all(end["agents"][name][count:] == 0.0)

    def rows(part):
        return jax.tree.map(lambda leaf: leaf.reshape(10, 5, *leaf.shape[1:]), part)

    start = np.zeros((10, 5), bool)
    steps = Step(rows(batch.observation), {}, rows(batch.reward), rows(batch.discount), start)
    _, output = quickly(update.update, update.init(jax.random.PRNGKey(0)), ReplaySample((), steps))
    ended = output.metrics["data"].observation["agents"]["b"].reshape(50, 3)
    assert np.all(ended[:20] != 0.0) and np.all(ended[20:] == 0.0)
    policy = Policy(lambda params, key, seen, core: (seen, core, ()))
    acting = MakePolicy(lambda networks, evaluation: policy, True, Config())(Networks((), spec))
    for i in (0, 20):
        seen = jax.tree.map(lambda leaf, i=i: leaf[i], batch.observation)
        shown, *_ = acting.act(PolicyVariables((), state.observations), None, seen, ())
        np.testing.assert_allclose(shown["agents"]["b"], data.observation["agents"]["b"][i], rtol=1e-4)


def test_constants_are_no_division_by_zero():
    update, state = recording()
    batch = transitions(0)._replace(
        observation=np.full((50, 3), 0.1, np.float32),
        reward=np.zeros(50, np.float32),
        next_observation=np.ones((50, 3)),
    )
    _, output = quickly(update.update, state, ReplaySample((), batch))
    np.testing.assert_allclose(output.metrics["data"].observation, 0.0, atol=1e-2)
    np.testing.assert_array_equal(output.metrics["data"].reward, 0.0)


@pytest.mark.one_case
@pytest.mark.parametrize("module", [td3, r2d2])
def test_before_anything_was_learned_it_acts_as_the_agent_and_then_by_the_statistics(module):
    """A policy with a memory, and one without; after an update a batch of both kinds is acted on by hand."""
    name = "agentkit:point_mass" if module is td3 else "agentkit:catch"
    spec = specs.make_environment_spec(envs.make(name))
    plain = module.make_agent(module.Config(hidden_sizes=(8,), **({} if module is td3 else {"core_size": 8})))
    agent = with_normalization(plain)
    networks, key = agent.make_networks(spec), jax.random.PRNGKey(0)
    update = agent.make_update(networks)
    first = quickly(lambda key: update.variables(update.init(key))["policy"], key)
    policies = [agent.make_policy(networks, evaluation=True), plain.make_policy(networks.agent, evaluation=True)]
    observation = np.asarray(envs.make(name, seed=3).reset().observation)

    def both(variables, inner):
        memories = [policy.reset(first_state(policy, key)) for policy in policies]
        found = [policies[0].act(variables, key, observation, memories[0])[0]]
        return [*found, policies[1].act(variables.params, key, inner, memories[1])[0]]

    np.testing.assert_array_equal(*quickly(both, first, observation))
    statistics = first.statistics[0]._replace(
        count=np.float32(4), mean=np.full_like(observation, 0.5), squares=np.full_like(observation, 36.0)
    )
    later = first._replace(statistics=(statistics,))
    by_hand = np.clip((observation - np.float32(0.5)) / np.float32(3.0), -10.0, 10.0)
    np.testing.assert_allclose(*quickly(both, later, by_hand), rtol=1e-5)


# --- what it is for -----------------------------------------------------------------------------------

LEARNER = {"hidden_sizes": (64,), "batch_size": 64, "learning_rate": 3e-3, "discount": 0.9}
LEARNERS = {
    "dqn": lambda: dqn.make_agent(dqn.Config(**LEARNER, target_update_period=50)),
    "sac": lambda: sac.make_agent(sac.Config(**LEARNER, tau=0.02)),
    "td3": lambda: td3.make_agent(td3.Config(**LEARNER, tau=0.02)),
}
_SPEED = 0.25


def _random_steps(is_discrete, size=4_000):
    """Transitions of `scaled.make_scaled` from all over the square, by uniform actions."""
    rng = np.random.default_rng(0)
    action = rng.integers(0, 9, size).astype(np.int32) if is_discrete else rng.uniform(-1, 1, (size, 2))
    position = rng.uniform(-1.0, 1.0, (size, 2))
    following = np.clip(position + _SPEED * _moved(action, is_discrete), -1.0, 1.0)
    reward, discount = -np.sqrt(np.mean(following**2, axis=-1)), np.full(size, 0.9)
    steps = Transition(position * SCALES, action, reward, discount, following * SCALES)
    return jax.tree.map(lambda x: jnp.asarray(x if x.dtype == np.int32 else np.float32(x)), steps)


def _moved(action, is_discrete):
    return jnp.stack([action // 3 - 1, action % 3 - 1], axis=-1) * 1.0 if is_discrete else action


def _mean_returns(agent, is_discrete, num_updates=800):
    """The mean return of 20 episodes for each of three seeds, after learning from random steps; compiled as one."""
    actions = specs.DiscreteArray(9) if is_discrete else specs.BoundedArray((2,), np.float32, -1.0, 1.0)
    networks = agent.make_networks(VECTOR._replace(observations=specs.Array((2,), np.float32), actions=actions))
    update, policy = agent.make_update(networks), agent.make_policy(networks, evaluation=True)
    steps = _random_steps(is_discrete)

    def learn(state, key):
        rows = jax.random.randint(key, (64,), 0, len(steps.reward))
        return update.update(state, ReplaySample((), jax.tree.map(lambda x: x[rows], steps)))[0], ()

    def play(variables, key):
        def step(position, _):
            action, _, _ = policy.act(variables, key, position * SCALES, first_state(policy, key))
            position = jnp.clip(position + _SPEED * _moved(action, is_discrete), -1.0, 1.0)
            return position, -jnp.sqrt(jnp.mean(position**2))

        start = jax.random.uniform(key, (2,), minval=-1.0, maxval=1.0)
        return jnp.sum(jax.lax.scan(step, start, None, 20)[1])

    def mean_return(key):
        state, _ = jax.lax.scan(learn, update.init(key), jax.random.split(key, num_updates))
        plays = functools.partial(play, update.variables(state)["policy"])
        return jnp.mean(jax.vmap(plays)(jax.random.split(jax.random.PRNGKey(1), 20)))

    return quickly(jax.vmap(mean_return), jax.random.split(jax.random.PRNGKey(0), 3))


@pytest.mark.full
@pytest.mark.parametrize("name", LEARNERS)
def test_scales_a_million_apart_are_learned_with_it_and_not_without(name):
    """A random policy's return is -11, the best one's -0.5."""
    agent, is_discrete = LEARNERS[name](), name == "dqn"
    assert np.min(_mean_returns(with_normalization(agent), is_discrete)) > -2.5
    assert np.max(_mean_returns(agent, is_discrete)) < -6.0


# --- refusals -----------------------------------------------------------------------------------------


def test_what_cannot_be_normalised_is_refused():
    agent = dqn.make_agent()
    with pytest.raises(ConfigError, match="found neither"):
        with_normalization(agent, observations=False)
    for other in (with_normalization(agent), with_rnd(with_normalization(agent))):
        with pytest.raises(ConfigError, match="has a normalisation already"):
            with_normalization(other, observations=False, rewards=True)
    with pytest.raises(ConfigError, match=r"ppo normalises .* found True. Do not ask"):
        with_normalization(ppo.make_agent())
    with pytest.raises(ConfigError, match=r"ppo normalises .* found False. Set that to True"):
        with_normalization(ppo.make_agent(ppo.Config(normalize_observations=False)))
    assert with_normalization(ppo.make_agent(), observations=False, rewards=True) != ppo.make_agent()
    with pytest.raises(ConfigError, match="max_reward must be > 0"):
        Config(max_reward=0.0)
    with pytest.raises(SpecError, match="dqn needs one reward"):
        check_fit(
            ExperimentConfig(with_normalization(agent), "agentkit:catch", 10), VECTOR._replace(rewards=[NUMBER] * 2)
        )
    images = VECTOR._replace(observations=(MIXED["camera"], MIXED["choice"]))
    blind = with_normalization(agent)
    with pytest.raises(ConfigError, match=r"vector of floats .*, found uint8\[8, 8, 3\], int32\[\]"):
        blind.make_update(blind.make_networks(images))
