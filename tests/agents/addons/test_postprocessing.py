"""A function between episodes and replay: what it sees, what is stored of it, resuming, and what is refused."""

import dataclasses
import pathlib
from typing import Any

import dm_env
import numpy as np
import pytest
import tree

from agentkit import envs, specs
from agentkit.adders import Trajectory
from agentkit.agents import dqn, iql, ppo, r2d2
from agentkit.agents.addons import View, with_postprocessing, with_prior_data, with_views
from agentkit.agents.common.agent import Agent
from agentkit.agents.common.experience_wrappers import WithRateLimiter
from agentkit.errors import ConfigError, NonFiniteError, SpecError
from agentkit.experiment import ExperimentConfig, run
from agentkit.learning import Linear
from agentkit.replay import InProcessReplay, Lockstep
from agentkit.wrappers import base
from tests.experiment.resumed import check_resumes

CONFIG = dqn.Config(n_step=3, hidden_sizes=(16,), batch_size=16, min_replay_size=30)
PPO = ppo.Config(batch_mode="complete_episodes", segment_length=20, batch_size=2, num_minibatches=1)
SEGMENTS = ppo.Config(segment_length=20, num_minibatches=1)


def unchanged(episode: Trajectory) -> Trajectory:
    return episode


def negated(episode: Trajectory) -> Trajectory:
    return episode._replace(reward=-episode.reward)


def negated_and_marked(episode: Trajectory) -> Trajectory:
    return negated(episode).with_columns(number=np.arange(len(episode.reward)))


def stored(agent: Agent[Any], num_episodes: int = 5, name: str = "agentkit:catch") -> Any:
    """Plays some episodes and returns the items that the agent then has."""
    environment = envs.make(name, seed=0)
    spec, rng = specs.make_environment_spec(environment), np.random.default_rng(0)
    policy = agent.make_policy(agent.make_networks(spec))
    extras = specs.zeros(policy.extras_spec)
    tables = agent.make_tables(spec)
    with InProcessReplay(tables) as replay:
        adder = agent.make_adder(replay, spec)
        for _ in range(num_episodes):
            timestep = environment.reset()
            adder.add_first(timestep)
            while not timestep.last():
                action = np.int32(rng.integers(spec.actions.num_values))
                timestep = environment.step(action)
                adder.add(action, timestep, extras)
        return replay.contents(tables[0].name)[0]


@pytest.mark.parametrize(
    "agent",
    [
        dqn.make_agent(CONFIG),
        r2d2.make_agent(r2d2.Config(sequence_length=6, sequence_period=3, burn_in=2)),
        with_views(dqn.make_agent(CONFIG), {"window": View("observation", "-2:0")}),
    ],
    ids=["transitions", "sequences", "views"],
)
def test_an_unchanged_episode_is_stored_as_it_was_played(agent: Agent[Any]) -> None:
    plain, processed = stored(agent), stored(with_postprocessing(agent, unchanged))
    tree.map_structure(np.testing.assert_array_equal, plain, processed)


def test_it_sees_an_episode_whole_and_what_it_returns_is_stored() -> None:
    seen: list[Trajectory] = []

    def postprocess(episode: Trajectory) -> Trajectory | None:
        seen.append(episode)
        if len(seen) == 2:
            return None
        rewards = np.cumsum(np.arange(len(episode.reward)))
        first = 2 if len(seen) == 3 else 0  # Its beginning is cut off.
        return Trajectory(
            episode.observation[first:], episode.action[first:], rewards[first:], episode.discount[first:], ()
        )

    agent = with_postprocessing(dqn.make_agent(dqn.Config(n_step=1)), postprocess)
    items = stored(agent, 3)
    for episode in seen:
        assert episode.observation.shape == (10, 10, 5) and episode.action.shape == episode.reward.shape == (9,)
        assert episode.discount.tolist() == [1.0] * 8 + [0.0] and abs(episode.reward[-1]) == 1
    expected = np.cumsum(np.arange(9))
    assert items.reward.tolist() == [*expected, *expected[2:]]
    np.testing.assert_array_equal(items.observation, [*seen[0].observation[:-1], *seen[2].observation[2:-1]])
    np.testing.assert_array_equal(items.next_observation, [*seen[0].observation[1:], *seen[2].observation[3:]])
    assert items.action.tolist() == [*seen[0].action, *seen[2].action[2:]]
    assert (items.discount == 0).sum() == 2


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda episode: episode.reward, "postprocess returned a ndarray. Expected the Trajectory"),
        (lambda episode: Trajectory(*(leaf[:0] for leaf in episode[:4]), ()), "an episode without steps"),
        (lambda episode: episode._replace(action=episode.action[1:]), r"9 rewards and action .* of shape \[8\]; .* 9"),
        (lambda episode: episode._replace(observation=episode.observation[1:]), "expected 10 rows"),
        (lambda episode: episode._replace(discount=np.float32(1)), r"discount .* of shape \[\]; expected 9 rows"),
        (lambda episode: episode._replace(extras={"x": episode.reward}), "changed the structure of extras"),
        (lambda episode: episode._replace(reward=np.stack([episode.reward] * 2, -1)), r"reward leaf .* found .*\[2\]"),
    ],
)
def test_what_does_not_fit_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        stored(with_postprocessing(dqn.make_agent(CONFIG), wrong))


def with_return_to_go(episode: Trajectory) -> Trajectory:
    return episode.with_columns(return_to_go=np.cumsum(episode.reward[::-1])[::-1])


def test_a_column_that_is_known_at_the_end_of_an_episode_is_stored_with_each_step() -> None:
    agent = with_postprocessing(dqn.make_agent(CONFIG), with_return_to_go, columns={"return_to_go": 0.0})
    items, plain = stored(agent, 2), stored(dqn.make_agent(CONFIG), 2)
    found = items.extras["return_to_go"].reshape(2, -1)
    outcomes = np.sign(plain.reward).reshape(2, -1)[:, -1:]  # The one reward of an episode is its last.
    assert found.dtype == np.float32 and np.abs(outcomes).tolist() == [[1], [1]]
    np.testing.assert_array_equal(found, np.broadcast_to(outcomes, found.shape))
    np.testing.assert_array_equal(items.observation, plain.observation)


def numbered(piece: Trajectory) -> Trajectory:
    length = len(piece.reward)
    assert len(piece.observation) == length + 1 and len(tree.flatten(piece.extras)[0]) == length
    marks = {"length": np.full(length, length), "position": np.arange(length)}
    return piece._replace(reward=piece.reward + 10).with_columns(**marks)


def test_a_function_sees_the_steps_of_each_episode_in_a_segment() -> None:
    agent = ppo.make_agent(dataclasses.replace(PPO, batch_mode="truncate_episodes", segment_length=7, batch_size=9))
    limited = dataclasses.replace(agent, experience=WithRateLimiter(agent.experience, Lockstep(1, 1)))
    columns = {"length": 0, "position": 0}
    plain, processed = stored(agent), stored(with_postprocessing(agent, numbered, columns=columns))
    assert isinstance(with_postprocessing(limited, numbered, columns=columns), Agent)
    # A row is one of 9 steps, or the final observation behind them.
    episode, time = np.divmod(np.arange(len(plain.reward))[:, None] * 7 + np.arange(7), 10)
    has_action = time < 9
    for row, (numbers, acts) in enumerate(zip(episode, has_action, strict=True)):
        for number in set(numbers.tolist()):
            where = (numbers == number) & acts
            assert set(processed.extras.columns["length"][row, :7][where]) <= {where.sum()}
            assert processed.extras.columns["position"][row, :7][where].tolist() == list(range(where.sum()))
    for part in [*processed.extras.columns.values(), processed.action]:
        assert not part[:, :7][~has_action].any()
    np.testing.assert_array_equal(processed.reward[:, :7], plain.reward[:, :7] + 10 * has_action)
    np.testing.assert_array_equal(processed.observation, plain.observation)
    np.testing.assert_array_equal(processed.start_of_episode, plain.start_of_episode)


def shorter(piece: Trajectory) -> Trajectory:
    rows = (tree.map_structure(lambda leaf: leaf[1:], part) for part in piece)
    return Trajectory(*rows)


def nan_reward_in_place(episode: Trajectory) -> Trajectory:
    episode.reward[-1] = np.nan
    return episode


@pytest.mark.parametrize("config", [CONFIG, dataclasses.replace(SEGMENTS, segment_length=5, batch_size=4)])
def test_numbers_that_the_function_made_nan_are_refused_before_replay(config: Any) -> None:
    agent = (dqn if config is CONFIG else ppo).make_agent(config)
    for wrong, part in (
        (nan_reward_in_place, "reward"),
        (lambda episode: episode._replace(observation=episode.observation + np.inf), "observation"),
    ):
        with pytest.raises(NonFiniteError, match=f"finite numbers, found nan or inf in the {part}"):
            stored(with_postprocessing(agent, wrong))


@pytest.mark.parametrize("part", ["reward", "observation", "next_observation"])
def test_the_environments_own_nan_is_left_to_what_looks_at_its_steps(part: str) -> None:
    spec = specs.make_environment_spec(envs.make("agentkit:catch", seed=0))
    agent = with_postprocessing(dqn.make_agent(dataclasses.replace(CONFIG, n_step=1)), unchanged)
    with InProcessReplay(agent.make_tables(spec)) as replay:
        adder, observation = agent.make_adder(replay, spec), specs.zeros(spec.observations)
        step: dict[str, Any] = {"observation": observation, "reward": 0.0, "next_observation": observation}
        step[part] = step[part] + np.float32(np.nan)
        adder.add_first(dm_env.restart(step["observation"]))
        adder.add(np.int32(0), dm_env.termination(step["reward"], step["next_observation"]))
        assert np.isnan(getattr(replay.contents("transitions")[0], part)).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (shorter, "4 steps for 5 steps"),
        (lambda _: None, "None for 5 steps"),
        (lambda piece: piece._replace(reward=np.float32(0)), " 0 steps for 5 steps"),
    ],
)
def test_a_segment_keeps_its_steps(wrong: Any, says: str) -> None:
    agent = ppo.make_agent(dataclasses.replace(PPO, batch_mode="truncate_episodes", segment_length=5, batch_size=4))
    with pytest.raises(SpecError, match=says):
        stored(with_postprocessing(agent, wrong))


def test_views_of_segments_and_columns_that_are_none_are_refused() -> None:
    views = with_views(ppo.make_agent(), {"window": View("observation", "-2:0")})
    with pytest.raises(ConfigError, match="found views"):
        with_postprocessing(views, numbered)
    for columns in ({"t": 0}, {"info.x": 0}, {"name": "x"}, {"some": None}):
        with pytest.raises(ConfigError, match="columns: expected a name other than"):
            with_postprocessing(dqn.make_agent(), numbered, columns=columns)


def test_agents_whose_data_a_run_would_not_find_are_refused() -> None:
    prior = with_prior_data(dqn.make_agent(CONFIG), "data.hdf5")
    for refused in (prior, iql.make_agent()):
        with pytest.raises(ConfigError, match="prior data or scales the rewards"):
            with_postprocessing(refused, unchanged)


class Negated(base.EnvironmentWrapper):
    """Gives minus the reward, in training and in evaluation."""

    def step(self, action: Any) -> Any:
        timestep = super().step(action)
        return timestep._replace(reward=-timestep.reward)


@pytest.mark.full
def test_it_learns_what_the_function_rewards() -> None:
    """In catch with the reward's sign exchanged, the function exchanges it again, and the ball is caught."""
    config = dqn.Config(
        n_step=5,
        batch_size=32,
        min_replay_size=200,
        updates_per_step=1.0,
        target_update_period=50,
        epsilon=Linear(1.0, 0.1, 1_000),
    )
    agent = with_postprocessing(dqn.make_agent(config), negated)
    returns = []
    for seed in range(3):
        experiment = ExperimentConfig(
            agent, "agentkit:catch", 3_500, seed=seed, wrappers=(Negated,), evaluation_period=0
        )
        policy, environment = run(experiment).policy, envs.make("agentkit:catch", seed=seed)
        for _ in range(20):
            timestep, state = environment.reset(), None
            while not timestep.last():
                action, state = policy(timestep.observation, state)
                timestep = environment.step(action)
            returns.append(timestep.reward)
    assert np.mean(returns) >= 0.9


@pytest.mark.full
@pytest.mark.one_case
@pytest.mark.parametrize("num_envs", [None, 3])
@pytest.mark.parametrize(
    "agent", [dqn.make_agent(CONFIG), ppo.make_agent(PPO), ppo.make_agent(SEGMENTS)], ids=["dqn", "ppo", "segments"]
)
def test_a_run_resumes_equal_in_mid_episode(agent: Agent[Any], num_envs: int | None, tmp_path: pathlib.Path) -> None:
    def trained(directory: str, num_steps: int, **resume: Any) -> Any:
        experiment = ExperimentConfig(
            with_postprocessing(agent, negated_and_marked, columns={"number": 0}),
            "agentkit:catch",
            num_steps,
            num_envs=num_envs,
            run_directory=tmp_path / directory,
            evaluation_period=0,
            checkpoint_period=31,
        )
        return run(experiment, **resume)

    check_resumes(trained, tmp_path, 122)
