"""GAIL: the discriminator against numpy, its rewards in the place of the environment's, and what is refused."""

import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.agents import dqn, ppo, sac
from agentkit.agents.addons import View, with_normalization, with_rnd, with_views
from agentkit.agents.addons.gail import (
    Config,
    Pairs,
    discriminator_loss,
    generative_adversarial_imitation,
    make_discriminator,
    with_gail,
)
from agentkit.agents.common.agent import Agent
from agentkit.datasets import Episode, EpisodeRecorder
from agentkit.errors import ConfigError, SpecError
from agentkit.experiment import ExperimentConfig, OfflineConfig, ResumeError, run, run_offline
from agentkit.experiment.train_by_name import with_addons
from agentkit.learning import Update, UpdateOutput
from agentkit.testing.learning import learns
from agentkit.types import ReplaySample, Step, Transition
from tests.agents.offline_data import CATCH, POINT_MASS, make_episodes
from tests.experiment.resumed import check_resumes

KEY = jax.random.PRNGKey(0)
CONTINUOUS = specs.BoundedArray((2,), np.float32, -1.0, 1.0, "action")
DISCRETE = specs.DiscreteArray(3, dtype=np.int32, name="action")
OBSERVATION = {"place": specs.Array((3,), np.float32), "speed": specs.Array((), np.float32)}


def spec_of(actions: Any, observations: Any = OBSERVATION) -> specs.EnvironmentSpec:
    scalar = specs.Array((), np.float32)
    return specs.EnvironmentSpec(observations, actions, scalar, scalar)


def some_pairs(actions: Any, size: int, seed: int) -> Pairs:
    rng = np.random.default_rng(seed)
    observation = {"place": np.float32(rng.normal(size=(size, 3))), "speed": np.float32(rng.normal(size=size))}
    if actions is DISCRETE:
        return Pairs(observation, rng.integers(3, size=size).astype(np.int32))
    return Pairs(observation, rng.uniform(-1.0, 1.0, (size, 2)).astype(np.float32))


# The discriminator's loss ---------------------------------------------------------------------------


def joined(pairs: Pairs, actions: Any) -> np.ndarray:
    """``[B, D]`` in double precision."""
    action = np.eye(3)[pairs.action] if actions is DISCRETE else pairs.action
    return np.float64(np.column_stack([pairs.observation["place"], pairs.observation["speed"], action]))


def logits_and_slopes(params: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of two tanh layers and a linear one, ``[B]``, and their derivatives by x ``[B, D]``, by the chain rule."""
    (w_1, b_1), (w_2, b_2), (w_3, b_3) = params
    h_1 = np.tanh(x @ w_1 + b_1)
    h_2 = np.tanh(h_1 @ w_2 + b_2)
    back = (1.0 - h_2**2) * w_3[:, 0]
    return (h_2 @ w_3 + b_3)[:, 0], ((back @ w_2.T) * (1.0 - h_1**2)) @ w_1.T


def loss_by_hand(params: Any, shown: np.ndarray, taken: np.ndarray, mix: np.ndarray, weight: float) -> Any:
    """(loss, cross-entropy, penalty, accuracy)."""
    logit_shown, logit_taken = logits_and_slopes(params, shown)[0], logits_and_slopes(params, taken)[0]
    likely_shown, likely_taken = (1.0 / (1.0 + np.exp(-logit)) for logit in (logit_shown, logit_taken))
    entropy = np.mean(-np.log(likely_shown)) + np.mean(-np.log(1.0 - likely_taken))
    _, slopes = logits_and_slopes(params, (1.0 - mix[:, None]) * shown + mix[:, None] * taken)
    penalty = np.mean(np.maximum(np.linalg.norm(slopes, axis=1) - 1.0, 0.0) ** 2)
    accuracy = np.mean(np.concatenate([likely_shown > 0.5, likely_taken < 0.5]))
    return entropy + weight * penalty, entropy, penalty, accuracy


def layers_of(params: Any) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.float64(params[f"linear{i}"]["w"]), np.float64(params[f"linear{i}"]["b"])) for i in ("", "_1", "_2")]


def case_of(actions: Any) -> Any:
    """A discriminator whose biases are not 0, demonstrations, what was done, and where to look between them."""
    discriminator = make_discriminator(spec_of(actions), Config(hidden_sizes=(6, 5)))
    rng = np.random.default_rng(1)
    params = jax.tree.map(
        lambda leaf: leaf + 0.6 * rng.normal(size=leaf.shape).astype(np.float32), discriminator.init(KEY)
    )
    mix = rng.uniform(size=16).astype(np.float32)
    return discriminator, params, some_pairs(actions, 16, 2), some_pairs(actions, 16, 3), mix


def loss_of(discriminator: Any, params: Any, shown: Pairs, taken: Pairs, mix: Any, weight: float) -> Any:
    def logits(pairs: Pairs) -> Any:
        return discriminator.logits(params, pairs)

    return discriminator_loss(logits, discriminator.encode(shown), discriminator.encode(taken), mix, weight)


@pytest.mark.one_case
@pytest.mark.parametrize("weight", [0.0, 10.0])
@pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
def test_the_loss_is_cross_entropy_and_a_gradient_penalty(actions: Any, weight: float) -> None:
    discriminator, params, shown, taken, mix = case_of(actions)
    loss, metrics = loss_of(discriminator, params, shown, taken, mix, weight)
    expected, *parts = loss_by_hand(layers_of(params), joined(shown, actions), joined(taken, actions), mix, weight)
    np.testing.assert_allclose(loss, expected, rtol=1e-4)
    names = ("discriminator_loss", "gradient_penalty", "discriminator_accuracy")
    np.testing.assert_allclose([metrics[name] for name in names], parts, rtol=1e-4)
    assert parts[1] > 0.01 and 0 < parts[2] < 1


@pytest.mark.one_case
@pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
def test_the_losss_gradient_is_that_of_finite_differences(actions: Any) -> None:
    """In each parameter array, along a random direction, of numpy's loss in double precision."""
    discriminator, params, shown, taken, mix = case_of(actions)
    grads = jax.grad(lambda params: loss_of(discriminator, params, shown, taken, mix, 10.0)[0])(params)
    rng = np.random.default_rng(4)
    for layer in range(3):
        for part in range(2):
            direction = rng.normal(size=layers_of(params)[layer][part].shape)

            def loss_at(shift: float, i: int = layer, j: int = part, along: np.ndarray = direction) -> float:
                layers = [list(parts) for parts in layers_of(params)]
                layers[i][j] = layers[i][j] + shift * along
                return loss_by_hand(layers, joined(shown, actions), joined(taken, actions), mix, 10.0)[0]

            expected = (loss_at(1e-5) - loss_at(-1e-5)) / 2e-5
            np.testing.assert_allclose(np.sum(layers_of(grads)[layer][part] * direction), expected, rtol=1e-3)


def test_without_any_slope_the_penalty_has_a_gradient_that_is_finite() -> None:
    discriminator, params, shown, taken, mix = case_of(CONTINUOUS)
    flat = jax.tree.map(jnp.zeros_like, params)
    grads = jax.grad(lambda params: loss_of(discriminator, params, shown, taken, mix, 10.0)[0])(flat)
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(grads))


@pytest.mark.full
def test_pixels_are_told_apart_in_units_of_their_range() -> None:
    """Slopes, and so the penalty, are per full range; the convolutions get what an agent's get."""
    spec = spec_of(DISCRETE, specs.Array((36, 36, 1), np.uint8))
    discriminator = make_discriminator(spec, Config(hidden_sizes=(8,)))
    images = np.random.default_rng(0).integers(0, 256, (4, 36, 36, 1), np.uint8)
    encoded = discriminator.encode(Pairs(images, np.arange(4, dtype=np.int32) % 3))
    np.testing.assert_allclose(encoded.observation, images / 255.0, rtol=1e-6)
    params = jax.tree.map(lambda leaf: 2.0 * leaf, discriminator.init(KEY))
    assert "atari_torso/conv2_d" in params
    loss, metrics = discriminator_loss(
        lambda pairs: discriminator.logits(params, pairs), encoded, encoded, np.ones(4, np.float32), 10.0
    )
    assert np.isfinite(loss) and metrics["gradient_penalty"] > 1.0  # 2e-4, were slopes those per level.
    shifted = encoded._replace(observation=encoded.observation[::-1])
    assert np.all(np.asarray(discriminator.logits(params, shifted) != discriminator.logits(params, encoded)))


# The update -----------------------------------------------------------------------------------------


def recording_update() -> Update:
    """An update that learns nothing, and says which rewards it was given."""

    def update(state: Any, batch: ReplaySample) -> Any:
        output = UpdateOutput({"loss": jnp.sum(batch.data.reward), "rewards": batch.data.reward}, batch.data.reward * 2)
        return state + 1, output

    return Update(lambda key: jnp.zeros((), jnp.int32), update, lambda state: {"policy": state})


def imitating(demonstrations: Pairs, actions: Any = CONTINUOUS, **settings: Any) -> Any:
    config = Config(**{"hidden_sizes": (32, 32), **settings})
    spec = spec_of(actions)
    arguments = (make_discriminator(spec, config), demonstrations, spec, config)
    update = generative_adversarial_imitation(recording_update(), *arguments)
    return update.init(KEY), jax.jit(update.update), update


def batch_of(pairs: Pairs, reward: float = 0.0) -> ReplaySample:
    ones = np.ones(len(pairs.action), np.float32)
    return ReplaySample((), Transition(pairs.observation, pairs.action, reward * ones, ones, pairs.observation))


def skilled(actions: Any, size: int, seed: int) -> Pairs:
    """What the demonstrator does: the action follows the place."""
    pairs = some_pairs(actions, size, seed)
    place = pairs.observation["place"]
    if actions is DISCRETE:
        return pairs._replace(action=np.argmax(place, axis=1).astype(np.int32))
    return pairs._replace(action=np.tanh(place[:, :2]))


def test_agents_of_a_team_that_have_ended_count_for_nothing_and_are_seen_as_zeros() -> None:
    vector, scalar = specs.Array((3,), np.float32), specs.Array((), np.float32)
    observations = {"agents": {"a": vector}, "active": specs.Array((1,), bool)}
    spec = specs.EnvironmentSpec(observations, {"a": specs.DiscreteArray(3)}, scalar, scalar)

    def team(active: bool, size: int, seed: int) -> Pairs:
        seen = np.float32(active * np.random.default_rng(seed).normal(3.0, 1.0, (size, 3)))
        nest = {"agents": {"a": seen}, "active": np.full((size, 1), active)}
        return Pairs(nest, {"a": np.int32(np.zeros(size) if active else np.arange(size) % 3)})

    discriminator, config = make_discriminator(spec, Config(hidden_sizes=(4,))), Config()
    shown = team(True, 16, 0)
    update = generative_adversarial_imitation(recording_update(), discriminator, shown, spec, config)
    taken, ones = team(False, 16, 1), np.ones(16, np.float32)
    batch = ReplaySample((), Transition(taken.observation, taken.action, ones, ones, taken.observation))
    state, output = jax.jit(update.update)(update.init(KEY), batch)
    (statistics,) = filter(None, state.observations)
    assert statistics.count == 16 and np.all(statistics.mean > 1.5)
    as_they_are = discriminator.logits(state.discriminator, discriminator.encode(taken))
    np.testing.assert_allclose(output.metrics["rewards"], as_they_are, rtol=1e-4, atol=1e-6)
    assert np.ptp(output.metrics["rewards"]) < 1e-6, "what an ended agent does means nothing"


@pytest.mark.full
@pytest.mark.parametrize("actions", [CONTINUOUS, DISCRETE], ids=["continuous", "discrete"])
def test_what_looks_demonstrated_is_rewarded_more_and_more(actions: Any) -> None:
    """Of pairs that were not among the demonstrations."""
    state, step, _ = imitating(skilled(actions, 1_000, 0), actions)

    def gap(state: Any) -> float:
        both = [skilled(actions, 64, 998), some_pairs(actions, 64, 999)]
        batch = batch_of(tree.map_structure(lambda *leaves: np.concatenate(leaves), *both))
        alike, other = np.split(np.asarray(step(state, batch)[1].metrics["rewards"]), 2)
        return float(alike.mean() - other.mean())

    gaps = [gap(state)]
    for number in range(600):
        state, output = step(state, batch_of(some_pairs(actions, 64, 1_000 + number)))
        if number in (300, 599):
            gaps.append(gap(state))
    assert gaps[0] + 0.2 < gaps[1] < gaps[2] and gaps[2] > 0.5
    assert output.metrics["discriminator_accuracy"] > 0.7


@pytest.mark.full
def test_rewards_are_logits_of_d_after_the_discriminators_step() -> None:
    state, step, update = imitating(skilled(CONTINUOUS, 100, 0), hidden_sizes=(6, 5), max_normalized=1.5)
    pairs = some_pairs(CONTINUOUS, 64, 1)
    after, output = step(state, batch_of(pairs))
    everything = []
    for name in ("place", "speed"):
        statistics = after.observations[("place", "speed").index(name)]
        assert statistics.count == 128  # As many demonstrations as steps.
        deviation = np.sqrt(np.float64(statistics.squares) / 128 + 1e-6)
        everything.append(np.clip((pairs.observation[name] - np.asarray(statistics.mean)) / deviation, -1.5, 1.5))
    rewards, _ = logits_and_slopes(layers_of(after.discriminator), np.column_stack([*everything, pairs.action]))
    np.testing.assert_allclose(output.metrics["rewards"], rewards, rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(output.metrics["imitation_reward"], rewards.mean(), rtol=1e-3)
    for old, new in ((state.discriminator, after.discriminator), (state.opt_state, after.opt_state)):
        assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (old, new)), strict=True))
    jax.tree.map(np.testing.assert_array_equal, after.demonstrations, state.demonstrations)
    np.testing.assert_array_equal(output.priorities, 2.0 * output.metrics["rewards"])
    assert int(after.agent) == 1 and update.variables(after) == {"policy": after.agent}
    assert update.gradient is None and update.apply is None


@pytest.mark.full
def test_the_environments_rewards_change_nothing() -> None:
    state, step, _ = imitating(skilled(CONTINUOUS, 100, 0))
    learned = [step(state, batch_of(some_pairs(CONTINUOUS, 8, 1), reward)) for reward in (0.0, 7.0)]
    for a, b in zip(*map(jax.tree.leaves, learned), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.full
def test_other_demonstrations_are_drawn_at_each_update() -> None:
    """From equal states but for the key, the discriminator learns something else; from equal keys, the same."""
    state, step, _ = imitating(skilled(CONTINUOUS, 100, 0))
    batch = batch_of(some_pairs(CONTINUOUS, 8, 1))
    after, again = step(state, batch)[0], step(state, batch)[0]
    other = step(state._replace(key=after.key), batch)[0]
    assert np.any(np.asarray(after.key) != np.asarray(state.key))
    jax.tree.map(np.testing.assert_array_equal, after, again)
    pairs = list(zip(*map(jax.tree.leaves, (after.discriminator, other.discriminator)), strict=True))
    assert all(np.any(a != b) for a, b in pairs if a.ndim == 2)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [("learning_rate", 0, "> 0"), ("max_normalized", 0, "> 0"), ("gradient_penalty", -1, "at least 0")],
)
def test_impossible_settings_are_refused(name: str, value: float, expected: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be {expected} and finite, found {value}"):
        Config(**{name: value})


def test_a_batch_of_other_data_is_refused() -> None:
    state, _, update = imitating(skilled(CONTINUOUS, 10, 0))
    with pytest.raises(ConfigError, match="found batches of `tuple`s"):
        update.update(state, ReplaySample((), (np.zeros((4, 2)),)))


@pytest.mark.full
def test_in_segments_rows_without_an_action_count_for_nothing() -> None:
    """Neither for the discriminator, nor for its statistics; their rewards are 0."""
    pairs = some_pairs(CONTINUOUS, 12, 5)
    start = np.zeros((2, 6), bool)
    start[0, 0] = start[1, 3] = True  # Row 2 of the second is the final observation of an episode.

    def segments(pairs: Pairs, reward: float) -> ReplaySample:
        observation, action = jax.tree.map(lambda x: x.reshape(2, 6, *x.shape[1:]), pairs)
        rewards = np.full((2, 6), reward, np.float32)
        return ReplaySample((), Step(observation, action, rewards, np.ones((2, 6), np.float32), start))

    def changed(row: int) -> Pairs:
        return jax.tree.map(lambda x: np.where(np.arange(12).reshape(-1, *[1] * (x.ndim - 1)) == row, x + 1, x), pairs)

    state, step, _ = imitating(skilled(CONTINUOUS, 100, 0))
    after, output = step(state, segments(pairs, 0.0))
    rewards = np.asarray(output.metrics["rewards"])
    assert rewards[1, 2] == 0.0 and np.all(rewards[:, 5] == 0.0) and np.count_nonzero(rewards) == 9
    np.testing.assert_allclose(output.metrics["imitation_reward"], rewards.sum() / 9, rtol=1e-4)
    for row, matters in [(8, False), (5, False), (11, False), (7, True)]:
        other = step(state, segments(changed(row), 5.0))[0]
        leaves = zip(*(jax.tree.leaves((x.discriminator, x.observations)) for x in (after, other)), strict=True)
        assert any(np.any(a != b) for a, b in leaves) == matters


# Agents ---------------------------------------------------------------------------------------------

SMALL: dict[str, Any] = {"min_replay_size": 20, "batch_size": 8}


def played(environment: str, num_episodes: int = 2) -> list[Episode]:
    """Episodes of uniform actions."""
    rng, recorder = np.random.default_rng(0), EpisodeRecorder()
    made = envs.make(environment, seed=1)
    action = made.action_spec()
    for _ in range(num_episodes):
        timestep = made.reset()
        recorder.add_first(timestep)
        while not timestep.last():
            if isinstance(action, specs.DiscreteArray):
                choice = np.int32(rng.integers(action.num_values))
            else:
                choice = rng.uniform(-1.0, 1.0, action.shape).astype(np.float32)
            timestep = made.step(choice)
            recorder.add(choice, timestep)
    return recorder.episodes


class TestAnyAgent:
    """A training of each family goes as the agent's own does."""

    cases: ClassVar[dict[str, Any]] = {
        "prioritized": (dqn.make_agent(dqn.Config(n_step=1, prioritized=True, **SMALL)), CATCH),
        "actor_critic": (sac.make_agent(sac.Config(hidden_sizes=(8,), updates_per_call=2, **SMALL)), POINT_MASS),
        "on_policy": (ppo.make_agent(ppo.Config(hidden_sizes=(8,), segment_length=8)), POINT_MASS),
        "dictionary": (dqn.make_agent(dqn.Config(n_step=1, **SMALL)), "agentkit:bit_flip"),
    }

    @pytest.mark.full
    @pytest.mark.parametrize("case", cases)
    def test_it_trains_and_resumes(self, case: str, tmp_path: Any) -> None:
        agent, environment = self.cases[case]
        config = Config(hidden_sizes=(8,))

        def trained(directory: str, num_steps: int, num_episodes: int = 2, **resume: Any) -> Any:
            experiment = ExperimentConfig(
                with_gail(agent, played(environment, num_episodes), config),
                environment,
                num_steps,
                run_directory=tmp_path / directory,
                evaluation_period=0,
                checkpoint_period=40,
            )
            return run(experiment, **resume)

        check_resumes(trained, tmp_path, 80)
        if case == "dictionary":
            with pytest.raises(ResumeError, match=r"was made with agent_parts"):
                trained("parts", 120, num_episodes=3, resume=True)


def catch_agent(**settings: Any) -> Agent:
    return dqn.make_agent(dqn.Config(**{"n_step": 1, **SMALL, **settings}))


CATCH_SPEC = specs.make_environment_spec(envs.make(CATCH))


def make_update(agent: Agent) -> Update:
    return agent.make_update(agent.make_networks(CATCH_SPEC))


@pytest.mark.full
def test_it_learns_from_data_alone() -> None:
    """Steps of anybody, without their rewards, beside the demonstrations."""
    agent = with_gail(catch_agent(), make_episodes(CATCH, 2, (1.0,)), Config(hidden_sizes=(8,)))
    assert run_offline(OfflineConfig(agent, played(CATCH), 20)).updates == 20


@pytest.mark.full
def test_demonstrations_of_a_file_are_those_of_its_episodes(tmp_path: Any) -> None:
    episodes = played(CATCH, 3)
    rows: dict[str, list[Any]] = {name: [] for name in ("observation", "action", "reward", "is_terminal")}
    for episode in episodes:
        zero = np.zeros(1)
        rows["observation"].append(episode.observations)
        rows["action"].append(np.concatenate([episode.actions, np.zeros(1, np.int32)]))
        rows["reward"].append(np.concatenate([episode.rewards, zero]))
        rows["is_terminal"].append(np.concatenate([np.zeros(len(episode.rewards), bool), [True]]))
    first = [np.arange(len(rewards)) == 0 for rewards in rows["reward"]]
    last = [row[::-1] for row in first]
    columns = {name: np.concatenate(parts) for name, parts in {**rows, "is_first": first, "is_last": last}.items()}
    np.savez(tmp_path / "shown.npz", **columns)
    update, expected = (make_update(with_gail(catch_agent(), shown)) for shown in (tmp_path / "shown.npz", episodes))
    found = update.init(KEY).demonstrations
    jax.tree.map(np.testing.assert_array_equal, found, expected.init(KEY).demonstrations)
    np.testing.assert_array_equal(found.observation[9], episodes[1].observations[0])  # Final ones have no action.
    np.testing.assert_array_equal(found.action, np.concatenate([episode.actions for episode in episodes]))


def test_a_path_stays_a_path_until_the_update_is_made() -> None:
    agent = with_gail(catch_agent(), "nowhere.npz")
    assert agent.make_update.demonstrations == "nowhere.npz" and agent == with_gail(catch_agent(), "nowhere.npz")
    agent.make_policy(agent.make_networks(CATCH_SPEC))


def test_several_summed_rewards_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"GAIL rewards single steps.*n_step=1, found 3"):
        with_gail(catch_agent(n_step=3), played(CATCH))


@pytest.mark.parametrize(
    ("around", "message"),
    [
        (with_normalization, r"other observations .*Write with_gail\(with_normalization\(agent\), demonstrations\)"),
        (functools.partial(with_normalization, observations=False, rewards=True), "rewards that it overwrites"),
        (functools.partial(with_addons, normalize="observations"), "--normalize"),
        (with_rnd, r"overwrite the intrinsic rewards.*Write with_gail\(with_rnd\(agent\), demonstrations\)"),
    ],
    ids=["observations", "rewards", "by name", "RND"],
)
def test_add_ons_that_belong_inside_are_refused_around_it(around: Any, message: str) -> None:
    for agent in (
        with_gail(catch_agent(), "nowhere.npz"),
        with_views(with_gail(catch_agent(), "nowhere.npz"), {"last": View("action", -1)}),
    ):
        with pytest.raises(ConfigError, match=message):
            around(agent)
    with_gail(around(catch_agent()), "nowhere.npz")


@pytest.mark.full
def test_it_learns_around_the_add_ons_that_belong_inside() -> None:
    agent = with_normalization(with_rnd(sac.make_agent(sac.Config(hidden_sizes=(8,), **SMALL))), rewards=True)
    agent = with_gail(agent, make_episodes(POINT_MASS, 2, (1.0,)), Config(hidden_sizes=(8,)))
    assert run_offline(OfflineConfig(agent, played(POINT_MASS), 5)).updates == 5


@pytest.mark.parametrize(
    ("demonstrations", "message"),
    [([], "at least 1 episode, found none"), (played(CATCH)[0], "found a single one"), ([{}], "found a dict in it")],
    ids=["none", "one", "dictionary"],
)
def test_what_is_no_demonstrations_is_refused_at_once(demonstrations: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=f"demonstrations: expected .*{message}"):
        with_gail(catch_agent(), demonstrations)


def test_demonstrations_of_another_environment_are_refused() -> None:
    episode = played(CATCH)[0]
    with pytest.raises(SpecError, match=r"episode 0, observations: expected float32\[10, 5\].*found float32\[2\]"):
        make_update(with_gail(catch_agent(), played(POINT_MASS)))
    narrow = episode._replace(observations=episode.observations[:, :, :4])
    with pytest.raises(SpecError, match=r"episode 1, observations: expected float32\[10, 5\].*found float32\[10, 4\]"):
        make_update(with_gail(catch_agent(), [episode, narrow]))
    with pytest.raises(SpecError, match=r"episode 0, actions of step 0: expected int32.* from 0 to 2, found int32 5"):
        make_update(with_gail(catch_agent(), [episode._replace(actions=episode.actions + 3)]))
    with pytest.raises(ConfigError, match=r"There is no file .*nowhere.npz"):
        make_update(with_gail(catch_agent(), "nowhere.npz"))


@pytest.mark.full
def test_it_does_as_demonstrated_whatever_the_environments_rewards_are() -> None:
    """Experts' returns are -0.65, those of their opposites -19.5: an imitator of these gets what they get.

    The rewards of the environment that it sees are the same. Random demonstrations would not do: what is learned from
    them is chance, and may be good.
    """
    config = sac.Config(
        hidden_sizes=(32, 32),
        learning_rate=3e-3,
        tau=0.02,
        discount=0.9,
        batch_size=64,
        updates_per_step=1.0,
        min_replay_size=100,
        num_random_steps=200,
    )

    def imitating_returns(skill: float, threshold: float, seeds: Sequence[int]) -> list[float]:
        demonstrations = make_episodes(POINT_MASS, 10, (skill,))
        agent = with_gail(sac.make_agent(config), demonstrations, Config(hidden_sizes=(32, 32)))
        return learns(agent, POINT_MASS, num_steps=2_000, threshold=threshold, seeds=seeds)

    imitating_returns(skill=1.0, threshold=-2.5, seeds=(0, 1, 2))
    assert max(imitating_returns(skill=-1.0, threshold=-25.0, seeds=(0,))) < -18.0


@pytest.mark.full
def test_ppo_imitates_where_there_is_no_reward_to_learn_from() -> None:
    """On-policy: the same agent, with demonstrations of experts, or of their opposites."""
    config = ppo.Config(
        hidden_sizes=(32, 32), segment_length=16, num_epochs=4, num_minibatches=2, discount=0.9, learning_rate=1e-3
    )
    discriminator = Config(hidden_sizes=(32, 32), learning_rate=1e-2)  # One step on each batch, so a larger one.

    def imitating_return(skill: float, threshold: float, num_steps: int) -> float:
        demonstrations = make_episodes(POINT_MASS, 10, (skill,))
        agent = with_gail(ppo.make_agent(config), demonstrations, discriminator)
        return learns(agent, POINT_MASS, num_steps=num_steps, threshold=threshold, seeds=(0,), num_envs=8)[0]

    imitating_return(1.0, threshold=-2.0, num_steps=60_000)
    assert imitating_return(-1.0, threshold=-25.0, num_steps=20_000) < -18.0
